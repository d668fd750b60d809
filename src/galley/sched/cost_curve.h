// SPDX-License-Identifier: Apache-2.0
// Learnt time of a launch as a function of its rows: four knots an octave, linear in between, never falling. Starts
// from a prior and follows real steps; knots that no step came near lie on the line between those that some did, and
// beyond them keep the prior's proportions. Owned by one scheduler; times in microseconds.
#pragma once

#include <array>
#include <cstdint>

namespace galley::sched {

class CostCurve {
 public:
  struct Prior {
    double base_us = 1000;  // of a launch with one row
    double row_us = 10;     // of each further row
  };
  explicit CostCurve(const Prior& prior);

  // 0 for no rows.
  [[nodiscard]] double Predict(std::int64_t rows) const;
  // Most rows in [0, most] that are predicted to take no longer than `budget_us`.
  [[nodiscard]] std::int64_t RowsWithin(double budget_us, std::int64_t most) const;
  // Requires rows > 0. A single outlier moves the curve little: a measurement counts as at most 1.5 times what was
  // predicted (the first few: four times), and as no less than two thirds (at a new size: a quarter).
  void Observe(std::int64_t rows, double measured_us);

  static constexpr int kKnots = 90;  // up to 7 * 2^21 rows
  // 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, …
  [[nodiscard]] static constexpr std::int64_t KnotRows(int knot) {
    if (knot < 3) return knot + 1;
    return (std::int64_t{4} + (knot - 3) % 4) << ((knot - 3) / 4);
  }

 private:
  struct Place {
    int knot;
    double weight;  // of knot + 1
  };
  [[nodiscard]] static Place Locate(std::int64_t rows);
  // Moves a knot towards `ratio` times its value.
  void Nudge(int knot, double ratio, double weight);
  [[nodiscard]] bool Seen(int knot) const;
  void PlaceUnseen();

  std::array<double, kKnots> prior_us_{};
  std::array<double, kKnots> us_{};
  std::array<double, kKnots> seen_{};  // weight of observations near a knot
  std::int64_t observations_ = 0;
};

// Decode rows run as one captured launch and prefill rows as a second, so a step costs the sum of two curves.
class StepCost {
 public:
  StepCost(const CostCurve::Prior& decode, const CostCurve::Prior& prefill) : decode_(decode), prefill_(prefill) {}

  [[nodiscard]] double Predict(std::int64_t decode_rows, std::int64_t prefill_work) const {
    return decode_.Predict(decode_rows) + prefill_.Predict(prefill_work);
  }
  // Most prefill work beside `decode_rows` within `budget_us`.
  [[nodiscard]] std::int64_t PrefillWithin(double budget_us, std::int64_t decode_rows, std::int64_t most) const {
    return prefill_.RowsWithin(budget_us - decode_.Predict(decode_rows), most);
  }
  void Observe(std::int64_t decode_rows, std::int64_t prefill_work, double measured_us);

 private:
  CostCurve decode_;
  CostCurve prefill_;
};

}  // namespace galley::sched
