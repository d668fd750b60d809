// SPDX-License-Identifier: Apache-2.0
// What a shared prefix is worth on the embedded model: 64 chats with 1,024 tokens (eight blocks) in common.
#include <gtest/gtest.h>

#include <algorithm>

#include "app_fixture.h"
#include "bench_load.h"
#include "galley/kv/replay.h"

namespace galley::app {
namespace {

constexpr int kShared = 1024, kOwn = 16;

class SharedPrefix : public testing::Test {
 protected:
  SharedPrefix() {
    engine::EngineOptions options;
    options.model_dir = NanoDir();
    options.max_seq_len = kShared + kOwn + 2;
    options.max_seqs = 64;
    auto made = engine::Engine::Create(options);
    EXPECT_TRUE(made) << made.error().ToString();
    engine_ = std::move(*made);
  }

  static std::vector<BenchRequest> Chats(const engine::Engine& engine, int count) {
    WorkloadOptions workload{.requests = count,
                             .prompt = *LengthDistribution::Parse(std::to_string(kOwn), "prompt"),
                             .output = *LengthDistribution::Parse("2", "output"),
                             .shared_tokens = kShared,
                             .seed = 1};
    return MakeWorkload(workload, OrdinaryTokens(engine));
  }

  LoadResult Run(int chats, int concurrency, bool use_cache) {
    const Result<LoadResult> result =
        RunLoad(*engine_, Chats(*engine_, chats),
                {.concurrency = concurrency, .use_cache = use_cache, .cache_salt = std::to_string(++runs_)});
    EXPECT_TRUE(result) << result.error().ToString();
    return result ? *result : LoadResult();
  }

  // Rows of a first chat and of `others` behind it, from the replay plan itself.
  static std::int64_t Planned(int others) {
    kv::ReplaySpec spec;
    spec.window = 128;
    spec.encoder_layers = 4;
    spec.layers = 8;
    spec.truncation = kv::Truncation::kOff;
    const Position length = kShared + kOwn;
    return kv::PlanStart(spec, {.length = length}).encoder_rows() +
           others * kv::PlanStart(spec, {.length = length, .hit = kShared}).encoder_rows();
  }

  std::unique_ptr<engine::Engine> engine_;
  int runs_ = 0;
};

TEST_F(SharedPrefix, SixtyFourChatsAtOnceComputeItOnceAndAreMoreThanTwiceAsFast) {
  const LoadResult cached = Run(64, 64, true);
  EXPECT_EQ(std::ranges::count(cached.cached_of, 0), 1);
  EXPECT_EQ(std::ranges::count(cached.cached_of, kShared), 63);
  EXPECT_EQ(cached.hits_whole, 63);
  EXPECT_EQ(Planned(63), 1040 + 63 * (16 + 128));
  EXPECT_EQ(cached.prompt_rows, Planned(63));
  EXPECT_EQ(cached.decode_rows, 64);

  // Without the cache chats have nothing to do with each other: eight of them show the rate.
  const LoadResult cold = Run(8, 8, false);
  EXPECT_EQ(cold.prompt_rows, 8 * 1040);
  const double gain = cached.PerSecond(cached.output_tokens) / cold.PerSecond(cold.output_tokens);
  RecordProperty("gain", std::to_string(gain));
  EXPECT_GE(gain, 2);
}

TEST_F(SharedPrefix, OneAfterTheOtherEveryChatButTheFirstFindsAllEightBlocks) {
  const LoadResult cached = Run(4, 1, true);
  EXPECT_EQ(cached.cached_of, (std::vector<std::int64_t>{0, kShared, kShared, kShared}));
  EXPECT_EQ(cached.prompt_rows, Planned(3));
  EXPECT_EQ(cached.decode_rows, 4);
}

}  // namespace
}  // namespace galley::app
