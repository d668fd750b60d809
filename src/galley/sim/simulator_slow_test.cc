// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "galley/sim/simulator.h"

namespace galley::sim {
namespace {

TEST(SimulatorSlow, ManySeeds) {
  const std::uint64_t first = std::random_device{}();
  for (std::uint64_t i = 0; i < 200; ++i) {
    const SimOptions options{.seed = first + i, .steps = 4000, .ranks = i % 4 == 3 ? 3 : 1, .steps_per_world = 1000};
    const Result<SimReport> report = Simulate(options);
    ASSERT_TRUE(report);
    ASSERT_TRUE(report->violations.empty()) << ReplayCommand(options) << "\n" << report->ToString();
  }
}

// A small pool with many long outputs takes more than sixty thousand steps to empty, which is no fault.
TEST(SimulatorSlow, ALongQueueDrains) {
  const SimOptions options{.seed = 32525321901, .steps = 4000, .ranks = 3, .steps_per_world = 1000};
  const Result<SimReport> report = Simulate(options);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->violations.empty()) << ReplayCommand(options) << "\n" << report->ToString();
  EXPECT_GT(report->steps, 60'000);
}

TEST(SimulatorSlow, AHundredThousandStepsWithinThirtySeconds) {
  const auto begin = std::chrono::steady_clock::now();
  const Result<SimReport> report = Simulate({.seed = 1, .steps = 100'000});
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->violations.empty()) << report->ToString();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace galley::sim
