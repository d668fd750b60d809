// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/grammar_constraint.h"

#include <algorithm>
#include <thread>

#include "galley/engine/engine_for_test.h"
#include "galley/engine/mask_worker.h"

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

// Many requests of many grammars compile on several threads while another walks masks, as a server does.
TEST_F(GrammarConstraintTest, CompilesBesideARunningEngine) {
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
}

// Masks of a step on three threads: those of one grammar stay together, and all are what one thread makes of them.
TEST_F(GrammarConstraintTest, MasksOfAStepAreFilledOnThreads) {
  std::vector<std::shared_ptr<TokenConstraint>> owned;
  std::vector<MaskJob> jobs(9);
  const std::size_t words = MaskWords(vocab_size_);
  const std::vector<TokenId> drafts = {Id("a"), Id("b")};
  std::vector<std::uint32_t> masks(jobs.size() * 3 * words);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    owned.push_back(Make(Regex("[a-z]{" + std::to_string(i % 3 + 4) + "}")));
    EXPECT_EQ(owned[i]->group() == owned[0]->group(), i % 3 == 0) << i;
    jobs[i] = {.constraint = owned[i].get(),
               .drafts = drafts,
               .masks = std::span(masks).subspan(i * 3 * words, 3 * words),
               .status = {}};
  }
  MaskWorker worker(3);
  for (int round = 0; round < 20; ++round) {
    std::ranges::fill(masks, 0u);
    worker.Start(jobs);
    worker.Wait();
    for (const MaskJob& job : jobs) ASSERT_EQ(job.filled, 3);
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    for (std::size_t row = 0; row < 3; ++row) {
      EXPECT_TRUE(std::ranges::equal(Mask(*owned[i]), jobs[i].masks.subspan(row * words, words))) << i << " " << row;
      if (row < drafts.size()) {
        EXPECT_TRUE(owned[i]->Accept(drafts[row]));
      }
    }
  }
}

// Tools that the model may call as it likes: free text is open, the block is not.
GrammarRequest Calls(bool strict) {
  GrammarRequest request;
  request.kind = "dsml";
  request.spec = *grammar::ParseJson(
      std::string(R"({"spelling":"v41","mode":"auto","parallel":true,"tools":[{"name":"f","strict":)") +
      (strict ? R"(true,"parameters":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],)"
                R"("additionalProperties":false}}]})"
              : R"(false,"parameters":null}]})"));
  return request;
}

TEST_F(GrammarConstraintTest, FreeTextIsOpenAndTheBlockOfCallsIsNot) {
  const TokenId marker = *tokenizer_->AddedIdOf(grammar::kDsmlMarker);
  GrammarRequest request = Calls(false);
  request.starts_after = Id("</think>");
  const auto constraint = Make(request);
  EXPECT_TRUE(constraint->IsOpen()) << "reasoning";
  ASSERT_TRUE(constraint->Accept(marker));  // whatever the model thinks of
  ASSERT_TRUE(constraint->Accept(Id("</think>")));
  EXPECT_TRUE(constraint->IsOpen()) << "free text";
  EXPECT_FALSE(constraint->Accept(marker)) << "only behind <";
  EXPECT_FALSE(constraint->Accept(Id("</think>")));
  ASSERT_TRUE(constraint->Accept(Id("<")));
  EXPECT_TRUE(constraint->IsOpen());
  EXPECT_TRUE(Allows(*constraint, marker));
  EXPECT_TRUE(Allows(*constraint, Id("a")));
  // A draft goes into the block and is taken back.
  ASSERT_TRUE(constraint->Accept(marker));
  EXPECT_FALSE(constraint->IsOpen());
  EXPECT_FALSE(Allows(*constraint, Id("a")));
  EXPECT_FALSE(Allows(*constraint, 1)) << "the block has to be closed";
  constraint->Rollback(1);
  EXPECT_TRUE(constraint->IsOpen());
  ASSERT_TRUE(constraint->Accept(marker));
  const auto feed = [&](std::string_view text) {
    const auto ids = tokenizer_->Encode(text);
    ASSERT_TRUE(ids);
    for (const TokenId id : *ids) {
      EXPECT_FALSE(constraint->IsOpen());
      ASSERT_TRUE(constraint->Accept(id)) << text << " at " << id;
    }
  };
  feed(" calls>\n<");
  ASSERT_TRUE(constraint->Accept(marker));
  EXPECT_FALSE(constraint->Accept(Id("a"))) << "a tool that nobody declared";
  feed(" invoke name=\"f\">\n<");
  ASSERT_TRUE(constraint->Accept(marker));
  feed(" parameter name=\"any\" string=\"false\">[1]</");
  ASSERT_TRUE(constraint->Accept(marker));
  feed(" parameter>\n</");
  ASSERT_TRUE(constraint->Accept(marker));
  feed(" invoke>\n</");
  ASSERT_TRUE(constraint->Accept(marker));
  feed(" calls>");
  EXPECT_TRUE(constraint->IsComplete());
}

