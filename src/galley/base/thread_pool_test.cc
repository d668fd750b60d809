// SPDX-License-Identifier: Apache-2.0
#include "galley/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace galley {
namespace {

TEST(ThreadPool, EveryIndexRunsOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const int count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<std::size_t>(count));
      pool.ParallelFor(count, [&](std::int64_t i) { hits[static_cast<std::size_t>(i)]++; });
      for (const auto& hit : hits) EXPECT_EQ(hit, 1);
    }
  }
}

TEST(ThreadPool, ManyShortLoopsDoNotMixTheirBodies) {
  ThreadPool pool(4);
  std::int64_t total = 0;
  for (std::int64_t round = 0; round < 2000; ++round) {
    std::atomic<std::int64_t> sum{0};
    pool.ParallelFor(3, [&](std::int64_t i) { sum += round + i; });
    total += sum;
  }
  EXPECT_EQ(total, 3 * (1999 * 2000 / 2) + 2000 * 3);  // sum over rounds of 3 * round + (0 + 1 + 2)
}

TEST(ThreadPool, UsableProcessorsIsPositive) {
  EXPECT_GE(UsableProcessors(), 1);
}

}  // namespace
}  // namespace galley
