// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/grammar_constraint.h"

#include <algorithm>
#include <thread>

#include "galley/base/thread_pool.h"
#include "galley/engine/engine_for_test.h"

namespace galley::engine {
namespace {

GrammarRequest Regex(std::string_view pattern) {
  GrammarRequest request;
  request.kind = "regex";
  request.spec.type = grammar::JsonValue::Type::kString;
  request.spec.text = pattern;
  return request;
}

GrammarRequest Schema(std::string_view text) {
  GrammarRequest request;
  request.kind = "json_schema";
  request.spec = *grammar::ParseJson(text);
  return request;
}

class GrammarConstraintTest : public ::testing::Test {
 protected:
  GrammarConstraintTest() {
    auto loaded = text::Tokenizer::Load(std::string(GALLEY_SOURCE_DIR) + "/models/nano/tokenizer.json");
    tokenizer_ = std::make_unique<text::Tokenizer>(std::move(*loaded));
    const TokenId ends[] = {1};
    compiler_ = *GrammarCompiler::Create(*tokenizer_, ends, vocab_size_, 16 << 20);
  }

  std::shared_ptr<TokenConstraint> Make(const GrammarRequest& request) {
    const auto made = compiler_->Compile(request);
    EXPECT_TRUE(made.has_value()) << made.error().message;
    return (*made)->Clone();
  }
  std::vector<std::uint32_t> Mask(TokenConstraint& constraint) {
    std::vector<std::uint32_t> mask(MaskWords(vocab_size_));
    EXPECT_TRUE(constraint.FillMask(mask));
    return mask;
  }
  bool Allows(TokenConstraint& constraint, TokenId id) {
    return (Mask(constraint)[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1) != 0;
  }
  TokenId Id(std::string_view spelling) { return *tokenizer_->IdOf(spelling); }

  int vocab_size_ = 2600;  // more logits than tokens: the model pads them
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<GrammarCompiler> compiler_;
};

TEST_F(GrammarConstraintTest, AllowsWhatTheGrammarDoesAndNothingElse) {
  const auto constraint = Make(Regex("a+b"));
  std::vector<TokenId> allowed;
  for (TokenId id = 0; id < vocab_size_; ++id) {
    if (Allows(*constraint, id)) allowed.push_back(id);
    const auto fork = constraint->Clone();
    EXPECT_EQ(fork->Accept(id), Allows(*constraint, id)) << id;  // mask and accept are one rule
  }
  EXPECT_NE(std::find(allowed.begin(), allowed.end(), Id("a")), allowed.end());
  for (const TokenId id : allowed) EXPECT_EQ(tokenizer_->TokenBytes(id)->find_first_not_of("ab"), std::string::npos);
  EXPECT_FALSE(constraint->Accept(Id("b")));
  EXPECT_TRUE(constraint->Accept(Id("a")));
  EXPECT_FALSE(constraint->IsComplete());
  EXPECT_TRUE(constraint->Accept(Id("b")));
  EXPECT_TRUE(constraint->IsComplete());  // nothing can follow, so no end token has to be drawn
  EXPECT_TRUE(Allows(*constraint, 1));
  constraint->Rollback(1);
  EXPECT_FALSE(constraint->IsComplete());
  EXPECT_FALSE(Allows(*constraint, 1));
}

TEST_F(GrammarConstraintTest, BeginsBehindTheReasoningAlsoInsideADraft) {
  GrammarRequest request = Regex("ab");
  const TokenId think_end = Id("</think>");
  request.starts_after = think_end;
  const auto constraint = Make(request);
  EXPECT_TRUE(Allows(*constraint, 1));
  EXPECT_TRUE(Allows(*constraint, Id("b")));
  ASSERT_TRUE(constraint->Accept(Id("b")));
  // A draft "x </think> a b" of which only "x" is kept: what was looked past leaves no trace.
  ASSERT_TRUE(constraint->Accept(Id("x")));
  ASSERT_TRUE(constraint->Accept(think_end));
  EXPECT_FALSE(Allows(*constraint, Id("b")));
  EXPECT_FALSE(constraint->Accept(Id("b")));  // the first token behind the reasoning is held to the grammar already
  ASSERT_TRUE(constraint->Accept(Id("a")));
  ASSERT_TRUE(constraint->Accept(Id("b")));
  EXPECT_TRUE(constraint->IsComplete());
  constraint->Rollback(3);  // b, a, </think>
  EXPECT_FALSE(constraint->IsComplete());
  EXPECT_TRUE(Allows(*constraint, Id("b")));
  ASSERT_TRUE(constraint->Accept(Id("a")));  // reasoning again
  ASSERT_TRUE(constraint->Accept(think_end));
  constraint->Rollback(0);
  EXPECT_FALSE(Allows(*constraint, Id("b")));
  ASSERT_TRUE(constraint->Accept(Id("a")));
  constraint->Rollback(1);  // up to the border, not over it
  EXPECT_FALSE(Allows(*constraint, Id("b")));
  EXPECT_TRUE(Allows(*constraint, Id("a")));
}

TEST_F(GrammarConstraintTest, ClonesGoTheirOwnWays) {
  const auto first = Make(Regex("a(b|c)"));
  ASSERT_TRUE(first->Accept(Id("a")));
  const auto second = first->Clone();
  ASSERT_TRUE(first->Accept(Id("b")));
  EXPECT_TRUE(second->Accept(Id("c")));
  EXPECT_TRUE(first->IsComplete());
  EXPECT_TRUE(second->IsComplete());
}

TEST_F(GrammarConstraintTest, CompiledGrammarsAreKeptAndBadOnesNameThePlace) {
  ASSERT_TRUE(compiler_->Compile(Regex("x+")).has_value());
  ASSERT_TRUE(compiler_->Compile(Regex("x+")).has_value());
  EXPECT_EQ(compiler_->stats().hits, 1u);
  EXPECT_EQ(compiler_->stats().misses, 1u);
  const auto bad = compiler_->Compile(Schema(R"({"properties":{"a":{"frobnicate":1}}})"));
  ASSERT_FALSE(bad.has_value());
  EXPECT_EQ(bad.error().pointer, "/properties/a");
  EXPECT_EQ(bad.error().keyword, "frobnicate");
  EXPECT_TRUE(compiler_->Compile(Regex("x+")).has_value());  // a bad one harms nobody
}

// Many requests of many grammars compile on several threads while another walks masks, as a server does; and masks of
// one batch are filled on several threads, grammar by grammar.
// Refused before anything runs; later no token could be drawn, after all the reasoning was paid for.
TEST_F(GrammarConstraintTest, WhatNothingSatisfiesIsRefused) {
  for (const std::string_view pattern : {"a$b", "^(ab)^", "[^]$[x]"}) {
    const auto made = compiler_->Compile(Regex(pattern));
    ASSERT_FALSE(made.has_value()) << pattern;
    EXPECT_EQ(made.error().code, grammar::CompileCode::kUnsatisfiable);
    EXPECT_NE(made.error().message.find("no text satisfies this"), std::string::npos) << made.error().message;
  }
  EXPECT_TRUE(compiler_->Compile(Regex("")).has_value()) << "the empty text is a text";
  EXPECT_TRUE(compiler_->Compile(Regex("^(ab)$")).has_value());
}

TEST_F(GrammarConstraintTest, CompilesBesideARunningEngineAndFillsBatchesOnThreads) {
  std::vector<std::shared_ptr<const TokenConstraint>> made(12);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < 12; i += 3) {
        const auto one = compiler_->Compile(Regex("[a-z]{" + std::to_string(i / 2 + 1) + "}x"));
        if (one) made[static_cast<std::size_t>(i)] = *one;
      }
    });
  }
  const auto running = Make(Schema("{}"));
  for (int i = 0; i < 20; ++i) (void)Mask(*running);
  for (std::thread& thread : threads) thread.join();
  for (const auto& one : made) ASSERT_NE(one, nullptr);
  EXPECT_EQ(compiler_->stats().entries, 7u);  // six patterns, one schema

  const TokenId ends[] = {1};
  const auto vocabulary = grammar::VocabularyOf(*tokenizer_, ends)->vocabulary;
  std::vector<std::unique_ptr<grammar::Matcher>> owned;
  std::vector<grammar::Matcher*> batch;
  for (int i = 0; i < 9; ++i) {
    if (i % 3 == 0) {
      owned.push_back(std::make_unique<grammar::Matcher>(
          *grammar::CompileRegex("[a-z]{" + std::to_string(i + 2) + "}", {}, vocabulary)));
    } else {
      owned.push_back(owned.back()->Fork());
      (void)owned.back()->Accept(static_cast<std::uint32_t>(Id("a")));
    }
    batch.push_back(owned.back().get());
  }
  const std::size_t words = vocabulary->mask_words();
  std::vector<grammar::MaskWord> rows(words * batch.size()), one(words);
  ThreadPool pool(3);
  grammar::FillMasks(batch, rows, [&](std::size_t n, const std::function<void(std::size_t)>& run) {
    EXPECT_EQ(n, 3u);  // rows of one grammar stay together
    pool.ParallelFor(static_cast<std::int64_t>(n), [&](std::int64_t i) { run(static_cast<std::size_t>(i)); });
  });
  for (std::size_t i = 0; i < batch.size(); ++i) {
    batch[i]->FillMask(one);
    EXPECT_TRUE(std::equal(one.begin(), one.end(), rows.begin() + static_cast<std::ptrdiff_t>(i * words))) << i;
  }
}

