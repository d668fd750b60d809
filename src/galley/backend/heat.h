// SPDX-License-Identifier: Apache-2.0
// How much an expert has been used of late, by which it keeps its place in a memory that holds some of them. A value.
#pragma once

#include <cmath>
#include <cstdint>

namespace galley::backend {

// Each use counts, and half as much after kHalfLife turns; a turn is what one layer of a step chooses.
class Heat {
 public:
  static constexpr double kHalfLife = 2000;
  void Use(std::int64_t turn) {
    value_ = At(turn) + 1;
    turn_ = turn;
  }
  [[nodiscard]] double At(std::int64_t turn) const {
    return value_ * std::exp2(static_cast<double>(turn_ - turn) / kHalfLife);
  }

 private:
  double value_ = 0;
  std::int64_t turn_ = 0;
};

}  // namespace galley::backend
