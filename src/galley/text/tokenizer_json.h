// SPDX-License-Identifier: Apache-2.0
// Reader of tokenizer.json: checks that the file asks for nothing but what this layer does, and returns its parts. The
// file may be hostile; every value is checked before use. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/error.h"
#include "galley/text/added_tokens.h"
#include "galley/text/bpe.h"
#include "galley/text/vocabulary.h"

namespace galley::text {

inline constexpr std::size_t kTokenizerFileBytesMax = 256U << 20;

struct TokenizerParts {
  Vocabulary vocabulary;
  std::array<TokenId, 256> byte_ids{};
  std::vector<Merge> merges;  // in order of rank
  std::vector<AddedToken> added_tokens;
  std::vector<std::string> split_patterns;  // applied one after the other; empty: the whole text is one piece
};

// Errors: kInvalidArgument (not JSON, a wrong type, a limit), kUnsupported (a feature or key outside what
// docs/tokenizer.md lists), kCorrupt (parts contradict each other). `where` of the error is "<file>: <field>".
[[nodiscard]] Result<TokenizerParts> ParseTokenizerJson(std::string_view json, std::string_view file);

}  // namespace galley::text
