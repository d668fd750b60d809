// SPDX-License-Identifier: Apache-2.0
// Faults that users of other engines have reported and that can happen within one process, each under its id in the
// notes on serving: K9, K22, K25, K27, K31 (K26 is in engine_failure_test.cc). All are about answers that are wrong
// while everything looks healthy, so all compare with a cold run.
#include <gtest/gtest.h>

#include "galley/engine/engine_for_test.h"

namespace galley::engine {
namespace {

std::int64_t Cached(const Result<std::vector<EngineResult>>& results) {
  return (*results)[0].start.cached_tokens;
}

EngineOptions ExactOptions() {
  EngineOptions options = Options();
  options.replay = kv::ReplayMode::kExact;
  return options;
}

TEST(EngineReports, K9_SaltsKeepTenantsApart) {
  const auto engine = Make(Options());
  EngineRequest request = Request(1, 140, 0, 2);
  request.cache_salt = "tenant a";
  EXPECT_EQ(Cached(engine->Generate({request})), 0);
  EXPECT_EQ(Cached(engine->Generate({request})), 128);
  for (const char* salt : {"tenant b", "", "tenant a "}) {
    request.cache_salt = salt;
    const auto results = engine->Generate({request});
    EXPECT_EQ(Cached(results), 0) << salt;
    EXPECT_EQ((*results)[0].start.hit_limit, "never_seen") << salt;
  }
}

// Each turn finds all that the one before left: its prompt and its output, in whole blocks.
TEST(EngineReports, K22_EveryTurnOfASessionFindsTheOneBefore) {
  const auto engine = Make(ExactOptions());
  EngineRequest turn = Request(2, 100, 0, 4);
  std::int64_t before = 0;
  for (int round = 0; round < 4; ++round) {
    const auto results = engine->Generate({turn});
    ASSERT_TRUE(results);
    EXPECT_GE(Cached(results), before - 128) << "turn " << round;
    EXPECT_EQ(Cached(results), before / 128 * 128) << "turn " << round;
    // The newest token's row is never computed, so the session holds one token less.
    before = static_cast<std::int64_t>(turn.prompt_ids.size()) + 4 - 1;
    for (const TokenId id : IdsOf((*results)[0].branches[0])) turn.prompt_ids.push_back(id);
    const EngineRequest more = Request(static_cast<std::uint32_t>(300 + round), 60);
    turn.prompt_ids.insert(turn.prompt_ids.end(), more.prompt_ids.begin(), more.prompt_ids.end());
  }
}

TEST(EngineReports, K25_RepeatsByOtherRequestsEqualTheColdRun) {
  const auto engine = Make(ExactOptions());
  EngineRequest request = Request(3, 200, 0, 4);
  request.sampling.temperature = 0;
  const auto cold = engine->Generate({request});
  for (int repeat = 0; repeat < 3; ++repeat) {
    request.sampling.seed += 1;  // another request; at temperature 0 seeds mean nothing
    const auto warm = engine->Generate({request});
    EXPECT_EQ(Cached(warm), 128);
    EXPECT_EQ(BranchIds((*warm)[0]), BranchIds((*cold)[0])) << "repeat " << repeat;
  }
}

TEST(EngineReports, K27_OptOutNeitherFindsNorLeavesBlocks) {
  const auto engine = Make(Options());
  EngineRequest request = Request(4, 140, 0, 2);
  request.use_cache = false;
  EXPECT_EQ(Cached(engine->Generate({request})), 0);
  EXPECT_EQ(engine->stats().blocks_cached, 0) << "it left a block";
  request.use_cache = true;
  EXPECT_EQ(Cached(engine->Generate({request})), 0) << "it left a block that others find";
  request.use_cache = false;
  const auto out = engine->Generate({request});
  EXPECT_EQ(Cached(out), 0);
  EXPECT_EQ((*out)[0].start.hit_limit, "opt_out");
}

TEST(EngineReports, K31_ManyAtOnceSayWhatEachSaysAlone) {
  EngineOptions options = Options();
  options.max_seqs = 16;
  const auto engine = Make(options);
  std::vector<EngineRequest> requests;
  for (std::uint32_t i = 0; i < 16; ++i) {
    requests.push_back(Request(500 + i, 3 + static_cast<int>(i), 0, 5));
    requests.back().sampling.temperature = 0;
  }
  const Ids together = RunAll(*engine, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(IdsOf(RunOne(*engine, requests[i])), together[i]) << i;
}

}  // namespace
}  // namespace galley::engine
