// SPDX-License-Identifier: Apache-2.0
// Exact decimal numbers as JSON writes them: sign, significant digits and magnitude. Used for bounds, multiples and
// constants, where a double would already be another number. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace galley::grammar {

// value = ± 0.d1d2…dm × 10^magnitude, d1 and dm not zero; zero has no digits, magnitude 0 and no sign.
struct Decimal {
  bool negative = false;
  std::string digits;
  std::int32_t magnitude = 0;

  [[nodiscard]] bool is_zero() const { return digits.empty(); }
  [[nodiscard]] bool is_integer() const { return is_zero() || magnitude >= static_cast<std::int32_t>(digits.size()); }
  // Plain spelling without an exponent where that is short, for keys and messages.
  [[nodiscard]] std::string ToString() const;
  // Short, and different for different values.
  [[nodiscard]] std::string Key() const;

  friend bool operator==(const Decimal&, const Decimal&) = default;
};

// Reads a JSON number. Nothing when the exponent is beyond ±100,000.
[[nodiscard]] std::optional<Decimal> ParseDecimal(std::string_view text);

// Negative, zero or positive as a <, =, > b.
[[nodiscard]] int Compare(const Decimal& a, const Decimal& b);

}  // namespace galley::grammar
