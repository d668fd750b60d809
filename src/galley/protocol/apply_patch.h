// SPDX-License-Identifier: Apache-2.0
// Fixed texts of the one custom tool that the Responses API may declare without a schema.
#pragma once

#include <string>
#include <string_view>

#include "galley/protocol/conversation.h"

namespace galley::protocol {

[[nodiscard]] std::string ApplyPatchDescription(ModelVersion version);
extern const std::string_view kApplyPatchInputDescription;

}  // namespace galley::protocol
