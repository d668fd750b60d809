// SPDX-License-Identifier: Apache-2.0
// Range checks of options and of fields of requests: one wording for all. Pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "galley/base/error.h"

namespace galley {

// Whether low <= value <= high. Errors: kInvalidArgument naming the field, with value and limits.
[[nodiscard]] Status CheckRange(std::string_view field, std::int64_t value, std::int64_t low, std::int64_t high);

// Likewise of numbers that are not whole, of which NaN is never inside; `low_open`: `low` itself is outside.
[[nodiscard]] Status CheckRealRange(std::string_view field, double value, double low, double high,
                                    bool low_open = false);

}  // namespace galley
