// SPDX-License-Identifier: Apache-2.0
// Token ids that come from outside. Pure.
#pragma once

#include <span>
#include <string_view>

#include "galley/base/error.h"
#include "galley/base/strong_id.h"
#include "galley/model/config.h"

namespace galley::engine {

// Ids of a prompt. kInvalidArgument for an id outside the vocabulary; kUnsupported for the image token, which stands
// for rows that a vision tower makes. `field` names the list.
[[nodiscard]] Status CheckPromptIds(std::span<const TokenId> ids, const model::Config& config, std::string_view field);

// Any list of ids: only the vocabulary counts.
[[nodiscard]] Status CheckVocabulary(std::span<const TokenId> ids, const model::Config& config, std::string_view field);

}  // namespace galley::engine
