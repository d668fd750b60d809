// SPDX-License-Identifier: Apache-2.0
// Inputs that cannot be right: each is refused with the field, the value and the limit, and disturbs nobody.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "galley/engine/engine_for_test.h"

namespace galley::engine {
namespace {

using ::testing::HasSubstr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

struct BadInput {
  const char* field;
  const char* limit;  // part of the message
  std::function<void(EngineRequest&)> spoil;
};

std::vector<BadInput> Cases() {
  return {
      {"prompt_ids", "no tokens", [](EngineRequest& r) { r.prompt_ids.clear(); }},
      {"length of prompt_ids", "outside 1 … 1024", [](EngineRequest& r) { r.prompt_ids.assign(1025, 5); }},
      {"length of prompt_ids", "outside 1 … 1024", [](EngineRequest& r) { r.prompt_ids.assign(1'000'000, 5); }},
      {"prompt", "this model holds 1025", [](EngineRequest& r) { r.max_tokens = 2000; }},
      {"prompt_ids", "id 512 at place 2 is outside the vocabulary of 512",
       [](EngineRequest& r) { r.prompt_ids[2] = 512; }},
      {"prompt_ids", "id -7 at place 0", [](EngineRequest& r) { r.prompt_ids[0] = -7; }},
      {"temperature", "nan is outside [0, 100]", [](EngineRequest& r) { r.sampling.temperature = kNaN; }},
      {"temperature", "outside [0, 100]", [](EngineRequest& r) { r.sampling.temperature = -0.1; }},
      {"temperature", "inf is outside", [](EngineRequest& r) { r.sampling.temperature = kInf; }},
      {"top-p", "0 is outside (0, 1]", [](EngineRequest& r) { r.sampling.top_p = 0; }},
      {"top-p", "nan is outside", [](EngineRequest& r) { r.sampling.top_p = kNaN; }},
      {"min-p", "1.5 is outside [0, 1]", [](EngineRequest& r) { r.sampling.min_p = 1.5; }},
      {"top-k", "-1 is outside", [](EngineRequest& r) { r.sampling.top_k = -1; }},
      {"seed", "-1 is outside 0 … 9223372036854775807",
       [](EngineRequest& r) { r.sampling.seed = static_cast<std::uint64_t>(-1); }},
      {"logprobs", "21 is outside", [](EngineRequest& r) { r.sampling.top_logprobs = 21; }},
      {"prompt_logprobs", "21 is outside -1 … 20", [](EngineRequest& r) { r.prompt_logprobs = 21; }},
      {"max_tokens", "0 is outside", [](EngineRequest& r) { r.max_tokens = 0; }},
      {"max_tokens", "-5 is outside", [](EngineRequest& r) { r.max_tokens = -5; }},
      {"min_tokens", "outside 0 … 2", [](EngineRequest& r) { r.min_tokens = 3; }},
      {"n", "0 is outside 1 … 128", [](EngineRequest& r) { r.n = 0; }},
      {"n", "1000000000 is outside 1 … 128", [](EngineRequest& r) { r.n = 1'000'000'000; }},
      {"stop_ids", "id -1 at place 0", [](EngineRequest& r) { r.stop_ids = {-1}; }},
      {"number of stop_ids", "1000000 is outside 0 … 1024", [](EngineRequest& r) { r.stop_ids.assign(1'000'000, 1); }},
      {"stop_strings", "1000000 strings were given, at most 64",
       [](EngineRequest& r) { r.stop_strings.assign(1'000'000, "x"); }},
      {"stop_strings[1]", "empty",
       [](EngineRequest& r) {
         r.stop_strings = {"a", ""};
       }},
      {"stop_strings[0]", "at most 1024", [](EngineRequest& r) { r.stop_strings = {std::string(5000, 'a')}; }},
      {"stop_strings[0]", "UTF-8", [](EngineRequest& r) { r.stop_strings = {"\xff"}; }},
      {"banned_words", "1000000 strings were given, at most 64",
       [](EngineRequest& r) { r.banned_words.assign(1'000'000, "x"); }},
      {"number of logit_bias", "outside 0 … 512",
       [](EngineRequest& r) {
         r.rules.bias.assign(1'000'000, {TokenId{1}, 1.0f});
       }},
      {"logit_bias", "id 512 is outside the vocabulary of 512",
       [](EngineRequest& r) {
         r.rules.bias = {{512, 1.0f}};
       }},
      {"logit_bias", "nan is outside [-100, 100]",
       [](EngineRequest& r) {
         r.rules.bias = {{5, std::numeric_limits<float>::quiet_NaN()}};
       }},
      {"banned_ids", "id -1 is outside", [](EngineRequest& r) { r.rules.banned_ids = {-1}; }},
      {"allowed_ids", "id 9999 is outside", [](EngineRequest& r) { r.rules.allowed_ids = {9999}; }},
      {"repetition_penalty", "0 is outside", [](EngineRequest& r) { r.rules.repetition_penalty = 0; }},
      {"frequency_penalty", "nan is outside [-2, 2]", [](EngineRequest& r) { r.rules.frequency_penalty = kNaN; }},
      {"presence_penalty", "3 is outside [-2, 2]", [](EngineRequest& r) { r.rules.presence_penalty = 3; }},
      {"deadline_s", "-1 is outside", [](EngineRequest& r) { r.deadline_s = -1; }},
      {"deadline_s", "nan is outside", [](EngineRequest& r) { r.deadline_s = kNaN; }},
  };
}

TEST(EngineBadInput, IsRefusedWithFieldAndLimitAndDisturbsNobody) {
  const auto engine = Make(Options());
  const EngineRequest good = Request(1, 12, 0, 2);
  const std::vector<TokenId> expected = IdsOf(RunOne(*engine, good));
  const std::vector<BadInput> cases = Cases();
  std::vector<EngineRequest> requests = {good};
  for (const BadInput& bad : cases) {
    requests.push_back(good);
    bad.spoil(requests.back());
  }
  requests.push_back(good);
  const auto results = engine->Generate(std::move(requests));
  ASSERT_TRUE(results);
  EXPECT_EQ(IdsOf(results->front().branches[0]), expected);
  EXPECT_EQ(IdsOf(results->back().branches[0]), expected);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const EngineResult& result = (*results)[i + 1];
    ASSERT_FALSE(result.branches.empty());
    for (const BranchResult& branch : result.branches) {
      EXPECT_EQ(branch.reason, sched::FinishReason::kError) << cases[i].field << ": " << cases[i].limit;
      EXPECT_EQ(branch.error.code, ErrorCode::kInvalidArgument) << branch.error.ToString();
      EXPECT_EQ(branch.error.where, cases[i].field);
      EXPECT_THAT(branch.error.message, HasSubstr(cases[i].limit));
      EXPECT_TRUE(branch.tokens.empty());
    }
  }
  EXPECT_EQ(engine->stats().steps_failed, 0);
}

// Allowed and banned at once: it is the request that leaves nothing, and only when the first token is drawn.
TEST(EngineBadInput, ConstraintsThatLeaveNothingAreTheRequestsFault) {
  const auto engine = Make(Options());
  EngineRequest request = Request(1, 12, 0, 2);
  request.rules.allowed_ids = {7};
  request.rules.banned_ids = {7};
  const BranchResult branch = RunOne(*engine, request);
  EXPECT_EQ(branch.reason, sched::FinishReason::kError);
  EXPECT_EQ(branch.error.code, ErrorCode::kInvalidArgument) << branch.error.ToString();
  EXPECT_THAT(branch.error.message, HasSubstr("allowed and banned tokens, biases and grammar leave none"));
}

}  // namespace
}  // namespace galley::engine
