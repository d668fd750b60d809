// SPDX-License-Identifier: Apache-2.0
#include "galley/sim/simulator.h"

#include <gtest/gtest.h>

namespace galley::sim {
namespace {

SimReport Simulated(const SimOptions& options) {
  Result<SimReport> report = Simulate(options);
  EXPECT_TRUE(report);
  return std::move(*report);
}

TEST(Simulator, ShortRunsOfManySeedsHaveNoViolation) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const SimReport report =
        Simulated({.seed = seed, .steps = 600, .ranks = seed % 3 == 0 ? 3 : 1, .steps_per_world = 200});
    EXPECT_TRUE(report.violations.empty()) << "seed " << seed << "\n" << report.ToString();
    EXPECT_GT(report.outputs_checked, 0) << "seed " << seed;
  }
}

}  // namespace
}  // namespace galley::sim
