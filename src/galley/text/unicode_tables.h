// SPDX-License-Identifier: Apache-2.0
// Expands the tables that scripts/gen_unicode_tables.py writes, at compile time. A table is text: a value, then in
// decimal how often it comes in a row where that is more than once, then the next value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "galley/text/unicode.h"

namespace galley::text::internal {

// Calls `each` for every value of `runs`, one character or two wide, as often as it comes.
template <typename Each>
constexpr void ForEachOfRuns(std::string_view runs, std::size_t width, Each each) {
  for (std::size_t at = 0; at < runs.size();) {
    const std::string_view value = runs.substr(at, width);
    at += width;
    int times = 0;
    for (; at < runs.size() && runs[at] >= '0' && runs[at] <= '9'; ++at) times = 10 * times + (runs[at] - '0');
    for (int i = 0; i < (times == 0 ? 1 : times); ++i) each(value);
  }
}

// Two characters a block: 0x40 and its upper bits, 0x60 and its lower four.
consteval UnicodeIndex ExpandIndex(std::string_view runs) {
  UnicodeIndex index{};
  std::size_t at = 0;
  ForEachOfRuns(runs, 2, [&](std::string_view value) {
    index[at++] = static_cast<std::uint8_t>((value[0] - 0x40) << 4 | (value[1] - 0x60));
  });
  return at == index.size() ? index : throw "the index does not name every block";
}

// A character a code point: 0x40 and its value.
consteval UnicodeBlocks ExpandBlocks(std::string_view runs) {
  UnicodeBlocks blocks{};
  std::size_t at = 0;
  ForEachOfRuns(runs, 1, [&](std::string_view value) { blocks[at++] = static_cast<std::uint8_t>(value[0] - 0x40); });
  return blocks;
}

}  // namespace galley::text::internal
