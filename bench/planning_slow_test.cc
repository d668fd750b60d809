// SPDX-License-Identifier: Apache-2.0
// The bound on planning time. Timings of a busy machine are only ever too long, so the best of several runs counts.
#include <gtest/gtest.h>

#include <algorithm>

#include "planning_load.h"

namespace galley::sched {
namespace {

// Microseconds of Next and Advance, the best of 20 runs of 100 steps.
double StepMicroseconds(int running, int waiting) {
  PlanningLoad load(running, waiting, /*drafts=*/0);
  double best = 1e9;
  for (int run = 0; run < 20; ++run) {
    double seconds = 0;
    for (int step = 0; step < 100; ++step) seconds += load.Step();
    best = std::min(best, seconds / 100 * 1e6);
  }
  return best;
}

TEST(PlanningSlow, AStepOfAThousandSequencesTakesAtMost200Microseconds) {
  const double alone = StepMicroseconds(1024, 0), crowded = StepMicroseconds(1024, 10'000);
  RecordProperty("us", std::to_string(crowded));
  EXPECT_LE(crowded, 200);
  EXPECT_LE(crowded, 1.5 * alone + 10) << "waiting requests cost time";
}

// Eight times the sequences may take eight times as long, and what their not fitting the near caches adds.
TEST(PlanningSlow, TimeGrowsWithTheNumberOfRunningSequences) {
  const double few = StepMicroseconds(512, 0), many = StepMicroseconds(4096, 0);
  EXPECT_LE(many, 2.5 * 8 * few);
}

}  // namespace
}  // namespace galley::sched
