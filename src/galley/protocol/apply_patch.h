// SPDX-License-Identifier: Apache-2.0
// Fixed texts of the one custom tool that the Responses API may declare without a schema.
#pragma once

#include <string_view>

namespace galley::protocol {

extern const std::string_view kApplyPatchDescription;
extern const std::string_view kApplyPatchInputDescription;

}  // namespace galley::protocol
