// SPDX-License-Identifier: Apache-2.0
// Cutting text that a message quotes. Pure; lengths are bytes.
#pragma once

#include <cstddef>
#include <string_view>

namespace galley {

// The beginning of `text`, at most `bytes_max`, that does not end inside a character of UTF-8: up to three bytes less.
// Where `text` is no UTF-8 the cut falls somewhere in these four places.
[[nodiscard]] constexpr std::string_view CutUtf8(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  std::size_t end = bytes_max;
  while (end > 0 && bytes_max - end < 3 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

}  // namespace galley
