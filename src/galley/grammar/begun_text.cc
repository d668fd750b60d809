// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/begun_text.h"

#include <algorithm>
#include <cstdint>

namespace galley::grammar {
namespace {

// Digits or bytes of a character that are there, and how many are to come.
struct Part {
  std::uint32_t value = 0;
  unsigned missing = 0;
};

class Reader {
 public:
  explicit Reader(std::string_view raw) : raw_(raw) {}

  BegunText Read(bool escapes) {
    while (at_ < raw_.size() && raw_[at_] != '"' && out_.next.empty()) {
      if (raw_[at_] == '\\' && escapes) {
        Escape();
      } else {
        Utf8();
      }
    }
    return std::move(out_);
  }

 private:
  void MayBecome(std::uint32_t first, std::uint32_t last) { out_.next.Add(CodePointSet::Range(first, last)); }

  // Four hexadecimal digits behind `skip` more bytes.
  Part Unit(std::size_t skip) {
    Part out;
    const std::string_view digits = raw_.substr(std::min(at_ + skip, raw_.size()), 4);
    for (const char c : digits) {
      out.value = out.value << 4 | static_cast<std::uint32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    out.missing = static_cast<unsigned>(4 - digits.size());
    at_ += skip + digits.size();
    return out;
  }

  void Escape() {
    if (at_ + 1 >= raw_.size()) return MayBecome(0, kCodePointMax);
    if (raw_[at_ + 1] != 'u') {
      static constexpr std::string_view kLetters = "bfnrt", kControls = "\b\f\n\r\t";
      const std::size_t letter = kLetters.find(raw_[at_ + 1]);
      out_.text.push_back(static_cast<char32_t>(letter == kLetters.npos ? raw_[at_ + 1] : kControls[letter]));
      at_ += 2;
      return;
    }
    constexpr std::uint32_t kHigh = 0xD800, kHighLast = 0xDBFF, kLow = 0xDC00, kLowLast = 0xDFFF, kPairs = 0x10000;
    const Part unit = Unit(2);
    const std::uint32_t first = unit.value << (4 * unit.missing), last = first + (1u << (4 * unit.missing)) - 1;
    if (unit.missing > 0) {
      MayBecome(first, last);
      if (first > kHighLast || last < kHigh) return;
      MayBecome(kPairs + ((std::max(first, kHigh) - kHigh) << 10),
                kPairs + ((std::min(last, kHighLast) - kHigh) << 10) + 0x3FF);
      return;
    }
    if (unit.value < kHigh || unit.value > kHighLast) return out_.text.push_back(unit.value);
    const Part low = Unit(2);
    const std::uint32_t base = kPairs + ((unit.value - kHigh) << 10) - kLow;
    if (low.missing == 0) return out_.text.push_back(base + low.value);
    const std::uint32_t low_first = low.value << (4 * low.missing), span = 1u << (4 * low.missing);
    MayBecome(base + std::max(low_first, kLow), base + std::min(low_first + span - 1, kLowLast));
  }

  void Utf8() {
    const auto lead = static_cast<std::uint8_t>(raw_[at_]);
    const unsigned length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    std::uint32_t value = length == 1 ? lead : lead & (0x7Fu >> length);
    unsigned missing = length - 1;
    for (++at_; missing > 0 && at_ < raw_.size(); ++at_, --missing) {
      value = value << 6 | (static_cast<std::uint8_t>(raw_[at_]) & 0x3Fu);
    }
    if (missing == 0) return out_.text.push_back(value);
    const std::uint32_t first = value << (6 * missing), least = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
    MayBecome(std::max(first, least), std::min(first + (1u << (6 * missing)) - 1, kCodePointMax));
  }

  std::string_view raw_;
  std::size_t at_ = 0;
  BegunText out_;
};

}  // namespace

BegunText ReadBegunText(std::string_view raw, bool escapes) {
  return Reader(raw).Read(escapes);
}

}  // namespace galley::grammar
