// SPDX-License-Identifier: Apache-2.0
#include "galley/base/range.h"

#include <fmt/core.h>

#include <string>

namespace galley {

Status CheckRange(std::string_view field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return Err(ErrorCode::kInvalidArgument, fmt::format("{} is outside {} … {}", value, low, high), std::string(field));
}

Status CheckRealRange(std::string_view field, double value, double low, double high, bool low_open) {
  if (value >= low && value <= high && !(low_open && value == low)) return {};
  return Err(ErrorCode::kInvalidArgument,
             fmt::format("{} is outside {}{}, {}]", value, low_open ? "(" : "[", low, high), std::string(field));
}

}  // namespace galley
