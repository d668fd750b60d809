// SPDX-License-Identifier: Apache-2.0
// Character classes from tables pinned to Unicode 16.0.0, the version of the regex engine that the reference tokenizer
// library runs. System libraries are not asked, because their versions differ between distributions and a class that
// changes moves token borders. Pure.
#pragma once

#include <array>
#include <cstdint>

namespace galley::text {

// General category by its first letter, except that kSpace is the property White_Space, which regexes call \s: every Z
// and the controls U+0009 to U+000D and U+0085. kOther is the rest of C, unassigned code points and surrogates
// included.
enum class CharGroup : std::uint8_t { kOther, kLetter, kMark, kNumber, kPunctuation, kSymbol, kSpace };

namespace internal {
inline constexpr int kUnicodeBlockBits = 7;
inline constexpr std::uint8_t kGroupMask = 7;
inline constexpr std::uint8_t kRecentBit = 8;
using UnicodeIndex = std::array<std::uint8_t, (0x110000 >> kUnicodeBlockBits)>;
using UnicodeBlocks = std::array<std::uint8_t, 256 << kUnicodeBlockBits>;
extern const UnicodeIndex kUnicodeIndex;    // of each 128 code points, their block
extern const UnicodeBlocks kUnicodeBlocks;  // values of the code points of each block

// Requires code < 0x110000.
inline std::uint8_t UnicodeValue(char32_t code) {
  const unsigned block = kUnicodeIndex[code >> kUnicodeBlockBits];
  return kUnicodeBlocks[(block << kUnicodeBlockBits) | (code & ((1U << kUnicodeBlockBits) - 1))];
}
}  // namespace internal

// Requires code < 0x110000, as do the functions below.
[[nodiscard]] inline CharGroup GroupOf(char32_t code) {
  return static_cast<CharGroup>(internal::UnicodeValue(code) & internal::kGroupMask);
}

// Whether Unicode 14.0.0 does not assign `code`.
[[nodiscard]] inline bool IsNewerThanUnicode14(char32_t code) {
  return (internal::UnicodeValue(code) & internal::kRecentBit) != 0;
}

}  // namespace galley::text
