// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "galley/engine/loaded_model.h"
#include "galley/engine/oracle_for_test.h"
#include "galley/engine/sequence.h"

namespace galley::engine {
namespace {

// `rounds` random worlds, up to `more` others while nothing was shared, and then one that is short of blocks, which the
// requests of a random world hardly ever are. With `more` = 0 neither is asked for: worlds on the reference are slow.
void RunMany(const std::filesystem::path& model, const std::string& backend, int rounds, int more) {
  const std::uint32_t seed = std::random_device{}();
  std::int64_t preemptions = 0, hits = 0, restores = 0, accepted = 0;
  const auto run = [&](OracleCase world) {
    world.model = model, world.backend = backend;
    SCOPED_TRACE(testing::Message() << "seed " << world.seed << " on " << backend);
    Oracle oracle(world);
    oracle.Run();
    preemptions += oracle.preemptions();
    hits += oracle.hits();
    restores += oracle.restores();
    accepted += oracle.accepted();
  };
  for (int round = 0; round < rounds || (hits == 0 && round < rounds + more); ++round) {
    run({.model = {}, .seed = seed + static_cast<std::uint32_t>(round)});
    if (testing::Test::HasFatalFailure()) return;
  }
  if (more > 0) {
    run({.model = {},
         .seed = seed,
         .requests = 3,
         .longest = 60,
         .output = 300,
         .output_least = 260,
         .variants = 2,
         .short_of_blocks = true});
    if (testing::Test::HasFatalFailure()) return;
  }
  std::printf("seed %u: %lld preemptions, %lld cached tokens, %lld restores, %lld accepted drafts\n", seed,
              static_cast<long long>(preemptions), static_cast<long long>(hits), static_cast<long long>(restores),
              static_cast<long long>(accepted));
  if (more > 0) {
    EXPECT_GT(preemptions, 0) << "blocks never ran short";
    EXPECT_GT(hits, 0) << "nothing was shared";
  }
}

TEST(OracleSlow, ProbeOnTheReference) {
  RunMany(kProbe, "ref", 1, 0);
}
TEST(OracleSlow, NanoOnTheReference) {
  RunMany(kNano, "ref", 1, 0);
}
TEST(OracleSlow, ProbeOnTheProcessor) {
  RunMany(kProbe, "cpu", 2, 8);
}
TEST(OracleSlow, NanoOnTheProcessor) {
  RunMany(kNano, "cpu", 2, 8);
}

TEST(OracleSlow, SevenHundredOneRowStepsEqualOneChunk) {
  for (const auto& model : {kProbe, kNano}) {
    for (const std::string backend : {"ref", "cpu"}) {
      SCOPED_TRACE(testing::Message() << model << " on " << backend);
      auto loaded = LoadedModel::Load(
          {.model_dir = model, .device = {.backend = backend}, .rows_max = 700, .logit_rows_max = 700, .longest = 768});
      ASSERT_TRUE(loaded) << loaded.error().ToString();
      const std::vector<TokenId> ids = Request(9, 700).prompt_ids;
      std::vector<float> whole, rows;
      {
        Sequence sequence(*loaded);
        whole = *sequence.Append(ids, 700);
      }
      Sequence sequence(*loaded);
      for (const TokenId& id : ids) {
        const std::vector<float> row = *sequence.Append({&id, 1}, 1);
        rows.insert(rows.end(), row.begin(), row.end());
      }
      ASSERT_EQ(rows.size(), whole.size());
      EXPECT_EQ(std::memcmp(rows.data(), whole.data(), rows.size() * sizeof(float)), 0);
    }
  }
}

}  // namespace
}  // namespace galley::engine
