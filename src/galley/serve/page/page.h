// SPDX-License-Identifier: Apache-2.0
// The page that the server shows at `/`: one HTML file without anything from outside, which talks to the same server's
// /v1/chat/completions, /v1/models, /stats and /metrics. Part of the program; constant.
#pragma once

#include <string_view>

namespace galley::serve {

[[nodiscard]] std::string_view PageHtml();

}  // namespace galley::serve
