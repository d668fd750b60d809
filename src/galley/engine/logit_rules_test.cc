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
  const auto vocab = static_cast<int>(logits.size());
  LogitRules sorted = rules;
  sorted.banned_ids.insert(sorted.banned_ids.end(), banned.begin(), banned.end());
  SortBias(sorted);
  const std::vector<std::uint32_t> mask = AllowedMask(sorted, vocab);
  ChangeMemory memory(vocab);
  std::vector<float> first;
  // As many tokens of the output as there are may still be drafts.
  for (std::size_t drawn = 0; drawn <= output.size(); ++drawn) {
    TokenUse use(rules, prompt, vocab, 10);
    for (std::size_t i = 0; i < drawn; ++i) use.Add(output[i]);
    backend::RowChanges changes{.allowed = mask.empty() ? nullptr : mask.data(), .logits = {}};
    memory.Clear();
    use.Fill(sorted, std::span(output).subspan(drawn), memory, changes);
    std::vector<float> changed;
    backend::ChangeRow(logits, changes, changed);
    if (drawn == 0) first = changed;
    EXPECT_EQ(changed, first) << drawn << " tokens of the output are drawn";
  }
  return first;
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
}

TEST(LogitRules, BiasesOfOneTokenAddUp) {
  EXPECT_EQ(Applied({.bias = {{2, 1}, {0, 3}, {2, 0.5f}}}, {1, 2, 3}), (std::vector<float>{4, 2, 4.5f}));
}

TEST(LogitRules, AllTogether) {
  // Token 0: (1 + 1) / 2 - 0.5. Token 1, twice in the output: -3 * 2 - 2 * 0.25 - 0.5. Token 3, in the prompt: 8 / 2.
  EXPECT_EQ(Applied({.bias = {{0, 1}, {2, 5}},
                     .banned_ids = {2},
                     .repetition_penalty = 2,
                     .frequency_penalty = 0.25,
                     .presence_penalty = 0.5},
                    {1, -3, 7, 8}, {3}, {1, 0, 1}),
            (std::vector<float>{0.25f, -7, -kInf, 4}));
}

}  // namespace
}  // namespace galley::engine