// A model of random weights knows no JSON: whatever it writes is valid all the same, or cut off by the token limit.
TEST(EngineGrammar, ARandomModelWritesValidJsonOrRunsOut) {
  const auto engine = Make(Options());
  const TokenId ends[] = {engine->config().eos_token_id};
  const auto compiler = *GrammarCompiler::Create(engine->tokenizer(), ends, engine->config().vocab_size, 16 << 20);
  const GrammarRequest schema = Schema(
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},"n":{"type":"integer","minimum":0,)"
      R"("maximum":999},"tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":3}},)"
      R"("required":["name","n","tags"],"additionalProperties":false})");
  const auto judge = *grammar::CompileJsonSchema(schema.spec, schema.options, grammar::ByteVocabulary().vocabulary);
  std::vector<EngineRequest> requests;
  for (std::uint32_t id = 0; id < 3; ++id) {
    requests.push_back(Request(200 + id, 6, 0, id < 2 ? 90 : 5));
    requests.back().sampling.temperature = id == 0 ? 0 : 1.5;
    requests.back().constraint = *compiler->Compile(schema);
    requests.back().stop_ids = {ends[0]};
    requests.back().n = id % 2 == 0 ? 1 : 2;
  }
  const auto results = engine->Generate(requests);
  ASSERT_TRUE(results);
  int complete = 0;
  for (const EngineResult& result : *results) {
    for (const BranchResult& branch : result.branches) {
      const auto judgement = grammar::Matcher(judge).Check(branch.text);
      if (branch.reason == sched::FinishReason::kStop) {
        EXPECT_TRUE(judgement.complete) << branch.text;
        ++complete;
      } else {
        EXPECT_EQ(branch.reason, sched::FinishReason::kLength) << branch.error.ToString();
        EXPECT_TRUE(judgement.prefix) << branch.text;
      }
    }
  }
  EXPECT_GE(complete, 1);
}

