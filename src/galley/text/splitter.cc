// SPDX-License-Identifier: Apache-2.0
#include "galley/text/splitter.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "galley/text/unicode.h"
#include "galley/text/utf8.h"

namespace galley::text {
namespace {

// What the patterns tell apart. Letters and marks are one class: the only place where they differ is the optional
// character before a run of both, and taking a mark there or into the run gives the same piece.
enum Class : std::uint8_t {
  kWord,     // \p{L} \p{M}
  kPunct,    // \p{P} \p{S}
  kBlank,    // U+0020
  kWhite,    // \s other than U+0020, CR and LF
  kNewline,  // CR, LF
  kDigit,    // \p{N}
  kNone,     // everything else
  kEnd,      // behind the text
};
// Set for the characters of pattern 2, whose runs are pieces of their own: nothing joins or looks across their borders.
constexpr std::uint8_t kCjk = 8;

struct Unit {
  std::uint8_t cls;
  std::uint8_t length;
};

constexpr bool IsAsciiLetter(unsigned char c) {
  return static_cast<unsigned char>((c | 0x20U) - 'a') < 26;
}

// How many of the eight bytes at `data` come before the first that is no ASCII letter. The high bit of each byte of the
// sums says whether a letter, made lower case, is at least 'a' or above 'z'. A byte that is not ASCII can carry into
// the bytes behind it, which no longer matter then.
std::size_t LeadingAsciiLetters(const char* data) {
  static_assert(std::endian::native == std::endian::little, "the first byte is the lowest");
  constexpr std::uint64_t kOnes = 0x0101010101010101U, kHigh = 0x80 * kOnes;
  std::uint64_t word;
  std::memcpy(&word, data, sizeof(word));
  const std::uint64_t lower = word | (0x20 * kOnes);
  const std::uint64_t from_a = lower + (0x80 - 'a') * kOnes;
  const std::uint64_t above_z = lower + (0x7F - 'z') * kOnes;
  const std::uint64_t others = ~(from_a & ~above_z & ~word) & kHigh;
  return static_cast<std::size_t>(std::countr_zero(others)) / 8;
}

constexpr std::array<std::uint8_t, 128> kAsciiClass = [] {
  std::array<std::uint8_t, 128> table{};
  for (unsigned c = 0; c < 128; ++c) {
    if (IsAsciiLetter(static_cast<unsigned char>(c))) {
      table[c] = kWord;
    } else if (c >= '0' && c <= '9') {
      table[c] = kDigit;
    } else if (c == ' ') {
      table[c] = kBlank;
    } else if (c == '\r' || c == '\n') {
      table[c] = kNewline;
    } else if (c >= '\t' && c <= '\r') {
      table[c] = kWhite;
    } else if (c > ' ' && c < 0x7F) {
      table[c] = kPunct;
    } else {
      table[c] = kNone;
    }
  }
  return table;
}();

constexpr std::array<std::uint8_t, 7> kGroupClass = {kNone, kWord, kWord, kDigit, kPunct, kPunct, kWhite};

inline std::uint8_t ClassOf(char32_t code) {
  const bool cjk = code - 0x4E00U <= 0x9FA5U - 0x4E00U || code - 0x3040U <= 0x30FFU - 0x3040U;
  return static_cast<std::uint8_t>(kGroupClass[static_cast<std::size_t>(GroupOf(code))] | (cjk ? kCjk : 0));
}

struct NoCount {
  void Step() const {}
};
struct Count {
  std::int64_t* steps;
  void Step() const { ++*steps; }
};

// Reads the text as units. Offsets at or beyond the end give kEnd.
template <typename Counter>
class Reader {
 public:
  explicit Reader(std::string_view text, Counter counter = {}) : text_(text), counter_(counter) {}

  [[nodiscard]] Unit At(std::size_t pos) const {
    counter_.Step();
    if (pos >= text_.size()) return {kEnd, 0};
    const auto byte = static_cast<unsigned char>(text_[pos]);
    if (byte < 0x80) return {kAsciiClass[byte], 1};
    return Wide(pos);
  }

  [[nodiscard]] bool IsAsciiLetterAt(std::size_t pos) const {
    counter_.Step();
    return pos < text_.size() && IsAsciiLetter(static_cast<unsigned char>(text_[pos]));
  }

  // As RunEnd for words, which are most of most texts: ASCII letters eight at a time.
  [[nodiscard]] std::size_t WordEnd(std::size_t pos) const {
    while (text_.size() - pos >= 8) {
      const std::size_t letters = LeadingAsciiLetters(text_.data() + pos);
      pos += letters;
      if (letters == 8) continue;
      counter_.Step();
      const auto byte = static_cast<unsigned char>(text_[pos]);
      if (byte < 0x80) return pos;
      const Unit unit = Wide(pos);
      if (unit.cls != kWord) return pos;
      pos += unit.length;
    }
    return RunEnd(pos, kWord);
  }

  // First offset from `pos` on whose class is not `cls`.
  [[nodiscard]] std::size_t RunEnd(std::size_t pos, std::uint8_t cls) const {
    while (true) {
      const Unit unit = At(pos);
      if (unit.cls != cls) return pos;
      pos += unit.length;
    }
  }

