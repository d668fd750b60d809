// SPDX-License-Identifier: Apache-2.0
// Finds one pattern in a stream of bytes (Knuth–Morris–Pratt), minding where each byte comes from. Constant memory per
// pattern, amortised constant time per byte. Internal to the output parser.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "galley/protocol/output_parser.h"

namespace galley::protocol::internal {

class Matcher {
 public:
  // `special` is a part of `pattern` that must come from an added token or from text; the rest must not come from an
  // added token. Only patterns without repeated beginnings may have a special part. With `newlines`, any run of \n
  // right before the pattern belongs to a match.
  explicit Matcher(std::string pattern, std::string_view special = {}, bool newlines = false);

  // Takes a byte; true when the pattern is complete. To be reset before the next byte then.
  bool Step(char byte, PieceSource source);
  void Reset();

  // Bytes at the end of the input that may become a match.
  [[nodiscard]] std::size_t live() const { return newline_count_ + matched_; }

 private:
  [[nodiscard]] bool Fits(std::size_t at, char byte, PieceSource source) const;

  std::string pattern_;
  std::vector<std::size_t> border_;  // of each prefix: length of the longest proper prefix that is also its suffix
  std::size_t special_begin_ = 0;
  std::size_t special_end_ = 0;
  bool newlines_;
  std::size_t matched_ = 0;
  std::size_t newline_count_ = 0;
};

}  // namespace galley::protocol::internal
