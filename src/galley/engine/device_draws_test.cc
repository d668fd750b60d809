// SPDX-License-Identifier: Apache-2.0
// A backend that draws tokens itself gives the tokens, and log-probabilities, that the host would draw: with every kind
// of rule, with constraints that are open and closed, and with drafts. On a GPU the same with its own draws.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "galley/backend/decorator.h"
#include "galley/engine/draws_for_test.h"

#ifndef GALLEY_TEST_BACKEND
#define GALLEY_TEST_BACKEND "cpu"
#endif

namespace galley::engine {
namespace {

std::atomic<int> draws_of_backend = 0;

// Draws by Backend::Draw, or leaves that to the engine, which otherwise may not read logits.
class Drawing : public backend::BackendDecorator {
 public:
  Drawing(std::unique_ptr<backend::Backend> inner, bool draws) : BackendDecorator(std::move(inner)), draws_(draws) {}
  [[nodiscard]] bool draws() const override { return draws_; }
  [[nodiscard]] Status Draw(const backend::DrawArgs& args) override {
    draws_of_backend += args.count;
    return BackendDecorator::Draw(args);
  }
  [[nodiscard]] Status CopyToHost(void* host, const void* device, std::size_t bytes) override {
    EXPECT_TRUE(!draws_ || bytes < 512 * sizeof(float)) << "logits are read";
    return BackendDecorator::CopyToHost(host, device, bytes);
  }

 private:
  bool draws_;
};

EngineOptions OptionsOf(bool by_backend) {
  EngineOptions options = Options();
  options.device.backend = GALLEY_TEST_BACKEND;
  options.wrap_backend = [by_backend](std::unique_ptr<backend::Backend> inner) -> std::unique_ptr<backend::Backend> {
    return std::make_unique<Drawing>(std::move(inner), by_backend);
  };
  return options;
}

// Tokens of four kinds in turn, ending behind `length` of them. Open in front of every third token: what is drawn there
// is refused when it is odd.
class Turns : public TokenConstraint {
 public:
  Turns(int vocab_size, int length) : vocab_size_(vocab_size), length_(length) {}
  [[nodiscard]] std::shared_ptr<TokenConstraint> Clone() const override { return std::make_shared<Turns>(*this); }
  [[nodiscard]] Status FillMask(std::span<std::uint32_t> mask) override {
    std::ranges::fill(mask, 0u);
    for (TokenId id = 3; id < vocab_size_; ++id) {
      if (Fits(id)) mask[static_cast<std::size_t>(id) / 32] |= 1u << (id % 32);
    }
    return {};
  }
  [[nodiscard]] bool Accept(TokenId token) override {
    if (token < 3 || !Fits(token)) return false;
    ++done_;
    return true;
  }
  void Rollback(int tokens) override { done_ -= tokens; }
  [[nodiscard]] bool IsOpen() override { return done_ % 3 == 2; }
  [[nodiscard]] bool IsComplete() const override { return done_ >= length_; }

