// SPDX-License-Identifier: Apache-2.0
// The smallest engines, requests exactly at limits, and callers on many threads who cancel and stop as they please.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>

#include "galley/base/rng.h"
#include "galley/engine/engine_for_test.h"
#include "galley/engine/record_for_test.h"

namespace galley::engine {
namespace {

using sched::FinishReason;
using ::testing::HasSubstr;

// One slot, one block of 128 tokens, nobody may wait.
EngineOptions Smallest() {
  EngineOptions options = Options();
  options.max_seq_len = 128;
  options.max_seqs = 1;
  options.blocks = 1;
  options.queue_max = 0;
  return options;
}

TEST(EngineLimits, SmallestEngineServesWhatFitsExactly) {
  const auto engine = Make(Smallest());
  EXPECT_EQ(engine->stats().blocks_total, 1);  // known before the first step
  // The last token is drawn from the row before it and never run, so 128 positions hold 129 tokens.
  for (const auto& [prompt, max_tokens] : {std::pair(1, 128), std::pair(100, 29), std::pair(128, 1), std::pair(1, 1)}) {
    const BranchResult result = RunOne(*engine, Request(7, prompt, 0, max_tokens));
    EXPECT_EQ(result.reason, FinishReason::kLength) << result.error.ToString();
    EXPECT_EQ(result.tokens.size(), static_cast<std::size_t>(max_tokens)) << "after a prompt of " << prompt;
  }
  for (const auto& [prompt, max_tokens] : {std::pair(128, 2), std::pair(1, 129)}) {
    const BranchResult result = RunOne(*engine, Request(7, prompt, 0, max_tokens));
    EXPECT_EQ(result.error.code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(result.error.message, HasSubstr("make 130; this model holds 129"));
  }
  ExpectNothingHeld(*engine, 1);
}

TEST(EngineLimits, APoolSmallerThanASequenceIsTheLongestOne) {
  EngineOptions options = Smallest();
  options.max_seq_len = 1024;
  const auto engine = Make(options);
  EXPECT_EQ(engine->max_seq_len(), 128) << "what is promised can be served";
  EXPECT_EQ(RunOne(*engine, Request(7, 100, 0, 29)).tokens.size(), 29u);
  const BranchResult result = RunOne(*engine, Request(7, 100, 0, 30));
  EXPECT_EQ(result.error.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(result.error.message, HasSubstr("make 130; this model holds 129"));
}

TEST(EngineLimits, BranchesBeyondOneSlotTakeTurns) {
  const auto engine = Make(Smallest());
  EngineRequest request = Request(7, 20, 0, 5);
  request.n = 3;
  const auto results = engine->Generate({request});
  ASSERT_TRUE(results);
  const Ids ids = BranchIds((*results)[0]);
  const auto roomy = Make(Options());
  EXPECT_EQ(ids, BranchIds((*roomy->Generate({request}))[0]));
  ExpectNothingHeld(*engine, 1);
}

TEST(EngineLimits, OneRowStepsDrawTheSame) {
  EngineOptions options = Options();
  const Ids expected = RunAll(*Make(options), {Request(1, 20), Request(2, 9)});
  options.step_rows_max = 2;  // one decode and one row of a prompt
  EXPECT_EQ(RunAll(*Make(options), {Request(1, 20), Request(2, 9)}), expected);
}

TEST(EngineLimits, WithoutAQueueOneRunsAndTheNextIsRefusedBeforeItIsLookedAt) {
  const auto engine = Make(Smallest());
  Record record;
  const auto id = engine->Submit(Request(1, 4, 0, 120), record.Sink());
  ASSERT_TRUE(id);
  EngineRequest bad = Request(2, 4);
  bad.sampling.temperature = -1;
  const auto refused = engine->Submit(bad, [](const EngineEvent&) {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted) << "room costs less to check than the request";
  engine->Cancel(*id);
  record.WaitUntilDone();
  ExpectNothingHeld(*engine, 1);
  EXPECT_EQ(engine->Submit(bad, [](const EngineEvent&) {}).error().code, ErrorCode::kInvalidArgument);
}

TEST(EngineLimits, WhoGetsTheLastEventFindsRoom) {
  const auto engine = Make(Smallest());
  Record next;
  Result<RequestId> id = Err(ErrorCode::kInternal, "not submitted");
  Record first;
  ASSERT_TRUE(engine->Submit(Request(1, 4), [&](const EngineEvent& event) {
    const auto* finished = std::get_if<FinishedEvent>(&event);
    if (finished != nullptr) id = engine->Submit(Request(2, 4), next.Sink());
    first.Sink()(event);
  }));
  first.WaitUntilDone();
  ASSERT_TRUE(id) << id.error().ToString();
  next.WaitUntilDone();
  ExpectNothingHeld(*engine, 1);
}

TEST(EngineLimits, OptionsOutsideTheirRangeAreNamed) {
  const auto error = [](void (*spoil)(EngineOptions&)) {
    EngineOptions options = Options();
    spoil(options);
    const auto engine = Engine::Create(options);
    return engine ? std::string("taken") : engine.error().ToString();
  };
  EXPECT_THAT(error([](EngineOptions& o) { o.queue_max = -1; }), HasSubstr("queue_max: -1 is outside 0 …"));
  EXPECT_THAT(error([](EngineOptions& o) { o.queue_max = std::numeric_limits<int>::max(); }), HasSubstr("queue_max: "));
  EXPECT_THAT(error([](EngineOptions& o) { o.itl_target_s = std::nan(""); }), HasSubstr("itl_target_s: nan"));
  EXPECT_THAT(error([](EngineOptions& o) { o.itl_target_s = 1e300; }), HasSubstr("itl_target_s: 1e+300"));
  EXPECT_THAT(error([](EngineOptions& o) { o.step_rows_max = 0; }), HasSubstr("step-rows: 0 is outside 1 …"));
  EXPECT_THAT(error([](EngineOptions& o) { o.step_rows_max = 65536; }),
              HasSubstr("step-rows: 65536 is outside 1 … 65535"));
  EXPECT_THAT(error([](EngineOptions& o) { o.step_rows_max = 1; }), HasSubstr("step_rows_max"));
  EXPECT_THAT(error([](EngineOptions& o) { o.max_seqs = 0; }), HasSubstr("max-seqs: 0 is outside 1 …"));
  EXPECT_THAT(error([](EngineOptions& o) { o.blocks = -1; }), HasSubstr("blocks: -1 is outside 0 …"));
  EXPECT_THAT(error([](EngineOptions& o) { o.max_seq_len = 1; }), HasSubstr("max-seq-len: 1 has no room"));
  EXPECT_THAT(error([](EngineOptions& o) { o.device.threads = -1; }), HasSubstr("threads: -1 is outside 0 …"));
}

TEST(EngineLimits, ShortestDeadlineAndExtremePrioritiesEndOnce) {
  const auto engine = Make(Options());
  EngineRequest at_once = Request(1, 30, 0, 500);
  at_once.deadline_s = 1e-9;
  EngineRequest last = Request(2, 30, 0, 3), first = Request(3, 30, 0, 3);
  last.priority = std::numeric_limits<int>::min();
  first.priority = std::numeric_limits<int>::max();
  const auto results = engine->Generate({at_once, last, first});
  ASSERT_TRUE(results);
  EXPECT_EQ((*results)[0].branches[0].error.code, ErrorCode::kDeadline);
  EXPECT_EQ((*results)[1].branches[0].tokens.size(), 3u);
  EXPECT_EQ((*results)[2].branches[0].tokens.size(), 3u);
  ExpectNothingHeld(*engine);
}

TEST(EngineLimits, CancelOfWhatDoesNotExistIsNothing) {
  const auto engine = Make(Options());
  for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{0}, std::numeric_limits<std::int64_t>::max()}) {
    engine->Cancel(RequestId(id));
    engine->Cancel(RequestId(id));
  }
  EXPECT_EQ(RunOne(*engine, Request(1, 9, 0, 3)).tokens.size(), 3u);
  engine->Cancel(RequestId(0));  // it has ended
  EXPECT_EQ(RunOne(*engine, Request(1, 9, 0, 3)).tokens.size(), 3u);
}

// Four threads submit and cancel, two stop. What was accepted ends exactly once; what comes later is refused.
TEST(EngineLimits, ThreadsSubmitCancelAndStopTogether) {
  for (std::uint32_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(seed);
    EngineOptions options = Options();
    options.max_seqs = 3;
    options.queue_max = 5;
    options.step_rows_max = 40;
    const auto engine = Make(options);
    std::atomic<int> accepted = 0, ended = 0, behind_the_end = 0;
    std::atomic<bool> shut = false;
    const auto client = [&](std::uint32_t thread) {
      for (std::uint32_t i = 0; i < 100'000; ++i) {
        const auto words = Philox4x32({i, thread, seed, 0}, {7, 7});
        auto done = std::make_shared<std::atomic<bool>>(false);
        EngineRequest request = Request(words[0] % 8, 1 + static_cast<int>(words[1] % 60), 30, 6);
        request.n = 1 + static_cast<int>(words[2] % 2);
        const auto id = engine->Submit(std::move(request), [&, done](const EngineEvent& event) {
          if (done->load()) ++behind_the_end;
          const auto* end = std::get_if<FinishedEvent>(&event);
          if (end == nullptr || !end->request_done) return;
          done->store(true);
          ++ended;
        });
        if (!id && id.error().code == ErrorCode::kUnavailable) {
          shut = true;
          return;
        }
        if (!id) {
          std::this_thread::yield();
          continue;
        }
        ++accepted;
        if (words[3] % 3 == 0) engine->Cancel(*id);
        if (words[3] % 5 == 0) engine->Cancel(RequestId(id->value - 1));
        if (words[3] % 7 == 0) engine->ClearCache();
      }
    };
    std::vector<std::thread> threads;
    for (std::uint32_t thread = 0; thread < 4; ++thread) threads.emplace_back(client, thread);
    for (int i = 0; i < 5000 && ended < 20; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_GE(ended, 20);
    std::thread other([&engine] { engine->Stop(); });
    engine->Stop();
    other.join();
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(shut);
    EXPECT_EQ(ended, accepted);
    EXPECT_EQ(behind_the_end, 0);
    ExpectNothingHeld(*engine, options.max_seqs);
    engine->Drain();  // of a stopped engine: nothing to wait for
  }
}

}  // namespace
}  // namespace galley::engine
