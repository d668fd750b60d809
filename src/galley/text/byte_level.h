// SPDX-License-Identifier: Apache-2.0
// The byte-level alphabet of GPT-2: tokenizer.json spells each byte of an ordinary token as one visible character, the
// byte itself where it is a visible Latin-1 character and U+0100 onwards for the other 68 ("Ġ" is the space). Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace galley::text {

inline constexpr int kByteAlphabetSize = 0x144;  // code points below this may be letters of the alphabet

// Character that spells `byte`.
[[nodiscard]] char32_t ByteSpelling(std::uint8_t byte);

// Appends the bytes that `spelling` stands for. False, with `out` unchanged, when a character is outside the alphabet.
[[nodiscard]] bool AppendBytesOfSpelling(std::string_view spelling, std::string& out);

[[nodiscard]] std::string SpellingOfBytes(std::string_view bytes);

}  // namespace galley::text
