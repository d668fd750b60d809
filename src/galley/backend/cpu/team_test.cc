// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cpu/team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace galley::backend::cpu {
namespace {

constexpr double kLarge = 1e9;  // a cost that is worth sharing

TEST(Team, RunsEveryTaskOnceOnAnyNumberOfThreads) {
  for (const int threads : {1, 2, 5}) {
    Team team(threads);
    // Loops follow each other at once, and some after a pause in which the workers fall asleep.
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(round % 17));
      team.Run(round % 17, kLarge, [&](std::int64_t task, int worker) {
        EXPECT_GE(worker, 0);
        EXPECT_LT(worker, threads);
        runs[static_cast<std::size_t>(task)].fetch_add(1);
      });
      for (const std::atomic<int>& count : runs) ASSERT_EQ(count.load(), 1) << threads << " threads, round " << round;
      if (round % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

// What a loop wrote is there for the next one, whoever runs it.
TEST(Team, LoopsSeeWhatEarlierOnesWrote) {
  Team team(3);
  std::vector<std::int64_t> values(64, 1);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::int64_t> next(64);
    team.Run(64, kLarge, [&](std::int64_t i, int) {
      next[static_cast<std::size_t>(i)] =
          values[static_cast<std::size_t>(i)] + values[static_cast<std::size_t>((i + 1) % 64)] % 7;
    });
    values.swap(next);
  }
  std::vector<std::int64_t> serial(64, 1);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::int64_t> next(64);
    for (std::size_t i = 0; i < 64; ++i) next[i] = serial[i] + serial[(i + 1) % 64] % 7;
    serial.swap(next);
  }
  EXPECT_EQ(values, serial);
}

TEST(Team, SmallLoopsStayOnTheCaller) {
  Team team(4);
  const auto caller = std::this_thread::get_id();
  team.Run(8, 100, [&](std::int64_t, int worker) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(worker, 0);
  });
}

}  // namespace
}  // namespace galley::backend::cpu
