// SPDX-License-Identifier: Apache-2.0
// The built-in web page, page/page.html, compiled in.
#pragma once

#include <string_view>

namespace galley::serve {

// HTML of GET /; empty when the source tree had none.
[[nodiscard]] std::string_view PageHtml();

}  // namespace galley::serve
