// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/speculation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "galley/model/config.h"

namespace galley::engine {
namespace {

using backend::TokenChance;

// Target and draft of three tokens; the frequencies over many positions are the target's, and the share of accepted
// drafts is 1 less the total variation: 1 - (|.5-.2| + |.3-.3| + |.2-.5|) / 2 = 0.7.
TEST(Speculation, RejectionSamplingDrawsFromTheTarget) {
  const std::vector<TokenChance> target = {{3, 0.5}, {4, 0.3}, {9, 0.2}}, draft = {{3, 0.2}, {4, 0.3}, {9, 0.5}};
  constexpr int kRounds = 20'000;
  std::map<TokenId, int> counts;
  int accepted = 0;
  for (Position p = 0; p < kRounds; ++p) {
    // The draft is drawn as a drafter would: the exponential race over its own chances.
    TokenId drafted = 0;
    double winner = -1;
    for (const TokenChance& chance : draft) {
      const double score = chance.probability / backend::SampleNoise(77, p, chance.id);
      if (score > winner) {
        winner = score;
        drafted = chance.id;
      }
    }
    const Verdict verdict = AcceptOrRedraw(target, draft, drafted, {.seed = 77, .position = p});
    ++counts[verdict.id];
    accepted += verdict.accepted;
    EXPECT_EQ(verdict.accepted && verdict.id != drafted, false);
  }
  // Five standard deviations of a share: 5 * sqrt(0.25 / 20000) = 0.018.
  for (const TokenChance& chance : target) EXPECT_NEAR(counts[chance.id] / double{kRounds}, chance.probability, 0.018);
  EXPECT_NEAR(accepted / double{kRounds}, 0.7, 0.018);
  // A draft that the target cannot draw is never kept.
  EXPECT_FALSE(AcceptOrRedraw(target, std::vector<TokenChance>{{5, 1.0}}, 5, {.seed = 1, .position = 2}).accepted);
  // One that it is sure of always is.
  EXPECT_TRUE(AcceptOrRedraw(std::vector<TokenChance>{{5, 1.0}}, std::vector<TokenChance>{{5, 0.1}}, 5, {}).accepted);
}

TEST(Speculation, FixedAcceptanceHasTheMeanThatWasAskedFor) {
  int sum = 0;
  for (Position p = 0; p < 4000; ++p) {
    const int accepted = FixedAccepted(2.25, 3, p);
    EXPECT_TRUE(accepted == 2 || accepted == 3);
    sum += accepted;
  }
  EXPECT_NEAR(sum / 4000.0, 2.25, 0.04);  // five standard deviations: 5 * sqrt(0.1875 / 4000) = 0.034
  EXPECT_EQ(FixedAccepted(0, 3, 1), 0);
  EXPECT_EQ(FixedAccepted(5, 3, 1), 5);
}

TEST(Speculation, OptionsAreResolvedAgainstTheModel) {
  model::Config with, without;
  with.dspark.n_stages = 3;
  with.dspark.block_size = 5;
  EXPECT_EQ(SpeculationOptions{}.Resolve(with)->mode, SpeculationMode::kDspark);
  EXPECT_TRUE(SpeculationOptions{}.Resolve(with)->lookup);
  EXPECT_FALSE((SpeculationOptions{.mode = SpeculationMode::kDspark}.Resolve(with)->lookup)) << "asked for by name";
  EXPECT_FALSE(SpeculationOptions{}.Resolve(without)->lookup);
  EXPECT_EQ(SpeculationOptions{}.Resolve(without)->mode, SpeculationMode::kOff);
  EXPECT_EQ(SpeculationOptions{}.Resolve(without)->draft_tokens, 0);
  EXPECT_EQ((SpeculationOptions{.draft_tokens = 0}.Resolve(with)->mode), SpeculationMode::kOff);
  EXPECT_EQ((SpeculationOptions{.mode = SpeculationMode::kNgram}.Resolve(without)->draft_tokens), 5);
  EXPECT_EQ((SpeculationOptions{.draft_tokens = 6}.Resolve(with).error().where), "draft_tokens");
  EXPECT_EQ((SpeculationOptions{.mode = SpeculationMode::kDspark}.Resolve(without).error().where), "speculation");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ((SpeculationOptions{.fixed_accepted = nan}.Resolve(with).error().where), "fixed_accepted");
  with.dspark.block_size = 3;  // rings take back no more
  EXPECT_EQ((SpeculationOptions{.draft_tokens = 4}.Resolve(with).error().where), "draft_tokens");
  EXPECT_EQ(SpeculationModeFor("ngram"), SpeculationMode::kNgram);
  EXPECT_FALSE(SpeculationModeFor("medusa"));
}

}  // namespace
}  // namespace galley::engine
