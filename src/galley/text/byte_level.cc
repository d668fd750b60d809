// SPDX-License-Identifier: Apache-2.0
#include "galley/text/byte_level.h"

#include "galley/text/utf8.h"

namespace galley::text {
namespace {

constexpr bool SpellsItself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<char16_t, 256> char_of_byte{};
  std::array<std::int16_t, kByteAlphabetSize> byte_of_char{};  // -1: not in the alphabet
};

constexpr Alphabet kAlphabet = [] {
  Alphabet alphabet;
  alphabet.byte_of_char.fill(-1);
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const unsigned c = SpellsItself(byte) ? byte : next++;
    alphabet.char_of_byte[byte] = static_cast<char16_t>(c);
    alphabet.byte_of_char[c] = static_cast<std::int16_t>(byte);
  }
  return alphabet;
}();

}  // namespace

char32_t ByteSpelling(std::uint8_t byte) {
  return kAlphabet.char_of_byte[byte];
}

bool AppendBytesOfSpelling(std::string_view spelling, std::string& out) {
  const std::size_t before = out.size();
  std::size_t pos = 0;
  while (pos < spelling.size()) {
    const Utf8Char c = DecodeUtf8(spelling, pos);
    const int byte = c.code < kByteAlphabetSize ? kAlphabet.byte_of_char[c.code] : -1;
    if (byte < 0) {
      out.resize(before);
      return false;
    }
    out.push_back(static_cast<char>(byte));
    pos += c.length;
  }
  return true;
}

std::string SpellingOfBytes(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) AppendUtf8(out, ByteSpelling(static_cast<std::uint8_t>(byte)));
  return out;
}

}  // namespace galley::text
