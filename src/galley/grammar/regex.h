// SPDX-License-Identifier: Apache-2.0
// Regular expressions as syntax trees over code points, and the reader of the ECMA-262 dialect (flag u) that JSON
// Schema names. Also read, because users write them: identity escapes of punctuation, literal braces, leading (?i),
// (?s), (?m) and their groups, (?P<name>…), \pL. Refused with their position: look-around, back-references, atomic and
// possessive forms, conditionals. Plain values.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "galley/grammar/code_point_set.h"
#include "galley/grammar/compile_error.h"

namespace galley::grammar {

inline constexpr std::uint32_t kUnbounded = std::numeric_limits<std::uint32_t>::max();

struct Regex {
  enum class Kind { kEmpty, kSet, kConcat, kAlternate, kRepeat, kAssert };
  enum class Assertion { kTextStart, kTextEnd, kLineStart, kLineEnd, kWordEdge, kNotWordEdge };

  Kind kind = Kind::kEmpty;
  CodePointSet set;             // kSet; an empty set matches nothing
  std::vector<Regex> children;  // kConcat, kAlternate; the one operand of kRepeat
  std::uint32_t min = 0;        // kRepeat
  std::uint32_t max = 0;        // kRepeat, kUnbounded for none
  Assertion assertion = Assertion::kTextStart;

  [[nodiscard]] static Regex Set(CodePointSet set);
  [[nodiscard]] static Regex Literal(std::string_view utf8);
  [[nodiscard]] static Regex Concat(std::vector<Regex> children);
  [[nodiscard]] static Regex Alternate(std::vector<Regex> children);
  [[nodiscard]] static Regex Repeat(Regex operand, std::uint32_t min, std::uint32_t max);
  [[nodiscard]] static Regex Nothing() { return Set({}); }
};

// Reads a pattern. Errors: kBadRegex with the byte position in the pattern, kTooComplex for nesting.
[[nodiscard]] Compiled<Regex> ParseRegex(std::string_view pattern, const Limits& limits);

// The ASCII classes of ECMA-262.
[[nodiscard]] CodePointSet DigitSet();
[[nodiscard]] CodePointSet WordSet();
[[nodiscard]] CodePointSet SpaceSet();
[[nodiscard]] CodePointSet LineEndSet();

}  // namespace galley::grammar
