// SPDX-License-Identifier: Apache-2.0
// Text that the engine's events carry: stop strings over token borders, banned words, constraints.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "galley/engine/banned_words.h"
#include "galley/engine/engine_for_test.h"

namespace galley::engine {
namespace {

// A request whose output is printable text, and that text, without anything that ends it.
struct FreeRun {
  EngineRequest request;
  BranchResult result;
  std::vector<std::string> pieces;  // by token
};

FreeRun RunFreely(Engine& engine, std::uint32_t id, int max_tokens = 16) {
  FreeRun run{.request = Request(id, 4, 0, max_tokens), .result = {}, .pieces = {}};
  run.request.rules.allowed_ids = PrintableIds(engine.tokenizer());
  run.result = RunOne(engine, run.request);
  for (const TokenId id_of : IdsOf(run.result)) run.pieces.emplace_back(*engine.tokenizer().TokenBytes(id_of));
  return run;
}

TEST(EngineText, StopStringEndsTheTextWhereverTokensBeginAndEnd) {
  const auto engine = Make(Options());
  const FreeRun run = RunFreely(*engine, 1);
  const std::string& text = run.result.text;
  ASSERT_EQ(text, *engine->tokenizer().Decode(IdsOf(run.result)));
  ASSERT_GE(text.size(), 16u);
  // Every place of the text as the begin of a stop string of one to five bytes: the text ends before the first
  // occurrence, and the branch has no token behind the one that completed it.
  int across_tokens = 0;
  std::vector<EngineRequest> requests;
  std::vector<std::string> stops;
  for (std::size_t begin = 1; begin + 5 < text.size(); begin += 2) {
    stops.push_back(text.substr(begin, 1 + begin % 5));
    requests.push_back(run.request);
    requests.back().stop_strings = {"\x01 never", stops.back()};
  }
  const auto results = engine->Generate(std::move(requests));
  ASSERT_TRUE(results);
  for (std::size_t i = 0; i < stops.size(); ++i) {
    const BranchResult& branch = (*results)[i].branches[0];
    const std::size_t at = text.find(stops[i]);
    EXPECT_EQ(branch.text, text.substr(0, at)) << stops[i];
    EXPECT_EQ(branch.reason, sched::FinishReason::kStop);
    EXPECT_EQ(branch.stop_string, 1u);
    EXPECT_FALSE(branch.stop_id);
    std::size_t tokens = 0, end = 0, last_begin = 0;
    while (end < at + stops[i].size()) {
      last_begin = end;
      end += run.pieces[tokens++].size();
    }
    across_tokens += last_begin > at ? 1 : 0;
    EXPECT_EQ(branch.tokens.size(), tokens) << "tokens up to the one that completed " << stops[i];
  }
  EXPECT_GT(across_tokens, 0) << "no stop string crossed a token border, so this test shows little";
}

// While a text may still become a stop string it is held back, and comes out when it does not.
TEST(EngineText, HeldBackTextComesOutWhenItIsNoStopString) {
  const auto engine = Make(Options());
  const FreeRun run = RunFreely(*engine, 2);
  const std::string& text = run.result.text;
  EngineRequest request = run.request;
  // Begins like the text's last six bytes and goes on differently: held back to the end.
  request.stop_strings = {text.substr(text.size() - 6) + "\x01"};
  std::string shown;
  std::string at_end;
  bool done = false;
  std::mutex mutex;
  std::condition_variable wake;
  ASSERT_TRUE(engine->Submit(request, [&](const EngineEvent& event) {
    if (const auto* token = std::get_if<TokenEvent>(&event)) shown += token->text;
    if (const auto* end = std::get_if<FinishedEvent>(&event)) {
      std::lock_guard lock(mutex);
      EXPECT_EQ(end->reason, sched::FinishReason::kLength);
      EXPECT_FALSE(end->stop_string);
      at_end = end->text;
      done = true;
      wake.notify_all();
    }
  }));
  std::unique_lock lock(mutex);
  wake.wait(lock, [&] { return done; });
  EXPECT_EQ(at_end, text.substr(text.size() - 6));
  EXPECT_EQ(shown + at_end, text);
}

TEST(EngineText, StopStringsCountBehindMinTokensAndBehindTheirToken) {
  const auto engine = Make(Options());
  const FreeRun run = RunFreely(*engine, 3);
  // The first two bytes of token 2: found at once, or not before the sixth token.
  EngineRequest request = run.request;
  request.stop_strings = {run.pieces[2].substr(0, 1)};
  const BranchResult early = RunOne(*engine, request);
  EXPECT_LE(early.tokens.size(), 3u);
  request.min_tokens = 6;
  const BranchResult late = RunOne(*engine, request);
  EXPECT_TRUE(late.tokens.size() > 6 || late.reason == sched::FinishReason::kLength);
  const std::string head = run.result.text.substr(0, late.text.size());
  EXPECT_EQ(late.text, head) << "the stop string changes no token before it";

  request.min_tokens = 0;
  const std::vector<TokenId> ids = IdsOf(run.result);
  request.stop_strings_after = ids[7];
  const BranchResult after = RunOne(*engine, request);
  const auto first = static_cast<std::size_t>(std::find(ids.begin(), ids.end(), ids[7]) - ids.begin());
  EXPECT_GT(after.tokens.size(), first);
  EXPECT_EQ(after.text, run.result.text.substr(0, after.text.size()));
}

// A step is planned ahead with rows of a sequence that turns out to have ended: they are dead, in both modes.
TEST(EngineText, StopFoundWhileTheNextStepRunsGivesNoTokenMore) {
  EngineOptions options = Options();
  const auto planned_ahead = Make(options);
  options.synchronous = true;
  const auto synchronous = Make(options);
  const FreeRun run = RunFreely(*planned_ahead, 4, 12);
  std::vector<EngineRequest> requests;
  for (std::size_t i = 2; i < 10; i += 2) {
    requests.push_back(run.request);
    requests.back().stop_strings = {run.pieces[i] + run.pieces[i + 1]};
    requests.push_back(Request(static_cast<std::uint32_t>(40 + i), 5, 0, 12));
  }
  const auto ahead = planned_ahead->Generate(requests);
  const auto one = synchronous->Generate(requests);
  ASSERT_TRUE(ahead && one);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(IdsOf((*ahead)[i].branches[0]), IdsOf((*one)[i].branches[0]));
    EXPECT_EQ((*ahead)[i].branches[0].text, (*one)[i].branches[0].text);
    EXPECT_EQ((*ahead)[i].branches[0].stop_string, (*one)[i].branches[0].stop_string);
  }
  EXPECT_EQ((*ahead)[0].branches[0].reason, sched::FinishReason::kStop);
}

TEST(EngineText, BranchesStopEachOnItsOwn) {
  const auto engine = Make(Options());
  FreeRun run = RunFreely(*engine, 5, 10);
  run.request.n = 3;
  const auto free = engine->Generate({run.request});
  ASSERT_TRUE(free);
  EngineRequest request = run.request;
  const std::string& other = (*free)[0].branches[2].text;
  request.stop_strings = {other.substr(other.size() - 3)};
  const auto stopped = engine->Generate({request});
  ASSERT_TRUE(stopped);
  for (std::size_t j = 0; j < 3; ++j) {
    const std::string& whole = (*free)[0].branches[j].text;
    EXPECT_EQ((*stopped)[0].branches[j].text, whole.substr(0, whole.find(request.stop_strings[0]))) << j;
  }
  EXPECT_EQ((*stopped)[0].branches[2].stop_string, 0u);
}

TEST(EngineText, StopIdIsNamedAndNotShown) {
  const auto engine = Make(Options());
  const FreeRun run = RunFreely(*engine, 6, 6);
  EngineRequest request = run.request;
  request.stop_ids = {IdsOf(run.result)[3]};
  const BranchResult stopped = RunOne(*engine, request);
  EXPECT_EQ(stopped.stop_id, request.stop_ids[0]);
  EXPECT_FALSE(stopped.stop_string);
  std::string expected;
  for (std::size_t i = 0; i + 1 < stopped.tokens.size(); ++i) expected += run.pieces[i];
  EXPECT_EQ(stopped.text, expected);
}

TEST(EngineText, BannedWordsNeverComeOutHoweverTheyAreCut) {
  const auto engine = Make(Options());
  const FreeRun run = RunFreely(*engine, 7, 24);
  EngineRequest request = run.request;
  // Words of the output that one token holds, and words across two and three.
  const std::string& text = run.result.text;
  request.banned_words = {run.pieces[1], text.substr(text.size() / 2, 3), run.pieces[4] + run.pieces[5]};
  const BranchResult banned = RunOne(*engine, request);
  EXPECT_EQ(banned.tokens.size(), 24u);
  for (const std::string& word : request.banned_words) {
    EXPECT_NE(text.find(word), std::string::npos);
    EXPECT_EQ(banned.text.find(word), std::string::npos) << word << " in " << banned.text;
  }
}

// The rule itself, against trying every token.
TEST(BannedWordsTest, TakesOutExactlyTheTokensThatWouldCompleteAWord) {
  const auto tokenizer = text::Tokenizer::Load(kProbe / "tokenizer.json");
  ASSERT_TRUE(tokenizer);
  const int vocab = tokenizer->vocab_size();
  const TokensByBytes tokens(*tokenizer, vocab);
  const std::vector<std::string> words = {"ab", "abc", "the", "a", "bca", "  "};
  for (std::size_t skip = 0; skip < words.size(); ++skip) {
    std::vector<std::string> some;
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (i != skip) some.push_back(words[i]);
    }
    const auto banned = BannedWords::Create(some, tokens);
    ASSERT_TRUE(banned) << banned.error().ToString();
    for (const std::string& before : {std::string(), std::string("xab"), std::string("t"), std::string("xth"),
                                      std::string("bc"), std::string(" ")}) {
      const std::vector<TokenId> output = *tokenizer->Encode(before);
      std::string tail = "left from before";
      std::vector<std::uint32_t> allowed(MaskWords(vocab), ~0u);
      banned->Apply(output, {}, allowed, tail);
      // Wherever the drafts begin.
      for (std::size_t drawn = 0; drawn < output.size(); ++drawn) {
        std::vector<std::uint32_t> drafted(MaskWords(vocab), ~0u);
        banned->Apply(std::span(output).first(drawn), std::span(output).subspan(drawn), drafted, tail);
        EXPECT_EQ(drafted, allowed) << before << ", " << drawn << " tokens before the drafts";
      }
      for (TokenId id = 0; id < vocab; ++id) {
        std::string joined = before + std::string(tokens.BytesOf(id));
        bool completes = false;
        for (const std::string& word : some) {
          const std::size_t at = joined.find(word, before.size() >= word.size() ? before.size() - word.size() + 1 : 0);
          completes =
              completes || (!tokens.BytesOf(id).empty() && at != std::string::npos && at + word.size() > before.size());
        }
        const bool taken_out = (allowed[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1u) == 0;
        EXPECT_EQ(taken_out, completes) << before << "|" << tokens.BytesOf(id);
      }
    }
  }
}

// Allows one list of tokens in order, again and again `rounds` times, and then nothing.
class CycleConstraint final : public TokenConstraint {
 public:
  CycleConstraint(std::vector<TokenId> cycle, std::size_t rounds) : cycle_(std::move(cycle)), rounds_(rounds) {}

