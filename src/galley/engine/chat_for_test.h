// SPDX-License-Identifier: Apache-2.0
// A chat of several turns whose prompts drop the reasoning of earlier answers, or keep it, run against one engine and
// compared turn by turn with an engine that knows nothing.
#pragma once

#include "galley/engine/draws_for_test.h"
#include "galley/text/tokenizer.h"

namespace galley::engine {

struct ChatPlan {
  int turns = 10;
  int first_tokens = 200;    // of the first prompt
  int question_tokens = 20;  // of turn t: t times as many, so that turns are shorter and longer than the tail
  int answer_tokens = 12;
  bool keeps_reasoning = false;
};

// What the first turn's start must be is up to the caller; every later one must restore a snapshot.
inline void RunChat(const EngineOptions& warm_options, const EngineOptions& cold_options, const ChatPlan& plan) {
  const auto warm = Make(warm_options), cold = Make(cold_options);
  ASSERT_TRUE(warm && cold);
  const auto added = [&](std::string_view spelling) { return warm->tokenizer().AddedIdOf(spelling).value_or(3); };
  const TokenId user = added("<｜User｜>"), assistant = added("<｜Assistant｜>");
  const TokenId think = added("<think>"), no_think = added("</think>"), end = warm->config().eos_token_id;
  std::vector<TokenId> prompt = Request(1, plan.first_tokens).prompt_ids;
  prompt.push_back(assistant);
  prompt.push_back(think);
  for (int turn = 0; turn < plan.turns; ++turn) {
    SCOPED_TRACE(testing::Message() << "turn " << turn << ", prompt of " << prompt.size());
    EngineRequest request = Logged(static_cast<std::uint32_t>(turn), 1, 0, plan.answer_tokens);
    request.prompt_ids = prompt;
    request.output_is_kept = plan.keeps_reasoning;
    const EngineResult now = RunWhole(*warm, request);
    EXPECT_EQ(now.start.kind, turn == 0 ? "cold" : "snapshot") << now.start.hit_limit;
    EngineRequest alone = request;
    alone.use_cache = false;
    const Draws expected = DrawsOf(RunWhole(*cold, alone).branches[0]);
    ASSERT_EQ(DrawsOf(now.branches[0]), expected);
    // The same turn again: the second hit.
    const EngineResult again = RunWhole(*warm, request);
    EXPECT_EQ(again.start.kind, "snapshot");
    ASSERT_EQ(DrawsOf(again.branches[0]), expected) << "asked again";

    if (!plan.keeps_reasoning) prompt.back() = no_think;
    for (const auto& [id, logprob] : expected) prompt.push_back(id);
    const std::vector<TokenId> question =
        Request(static_cast<std::uint32_t>(50 + turn), plan.question_tokens * (1 + turn)).prompt_ids;
    for (const TokenId id : {end, user}) prompt.push_back(id);
    prompt.insert(prompt.end(), question.begin(), question.end());
    for (const TokenId id : {assistant, think}) prompt.push_back(id);
  }
}

}  // namespace galley::engine
