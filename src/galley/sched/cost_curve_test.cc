// SPDX-License-Identifier: Apache-2.0
#include "galley/sched/cost_curve.h"

#include <gtest/gtest.h>

#include <random>

namespace galley::sched {
namespace {

TEST(CostCurve, StartsFromItsPrior) {
  const CostCurve curve({.base_us = 1000, .row_us = 10});
  EXPECT_EQ(curve.Predict(0), 0);
  EXPECT_DOUBLE_EQ(curve.Predict(1), 1000);
  EXPECT_DOUBLE_EQ(curve.Predict(101), 2000);  // 1000 + 100 * 10
  EXPECT_EQ(curve.RowsWithin(2000, 500), 101);
  EXPECT_EQ(curve.RowsWithin(2000, 50), 50);
  EXPECT_EQ(curve.RowsWithin(999, 500), 0);
}

TEST(CostCurve, LearnsADeviceThatLooksNothingLikeThePrior) {
  CostCurve curve({.base_us = 1000, .row_us = 10});
  std::mt19937 random(1);
  const auto truth = [](std::int64_t rows) { return 200.0 + 40.0 * static_cast<double>(rows); };
  for (int i = 0; i < 3000; ++i) {
    const std::int64_t rows = 1 + static_cast<std::int64_t>(random() % 2000);
    curve.Observe(rows, truth(rows) * (0.95 + 0.1 * static_cast<double>(random() % 1000) / 1000));
  }
  for (const std::int64_t rows : {64, 200, 500, 1000, 1900}) {
    EXPECT_NEAR(curve.Predict(rows) / truth(rows), 1.0, 0.1) << rows;
  }
}

TEST(CostCurve, OneSlowSizeWarnsAboutTheOthers) {
  CostCurve curve({.base_us = 1000, .row_us = 10});
  for (int i = 0; i < 50; ++i) curve.Observe(1024, 10 * 11230.0);  // ten times the prior
  EXPECT_GT(curve.Predict(4096), 9 * 41950.0);
  EXPECT_GT(curve.Predict(128), 9 * 2270.0);
}

TEST(CostCurve, AnOutlierMovesItLittleAndItNeverFalls) {
  CostCurve curve({.base_us = 1000, .row_us = 10});
  for (int i = 0; i < 100; ++i) curve.Observe(256, 3550);
  const double before = curve.Predict(256);
  curve.Observe(256, 1e9);
  EXPECT_LT(curve.Predict(256), 1.25 * before);  // four times too much, one part in sixteen
  curve.Observe(64, 1e7);
  for (std::int64_t rows = 1; rows < 5000; ++rows) ASSERT_LE(curve.Predict(rows), curve.Predict(rows + 1)) << rows;
}

TEST(StepCost, SplitsAMixedStepByWhatPureStepsTaught) {
  StepCost cost({.base_us = 1000, .row_us = 10}, {.base_us = 1000, .row_us = 10});
  for (int i = 0; i < 100; ++i) cost.Observe(32, 0, 5000);
  for (int i = 0; i < 100; ++i) cost.Observe(0, 512, 20'000);
  EXPECT_NEAR(cost.Predict(32, 512), 25'000, 500);
  EXPECT_EQ(cost.PrefillWithin(25'100, 32, 512), 512);
  EXPECT_LT(cost.PrefillWithin(15'000, 32, 512), 300);
  EXPECT_EQ(cost.PrefillWithin(4000, 32, 512), 0);
}

}  // namespace
}  // namespace galley::sched
