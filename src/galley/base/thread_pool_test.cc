// SPDX-License-Identifier: Apache-2.0
#include "galley/base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <new>
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

// Memory can run out on any thread. The caller learns of it when the others have left the body, and may go on.
TEST(ThreadPool, ExceptionsReachTheCallerAndThePoolLivesOn) {
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    for (const std::int64_t bad : {0, 500, 999}) {
      std::atomic<int> inside{0};
      const auto body = [&](std::int64_t i) {
        ++inside;
        if (i == bad) {
          --inside;
          throw std::bad_alloc();
        }
        --inside;
      };
      EXPECT_THROW(pool.ParallelFor(1000, body), std::bad_alloc) << threads << " threads, index " << bad;
      EXPECT_EQ(inside, 0);
    }
    std::atomic<int> hits{0};
    pool.ParallelFor(1000, [&](std::int64_t) { ++hits; });
    EXPECT_EQ(hits, 1000);
  }
}

// An address space that holds the stacks of a few threads, of 8 MiB by default, but not of 1,000.
TEST(ThreadPool, FewerThreadsThanAskedForStillDoTheWork) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need the address space";
#endif
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit = {rlim_t{400} << 20, rlim_t{400} << 20};
    setrlimit(RLIMIT_AS, &limit);
    ThreadPool pool(1000);
    std::atomic<int> hits{0};
    pool.ParallelFor(1000, [&](std::int64_t) { ++hits; });
    _exit(pool.threads() >= 1 && pool.threads() < 1000 && hits == 1000 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

TEST(ThreadPool, UsableProcessorsIsPositive) {
  EXPECT_GE(UsableProcessors(), 1);
}

}  // namespace
}  // namespace galley
