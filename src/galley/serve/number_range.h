// SPDX-License-Identifier: Apache-2.0
// Which values a number in a request's body or in a model's generation_config.json may have. Pure; plain data.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "galley/protocol/json.h"

namespace galley::serve {

struct NumberRange {
  std::string_view name;
  double low = 0;
  double high = 0;
  bool low_open = false;  // `low` itself is not allowed
  bool whole = false;

  // The number, or nothing: it is none, is outside, or has a fraction where only whole ones are allowed.
  [[nodiscard]] std::optional<double> Read(const protocol::Json& value) const;
  // "(0, 1]", "[0, 5], whole numbers"
  [[nodiscard]] std::string Text() const;
};

inline constexpr NumberRange kTemperatureRange{.name = "temperature", .low = 0, .high = 2};
inline constexpr NumberRange kTopPRange{.name = "top_p", .low = 0, .high = 1, .low_open = true};
inline constexpr NumberRange kTopKRange{.name = "top_k", .low = -1, .high = 1e6, .whole = true};
inline constexpr NumberRange kMinPRange{.name = "min_p", .low = 0, .high = 1};
inline constexpr NumberRange kRepetitionRange{.name = "repetition_penalty", .low = 0.01, .high = 100};

// What clients write for "no limit" is -1 or 0.
[[nodiscard]] constexpr int TopKOf(double value) {
  return value < 0 ? 0 : static_cast<int>(value);
}

}  // namespace galley::serve
