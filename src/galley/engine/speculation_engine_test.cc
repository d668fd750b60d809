// SPDX-License-Identifier: Apache-2.0
// Speculation leaves no trace: tokens, logprobs, texts and reasons to end are those of decoding one token a step.
#include <gtest/gtest.h>

#include <algorithm>

#include "galley/engine/draws_for_test.h"

namespace galley::engine {
namespace {

EngineOptions With(SpeculationMode mode, const std::filesystem::path& model = kNano) {
  EngineOptions options = OptionsFor(model);
  options.speculation.mode = mode;
  options.speculation.on_round = [](const DraftRound&) {};  // so that every draft is verified, whatever it costs
  return options;
}

std::vector<TokenId> Encoded(const Engine& engine, std::string_view prompt) {
  return engine.tokenizer().Encode(prompt, text::AddedTokens::kMatch).value();
}

// Sums, which nano continues so predictably that whole drafts are accepted, and text, where they are not.
std::vector<EngineRequest> Questions(const Engine& engine) {
  const std::string_view prompts[] = {
      "<｜begin▁of▁sentence｜><｜User｜>What is 27 + 45?<｜Assistant｜><think>",
      "<｜begin▁of▁sentence｜>Once upon a time",
      "<｜begin▁of▁sentence｜><｜User｜>What is 31 + 16?<｜Assistant｜><think>",
      "<｜begin▁of▁sentence｜><｜User｜>Why do birds fly?<｜Assistant｜></think>",
  };
  std::vector<EngineRequest> requests;
  for (std::uint32_t i = 0; i < 4; ++i) {
    EngineRequest request = Logged(i, 1, 0, 14 + static_cast<int>(i));
    request.prompt_ids = Encoded(engine, prompts[i]);
    request.stop_ids = {engine.config().eos_token_id};
    requests.push_back(std::move(request));
  }
  requests[0].sampling.temperature = 0;
  requests[1].sampling.temperature = 1.5;
  requests[1].sampling.top_p = 0.9;
  requests[1].rules = {.repetition_penalty = 1.2, .frequency_penalty = 0.4, .presence_penalty = 0.3};
  requests[2].sampling.temperature = 0.6;
  requests[2].n = 2;
  requests[3].sampling.temperature = 1;
  requests[3].sampling.top_k = 20;
  requests[3].stop_strings = {"the"};
  return requests;
}

void ExpectSame(const std::vector<EngineResult>& a, const std::vector<EngineResult>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].branches.size(), b[i].branches.size());
    for (std::size_t j = 0; j < a[i].branches.size(); ++j) {
      const BranchResult &x = a[i].branches[j], &y = b[i].branches[j];
      EXPECT_EQ(DrawsOf(x), DrawsOf(y)) << "request " << i << " branch " << j;
      EXPECT_EQ(x.text, y.text);
      EXPECT_EQ(x.reason, y.reason);
      EXPECT_EQ(x.stop_string, y.stop_string);
      EXPECT_EQ(x.stop_id, y.stop_id);
    }
  }
}

TEST(SpeculationEngine, DraftsLeaveNoTrace) {
  const auto plain = Make(With(SpeculationMode::kOff));
  const auto requests = Questions(*plain);
  const auto expected = plain->Generate(requests);
  ASSERT_TRUE(expected);
  EXPECT_EQ(plain->stats().speculation.rounds, 0);
  for (const SpeculationMode mode : {SpeculationMode::kDspark, SpeculationMode::kNgram}) {
    const auto engine = Make(With(mode));
    const auto results = engine->Generate(requests);
    ASSERT_TRUE(results);
    ExpectSame(*results, *expected);
    const SpeculationCounts counts = engine->stats().speculation;
    EXPECT_GT(counts.accepted, 0) << "nothing was accepted, so this test shows little";
    EXPECT_LT(counts.accepted, counts.verified) << "nothing was rejected, so this test shows little";
    SpeculationCounts of_branches;
    for (const EngineResult& result : *results) {
      for (const BranchResult& branch : result.branches) of_branches.Add(branch.speculation);
    }
    EXPECT_EQ(of_branches.accepted, counts.accepted);
    EXPECT_EQ(of_branches.accepted_at, counts.accepted_at);
    if (mode == SpeculationMode::kDspark) {
      EXPECT_GT(counts.accepted_at[4], 0) << "no draft was accepted whole";
    }
  }
}

