// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/grammar_constraint.h"

#include <algorithm>

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

  std::shared_ptr<TokenConstraint> Make(GrammarRequest request) {
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
  for (std::uint32_t id = 0; id < 6; ++id) {
    requests.push_back(Request(200 + id, 6, 0, id < 4 ? 120 : 5));
    requests.back().sampling.temperature = id % 4 == 0 ? 0 : 1.5;
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
  EXPECT_GE(complete, 3);
}

}  // namespace
}  // namespace galley::engine
