// SPDX-License-Identifier: Apache-2.0
// Split patterns that are not the official ones, run by PCRE2. The patterns come from a file that may be hostile, so
// every split has a budget of steps that grows with the text: a pattern that backtracks beyond it is an error, never a
// hang. Immutable after creation; any thread may split.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/error.h"

namespace galley::text {

class RegexSplitter {
 public:
  // `patterns` apply one after the other, each to the pieces of the one before. `where` names the file in errors.
  // Errors: kUnsupported when PCRE2 does not accept a pattern or it is longer than 4,096 bytes.
  [[nodiscard]] static Result<RegexSplitter> Create(std::span<const std::string> patterns, std::string_view where);

  RegexSplitter(RegexSplitter&&) noexcept;
  RegexSplitter& operator=(RegexSplitter&&) noexcept;
  ~RegexSplitter();

  // Ends of the pieces of `text`: matches and the gaps between them, none of them empty; the last is text.size().
  // Invalid UTF-8 matches nothing. Errors: kResourceExhausted when the budget is spent.
  [[nodiscard]] Result<std::vector<std::size_t>> Split(std::string_view text) const;

 private:
  struct Impl;
  explicit RegexSplitter(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace galley::text
