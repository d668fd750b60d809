// SPDX-License-Identifier: Apache-2.0
// Partition of the code points into classes that an automaton cannot tell apart. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "galley/grammar/code_point_set.h"

namespace galley::grammar {

class CharClasses {
 public:
  // One class that holds everything.
  CharClasses();
  // Classes by membership in `sets`.
  [[nodiscard]] static CharClasses OfSets(std::span<const CodePointSet> sets);
  // The common refinement. `maps[i][c]` becomes the class in `parts[i]` of refined class c.
  [[nodiscard]] static CharClasses Refine(std::span<const CharClasses* const> parts,
                                          std::vector<std::vector<std::uint32_t>>& maps);

  [[nodiscard]] std::uint32_t count() const { return count_; }
  [[nodiscard]] std::uint32_t ClassOf(std::uint32_t c) const { return c < 128 ? ascii_[c] : class_of_[IntervalOf(c)]; }
  // First code point of each interval, ascending from 0; interval i has class `class_at(i)`.
  [[nodiscard]] std::span<const std::uint32_t> starts() const { return starts_; }
  [[nodiscard]] std::uint32_t class_at(std::size_t interval) const { return class_of_[interval]; }
  [[nodiscard]] std::size_t IntervalOf(std::uint32_t c) const;

 private:
  void FillAscii();

  std::vector<std::uint32_t> starts_;
  std::vector<std::uint32_t> class_of_;
  std::array<std::uint32_t, 128> ascii_{};
  std::uint32_t count_ = 1;
};

}  // namespace galley::grammar