// Free text is drawn without a mask, so every token and its probability are those of a run without the grammar; tokens
// that may not come are drawn again.
TEST(EngineGrammar, FreeTextIsWhatItIsWithoutTheGrammar) {
  for (const SpeculationMode mode : {SpeculationMode::kOff, SpeculationMode::kNgram}) {
    EngineOptions options = Options();
    options.speculation.mode = mode;
    const auto engine = Make(options);
    const TokenId ends[] = {engine->config().eos_token_id};
    const auto compiler = *GrammarCompiler::Create(engine->tokenizer(), ends, engine->config().vocab_size, 16 << 20);
    const auto calls = compiler->Compile(Calls(false));
    ASSERT_TRUE(calls.has_value()) << calls.error().message;
    for (const double temperature : {0.0, 1.0}) {
      EngineRequest request = Request(400, 6, 0, 32);
      request.sampling.temperature = temperature;
      request.sampling.top_p = 0.9;
      request.sampling.top_logprobs = 2;
      request.rules.allowed_ids = PrintableIds(engine->tokenizer());
      const BranchResult free = RunOne(*engine, request);
      request.constraint = *calls;
      const BranchResult held = RunOne(*engine, request);
      ASSERT_EQ(IdsOf(held), IdsOf(free));
      for (std::size_t i = 0; i < free.tokens.size(); ++i) EXPECT_EQ(held.tokens[i].logprob, free.tokens[i].logprob);
    }
  }
}

// A model that wants the marker everywhere gets it behind "<" only, and then writes a block to its end.
TEST(EngineGrammar, TheMarkerOpensABlockThatIsHeldToItsEnd) {
  std::vector<Ids> by_mode;
  for (const SpeculationMode mode : {SpeculationMode::kOff, SpeculationMode::kNgram, SpeculationMode::kAuto}) {
    EngineOptions options = Options();
    options.speculation.mode = mode;
    const auto engine = Make(options);
    const text::Tokenizer& tokens = engine->tokenizer();
    const TokenId ends[] = {engine->config().eos_token_id}, marker = *tokens.AddedIdOf(grammar::kDsmlMarker);
    const auto compiler = *GrammarCompiler::Create(tokens, ends, engine->config().vocab_size, 16 << 20);
    const auto judge = *grammar::CompileKind("dsml", Calls(true).spec, grammar::ByteVocabulary().markers, {},
                                             grammar::ByteVocabulary().vocabulary);
    std::vector<EngineRequest> requests;
    for (std::uint32_t id = 0; id < 2; ++id) {
      requests.push_back(Request(500 + id, 6, 0, 120));
      requests.back().constraint = *compiler->Compile(Calls(true));
      requests.back().stop_ids = {ends[0]};
      requests.back().rules.bias = {{marker, 60.0F}, {*tokens.IdOf("<"), 30.0F}, {*tokens.IdOf("7"), 15.0F}};
    }
    const auto results = engine->Generate(requests);
    ASSERT_TRUE(results);
    by_mode.emplace_back();
    for (const EngineResult& result : *results) {
      const BranchResult& branch = result.branches[0];
      by_mode.back().push_back(IdsOf(branch));
      std::string text;
      for (const TokenId id : IdsOf(branch)) {
        if (id != ends[0]) text += id == marker ? std::string(grammar::kDsmlMarker) : *tokens.TokenBytes(id);
      }
      const auto judgement = grammar::Matcher(judge).Check(text, grammar::kDsmlMarker, grammar::kByteMarker);
      EXPECT_TRUE(judgement.prefix) << text;
      EXPECT_TRUE(text.starts_with("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n")) << text;
      EXPECT_EQ(judgement.complete, branch.reason == sched::FinishReason::kStop) << text;
    }
  }
  EXPECT_EQ(by_mode[1], by_mode[0]) << "drafts from earlier text";
  EXPECT_EQ(by_mode[2], by_mode[0]) << "drafts of the draft head";
}

