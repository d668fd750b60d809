// SPDX-License-Identifier: Apache-2.0
// The engine on the probe checkpoint: tokens do not depend on what else runs, in which order it came, how prompts were
// cut, whether blocks ran short, nor on planning ahead.
#include "galley/engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "galley/engine/engine_for_test.h"

namespace galley::engine {
namespace {

std::vector<EngineRequest> Mixed() {
  std::vector<EngineRequest> requests;
  const int lengths[] = {150, 9, 61, 200, 1, 130};
  for (std::uint32_t i = 0; i < 6; ++i) requests.push_back(Request(i, lengths[i]));
  return requests;
}

// Each request in an engine step of its own, without a cache.
Ids OneAtATime(const std::vector<EngineRequest>& requests) {
  const auto engine = Make(Options());
  Ids ids;
  for (EngineRequest request : requests) {
    request.use_cache = false;
    for (auto& branch : RunAll(*engine, {request})) ids.push_back(branch);
  }
  return ids;
}

TEST(Engine, BatchesPlanningAheadChunksAndBlockPressureDoNotChangeTokens) {
  const Ids expected = OneAtATime(Mixed());
  for (const Ids::value_type& ids : expected) EXPECT_EQ(ids.size(), 8u);
  EngineOptions options = Options();
  EXPECT_EQ(RunAll(*Make(options), Mixed()), expected);
  options.synchronous = true;
  EXPECT_EQ(RunAll(*Make(options), Mixed()), expected) << "synchronous";
  options.synchronous = false;
  options.step_rows_max = 140;
  EXPECT_EQ(RunAll(*Make(options), Mixed()), expected) << "small steps";
  options.blocks = 4;
  const auto tight = Make(options);
  EXPECT_EQ(RunAll(*tight, Mixed()), expected) << "four blocks for six sequences";
  EXPECT_EQ(RunAll(*tight, Mixed()), expected) << "and again";
}

// Four sequences that each fill a block while they decode, and one block more than they begin with.
TEST(Engine, PreemptionDoesNotChangeTokens) {
  std::vector<EngineRequest> requests;
  for (std::uint32_t i = 0; i < 4; ++i) requests.push_back(Request(70 + i, 120 + static_cast<int>(i), 0, 12));
  EngineOptions options = Options();
  options.blocks = 5;
  const auto engine = Make(options);
  const Ids together = RunAll(*engine, requests);
  EXPECT_GT(engine->stats().scheduler.preemptions, 0) << "blocks never ran short, so this test shows nothing";
  EXPECT_EQ(together, OneAtATime(requests));
}

TEST(Engine, ExactReplayAfterAHitEqualsAColdRun) {
  const auto requests = [] { return std::vector<EngineRequest>{Request(7, 300, 256), Request(8, 290, 256)}; };
  const Ids expected = OneAtATime(requests());
  EngineOptions options = Options();
  options.replay = kv::ReplayMode::kExact;
  const auto engine = Make(options);
  EXPECT_EQ(RunAll(*engine, {requests()[0]})[0], expected[0]);
  const auto warm = engine->Generate({requests()[1]});
  ASSERT_TRUE(warm);
  EXPECT_EQ((*warm)[0].start.cached_tokens, 256) << (*warm)[0].start.hit_limit;
  EXPECT_EQ(BranchIds((*warm)[0])[0], expected[1]);
}

TEST(Engine, RequestsThatArriveTogetherShareTheirPrefix) {
  EngineOptions options = Options();
  const auto engine = Make(options);
  std::vector<EngineRequest> requests;
  for (std::uint32_t i = 0; i < 4; ++i) requests.push_back(Request(20 + i, 280, 256));
  const auto results = engine->Generate(std::move(requests));
  ASSERT_TRUE(results);
  int hits = 0;
  for (const EngineResult& result : *results) hits += result.start.cached_tokens == 256;
  EXPECT_EQ(hits, 3) << "every request but the first";
}

TEST(Engine, BranchesEqualSeparateRequests) {
  EngineRequest request = Request(30, 140);
  request.n = 3;
  std::vector<EngineRequest> separate;
  for (int j = 0; j < 3; ++j) {
    separate.push_back(Request(30, 140));
    separate.back().sampling.seed = BranchSeed(request.sampling.seed, j);
  }
  const Ids expected = OneAtATime(separate);
  EXPECT_EQ(RunAll(*Make(Options()), {request}), expected);
  EXPECT_NE(expected[0], expected[1]) << "branches draw differently, or this test shows nothing";
}

TEST(Engine, StopIdsMinTokensAndRules) {
  const auto engine = Make(Options());
  const Ids free = RunAll(*engine, {Request(40, 50)});
  EngineRequest stopping = Request(40, 50);
  stopping.stop_ids = {free[0][2]};
  const auto stopped = engine->Generate({stopping});
  ASSERT_TRUE(stopped);
  const std::vector<TokenId> first = BranchIds((*stopped)[0])[0];
  EXPECT_EQ((*stopped)[0].branches[0].reason, sched::FinishReason::kStop);
  EXPECT_LE(first.size(), 3u);
  EXPECT_EQ(first.back(), free[0][2]);

  stopping.min_tokens = 5;
  const Ids later = RunAll(*engine, {stopping});
  EXPECT_GE(later[0].size(), 5u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NE(later[0][i], free[0][2]);

  EngineRequest narrow = Request(41, 50);
  narrow.rules.allowed_ids = {17, 18};
  const Ids drawn = RunAll(*engine, {narrow});
  for (const TokenId id : drawn[0]) EXPECT_TRUE(id == 17 || id == 18) << id;
}

// A request that bans every id fails alone, beside one that runs.
TEST(Engine, DrawWithoutAPossibleTokenFailsAlone) {
  const auto engine = Make(Options());
  EngineRequest hopeless = Request(51, 20);
  for (TokenId id = 0; id < 512; ++id) hopeless.rules.banned_ids.push_back(id);
  const auto results = engine->Generate({hopeless, Request(52, 20)});
  ASSERT_TRUE(results);
  EXPECT_EQ((*results)[0].branches[0].reason, sched::FinishReason::kError);
  EXPECT_TRUE((*results)[0].branches[0].tokens.empty());
  EXPECT_EQ(BranchIds((*results)[1]), OneAtATime({Request(52, 20)}));
}

TEST(Engine, CancelEndsARequestOnce) {
  const auto engine = Make(Options());
  std::atomic<int> finished = 0, tokens = 0;
  std::atomic<bool> cancelled = false;
  EngineRequest request = Request(60, 40, 0, 900);
  const auto id = engine->Submit(std::move(request), [&](const EngineEvent& event) {
    if (std::holds_alternative<TokenEvent>(event)) ++tokens;
    if (const auto* end = std::get_if<FinishedEvent>(&event)) {
      ++finished;
      cancelled = end->reason == sched::FinishReason::kCancelled;
    }
  });
  ASSERT_TRUE(id);
  while (tokens < 3) std::this_thread::yield();
  engine->Cancel(*id);
  engine->Cancel(*id);
  engine->Drain();
  EXPECT_EQ(finished, 1);
  EXPECT_TRUE(cancelled);
  EXPECT_FALSE(engine->Submit(Request(61, 4), [](const EngineEvent&) {})) << "drained";
}

}  // namespace
}  // namespace galley::engine
