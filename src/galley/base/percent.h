// SPDX-License-Identifier: Apache-2.0
// Percent escapes of URLs.
#pragma once

#include <charconv>
#include <string>
#include <string_view>

namespace galley {

// With every escape (%2F) as the byte that it stands for; what is no escape stays as it is.
[[nodiscard]] inline std::string DecodePercent(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, byte, 16).ptr == text.data() + i + 3) {
      out.push_back(static_cast<char>(byte));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

}  // namespace galley
