// SPDX-License-Identifier: Apache-2.0
// Finds spellings of added tokens in text: leftmost, then longest, in two passes as the reference library does it. The
// first pass looks for the tokens that are not normalised, the second for the normalised ones in what the first left.
// Immutable and shared by threads.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "galley/base/strong_id.h"

namespace galley::text {

// Longest spelling of an added token; bounds the work at each byte of a text.
inline constexpr std::size_t kAddedTokenBytesMax = 256;

struct AddedToken {
  std::string content;
  TokenId id = -1;
  bool special = false;
  bool normalized = false;
};

struct AddedMatch {
  std::size_t begin;
  std::size_t end;
  TokenId id;
};

// The spellings of one pass.
class SpellingSet {
 public:
  void Add(std::string_view content, TokenId id);
  // To be called once, after all Add.
  void Seal();

  // The first match at or after `from`; nullopt: none.
  [[nodiscard]] std::optional<AddedMatch> FindNext(std::string_view text, std::size_t from) const;

 private:
  // Longest spelling that starts at `at`.
  [[nodiscard]] std::optional<AddedMatch> MatchAt(std::string_view text, std::size_t at) const;

  std::vector<std::pair<std::string, TokenId>> spellings_;  // sorted by bytes
  std::array<bool, 256> first_byte_{};
};

class AddedTokenMatcher {
 public:
  explicit AddedTokenMatcher(const std::vector<AddedToken>& tokens);

  // Matches in order of place; they do not overlap.
  [[nodiscard]] std::vector<AddedMatch> FindAll(std::string_view text) const;

 private:
  SpellingSet raw_;         // not normalised: found first
  SpellingSet normalized_;  // found in the rest
};

}  // namespace galley::text
