// SPDX-License-Identifier: Apache-2.0
// Takes the arguments of a custom tool's call, {"input": "…"}, apart while they arrive: gives the text of the string.
// The arguments come from our own parser, so their form is known and escapes are never cut. Internal.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace galley::protocol::internal {

class PatchInput {
 public:
  // The decoded text in the next fragment; nullopt when it holds only what is around the string.
  std::optional<std::string> Push(std::string_view fragment) {
    std::optional<std::string> text;
    for (std::size_t i = 0; i < fragment.size(); ++i) {
      const char c = fragment[i];
      if (!in_value_) {
        head_ += c;
        in_value_ = head_.ends_with("\": \"");
        continue;
      }
      if (ended_) continue;
      if (c == '"') {
        ended_ = true;
        continue;
      }
      if (!text) text.emplace();
      if (c == '\\' && i + 1 < fragment.size())
        *text += Unescape(fragment, i);
      else
        *text += c;
    }
    return text;
  }

 private:
  // The character behind the backslash at `i`, which moves to the escape's last byte.
  static char Unescape(std::string_view fragment, std::size_t& i) {
    constexpr std::string_view kLetters = "nrtbf", kBytes = "\n\r\t\b\f";
    const char letter = fragment[++i];
    if (const std::size_t at = kLetters.find(letter); at != std::string_view::npos) return kBytes[at];
    if (letter != 'u' || i + 4 >= fragment.size()) return letter;
    int value = 0;
    for (int k = 0; k < 4; ++k) {
      const char hex = fragment[++i];
      value = value * 16 + (hex <= '9' ? hex - '0' : (hex | 0x20) - 'a' + 10);
    }
    return static_cast<char>(value);  // only control characters are written this way
  }

  std::string head_;
  bool in_value_ = false;
  bool ended_ = false;
};

}  // namespace galley::protocol::internal