 private:
  [[nodiscard]] Unit Wide(std::size_t pos) const {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text_[pos + i]); };
    // Lead bytes E1 to EC are three-byte characters without further conditions: most of the world's text.
    if (byte(0) >= 0xE1 && byte(0) <= 0xEC && text_.size() - pos >= 3 && (byte(1) & 0xC0U) == 0x80 &&
        (byte(2) & 0xC0U) == 0x80) {
      const char32_t code = ((byte(0) & 0x0FU) << 12) | ((byte(1) & 0x3FU) << 6) | (byte(2) & 0x3FU);
      return {ClassOf(code), 3};
    }
    const Utf8Char c = DecodeUtf8(text_, pos);
    return {c.kind == Utf8Kind::kValid ? ClassOf(c.code) : static_cast<std::uint8_t>(kNone), c.length};
  }

  std::string_view text_;
  Counter counter_;
};

bool IsSpace(std::uint8_t cls) {
  return cls == kBlank || cls == kWhite || cls == kNewline;
}

// "\p{N}{1,3}" from the second digit on.
template <typename Counter>
std::size_t DigitsEnd(const Reader<Counter>& reader, std::size_t pos) {
  for (int more = 0; more < 2; ++more) {
    const Unit unit = reader.At(pos);
    if (unit.cls != kDigit) break;
    pos += unit.length;
  }
  return pos;
}

// "[\p{P}\p{S}]+[\r\n]*" where the first character, of class `cls`, has been read. A piece of pattern 2 holds no
// newline.
template <typename Counter>
std::size_t PunctEnd(const Reader<Counter>& reader, std::size_t pos, std::uint8_t cls) {
  pos = reader.RunEnd(pos, cls);
  return cls == kPunct ? reader.RunEnd(pos, kNewline) : pos;
}

// "\s*[\r\n]+ | \s+(?!\S) | \s+" at white space that starts at `pos`.
template <typename Counter>
std::size_t SpaceEnd(const Reader<Counter>& reader, std::size_t pos) {
  std::size_t last = pos;         // start of the last character of the run
  std::size_t after_newline = 0;  // end of the last newline in the run
  std::size_t end = pos;
  Unit unit = reader.At(pos);
  while (IsSpace(unit.cls)) {
    last = end;
    end += unit.length;
    if (unit.cls == kNewline) after_newline = end;
    unit = reader.At(end);
  }
  if (after_newline > 0) return after_newline;
  const bool piece_ends = unit.cls == kEnd || unit.cls == kDigit || (unit.cls & kCjk) != 0;
  return piece_ends || last == pos ? end : last;
}

// A gap: characters that no pattern takes. The last of them belongs to a word that follows.
template <typename Counter>
std::size_t GapEnd(const Reader<Counter>& reader, std::size_t pos, std::uint8_t cls) {
  const auto word = static_cast<std::uint8_t>(kWord | (cls & kCjk));
  while (true) {
    const Unit unit = reader.At(pos);
    if (unit.cls != cls || reader.At(pos + unit.length).cls == word) return pos;
    pos += unit.length;
  }
}

template <typename Counter>
std::size_t PieceEnd(const Reader<Counter>& reader, std::size_t pos) {
  const Unit first = reader.At(pos);
  const std::size_t next = pos + first.length;
  switch (first.cls) {
    case kWord:
      return reader.WordEnd(next);
    case kWord | kCjk:
      return reader.RunEnd(next, first.cls);
    case kDigit:
      return DigitsEnd(reader, next);
    case kPunct:
      if (first.length == 1 && reader.IsAsciiLetterAt(next)) {
        std::size_t end = next + 1;
        while (reader.IsAsciiLetterAt(end)) ++end;
        return end;
      }
      return PunctEnd(reader, next, kPunct);
    case kPunct | kCjk:
      return PunctEnd(reader, next, first.cls);
    case kBlank:
    case kWhite: {
      const Unit second = reader.At(next);
      if (second.cls == kWord) return reader.WordEnd(next + second.length);
      if (first.cls == kBlank && second.cls == kPunct) return PunctEnd(reader, next + second.length, kPunct);
      return SpaceEnd(reader, pos);
    }
    case kNewline:
      return SpaceEnd(reader, pos);
    default: {  // kNone, with or without kCjk
      const auto word = static_cast<std::uint8_t>(kWord | (first.cls & kCjk));
      const Unit second = reader.At(next);
      if (second.cls == word) return reader.RunEnd(next + second.length, word);
      return GapEnd(reader, next, first.cls);
    }
  }
}

using Patterns = std::array<std::string_view, 3>;
// The official file spells CR and LF as raw characters in pattern 3; files written from source code spell them \r and
// \n and may escape the quotation mark, which means the same.
constexpr std::array<Patterns, 2> kOfficialPatterns = {
    Patterns{R"(\p{N}{1,3})", "[一-龥\u3040-ゟ゠-ヿ]+",
             "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
             "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"},
    Patterns{
        R"(\p{N}{1,3})", "[一-龥\u3040-ゟ゠-ヿ]+",
        R"([!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
};

}  // namespace

bool IsOfficialSplit(std::span<const std::string> patterns) {
  for (const Patterns& official : kOfficialPatterns) {
    if (std::equal(patterns.begin(), patterns.end(), official.begin(), official.end())) return true;
  }
  return false;
}

std::size_t OfficialPieceEnd(std::string_view text, std::size_t pos) {
  return PieceEnd(Reader<NoCount>(text), pos);
}

std::int64_t OfficialSplitSteps(std::string_view text) {
  std::int64_t steps = 0;
  const Reader<Count> reader(text, Count{&steps});
  for (std::size_t pos = 0; pos < text.size();) pos = PieceEnd(reader, pos);
  return steps;
}

}  // namespace galley::text
