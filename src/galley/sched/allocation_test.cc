// SPDX-License-Identifier: Apache-2.0
// After warm-up the step path allocates nothing: planning and results work in memory that is there already.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "galley/sched/scheduler.h"
#include "galley/sched/test_rank.h"

namespace {
std::int64_t allocations = 0;  // single-threaded test
}

void* operator new(std::size_t size) {
  ++allocations;
  void* const memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  return memory;
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace galley::sched {
namespace {

TEST(StepPath, AllocatesNothingAfterWarmUp) {
  TestRank rank({.blocks = 1024, .drafts = 3});
  for (int i = 0; i < 64; ++i) rank.Submit(i, TestPrompt(100 + i, 0, i), 1500);
  rank.RunAll(20);
  ASSERT_GT(allocations, 0) << "the hook counts nothing";
  std::deque<StepDone> results;
  std::int64_t counted = 0;
  TokenId token = 0;
  for (int step = 0; step < 400; ++step) {
    std::int64_t at = allocations;
    const StepPlan* plan = rank->Next(step);
    counted += allocations - at;
    ASSERT_NE(plan, nullptr);
    StepDone done{.step = plan->id, .elapsed_us = 1000, .draws = {}, .token_ids = {}};
    for (const SequenceId id : plan->draws) {
      done.draws.push_back(
          {.sequence = id, .first = static_cast<int>(done.token_ids.size()), .count = 1, .stop = false});
      done.token_ids.push_back(token++);
    }
    results.push_back(std::move(done));
    if (results.size() < 2) continue;
    at = allocations;
    rank->Advance(results.front());
    rank->ClearOutputs();
    counted += allocations - at;
    results.pop_front();
  }
  EXPECT_EQ(counted, 0);
  // These were no idle steps: every sequence grew by 400 tokens, and so by three blocks.
  EXPECT_EQ(rank->running(), 64);
  EXPECT_GT(rank->cache().active(), 64 * 4);
}

}  // namespace
}  // namespace galley::sched
