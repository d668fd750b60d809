// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace galley::backend {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::optional<TokenId> SampleRow(std::span<const float> logits, const SampleParams& params) {
  std::vector<TokenChance> scratch;
  return backend::SampleRow(logits, params, scratch);
}

// Share of draws per token over `draws` positions.
std::map<TokenId, double> Frequencies(const std::vector<float>& logits, SampleParams params, int draws) {
  std::map<TokenId, double> shares;
  for (int p = 0; p < draws; ++p) {
    params.position = p;
    shares[*SampleRow(logits, params)] += 1.0 / draws;
  }
  return shares;
}

TEST(Sampling, GreedyTakesTheLowestOfEqualLogits) {
  EXPECT_EQ(SampleRow(std::vector<float>{1, 3, 3, 2}, {.temperature = 0}), 1);
}

TEST(Sampling, RowsWithoutANumberHaveNoToken) {
  EXPECT_FALSE(SampleRow(std::vector<float>{-kInf, -kInf}, {}));
  EXPECT_FALSE(SampleRow(std::vector<float>{std::nanf(""), -kInf}, {.temperature = 0}));
  EXPECT_EQ(SampleRow(std::vector<float>{std::nanf(""), -5, -kInf}, {}), 1);
}

TEST(Sampling, DrawsFollowTheDistribution) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  // 40,000 draws: three standard deviations of a share of one half are 3 * sqrt(0.25 / 40000) = 0.0075.
  const auto shares = Frequencies(logits, {.seed = 11}, 40000);
  EXPECT_NEAR(shares.at(0), 0.5, 0.0075);
  EXPECT_NEAR(shares.at(1), 0.3, 0.0075);
  EXPECT_NEAR(shares.at(2), 0.15, 0.0075);
  EXPECT_NEAR(shares.at(3), 0.05, 0.0075);
}

// The rule without shortcuts: exp(logit / T) by noise, all tokens looked at.
TEST(Sampling, DrawsAreTheLargestProbabilityByNoise) {
  for (const float temperature : {0.3f, 1.0f, 2.5f}) {
    for (Position p = 0; p < 200; ++p) {
      std::vector<float> logits;
      for (TokenId id = 0; id < 301; ++id) {  // most of them far below the largest; noise of another seed as spread
        logits.push_back(static_cast<float>(6 * std::log(backend::SampleNoise(99, p, id))));
      }
      logits[17] = std::nanf("");
      logits[18] = -kInf;
      double winner = -1;
      TokenId expected = 0;
      for (TokenId id = 0; id < 301; ++id) {
        const double score = std::exp(static_cast<double>(logits[static_cast<std::size_t>(id)]) / temperature) /
                             backend::SampleNoise(5, p, id);
        if (!(score > winner)) continue;
        winner = score;
        expected = id;
      }
      const SampleParams plain{.temperature = temperature, .seed = 5, .position = p};
      SampleParams filtered = plain;
      filtered.top_k = 300;
      EXPECT_EQ(SampleRow(logits, plain), expected) << temperature << " " << p;
      EXPECT_EQ(SampleRow(logits, filtered), expected) << temperature << " " << p;
    }
  }
}

TEST(Sampling, TemperatureSharpens) {
  const std::vector<float> logits = {std::log(0.6f), std::log(0.4f)};
  // Temperature one half squares the odds: 0.36 against 0.16.
  const auto shares = Frequencies(logits, {.temperature = 0.5f, .seed = 3}, 40000);
  EXPECT_NEAR(shares.at(0), 0.36 / 0.52, 0.0075);
}

TEST(Sampling, TailMassIsNotInflated) {
  // 4,095 tail tokens share a mass of 1e-3: one draw in 1,000 is expected to fall there, and nine or more have a
  // probability of 1e-6.
  constexpr std::size_t kVocab = 4096;
  std::vector<float> logits(kVocab, std::log(1e-3f / static_cast<float>(kVocab - 1)));
  logits[0] = std::log(1 - 1e-3f);
  int tail = 0;
  for (int p = 0; p < 1000; ++p) tail += *SampleRow(logits, {.seed = 5, .position = p}) != 0;
  EXPECT_LE(tail, 8);
}

TEST(Sampling, FiltersKeepWhatTheySay) {
  const std::vector<float> logits = {std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)};
  EXPECT_EQ(Frequencies(logits, {.top_k = 2}, 500).size(), 2u);
  EXPECT_EQ(Frequencies(logits, {.top_p = 0.5f}, 500).size(), 2u);              // 0.4 < 0.5 <= 0.7
  EXPECT_EQ(Frequencies(logits, {.top_p = 0.39f}, 500).size(), 1u);             // 0.4 crosses it
  EXPECT_EQ(Frequencies(logits, {.min_p = 0.6f}, 500).size(), 2u);              // at least 0.24
  EXPECT_EQ(Frequencies(logits, {.top_k = 3, .top_p = 0.8f}, 500).size(), 3u);  // of 0.9: 0.44, 0.78, then over
  EXPECT_EQ(Frequencies(logits, {.top_p = 1e-9f}, 100).size(), 1u);
}

TEST(Sampling, AFilterThatKeepsTheDrawnTokenDoesNotChangeTheDraw) {
  const std::vector<float> logits = {0.1f, 2.0f, 1.5f, -0.5f, 1.9f, 0.3f};
  for (Position p = 0; p < 500; ++p) {
    const TokenId free = *SampleRow(logits, {.seed = 9, .position = p});
    const TokenId filtered = *SampleRow(logits, {.top_k = 3, .seed = 9, .position = p});
    const bool among_the_best = free == 1 || free == 4 || free == 2;
    if (among_the_best) {
      EXPECT_EQ(free, filtered);
    }
  }
}

TEST(Sampling, SeedAndPositionDecide) {
  const std::vector<float> logits(64, 0.0f);
  int differ_by_seed = 0, differ_by_position = 0;
  for (Position p = 0; p < 100; ++p) {
    const auto draw = SampleRow(logits, {.seed = 1, .position = p});
    EXPECT_EQ(draw, SampleRow(logits, {.seed = 1, .position = p}));
    differ_by_seed += draw != SampleRow(logits, {.seed = 2, .position = p});
    differ_by_position += draw != SampleRow(logits, {.seed = 1, .position = p + 1});
  }
  EXPECT_GT(differ_by_seed, 90);  // equal by chance once in 64
  EXPECT_GT(differ_by_position, 90);
}

TEST(Sampling, LogProbabilitiesAreOfTheUnfilteredDistribution) {
  const std::vector<float> logits = {1.0f, 2.0f, 3.0f};
  const double total = std::log(std::exp(1.0) + std::exp(2.0) + std::exp(3.0));
  EXPECT_NEAR(LogProbability(logits, 0), 1.0 - total, 1e-6);
  std::vector<RankedToken> scratch;
  const auto top = TopTokens(logits, 2, scratch);
  ASSERT_EQ(top.size(), 2u);
  EXPECT_EQ(top[0].id, 2);
  EXPECT_NEAR(top[1].logprob, 2.0 - total, 1e-6);
  EXPECT_EQ(TopTokens(logits, 20, scratch).size(), 3u);
}

}  // namespace
}  // namespace galley::backend