  [[nodiscard]] std::shared_ptr<TokenConstraint> Clone() const override {
    return std::make_shared<CycleConstraint>(*this);
  }
  [[nodiscard]] Status FillMask(std::span<std::uint32_t> mask) override {
    if (fail_at == static_cast<int>(seen_)) return Err(ErrorCode::kResourceExhausted, "too many states", "grammar");
    std::fill(mask.begin(), mask.end(), 0u);
    for (const TokenId id : {cycle_[seen_ % cycle_.size()], other}) {
      if (id >= 0) mask[static_cast<std::size_t>(id) / 32] |= 1u << (id % 32);
    }
    return {};
  }
  [[nodiscard]] bool Accept(TokenId token) override {
    if (token != cycle_[seen_ % cycle_.size()] && token != other) return false;
    ++seen_;
    return true;
  }
  void Rollback(int tokens) override { seen_ -= static_cast<std::size_t>(tokens); }
  [[nodiscard]] bool IsComplete() const override { return seen_ == rounds_ * cycle_.size(); }

  int fail_at = -1;
  TokenId other = -1;  // allowed everywhere

 private:
  std::vector<TokenId> cycle_;
  std::size_t rounds_;
  std::size_t seen_ = 0;
};

TEST(EngineConstraint, MaskDecidesWhatIsDrawnAndTheEndEndsTheBranch) {
  const auto engine = Make(Options());
  EngineRequest request = Request(10, 6, 0, 20);
  const auto constraint = std::make_shared<CycleConstraint>(std::vector<TokenId>{40, 41, 42}, 3);
  request.constraint = constraint;
  request.n = 2;
  const EngineRequest other = Request(11, 30);
  const std::vector<TokenId> alone = IdsOf(RunOne(*engine, other));
  // Twice: the request's own constraint stays in its start state.
  for (int round = 0; round < 2; ++round) {
    const auto results = engine->Generate({request, other});
    ASSERT_TRUE(results);
    for (const BranchResult& branch : (*results)[0].branches) {
      EXPECT_EQ(IdsOf(branch), (std::vector<TokenId>{40, 41, 42, 40, 41, 42, 40, 41, 42}));
      EXPECT_EQ(branch.reason, sched::FinishReason::kStop);
    }
    EXPECT_EQ(IdsOf((*results)[1].branches[0]), alone) << "a constraint concerns its own request only";
  }
}

// Between two allowed tokens the draw is free: the same seed gives the same choice, and both come.
TEST(EngineConstraint, DrawsAmongAllowedTokens) {
  const auto engine = Make(Options());
  EngineRequest request = Request(12, 6, 0, 24);
  const auto constraint = std::make_shared<CycleConstraint>(std::vector<TokenId>{60}, 100);
  constraint->other = 61;
  request.constraint = constraint;
  request.sampling.temperature = 2;
  const std::vector<TokenId> ids = IdsOf(RunOne(*engine, request));
  EXPECT_EQ(std::set<TokenId>(ids.begin(), ids.end()), (std::set<TokenId>{60, 61}));
  EngineRequest allowed = request;
  allowed.constraint = nullptr;
  allowed.rules.allowed_ids = {60, 61};
  EXPECT_EQ(IdsOf(RunOne(*engine, allowed)), ids) << "a mask is the same as a list of allowed ids";
}

TEST(EngineConstraint, FailureEndsItsOwnRequest) {
  const auto engine = Make(Options());
  EngineRequest request = Request(13, 6, 0, 20);
  auto constraint = std::make_shared<CycleConstraint>(std::vector<TokenId>{40}, 100);
  constraint->fail_at = 2;
  request.constraint = constraint;
  const auto results = engine->Generate({request, Request(14, 9)});
  ASSERT_TRUE(results);
  const BranchResult& failed = (*results)[0].branches[0];
  EXPECT_EQ(failed.reason, sched::FinishReason::kError);
  EXPECT_EQ(failed.error.ToString(), "grammar: too many states");
  EXPECT_EQ(IdsOf(failed), (std::vector<TokenId>{40, 40}));
  EXPECT_EQ((*results)[1].branches[0].reason, sched::FinishReason::kLength);
}

TEST(EngineConstraint, NothingAllowedIsAnError) {
  const auto engine = Make(Options());
  EngineRequest request = Request(15, 6, 0, 20);
  request.constraint = std::make_shared<CycleConstraint>(std::vector<TokenId>{40}, 100);
  request.rules.banned_ids = {40};
  const BranchResult failed = RunOne(*engine, request);
  EXPECT_EQ(failed.reason, sched::FinishReason::kError);
  EXPECT_TRUE(failed.tokens.empty());
}

}  // namespace
}  // namespace galley::engine