// Drafts are looked past for the masks of the rows that verify them; whatever becomes of them, the tokens are those of
// a run without drafts.
TEST(EngineGrammar, DraftsChangeNothing) {
  GrammarRequest schema = Schema(
      R"({"type":"array","items":{"type":"object","properties":{"id":{"type":"integer","minimum":0,"maximum":9},)"
      R"("ok":{"type":"boolean"}},"required":["id","ok"],"additionalProperties":false},"minItems":1,"maxItems":2})");
  std::vector<Ids> by_mode;
  for (const SpeculationMode mode : {SpeculationMode::kOff, SpeculationMode::kNgram, SpeculationMode::kDspark}) {
    EngineOptions options = Options();
    options.speculation.mode = mode;
    const auto engine = Make(options);
    const TokenId ends[] = {engine->config().eos_token_id};
    const auto compiler = *GrammarCompiler::Create(engine->tokenizer(), ends, engine->config().vocab_size, 16 << 20);
    std::vector<EngineRequest> requests;
    for (std::uint32_t id = 0; id < 2; ++id) {
      requests.push_back(Request(300 + id, 8, 0, 24));
      requests.back().constraint = *compiler->Compile(schema);
      requests.back().stop_ids = {ends[0]};
    }
    by_mode.push_back(RunAll(*engine, requests));
  }
  EXPECT_EQ(by_mode[1], by_mode[0]) << "drafts from earlier text";
  EXPECT_EQ(by_mode[2], by_mode[0]) << "drafts of the draft head";
}

}  // namespace
}  // namespace galley::engine
