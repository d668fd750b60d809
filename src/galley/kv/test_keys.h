// SPDX-License-Identifier: Apache-2.0
// Prompts and roots of key chains for tests of caches and of what uses them.
#pragma once

#include <string_view>
#include <vector>

#include "galley/kv/block_key.h"

namespace galley::kv {

inline BlockKey TestRoot(std::string_view salt = "") {
  return RootKey({.model = "test",
                  .weights_digest = "",
                  .tokenizer_digest = "",
                  .layout = "",
                  .dtype = "",
                  .numeric_class = "",
                  .shard = "",
                  .salt = salt});
}

// `shared` tokens that all prompts have in common, then tokens of this `id` only.
inline std::vector<TokenId> TestPrompt(int length, int shared, std::int64_t id) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(length));
  for (int i = 0; i < length; ++i) {
    tokens[static_cast<std::size_t>(i)] = i < shared ? i : static_cast<TokenId>(1'000'000 + 5000 * id + i);
  }
  return tokens;
}

}  // namespace galley::kv
