// SPDX-License-Identifier: Apache-2.0
// State under rollback: drafts of which exactly so many are right, at every position, so that every length of rejection
// meets block borders, odd positions, branches, preemption, penalties, stop strings and a grammar. What comes is, bit
// for bit, what comes one token a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "galley/base/rng.h"
#include "galley/engine/draws_for_test.h"
#include "galley/engine/grammar_constraint.h"

namespace galley::engine {
namespace {

// Ids that come without drafts, by the seed of the branch that draws them.
using Oracle = std::map<std::uint64_t, std::vector<TokenId>>;

Oracle OracleOf(const std::vector<EngineRequest>& requests, const std::vector<EngineResult>& results) {
  Oracle oracle;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    for (std::size_t j = 0; j < results[i].branches.size(); ++j)
      oracle[BranchSeed(requests[i].sampling.seed, static_cast<int>(j))] = IdsOf(results[i].branches[j]);
  }
  return oracle;
}

// Of the drafts at `newest`, so many are right: another length in each of the six shifts.
int RightAt(Position newest, int shift) {
  const auto any = static_cast<int>(MixBits(static_cast<std::uint64_t>(newest)) % 6);
  return (any + shift) % (kDraftTokensMax + 1);
}

// Positions of the newest token, by how many of the drafts behind it were right.
using Met = std::array<std::set<Position>, kDraftTokensMax + 1>;

// Drafts as the oracle says, wrong from one of them on; behind the oracle's end all are wrong.
EngineOptions DraftingRightly(EngineOptions options, const Oracle& oracle, int shift, Met* met = nullptr) {
  options.speculation.mode = SpeculationMode::kNgram;
  options.speculation.adaptive = false;
  options.speculation.alter = [&oracle, shift, met](const DraftAsk& ask, Proposal& proposal) {
    const std::vector<TokenId>& right = oracle.at(ask.sampling.seed);
    const int count = RightAt(ask.newest, shift);
    if (met != nullptr && ask.most == kDraftTokensMax) (*met)[static_cast<std::size_t>(count)].insert(ask.newest);
    proposal.tokens.clear();
    for (int i = 0; i < ask.most; ++i) {
      const std::size_t at = ask.output.size() + static_cast<std::size_t>(i);
      const TokenId next = at < right.size() ? right[at] : 7;
      proposal.tokens.push_back(i < count && at < right.size() ? next : (next + 1) % 480);
    }
    proposal.confidences.assign(proposal.tokens.size(), 0.0F);
  };
  return options;
}

void ExpectSame(const std::vector<EngineResult>& got, const std::vector<EngineResult>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].branches.size(), want[i].branches.size());
    for (std::size_t j = 0; j < got[i].branches.size(); ++j) {
      const BranchResult &x = got[i].branches[j], &y = want[i].branches[j];
      SCOPED_TRACE(testing::Message() << "request " << i << " branch " << j);
      EXPECT_EQ(DrawsOf(x), DrawsOf(y));
      EXPECT_EQ(x.text, y.text);
      EXPECT_EQ(x.reason, y.reason);
      EXPECT_EQ(x.stop_string, y.stop_string);
      EXPECT_EQ(x.stop_id, y.stop_id);
    }
  }
}

// Prompts that end at every offset to the border of the first block, and outputs that cross it.
std::vector<EngineRequest> Requests(const Engine& engine, GrammarCompiler& compiler) {
  std::vector<EngineRequest> requests;
  for (std::uint32_t i = 0; i < 4; ++i) requests.push_back(Logged(400 + i, 119 + static_cast<int>(i), 0, 23));
  requests[0].n = 2;
  requests[1].rules = {.repetition_penalty = 1.3, .frequency_penalty = 0.5, .presence_penalty = 0.4};
  requests[1].sampling.temperature = 1.2;
  requests[1].min_tokens = 9;
  requests[1].stop_ids = {engine.config().eos_token_id};
  GrammarRequest schema;
  schema.kind = "json_schema";
  schema.spec = *grammar::ParseJson(R"({"type":"array","items":{"enum":["ab","c"]},"minItems":9})");
  requests[2].constraint = *compiler.Compile(schema);
  requests[2].sampling.top_k = 30;
  return requests;
}

class Rollback : public testing::Test {
 protected:
  Rollback() {
    const TokenId ends[] = {plain_->config().eos_token_id};
    compiler_ = *GrammarCompiler::Create(plain_->tokenizer(), ends, plain_->config().vocab_size, 16 << 20);
    requests_ = Requests(*plain_, *compiler_);
  }

  // Runs the requests without drafts and remembers what came.
  void RunPlain() {
    expected_ = *plain_->Generate(requests_);
    oracle_ = OracleOf(requests_, expected_);
  }

  std::unique_ptr<Engine> plain_ = Make(Options());
  std::shared_ptr<GrammarCompiler> compiler_;
  std::vector<EngineRequest> requests_;
  std::vector<EngineResult> expected_;
  Oracle oracle_;
};

