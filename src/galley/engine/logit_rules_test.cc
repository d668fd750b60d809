// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/logit_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace galley::engine {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> Applied(const LogitRules& rules, std::vector<float> logits, std::vector<TokenId> prompt = {},
                           std::vector<TokenId> output = {}, std::vector<TokenId> banned = {}) {
  TokenCounts counts;
  ApplyRules(rules, prompt, output, banned, logits, counts);
  EXPECT_EQ(counts, TokenCounts(logits.size())) << "the scratch is not as the next row needs it";
  return logits;
}

TEST(LogitRules, BansAllowsAndBiases) {
  EXPECT_EQ(Applied({.allowed_ids = {0, 2}, .banned_ids = {2}}, {1, 2, 3}), (std::vector<float>{1, -kInf, -kInf}));
  EXPECT_EQ(Applied({.bias = {{1, -0.5f}, {2, 4}}}, {1, 2, 3}), (std::vector<float>{1, 1.5f, 7}));
  EXPECT_EQ(Applied({}, {1, 2, 3}, {}, {}, {0}), (std::vector<float>{-kInf, 2, 3}));
  EXPECT_EQ(Applied({.allowed_ids = {0, 0, 1}}, {1, 2, 3}), (std::vector<float>{1, 2, -kInf}));
  EXPECT_EQ(Applied({.bias = {{0, 100}}, .banned_ids = {0}}, {1, 2}), (std::vector<float>{-kInf, 2}));
}

TEST(LogitRules, RepetitionCountsPromptAndOutputOnce) {
  // Token 0 in the prompt, 1 twice in the output: 4 / 2, -3 * 2; token 2 untouched.
  EXPECT_EQ(Applied({.repetition_penalty = 2}, {4, -3, 5}, {0}, {1, 1}), (std::vector<float>{2, -6, 5}));
}

TEST(LogitRules, FrequencyAndPresenceCountTheOutputOnly) {
  // Token 1 twice: 5 - (0.5 * 2 + 0.25); token 0 is in the prompt only.
  EXPECT_EQ(Applied({.frequency_penalty = 0.5, .presence_penalty = 0.25}, {5, 5, 5}, {0}, {1, 1}),
            (std::vector<float>{5, 3.75f, 5}));
}

TEST(LogitRules, ValidationNamesTheField) {
  const auto field = [](const LogitRules& rules) {
    const Status status = ValidateRules(rules, 10);
    return status ? std::string() : status.error().where;
  };
  EXPECT_EQ(field({}), "");
  EXPECT_EQ(field({.bias = {{10, 1.0f}}}), "logit_bias");
  EXPECT_EQ(field({.bias = {{1, std::nanf("")}}}), "logit_bias");
  EXPECT_EQ(field({.allowed_ids = {-1}}), "allowed_ids");
  EXPECT_EQ(field({.banned_ids = {10}}), "banned_ids");
  EXPECT_EQ(field({.repetition_penalty = 0}), "repetition_penalty");
  EXPECT_EQ(field({.frequency_penalty = 2.1}), "frequency_penalty");
  EXPECT_EQ(field({.presence_penalty = -3}), "presence_penalty");
  EXPECT_FALSE(HasRules({}));
  EXPECT_TRUE(HasRules({.presence_penalty = 0.1}));
}

}  // namespace
}  // namespace galley::engine
