// SPDX-License-Identifier: Apache-2.0
// Sets of Unicode code points as sorted, disjoint, non-adjacent ranges. Plain values.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "galley/grammar/unicode_properties.h"

namespace galley::grammar {

inline constexpr std::uint32_t kCodePointMax = 0x10FFFF;

class CodePointSet {
 public:
  CodePointSet() = default;
  [[nodiscard]] static CodePointSet Single(std::uint32_t c) { return Range(c, c); }
  [[nodiscard]] static CodePointSet Range(std::uint32_t first, std::uint32_t last);
  [[nodiscard]] static CodePointSet All() { return Range(0, kCodePointMax); }
  [[nodiscard]] static CodePointSet Of(std::span<const CodePointRange> ranges);

  [[nodiscard]] std::span<const CodePointRange> ranges() const { return ranges_; }
  [[nodiscard]] bool empty() const { return ranges_.empty(); }
  [[nodiscard]] bool Contains(std::uint32_t c) const;

  void Add(const CodePointSet& other);
  [[nodiscard]] CodePointSet Negated() const;
  [[nodiscard]] CodePointSet Intersected(const CodePointSet& other) const;
  // Every code point whose simple case folding is that of a member.
  [[nodiscard]] CodePointSet CaseClosed() const;

  friend bool operator==(const CodePointSet& a, const CodePointSet& b);
  friend bool operator<(const CodePointSet& a, const CodePointSet& b);

 private:
  std::vector<CodePointRange> ranges_;
};

}  // namespace galley::grammar
