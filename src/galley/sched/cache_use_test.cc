// SPDX-License-Identifier: Apache-2.0
// What the scheduler does with blocks: sharing, waiting for others' blocks, preemption and resume, snapshots, and the
// reports of other engines' bugs that concern one process, numbered K….
#include <gtest/gtest.h>

#include <random>

#include "galley/sched/scheduler.h"
#include "galley/sched/test_rank.h"

namespace galley::sched {
namespace {

// 64 chats with 1,024 tokens in common arrive together: one computes the eight blocks, the others wait for them, hit
// all eight and compute exactly the rows of their replay plan.
TEST(CacheUse, AllButTheFirstOfManySimultaneousRequestsHitTheSharedPrefix) {
  for (const auto mode : {kv::ReplayMode::kBounded, kv::ReplayMode::kExact}) {
    TestRank rank({.blocks = 1024, .replay = {.mode = mode}});
    for (int i = 0; i < 64; ++i) rank.Submit(i, TestPrompt(1024 + 100 + i, 1024, i), 8);
    rank.RunAll();
    EXPECT_EQ(rank.finished.size(), 64u);
    for (int i = 0; i < 64; ++i) {
      const Position hit = i == 0 ? 0 : 1024;
      const auto plan = kv::PlanStart(rank->options().replay, {.length = 1024 + 100 + i, .hit = hit});
      EXPECT_EQ(rank.StartOf(i).cached_tokens, hit) << i;
      EXPECT_EQ(rank.StartOf(i).replayed_tokens, plan.replayed_rows()) << i;
      EXPECT_EQ(rank.RowsOf(i), plan.encoder_rows()) << i;
    }
    EXPECT_EQ(rank->stats().shared_waits, 63);
    rank.ExpectAllFree();
  }
}

TEST(CacheUse, WaitersGoOnWhenTheOneTheyWaitForIsCancelled) {
  TestRank rank({.step_rows_max = 256});
  for (int i = 0; i < 3; ++i) rank.Submit(i, TestPrompt(1100, 1024, i), 2);
  rank.Step();
  EXPECT_EQ(rank.StateOf(1), "awaiting_prefix");
  rank.Cancel(0);
  EXPECT_EQ(rank.StateOf(1), "waiting");
  rank.RunAll();
  EXPECT_EQ(rank.StartOf(1).cached_tokens, 256);  // what the first had finished
  EXPECT_EQ(rank.StartOf(2).cached_tokens, 1024);
  rank.ExpectAllFree();
}

// The wait for a block is bounded: without progress of its owner it becomes a miss that says so.
TEST(CacheUse, K30_AWaitForAnothersBlockIsBounded) {
  TestRank rank({.step_rows_max = 256, .share_wait_us = 2000});
  rank.Submit(0, TestPrompt(1100, 1024, 0), 2);
  rank.Submit(1, TestPrompt(1100, 1024, 1), 2);
  ASSERT_NE(rank.Plan(), nullptr);  // in flight, and the device hangs
  EXPECT_EQ(rank.StateOf(1), "awaiting_prefix");
  rank.now += 2001;
  ASSERT_NE(rank.Plan(), nullptr);
  EXPECT_EQ(rank.StartOf(1).limit, kv::HitLimit::kShareTimeout);
  EXPECT_EQ(rank.StartOf(1).cached_tokens, 0);
  rank.Finish();
  rank.Finish();
  rank.RunAll();
  EXPECT_EQ(rank.finished.size(), 2u);
  rank.ExpectAllFree();
}

TEST(CacheUse, AWaitGoesOnWhileItsOwnerGetsAhead) {
  TestRank rank({.step_rows_max = 256, .share_wait_us = 1500});  // a step takes 1,000
  rank.Submit(0, TestPrompt(2100, 2048, 0), 2);
  rank.Submit(1, TestPrompt(2100, 2048, 1), 2);
  rank.RunAll();
  EXPECT_EQ(rank.StartOf(1).cached_tokens, 2048);
}

TEST(CacheUse, K24_HitsAtOneBlockGranularityWithAndWithoutDrafts) {
  for (const int drafts : {0, 5}) {
    TestRank rank({.drafts = drafts});
    std::int64_t id = 0;
    for (const int length : {129, 255, 256, 257, 1000, 2047, 2048, 4096}) {
      for (int again = 0; again < 2; ++again) {
        rank.Submit(++id, TestPrompt(length, 0, length), 3);
        rank.RunAll();
        EXPECT_EQ(rank.StartOf(id).cached_tokens, again * (length / 128 * 128)) << length;
      }
      EXPECT_EQ(rank.StartOf(id).limit, kv::HitLimit::kNone);
    }
  }
}

// Cancelled after every possible chunk, then asked again: only blocks that were computed completely are hit.
TEST(CacheUse, K26_AnAbortPublishesCompletedBlocksOnly) {
  for (int chunks = 0; chunks <= 7; ++chunks) {
    TestRank rank({.step_rows_max = 101, .prefill_rows_min = 100, .replay = {.truncation = kv::Truncation::kOff}});
    rank.Submit(1, TestPrompt(700, 0, 1), 2);
    for (int i = 0; i < chunks; ++i) rank.Step();
    ASSERT_NE(rank.Plan(), nullptr);  // one more in flight, whose rows must not count
    rank.Cancel(1);
    rank.Finish();
    rank.ExpectAllFree();
    rank.Submit(2, TestPrompt(700, 0, 1), 2);
    rank.RunAll();
    EXPECT_EQ(rank.StartOf(2).cached_tokens, std::min(700, 101 * chunks) / 128 * 128) << chunks;
  }
}

// A failed step leaves nothing behind that could be hit.
TEST(CacheUse, K1_K3_BlocksOfAFailedStepAreNeverHit) {
  TestRank rank;
  rank.Submit(1, TestPrompt(1000, 0, 1), 2);
  ASSERT_NE(rank.Plan(), nullptr);
  rank.Fail();
  EXPECT_EQ(rank->cache().cached(), 0);
  rank.Submit(2, TestPrompt(1000, 0, 1), 2);
  rank.RunAll();
  EXPECT_EQ(rank.StartOf(2).cached_tokens, 0);
  rank.ExpectAllFree();
}

TEST(CacheUse, K27_AnOptOutNeitherFindsNorLeavesBlocks) {
  TestRank rank;
  const auto run = [&](std::int64_t id, bool use_cache, bool logprobs) {
    Request request = TestRank::Make(id, TestPrompt(500, 0, 1), 300);
    request.use_cache = use_cache;
    request.prompt_logprobs = logprobs;
    rank.Submit(std::move(request));
    rank.RunAll();
    return rank.StartOf(id);
  };
  EXPECT_EQ(run(1, false, false).limit, kv::HitLimit::kOptOut);
  EXPECT_EQ(rank->cache().cached(), 0);
  EXPECT_EQ(run(2, true, false).cached_tokens, 0);
  EXPECT_EQ(run(3, false, false).cached_tokens, 0);
  EXPECT_EQ(run(4, true, false).cached_tokens, 384);
  const std::int64_t tail = rank->stats().tail_rows;
  const Started logprobs = run(5, true, true);
  EXPECT_EQ(logprobs.cached_tokens, 0);
  EXPECT_EQ(logprobs.limit, kv::HitLimit::kPromptLogprobs);
  EXPECT_EQ(rank->stats().tail_rows - tail, 500);  // every row through the decoder
}

// Two opted-out requests do not wait for each other either.
TEST(CacheUse, K9_AnotherSaltNeitherHitsNorWaits) {
  TestRank rank;
  for (int i = 0; i < 2; ++i) {
    Request request = TestRank::Make(i, TestPrompt(500, 500, 0), 2);
    request.keys = kv::MakeKeyChain(TestRoot(i == 0 ? "a" : "b"), request.prompt);
    rank.Submit(std::move(request));
  }
  rank.RunAll();
  EXPECT_EQ(rank->stats().shared_waits, 0);
  EXPECT_EQ(rank.StartOf(1).cached_tokens, 0);
}

// Ten thousand requests that come and go in every state: nothing is left behind.
TEST(CacheUse, K19_CancelledRequestsLeaveNothingBehind) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  TestRank rank({.blocks = 40, .slots = 4});
  for (int i = 0; i < 10'000; ++i) {
    rank.Submit(i, TestPrompt(1 + static_cast<int>(random() % 600), 512, i), 20);
    if (random() % 2 == 0) (void)rank.Plan();
    rank.Cancel(i - static_cast<int>(random() % 4));
    if (!rank.in_flight.empty() && random() % 2 == 0) rank.Finish();
  }
  while (!rank.in_flight.empty()) rank.Finish();
  for (int i = 0; i < 10'000; ++i) rank.Cancel(i);
  rank.ExpectAllFree();
  EXPECT_TRUE(rank->idle());
  EXPECT_EQ(rank.finished.size(), 10'000u);
}

TEST(CacheUse, CancellationInEveryState) {
  TestRank rank({.blocks = 12, .step_rows_max = 256});
  rank.Submit(1, TestPrompt(600, 512, 1), 700);
  rank.Step();
  rank.Submit(2, TestPrompt(600, 512, 2), 2);
  rank.Submit(3, TestPrompt(1200, 0, 3), 2);
  (void)rank.Plan();
  EXPECT_EQ(rank.StateOf(1), "prefilling");
  EXPECT_EQ(rank.StateOf(2), "awaiting_prefix");
  EXPECT_EQ(rank.StateOf(3), "waiting");
  for (const int id : {3, 2, 1}) rank.Cancel(id);
  rank.Finish();
  rank.ExpectAllFree();
  rank.Submit(4, TestPrompt(100, 0, 4), 700);
  rank.RunAll(3);
  EXPECT_EQ(rank.StateOf(4), "decoding");
  (void)rank.Plan();
  rank.Cancel(4);
  rank.Cancel(4);  // again, and too late: ignored
  rank.Finish();
  rank.ExpectAllFree();
  EXPECT_EQ(rank.finished.size(), 4u);
  for (const Finished& event : rank.finished) EXPECT_EQ(event.reason, FinishReason::kCancelled);
}

// Six blocks, three sequences that grow: the shortest output makes room, the oldest never does, and everybody ends with
// all tokens.
TEST(CacheUse, PreemptionTakesTheShortestOutputAndNeverTheOldest) {
  TestRank rank({.blocks = 6, .slots = 3});
  rank.Submit(1, TestPrompt(120, 0, 1), 300);
  rank.RunAll(20);
  rank.Submit(2, TestPrompt(120, 0, 2), 300);
  rank.RunAll(20);
  rank.Submit(3, TestPrompt(120, 0, 3), 300);
  bool third_preempted = false;
  for (int i = 0; i < 2000 && !rank->idle(); ++i) {
    rank.Step();
    EXPECT_NE(rank.StateOf(1), "preempted");
    EXPECT_TRUE(third_preempted || rank.StateOf(2) != "preempted") << "the third has the shorter output";
    third_preempted = third_preempted || rank.StateOf(3) == "preempted";
  }
  EXPECT_TRUE(third_preempted);
  EXPECT_GT(rank->stats().preemptions, 0);
  EXPECT_EQ(rank->stats().resumes, rank->stats().preemptions);
  for (int id = 1; id <= 3; ++id) EXPECT_EQ(rank.TokensOf(id).size(), 300u);
  rank.ExpectAllFree();
}

// The first outgrows what the second leaves: at 641 and some 440 tokens they need 6 and 4 of 9 blocks.
TEST(CacheUse, AResumedSequenceHitsItsOwnBlocksAndKeepsItsTail) {
  TestRank rank({.blocks = 9, .slots = 2});
  rank.Submit(1, TestPrompt(500, 0, 1), 250);
  rank.RunAll(5);
  rank.Submit(2, TestPrompt(300, 0, 2), 200);
  const StepPlan* resumed = nullptr;
  StepPlan copy;
  for (int i = 0; i < 1000 && resumed == nullptr && !rank->idle(); ++i) {
    const StepPlan* plan = rank.Plan();
    for (const SequenceRows& rows : plan->prefill) {
      if (rows.request == RequestId(2) && rows.begin + rows.rows > 300) {
        copy = *plan;
        resumed = &copy;
      }
    }
    rank.Finish();
  }
  ASSERT_NE(resumed, nullptr) << "request 2 was never resumed";
  const SequenceRows& rows = resumed->prefill[0];
  EXPECT_EQ(rows.tail_from, 160);   // 300 - 140, as recorded, although the sequence is longer now
  EXPECT_EQ(rows.write_from, 384);  // its own three full blocks are still cached
  EXPECT_EQ(rows.begin, 0);         // 160 - 2540 < 0
  rank.RunAll();
  EXPECT_EQ(rank.TokensOf(2).size(), 200u);
}

// A conversation of 50 turns: each turn's prompt repeats everything before it, and finds it, output included.
TEST(CacheUse, K22_EveryTurnFindsTheWholePreviousTurn) {
  TestRank rank({.blocks = 600});
  std::vector<TokenId> prompt = TestPrompt(1000, 0, 1);
  for (int turn = 1; turn <= 50; ++turn) {
    rank.Submit(turn, prompt, 150);
    rank.RunAll();
    const std::vector<TokenId>& output = rank.TokensOf(turn);
    const auto previous = static_cast<Position>(prompt.size());
    prompt.insert(prompt.end(), output.begin(), output.end());
    const std::vector<TokenId> question = TestPrompt(77, 0, 100 + turn);
    prompt.insert(prompt.end(), question.begin(), question.end());
    if (turn > 1) {
      // The rows of the previous prompt and of all its output but the last token were computed.
      EXPECT_GE(rank.StartOf(turn).cached_tokens, previous - 77 - 1 - 127) << "turn " << turn;
    }
  }
  EXPECT_EQ(rank->stats().hit_limits[static_cast<std::size_t>(kv::HitLimit::kEvicted)], 0);
}

// Ten turns of a chat that thinks and drops its reasoning: every turn after the first restores the snapshot at the end
// of the previous prompt, also where that lies within a block.
TEST(CacheUse, EveryTurnOfAThinkingChatRestoresItsSnapshot) {
  for (const auto mode : {kv::ReplayMode::kBounded, kv::ReplayMode::kExact}) {
    TestRank rank({.snapshots = 2, .replay = {.mode = mode}});
    std::vector<TokenId> prompt = TestPrompt(700, 0, 1);
    Position restored = 0;
    for (int turn = 0; turn < 10; ++turn) {
      const auto length = static_cast<Position>(prompt.size());
      Request request = TestRank::Make(turn, prompt, 60);
      request.snapshot_points = {length - 1};  // the last prompt token opens the reasoning
      rank.Submit(std::move(request));
      rank.RunAll();
      const Started& started = rank.StartOf(turn);
      EXPECT_EQ(started.kind, turn == 0 ? kv::StartKind::kCold : kv::StartKind::kSnapshot) << "turn " << turn;
      EXPECT_EQ(started.cached_tokens, restored) << "turn " << turn;
      restored = length - 1;
      prompt.pop_back();
      const std::vector<TokenId> rest = TestPrompt(90 + turn * 30, 0, 50 + turn);  // answer and next question
      prompt.insert(prompt.end(), rest.begin(), rest.end());
    }
    EXPECT_EQ(rank->stats().snapshot_restores, 9);
    rank.ExpectAllFree();
  }
}

TEST(CacheUse, ASnapshotAtTheEndOfTheOutputServesTheNextTurn) {
  TestRank rank({.snapshots = 2});
  Request request = TestRank::Make(1, TestPrompt(300, 0, 1), 50);
  request.snapshot_at_end = true;
  rank.Submit(std::move(request));
  rank.RunAll();
  std::vector<TokenId> prompt = TestPrompt(300, 0, 1);
  const auto& output = rank.TokensOf(1);
  prompt.insert(prompt.end(), output.begin(), output.end());
  prompt.resize(500, 9);
  rank.Submit(2, prompt, 2);
  rank.RunAll();
  EXPECT_EQ(rank.StartOf(2).kind, kv::StartKind::kSnapshot);
  EXPECT_EQ(rank.StartOf(2).cached_tokens, 349);  // all but the last token, whose row was never run
  EXPECT_EQ(rank.RowsOf(2), 500 - 349);
  rank.ExpectAllFree();
}

// A stop string ends in the first of a step's tokens; the device went on from those behind, and the rows of the step in
// flight are so much further on. With drafts that reach as far as the rings can take back, one is too far already.
TEST(CacheUse, NoSnapshotAtAStopThatLeavesTooManyDeadRows) {
  for (const int dropped : {0, 1, 5}) {
    TestRank rank({.snapshots = 2, .drafts = 5});
    Request request = TestRank::Make(1, TestPrompt(300, 0, 1), 50);
    request.snapshot_at_end = true;
    rank.Submit(std::move(request));
    rank.Step();
    ASSERT_NE(rank.Plan(), nullptr);
    ASSERT_NE(rank.Plan(), nullptr);
    rank.Finish(1, /*stop=*/true, dropped);
    EXPECT_EQ(rank->stats().snapshot_saves, dropped == 0 ? 1 : 0) << dropped;
    rank.Finish();
    rank.RunAll();
    ASSERT_EQ(rank.finished.size(), 1u);
    EXPECT_EQ(rank.finished[0].reason, FinishReason::kStop);
    rank.ExpectAllFree();
  }
}

// The same prompt again while its blocks are being computed: only blocks whose step has ended are hit, whether the
// second waits for the others or not.
TEST(CacheUse, K4_BlocksBeingWrittenAreNotReadUntilTheyAreWhole) {
  for (const TimeUs share_wait : {TimeUs{0}, TimeUs{1'000'000}}) {
    TestRank rank({.step_rows_max = 300, .share_wait_us = share_wait});
    rank.Submit(0, TestPrompt(1100, 0, 0), 2);
    rank.Step();                      // rows 0 to 299: two whole blocks
    ASSERT_NE(rank.Plan(), nullptr);  // rows 300 to 599, in flight
    rank.Submit(1, TestPrompt(1100, 0, 0), 2);
    rank.now += 1;
    ASSERT_NE(rank.Plan(), nullptr);
    if (share_wait == 0) {
      rank.now += 1;
      rank.Finish();
      ASSERT_NE(rank.Plan(), nullptr);
    } else {
      EXPECT_FALSE(rank.started.contains(RequestId(1)));
    }
    while (!rank.in_flight.empty()) rank.Finish();
    rank.RunAll();
    const Started& second = rank.StartOf(1);
    EXPECT_EQ(second.cached_tokens, share_wait == 0 ? 512 : 1024)
        << share_wait;  // rows 0 to 599 had ended: four blocks
    EXPECT_EQ(rank.TokensOf(1).size(), 2u);
    rank.ExpectAllFree();
  }
}

// A prefix that is found but evicted before its request can start is a shorter hit, and its rows are computed.
TEST(CacheUse, K18_AHitThatIsGoneWhenTheRequestStartsIsComputedAgain) {
  TestRank rank({.blocks = 12, .slots = 1});
  rank.Submit(0, TestPrompt(700, 0, 0), 2);
  rank.RunAll();
  EXPECT_EQ(rank->cache().cached(), 5);
  rank.Submit(1, TestPrompt(300, 0, 1), 1000);  // grows to eleven blocks, and so over the cached ones
  rank.Step();
  rank.Submit(2, TestPrompt(700, 0, 0), 2);  // waits for the slot, and finds five blocks meanwhile
  rank.RunAll();
  const Started& late = rank.StartOf(2);
  EXPECT_LT(late.cached_tokens, 640);
  EXPECT_EQ(late.limit, kv::HitLimit::kEvicted);
  EXPECT_EQ(rank.RowsOf(2), 700 - late.cached_tokens + late.replayed_tokens);
  EXPECT_EQ(rank.finished.size(), 3u);
  rank.ExpectAllFree();
}

// A whole hit is whole or waits: it is never cut to the room that there is.
TEST(CacheUse, K20_AWholeHitIsNotCutToTheFreeSpace) {
  TestRank rank({.blocks = 12, .slots = 2});
  rank.Submit(0, TestPrompt(700, 0, 0), 2);
  rank.RunAll();
  rank.Submit(1, TestPrompt(800, 0, 1), 60);  // seven blocks, all that are free
  rank.Step();
  rank.Submit(2, TestPrompt(700, 0, 0), 2);  // five cached blocks and one more
  rank.Step();
  EXPECT_EQ(rank.StateOf(2), "waiting");
  rank.RunAll();
  EXPECT_EQ(rank.StartOf(2).cached_tokens, 640);
  EXPECT_EQ(rank.StartOf(2).limit, kv::HitLimit::kNone);
  rank.ExpectAllFree();
}

// A preempted request can be cancelled like any other, before and after it is back in the queue.
TEST(CacheUse, CancellationOfAPreemptedRequest) {
  TestRank rank({.blocks = 6, .slots = 3});
  for (int i = 1; i <= 3; ++i) rank.Submit(i, TestPrompt(120, 0, i), 300);
  int victim = 0;
  for (int i = 0; i < 1000 && victim == 0; ++i) {
    ASSERT_NE(rank.Plan(), nullptr);
    for (int id = 1; id <= 3; ++id) victim = rank.StateOf(id) == "preempted" ? id : victim;
    if (victim != 0) rank.Cancel(victim);
    rank.Finish();
  }
  ASSERT_NE(victim, 0);
  EXPECT_EQ(rank.finished.size(), 1u);
  rank.RunAll();
  EXPECT_EQ(rank.finished.size(), 3u);
  rank.ExpectAllFree();
}

TEST(CacheUse, K15_TheLedgerHoldsAfterTheCacheIsCleared) {
  TestRank rank;
  for (int i = 0; i < 8; ++i) rank.Submit(i, TestPrompt(700, 512, i), 40);
  rank.RunAll(10);
  rank->ClearCache();
  rank->CheckInvariants();
  rank.Submit(9, TestPrompt(700, 512, 9), 4);
  rank.RunAll();
  EXPECT_EQ(rank.StartOf(9).cached_tokens, 0);
  rank.ExpectAllFree();
}

}  // namespace
}  // namespace galley::sched
