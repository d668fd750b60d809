// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/decimal.h"

#include <algorithm>

namespace galley::grammar {
namespace {

constexpr std::int64_t kExponentMax = 100'000;

int CompareMagnitudes(const Decimal& a, const Decimal& b) {
  if (a.is_zero() || b.is_zero()) return static_cast<int>(b.is_zero()) - static_cast<int>(a.is_zero());
  if (a.magnitude != b.magnitude) return a.magnitude < b.magnitude ? -1 : 1;
  return a.digits.compare(b.digits);  // no trailing zeros, so the longer of two equal prefixes is larger
}

}  // namespace

std::optional<Decimal> ParseDecimal(std::string_view text) {
  Decimal out;
  std::size_t i = 0;
  if (i < text.size() && text[i] == '-') {
    out.negative = true;
    ++i;
  }
  std::int64_t point = 0;
  bool after_point = false;
  for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
    if (text[i] == '.') {
      after_point = true;
      continue;
    }
    out.digits.push_back(text[i]);
    if (!after_point) ++point;
  }
  std::int64_t exponent = 0;
  if (i < text.size()) {
    ++i;
    const bool minus = i < text.size() && text[i] == '-';
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    for (; i < text.size(); ++i) exponent = std::min<std::int64_t>(exponent * 10 + (text[i] - '0'), 10'000'000);
    if (minus) exponent = -exponent;
  }
  const std::size_t first = std::min(out.digits.find_first_not_of('0'), out.digits.size());
  out.digits.erase(0, first);
  while (!out.digits.empty() && out.digits.back() == '0') out.digits.pop_back();
  if (out.digits.empty()) return Decimal{};
  const std::int64_t magnitude = point - static_cast<std::int64_t>(first) + exponent;
  if (magnitude > kExponentMax || magnitude < -kExponentMax) return std::nullopt;
  out.magnitude = static_cast<std::int32_t>(magnitude);
  return out;
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int magnitudes = CompareMagnitudes(a, b);
  return a.negative ? -magnitudes : magnitudes;
}

std::string Decimal::Key() const {
  return (negative ? "-" : "") + digits + "e" + std::to_string(magnitude);
}

std::string Decimal::ToString() const {
  if (is_zero()) return "0";
  std::string out = negative ? "-" : "";
  const auto count = static_cast<std::int32_t>(digits.size());
  if (magnitude > 0 && magnitude <= 40) {
    if (magnitude >= count) return out + digits + std::string(static_cast<std::size_t>(magnitude - count), '0');
    const auto split = static_cast<std::size_t>(magnitude);
    return out + digits.substr(0, split) + "." + digits.substr(split);
  }
  if (magnitude <= 0 && magnitude > -20) {
    return out + "0." + std::string(static_cast<std::size_t>(-magnitude), '0') + digits;
  }
  return out + "0." + digits + "e" + std::to_string(magnitude);
}

}  // namespace galley::grammar