// Drafts of earlier text hold the end of the reasoning: the grammar begins inside them, and not one token later.
TEST(EngineGrammar, TheGrammarBeginsInsideADraft) {
  std::vector<Ids> by_mode;
  int drafted_ends = 0;
  for (const SpeculationMode mode : {SpeculationMode::kOff, SpeculationMode::kNgram}) {
    EngineOptions options = Options();
    options.speculation.mode = mode;
    options.speculation.adaptive = false;  // how many drafts pay follows measured times; here every one is verified
    const auto engine = Make(options);
    const text::Tokenizer& tokens = engine->tokenizer();
    const TokenId ends[] = {engine->config().eos_token_id}, think_end = *tokens.AddedIdOf("</think>");
    const TokenId a = *tokens.IdOf("a"), b = *tokens.IdOf("b");
    const auto compiler = *GrammarCompiler::Create(tokens, ends, engine->config().vocab_size, 16 << 20);
    GrammarRequest grammar = Regex("b[ab]{5}");
    grammar.starts_after = think_end;
    std::vector<EngineRequest> requests;
    for (std::uint32_t id = 0; id < 12; ++id) {
      EngineRequest request = Request(600 + id, 1, 0, 24);
      for (int i = 0; i < 12; ++i) request.prompt_ids.insert(request.prompt_ids.end(), {a, b, think_end, a});
      request.rules.allowed_ids = {a, b, think_end};
      request.sampling.temperature = 2;
      request.constraint = *compiler->Compile(grammar);
      requests.push_back(std::move(request));
    }
    const auto results = engine->Generate(requests);
    ASSERT_TRUE(results);
    by_mode.emplace_back();
    for (const EngineResult& result : *results) {
      const BranchResult& branch = result.branches[0];
      const std::vector<TokenId> ids = IdsOf(branch);
      by_mode.back().push_back(ids);
      const auto border = std::ranges::find(ids, think_end);
      if (border == ids.end()) continue;
      drafted_ends += branch.tokens[static_cast<std::size_t>(border - ids.begin())].from_draft ? 1 : 0;
      const std::vector<TokenId> behind(border + 1, ids.end());
      EXPECT_TRUE(behind.empty() || behind[0] == b);
      EXPECT_EQ(std::ranges::count(behind, think_end), 0);
      EXPECT_LE(behind.size(), 6u);
      EXPECT_EQ(behind.size() == 6, branch.reason == sched::FinishReason::kStop);
    }
  }
  EXPECT_EQ(by_mode[1], by_mode[0]);
  EXPECT_GE(drafted_ends, 1) << "no draft held the border";
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
  for (const SpeculationMode mode : {SpeculationMode::kOff, SpeculationMode::kNgram, SpeculationMode::kAuto}) {
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
