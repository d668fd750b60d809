// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/host_labels.h"

#include <algorithm>

#include "galley/grammar/code_point_set.h"
#include "galley/grammar/unicode_properties.h"

namespace galley::grammar {
namespace {

using Label = std::vector<std::uint32_t>;

// Parameters of Punycode.
constexpr std::uint32_t kBase = 36, kLow = 1, kHigh = 26, kSkew = 38, kDamp = 700, kFirstBias = 72, kFirstCode = 128;

std::uint32_t Threshold(std::uint32_t k, std::uint32_t bias) {
  return k <= bias ? kLow : k >= bias + kHigh ? kHigh : k - bias;
}

std::uint32_t Adapt(std::uint64_t delta, std::uint64_t points, bool first) {
  delta = first ? delta / kDamp : delta / 2;
  delta += delta / points;
  std::uint32_t k = 0;
  for (; delta > (kBase - kLow) * kHigh / 2; k += kBase) delta /= kBase - kLow;
  return k + static_cast<std::uint32_t>((kBase - kLow + 1) * delta / (delta + kSkew));
}

std::optional<std::uint32_t> DigitOf(char c) {
  if (c >= 'a' && c <= 'z') return static_cast<std::uint32_t>(c - 'a');
  if (c >= '0' && c <= '9') return static_cast<std::uint32_t>(c - '0' + 26);
  return std::nullopt;
}

std::optional<Label> Decode(std::string_view text) {
  Label out;
  const std::size_t hyphen = text.rfind('-');
  std::size_t at = 0;
  if (hyphen != std::string_view::npos) {
    for (; at < hyphen; ++at) out.push_back(static_cast<unsigned char>(text[at]));
    ++at;
  }
  std::uint64_t code = kFirstCode, position = 0;
  std::uint32_t bias = kFirstBias;
  while (at < text.size()) {
    const std::uint64_t before = position;
    std::uint64_t weight = 1;
    for (std::uint32_t k = kBase;; k += kBase) {
      const auto digit = at < text.size() ? DigitOf(text[at++]) : std::nullopt;
      if (!digit) return std::nullopt;
      position += *digit * weight;
      if (position > 0xFFFFFFFF) return std::nullopt;
      const std::uint32_t threshold = Threshold(k, bias);
      if (*digit < threshold) break;
      weight *= kBase - threshold;
      if (weight > 0xFFFFFFFF) return std::nullopt;
    }
    const std::uint64_t points = out.size() + 1;
    bias = Adapt(position - before, points, before == 0);
    code += position / points;
    position %= points;
    if (code > kCodePointMax) return std::nullopt;
    out.insert(out.begin() + static_cast<std::ptrdiff_t>(position++), static_cast<std::uint32_t>(code));
  }
  return out;
}

CodePointSet Property(PropertyKind kind, std::string_view name) {
  return CodePointSet::Of(FindProperty(kind, name));
}

// Decoded when the first label is judged.
struct Tables {
  CodePointSet valid = Property(PropertyKind::kHostName, "Valid");
  CodePointSet virama = Property(PropertyKind::kHostName, "Virama");
  CodePointSet starter = Property(PropertyKind::kHostName, "Starter");
  CodePointSet joins_both = Property(PropertyKind::kHostName, "Joining_D");
  CodePointSet joins_right = Property(PropertyKind::kHostName, "Joining_R");
  CodePointSet joins_left = Property(PropertyKind::kHostName, "Joining_L");
  CodePointSet right = Property(PropertyKind::kHostName, "Bidi_R");
  CodePointSet arabic_letter = Property(PropertyKind::kHostName, "Bidi_AL");
  CodePointSet arabic_number = Property(PropertyKind::kHostName, "Bidi_AN");
  CodePointSet mark = Property(PropertyKind::kGeneralCategory, "M");
  CodePointSet greek = Property(PropertyKind::kScript, "Greek");
  CodePointSet hebrew = Property(PropertyKind::kScript, "Hebrew");
  CodePointSet hiragana = Property(PropertyKind::kScript, "Hiragana");
  CodePointSet katakana = Property(PropertyKind::kScript, "Katakana");
  CodePointSet han = Property(PropertyKind::kScript, "Han");
};

const Tables& Loaded() {
  static const Tables tables;
  return tables;
}

bool IsAsciiPart(std::uint32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
}
bool IsArabicDigit(std::uint32_t c) {
  return c >= 0x660 && c <= 0x669;
}
bool IsExtendedArabicDigit(std::uint32_t c) {
  return c >= 0x6F0 && c <= 0x6F9;
}

// Whether a code point may stand at `i`: the rules for those that are valid in some places only are of RFC 5892,
// appendix A. Marks between a joiner and the letters around it are not looked past.
bool FitsAt(const Label& label, std::size_t i, const Tables& t) {
  const std::uint32_t c = label[i], before = i > 0 ? label[i - 1] : 0, behind = i + 1 < label.size() ? label[i + 1] : 0;
  switch (c) {
    case 0xB7:
      return before == 'l' && behind == 'l';
    case 0x375:
      return t.greek.Contains(behind);
    case 0x5F3:
    case 0x5F4:
      return t.hebrew.Contains(before);
    case 0x30FB:
      return std::any_of(label.begin(), label.end(), [&](std::uint32_t other) {
        return t.hiragana.Contains(other) || t.katakana.Contains(other) || t.han.Contains(other);
      });
    case 0x200D:
      return t.virama.Contains(before);
    case 0x200C:
      return t.virama.Contains(before) || ((t.joins_left.Contains(before) || t.joins_both.Contains(before)) &&
                                           (t.joins_right.Contains(behind) || t.joins_both.Contains(behind)));
    default:
      break;
  }
  if (IsArabicDigit(c)) return std::none_of(label.begin(), label.end(), IsExtendedArabicDigit);
  return IsAsciiPart(c) || IsExtendedArabicDigit(c) || t.valid.Contains(c);
}

// The rule of RFC 5893 for a label that holds something written from right to left.
bool FitsRightToLeft(const Label& label, const Tables& t) {
  const auto right = [&](std::uint32_t c) { return t.right.Contains(c) || t.arabic_letter.Contains(c); };
  const auto european = [](std::uint32_t c) { return (c >= '0' && c <= '9') || IsExtendedArabicDigit(c); };
  if (!right(label[0])) return false;
  bool any_european = false, any_arabic = false;
  for (const std::uint32_t c : label) {
    any_european = any_european || european(c);
    any_arabic = any_arabic || t.arabic_number.Contains(c);
    if (!right(c) && !european(c) && !t.arabic_number.Contains(c) && !t.mark.Contains(c) && c != '-' && c != 0x200C &&
        c != 0x200D) {
      return false;
    }
  }
  std::size_t last = label.size() - 1;
  while (last > 0 && t.mark.Contains(label[last])) --last;
  const std::uint32_t c = label[last];
  return !(any_european && any_arabic) && (right(c) || european(c) || t.arabic_number.Contains(c));
}

}  // namespace

std::string Punycode(const Label& label) {
  std::string out;
  for (const std::uint32_t c : label) {
    if (c < kFirstCode) out.push_back(static_cast<char>(c));
  }
  const std::size_t basic = out.size();
  if (basic > 0) out.push_back('-');
  std::uint64_t code = kFirstCode, delta = 0;
  std::uint32_t bias = kFirstBias;
  for (std::size_t handled = basic; handled < label.size(); ++code, ++delta) {
    std::uint64_t next = kCodePointMax + 1;
    for (const std::uint32_t c : label) {
      if (c >= code) next = std::min<std::uint64_t>(next, c);
    }
    delta += (next - code) * (handled + 1);
    code = next;
    for (const std::uint32_t c : label) {
      if (c < code) ++delta;
      if (c != code) continue;
      std::uint64_t rest = delta;
      for (std::uint32_t k = kBase;; k += kBase) {
        const std::uint32_t threshold = Threshold(k, bias);
        const bool end = rest < threshold;
        const std::uint64_t digit = end ? rest : threshold + (rest - threshold) % (kBase - threshold);
        out.push_back(static_cast<char>(digit < 26 ? 'a' + digit : '0' + digit - 26));
        if (end) break;
        rest = (rest - threshold) / (kBase - threshold);
      }
      bias = Adapt(delta, handled + 1, handled == basic);
      delta = 0;
      ++handled;
    }
  }
  return out;
}

std::optional<HostLabel> ReadHostLabel(std::string_view text) {
  const auto label = Decode(text);
  if (!label || label->empty() || label->front() == '-' || label->back() == '-') return std::nullopt;
  if (std::all_of(label->begin(), label->end(), [](std::uint32_t c) { return c < kFirstCode; })) return std::nullopt;
  if (label->size() >= 4 && (*label)[2] == '-' && (*label)[3] == '-') return std::nullopt;
  const Tables& t = Loaded();
  if (t.mark.Contains(label->front())) return std::nullopt;
  HostLabel out;
  for (std::size_t i = 0; i < label->size(); ++i) {
    const std::uint32_t c = (*label)[i];
    if (!FitsAt(*label, i, t)) return std::nullopt;
    // Two marks in a row that both move under NFC may be out of order.
    if (i > 0 && !t.starter.Contains(c) && !t.starter.Contains((*label)[i - 1])) return std::nullopt;
    out.right_to_left =
        out.right_to_left || t.right.Contains(c) || t.arabic_letter.Contains(c) || t.arabic_number.Contains(c);
  }
  if (out.right_to_left && !FitsRightToLeft(*label, t)) return std::nullopt;
  if (Punycode(*label) != text) return std::nullopt;
  return out;
}

}  // namespace galley::grammar
