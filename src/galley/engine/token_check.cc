// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/token_check.h"

#include <fmt/core.h>

#include <string>

namespace galley::engine {

Status CheckVocabulary(std::span<const TokenId> ids, const model::Config& config, std::string_view field) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < config.vocab_size) continue;
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("id {} at place {} is outside the vocabulary of {} tokens", ids[i], i, config.vocab_size),
               std::string(field));
  }
  return {};
}

Status CheckPromptIds(std::span<const TokenId> ids, const model::Config& config, std::string_view field) {
  RETURN_IF_ERROR(CheckVocabulary(ids, config, field));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] != config.image_token_id) continue;
    return Err(ErrorCode::kUnsupported,
               fmt::format("id {} at place {} is the image token; {}", ids[i], i,
                           config.vision.n_layers > 0 ? "pictures are not available in this version"
                                                      : "this model has no vision tower"),
               std::string(field));
  }
  return {};
}

}  // namespace galley::engine
