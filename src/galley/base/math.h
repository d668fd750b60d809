// SPDX-License-Identifier: Apache-2.0
// Small integer helpers used by layouts and plans.
#pragma once

namespace galley {

template <typename T>
[[nodiscard]] constexpr T CeilDiv(T a, T b) {
  return (a + b - 1) / b;
}

template <typename T>
[[nodiscard]] constexpr T RoundUp(T a, T multiple) {
  return CeilDiv(a, multiple) * multiple;
}

}  // namespace galley