 private:
  [[nodiscard]] bool Fits(TokenId id) const { return done_ % 3 == 2 ? id % 2 == 0 : id % 4 == done_ % 4; }
  int vocab_size_, length_, done_ = 0;
};

struct Drawn {
  std::vector<TokenId> ids;  // and those of alternatives
  std::vector<float> logprobs;
};

void Note(const std::vector<GeneratedToken>& tokens, Drawn& drawn) {
  for (const GeneratedToken& token : tokens) {
    drawn.ids.push_back(token.id);
    drawn.logprobs.push_back(token.logprob);
    for (const TokenLogprob& other : token.alternatives) {
      drawn.ids.push_back(other.id);
      drawn.logprobs.push_back(other.logprob);
    }
  }
}

std::vector<EngineRequest> Requests(bool rules, int vocab_size) {
  std::vector<EngineRequest> requests;
  for (std::uint32_t i = 0; i < 9; ++i) requests.push_back(Request(i, 20 + static_cast<int>(i)));
  requests[0].sampling.temperature = 0;
  requests[1].sampling.top_p = 0.9;
  requests[2].n = 2;  // two draws of one row
  if (!rules) return requests;
  for (EngineRequest& request : requests) request.max_tokens = 24;
  requests[0].rules.repetition_penalty = 1.4;
  requests[1].rules.presence_penalty = 0.5;
  requests[1].rules.frequency_penalty = 0.7;
  requests[1].sampling.top_logprobs = 0;
  requests[2].rules = {.bias = {{7, 3.0f}, {5, 1.0f}, {9, -2.0f}}, .banned_ids = {4, 6}, .repetition_penalty = 0.9};
  requests[2].sampling.top_logprobs = 20;
  requests[2].rules.frequency_penalty = 1;
  requests[3].stop_ids = {3, 8, 12, 16, 100};
  requests[3].min_tokens = 12;
  requests[4].banned_words = {"e", "th"};
  for (TokenId id = 3; id < 90; ++id) requests[5].rules.allowed_ids.push_back(id);
  requests[5].rules.presence_penalty = 1.5;
  requests[5].prompt_logprobs = 3;
  requests[6].constraint = std::make_shared<Turns>(vocab_size, 20);
  requests[6].rules.repetition_penalty = 1.2;
  requests[6].sampling.top_logprobs = 2;
  requests[7].constraint = std::make_shared<Turns>(vocab_size, 18);
  requests[7].rules.banned_ids = {20, 21, 22, 23};
  requests[7].stop_ids = {24, 28};
  requests[7].min_tokens = 9;
  requests[7].banned_words = {"a"};
  requests[7].n = 2;
  requests[8].prompt_logprobs = 0;
  requests[8].sampling.top_k = 10;
  return requests;
}

std::vector<Drawn> Draws(bool by_backend, SpeculationMode mode, bool rules) {
  EngineOptions options = OptionsOf(by_backend);
  options.speculation.mode = mode;
  options.speculation.adaptive = false;  // every draft is verified
  const auto engine = Make(options);
  const auto results = Value(engine->Generate(Requests(rules, engine->config().vocab_size)));
  std::vector<Drawn> draws;
  for (const EngineResult& result : results) {
    for (const BranchResult& branch : result.branches) {
      EXPECT_NE(branch.reason, sched::FinishReason::kError) << branch.error.ToString();
      Note(branch.tokens, draws.emplace_back());
    }
    Note(result.prompt_logprobs, draws.emplace_back());
  }
  return draws;
}

TEST(DeviceDraws, EqualThoseOfTheHost) {
  for (const SpeculationMode mode : {SpeculationMode::kOff, SpeculationMode::kDspark, SpeculationMode::kNgram}) {
    for (const bool rules : {false, true}) {
      draws_of_backend = 0;
      const std::vector<Drawn> expected = Draws(false, mode, rules);
      EXPECT_EQ(draws_of_backend, 0);
      const std::vector<Drawn> drawn = Draws(true, mode, rules);
      ASSERT_EQ(drawn.size(), expected.size());
      for (std::size_t i = 0; i < drawn.size(); ++i) {
        ASSERT_EQ(drawn[i].ids, expected[i].ids) << "list " << i;
        for (std::size_t j = 0; j < drawn[i].ids.size(); ++j) {
          EXPECT_NEAR(drawn[i].logprobs[j], expected[i].logprobs[j], 1e-6) << "list " << i << ", token " << j;
        }
      }
      EXPECT_GE(draws_of_backend, 10 * 8) << "ten branches of eight tokens";
    }
  }
}

TEST(DeviceDraws, ARequestThatLeavesNothingFailsAlone) {
  for (const bool by_backend : {false, true}) {
    const auto engine = Make(OptionsOf(by_backend));
    std::vector<EngineRequest> requests = {Request(1, 20), Request(2, 20)};
    requests[0].rules.allowed_ids = {5};
    requests[0].rules.banned_ids = {5};
    const auto results = engine->Generate(requests);
    ASSERT_TRUE(results);
    EXPECT_EQ((*results)[0].branches[0].reason, sched::FinishReason::kError);
    EXPECT_EQ((*results)[0].branches[0].error.code, ErrorCode::kInvalidArgument) << by_backend;
    EXPECT_EQ((*results)[1].branches[0].tokens.size(), 8u);
  }
}

}  // namespace
}  // namespace galley::engine
