// SPDX-License-Identifier: Apache-2.0
// Banned words: strings that the text of an output never holds, however it is cut into tokens. Before each draw the
// tokens that would complete one are taken out. Immutable once made, so threads may share it. Lengths are bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "galley/base/error.h"
#include "galley/base/strong_id.h"
#include "galley/engine/stop_strings.h"
#include "galley/text/tokenizer.h"

namespace galley::engine {

// The ordinary tokens of a vocabulary in the order of their bytes. Refers to the tokenizer, which must outlive it.
class TokensByBytes {
 public:
  using Entry = std::pair<std::string_view, TokenId>;

  TokensByBytes(const text::Tokenizer& tokenizer, int vocab_size);

  [[nodiscard]] std::span<const Entry> all() const { return entries_; }
  [[nodiscard]] std::span<const Entry> StartingWith(std::string_view prefix) const;
  // Bytes of a token; empty for control tokens and for ids without a token.
  [[nodiscard]] std::string_view BytesOf(TokenId id) const;

 private:
  std::vector<Entry> entries_;
  std::vector<std::string_view> bytes_;  // by id
};

class BannedWords {
 public:
  // `tokens` must outlive the result. Errors: those of StopSet::Create, naming banned_words.
  [[nodiscard]] static Result<BannedWords> Create(std::span<const std::string> words, const TokensByBytes& tokens);

  [[nodiscard]] bool empty() const { return words_.strings().empty(); }
  // Takes the tokens that would complete a banned word behind `output` and `drafts` out of the mask `allowed`. Control
  // tokens say nothing, so no word reaches across one. `tail` is scratch.
  void Apply(std::span<const TokenId> output, std::span<const TokenId> drafts, std::span<std::uint32_t> allowed,
             std::string& tail) const;

 private:
  const TokensByBytes* tokens_ = nullptr;
  StopSet words_;
  std::size_t longest_ = 0;
  std::vector<TokenId> always_;  // tokens that hold a whole word
};

}  // namespace galley::engine