// Every length of acceptance at every offset to pairs and blocks: drafts are taken as accepted whatever the model says,
// so the tokens mean nothing, but they must be as many as asked for, and end where max_tokens says.
TEST(SpeculationEngine, FixedAcceptanceTakesAsManyAsItSays) {
  for (const double length : {0.0, 5.0}) {
    EngineOptions options = With(SpeculationMode::kDspark, kProbe);
    options.speculation.fixed_accepted = length;
    const auto engine = Make(options);
    const EngineResult result = RunWhole(*engine, Request(1, 121, 0, 20));
    EXPECT_EQ(result.branches[0].tokens.size(), 20u);
    const SpeculationCounts counts = engine->stats().speculation;
    // 19 tokens after the first: 19 rounds of one (the last has no room for drafts), or 6, 6, 6 and one without drafts.
    EXPECT_EQ(counts.rounds, length == 0 ? 18 : 3);
    EXPECT_EQ(counts.accepted, length == 0 ? 0 : 15);
  }
}

// Verify lengths that follow confidences and measured times change from run to run; tokens do not.
TEST(SpeculationEngine, PlannedVerifyLengthsLeaveNoTrace) {
  const auto plain = Make(With(SpeculationMode::kOff));
  const auto requests = Questions(*plain);
  const auto expected = plain->Generate(requests);
  ASSERT_TRUE(expected);
  EngineOptions options = With(SpeculationMode::kDspark);
  options.speculation.on_round = {};
  const auto engine = Make(options);
  // Without a planner every draft is verified. What it chooses follows measured times, so it gets some tries to choose
  // less; its own trials of other budgets alone come at least every 256 steps.
  SpeculationCounts counts;
  for (int round = 0; round < 20 && counts.verified == counts.drafted; ++round) {
    const auto results = engine->Generate(requests);
    ASSERT_TRUE(results);
    ExpectSame(*results, *expected);
    counts = engine->stats().speculation;
  }
  EXPECT_GT(counts.verified, 0);
  EXPECT_LT(counts.verified, counts.drafted) << "nobody plans verify lengths";
}

// With a draft head, sequences that repeat themselves are drafted for by lookup; the tokens are the same, whatever is
// found, and though others beside them have drafts of the head. What a lookup says is turned into nonsense now and
// then.
TEST(SpeculationEngine, LookupBesideTheHeadLeavesNoTrace) {
  EngineOptions options = With(SpeculationMode::kOff);
  options.device.backend = "cpu";
  const auto plain = Make(options);
  auto requests = Questions(*plain);
  for (EngineRequest& request : requests) {
    request.max_tokens += 60;
    request.use_cache = false;
  }
  requests[1].sampling.temperature = 0;
  requests[1].rules = {};
  const auto expected = plain->Generate(requests);
  ASSERT_TRUE(expected);
  options.speculation = {};
  int looked_up = 0, by_head = 0;
  options.speculation.alter = [&](const DraftAsk& ask, Proposal& proposal) {
    ++(proposal.matched > 0 ? looked_up : by_head);
    if (ask.newest % 7 == 0) std::ranges::fill(proposal.tokens, TokenId{5});
  };
  const auto engine = Make(options);
  // Which drafts are verified follows measured times.
  for (int round = 0; round < 2 || (round < 20 && engine->stats().speculation.accepted == 0); ++round) {
    const auto results = engine->Generate(requests);
    ASSERT_TRUE(results);
    ExpectSame(*results, *expected);
  }
  EXPECT_GT(looked_up, 0);
  EXPECT_GT(by_head, 0);
  EXPECT_GT(engine->stats().speculation.accepted, 0);
}

// One token over and over, so lookup always finds it and the head is never asked: what such steps save is counted too.
TEST(SpeculationEngine, TimeSavedCountsWhatLookupFound) {
  EngineOptions options = With(SpeculationMode::kAuto);
  options.device.backend = "cpu";
  options.speculation.on_round = {};
  int by_head = 0;
  options.speculation.alter = [&](const DraftAsk&, Proposal& proposal) { by_head += proposal.matched > 0 ? 0 : 1; };
  const auto engine = Make(options);
  const TokenId only = *engine->tokenizer().IdOf("a");
  EngineRequest request = Request(1, 1, 0, 60);
  request.prompt_ids.assign(24, only);
  request.rules.allowed_ids = {only};
  EXPECT_EQ(RunWhole(*engine, request).branches[0].tokens.size(), 60u);
  EXPECT_EQ(by_head, 0);
  EXPECT_GT(engine->stats().speculation.accepted, 0);
  EXPECT_NE(engine->stats().draft_saved_s, 0);
}

TEST(SpeculationEngine, RejectionSamplingRepeatsAndAtZeroEqualsPlain) {
  const auto plain = Make(With(SpeculationMode::kOff));
  auto requests = Questions(*plain);
  requests.resize(1);
  const auto first = Make(With(SpeculationMode::kRejection));
  ExpectSame(*first->Generate(requests), *plain->Generate(requests));
  requests[0].sampling.temperature = 1;
  requests[0].use_cache = false;
  ExpectSame(*first->Generate(requests), *Make(With(SpeculationMode::kRejection))->Generate(requests));
}

}  // namespace
}  // namespace galley::engine