TEST_F(Rollback, EveryLengthAtEveryPositionLeavesNoTrace) {
  RunPlain();
  Met met;
  SpeculationCounts counts;
  for (int shift = 0; shift <= kDraftTokensMax; ++shift) {
    SCOPED_TRACE(testing::Message() << "shift " << shift);
    const auto engine = Make(DraftingRightly(Options(), oracle_, shift, &met));
    ExpectSame(*engine->Generate(requests_), expected_);
    counts.Add(engine->stats().speculation);
  }
  EXPECT_GT(counts.accepted_at[4], 0) << "no draft was accepted whole";
  EXPECT_LT(counts.accepted_at[0], counts.verified_at[0]) << "none was rejected at its first place";
  for (std::size_t count = 0; count < met.size(); ++count) {
    const auto border = std::ranges::count_if(met[count], [](Position p) { return p >= 122 && p <= 133; });
    EXPECT_GE(border, 3) << count << " right drafts met few positions around the border of the block";
  }
}

// Five blocks for four sequences, each of which needs a second one when it crosses the border.
TEST_F(Rollback, PreemptionInBetweenLeavesNoTrace) {
  for (EngineRequest& request : requests_) request.n = 1;
  RunPlain();
  std::int64_t preemptions = 0;
  for (int shift = 0; shift <= kDraftTokensMax; ++shift) {
    SCOPED_TRACE(testing::Message() << "shift " << shift);
    EngineOptions options = DraftingRightly(Options(), oracle_, shift);
    options.blocks = 5;
    const auto engine = Make(options);
    ExpectSame(*engine->Generate(requests_), expected_);
    preemptions += engine->stats().scheduler.preemptions;
  }
  EXPECT_GT(preemptions, 0) << "blocks never ran short, so this test shows little";
}

// A stop string that ends within a draft that is right to its end, and one that reaches over drafts; what was drawn
// behind it is dropped and counted nowhere.
TEST_F(Rollback, StopStringsAndStopIdsEndWithinDrafts) {
  requests_.resize(2);
  requests_[0].n = 1;
  requests_[1] = Logged(420, 60, 0, 30);
  RunPlain();
  const std::string text = expected_[0].branches[0].text;
  ASSERT_GT(text.size(), 12u);
  std::size_t at = text.size() / 2;
  while (at > 0 && (text[at] & 0xC0) == 0x80) --at;
  std::size_t end = at + 3;
  while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
  requests_[0].stop_strings = {text.substr(at, end - at)};
  requests_[1].stop_ids = {IdsOf(expected_[1].branches[0])[13]};
  const Oracle whole = oracle_;
  RunPlain();
  EXPECT_EQ(expected_[0].branches[0].reason, sched::FinishReason::kStop);
  EXPECT_EQ(expected_[1].branches[0].reason, sched::FinishReason::kStop);
  for (int shift = 0; shift <= kDraftTokensMax; ++shift) {
    SCOPED_TRACE(testing::Message() << "shift " << shift);
    const auto engine = Make(DraftingRightly(Options(), whole, shift));
    const auto results = *engine->Generate(requests_);
    ExpectSame(results, expected_);
    for (const EngineResult& result : results) {
      const BranchResult& branch = result.branches[0];
      EXPECT_LE(branch.speculation.accepted, static_cast<std::int64_t>(branch.tokens.size()));
    }
  }
}

TEST_F(Rollback, FewTokensLeaveNoRoomForAllDrafts) {
  for (int most = 1; most <= 7; ++most) {
    SCOPED_TRACE(testing::Message() << "max_tokens " << most);
    for (EngineRequest& request : requests_) request.max_tokens = most;
    for (EngineRequest& request : requests_) request.min_tokens = 0;
    RunPlain();
    const auto engine = Make(DraftingRightly(Options(), oracle_, 5 - most % 6));
    ExpectSame(*engine->Generate(requests_), expected_);
  }
}

// Cancelled while drafts are verified: one end, and what runs beside it and after it is as ever.
TEST_F(Rollback, CancelWhileVerifying) {
  RunPlain();
  requests_[3].max_tokens = 23;
  const auto engine = Make(DraftingRightly(Options(), oracle_, 5));
  for (int after = 1; after <= 6; ++after) {
    std::mutex mutex;
    std::condition_variable changed;
    int tokens = 0, ends = 0;
    const auto id = engine->Submit(requests_[3], [&](const EngineEvent& event) {
      std::lock_guard lock(mutex);
      if (std::holds_alternative<TokenEvent>(event)) ++tokens;
      if (std::holds_alternative<FinishedEvent>(event)) ++ends;
      changed.notify_all();
    });
    ASSERT_TRUE(id);
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return tokens >= after || ends > 0; });
    }
    engine->Cancel(*id);
    ExpectSame(*engine->Generate(requests_), expected_);
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return ends > 0; });
    EXPECT_EQ(ends, 1);
  }
}

}  // namespace
}  // namespace galley::engine
