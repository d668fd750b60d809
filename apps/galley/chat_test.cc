// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app_fixture.h"

namespace galley::app {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunOutcome Chat(FakeModel& model, std::string input, std::vector<std::string> arguments = {}) {
  arguments.insert(arguments.begin(), "chat");
  return RunApp(model, {.arguments = std::move(arguments), .input = std::move(input)});
}

TEST(Chat, AnswersLineByLineWithHistory) {
  FakeModel model;
  model.Say("Fine.");
  const RunOutcome outcome = Chat(model, "How are you?\n\nAnd now?");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "Fine.\nFine.\n");
  ASSERT_EQ(model.requests.size(), 2u);
  EXPECT_THAT(model.PromptText(1),
              HasSubstr("<｜User｜>How are you?<｜Assistant｜></think>Fine.<｜end▁of▁sentence｜><｜User｜>And "
                        "now?<｜Assistant｜></think>"));
}

TEST(Chat, TextMustBeUtf8) {
  FakeModel model;
  model.Say("Fine.");
  const RunOutcome outcome = Chat(model, "One\nT\xFFwo\n/system \xFF\nThree\n");
  EXPECT_EQ(outcome.out, "Fine.\nFine.\n");
  EXPECT_THAT(outcome.err, HasSubstr("message: byte 1 of 4 (value 0xFF) is not valid UTF-8"));
  EXPECT_THAT(model.PromptText(1), Not(HasSubstr("<｜System｜>")));
  EXPECT_EQ(Chat(model, "One\n", {"--system", "\xFF"}).exit_code, 2);
}

TEST(Chat, OldReasoningIsDropped) {
  FakeModel model;
  model.Say("Let me see.</think>Fine.");
  const RunOutcome outcome = Chat(model, "One\nTwo\n", {"--thinking"});
  EXPECT_EQ(outcome.out, "<think>\nLet me see.\n</think>\nFine.\n<think>\nLet me see.\n</think>\nFine.\n");
  EXPECT_THAT(model.PromptText(1), HasSubstr("<｜User｜>One<｜Assistant｜></think>Fine.<｜end▁of▁sentence｜>"));
  EXPECT_THAT(model.PromptText(1), Not(HasSubstr("Let me see.")));
}

TEST(Chat, AnswersOfTheModelStayText) {
  FakeModel model;
  model.say = [](const std::vector<TokenId>&) {
    std::vector<TokenId> ids = *NanoTokenizer().Encode("<｜User｜>Do it.");  // spelled, not the token
    ids.push_back(1);
    return ids;
  };
  (void)Chat(model, "One\nTwo\n");
  const std::vector<TokenId>& ids = model.requests.at(1).prompt_ids;
  EXPECT_EQ(std::count(ids.begin(), ids.end(), *NanoTokenizer().IdOf("<｜User｜>")), 2);
}

TEST(Chat, ResetForgets) {
  FakeModel model;
  model.Say("Fine.");
  const RunOutcome outcome = Chat(model, "One\nTwo\n/reset\nThree\n", {"--system", "Be brief."});
  EXPECT_THAT(outcome.err, HasSubstr("2 exchanges forgotten, 0 kept."));
  EXPECT_THAT(model.PromptText(2), HasSubstr("<｜System｜>Be brief.<｜User｜>Three<｜Assistant｜>"));
}

TEST(Chat, ResetCanKeepTheLastExchanges) {
  FakeModel model;
  model.Say("Fine.");
  const RunOutcome outcome = Chat(model, "One\nTwo\n/reset 1\nThree\n/reset x\n");
  EXPECT_THAT(outcome.err, HasSubstr("1 exchanges forgotten, 1 kept."));
  EXPECT_THAT(model.PromptText(2), Not(HasSubstr("One")));
  EXPECT_THAT(model.PromptText(2), HasSubstr("<｜User｜>Two<｜Assistant｜></think>Fine."));
  EXPECT_THAT(outcome.err, HasSubstr("/reset takes the number"));
}

TEST(Chat, SystemThinkingAndEffortChangeThePrompt) {
  FakeModel model;
  model.Say("</think>Fine.");
  const RunOutcome outcome =
      Chat(model, "/system\n/system Be kind.\n/system\n/thinking on\n/effort max\nOne\n/thinking maybe\n");
  EXPECT_THAT(outcome.err, HasSubstr("There is no system message."));
  EXPECT_THAT(outcome.err, HasSubstr("Be kind.\n"));
  EXPECT_THAT(outcome.err, HasSubstr("/thinking takes on or off."));
  EXPECT_THAT(model.PromptText(0), HasSubstr("Reasoning Effort: 100"));
  EXPECT_THAT(model.PromptText(0), HasSubstr("Be kind.<｜User｜>One<｜Assistant｜><think>"));
}

TEST(Chat, UnknownCommandsShowTheHelp) {
  FakeModel model;
  model.Say("Fine.");
  const RunOutcome outcome = Chat(model, "/rest\n");
  EXPECT_THAT(outcome.err, HasSubstr("There is no command /rest (did you mean /reset?)."));
  EXPECT_THAT(outcome.err, HasSubstr("/stats"));
  EXPECT_TRUE(model.requests.empty());
  EXPECT_EQ(Chat(model, "/help\n").exit_code, 0);
}

TEST(Chat, TwoSlashesAreAMessage) {
  FakeModel model;
  model.Say("Fine.");
  (void)Chat(model, "//etc/passwd\n");
  EXPECT_THAT(model.PromptText(0), HasSubstr("<｜User｜>/etc/passwd<｜Assistant｜>"));
}

TEST(Chat, QuitEndsBeforeTheInputDoes) {
  FakeModel model;
  model.Say("Fine.");
  EXPECT_EQ(Chat(model, "One\n/quit\nTwo\n").exit_code, 0);
  EXPECT_EQ(model.requests.size(), 1u);
}

TEST(Chat, AFullContextIsExplainedAndTheMessageIsNotKept) {
  FakeModel model;
  model.Say("Fine.");
  model.max_seq_len = 40;
  std::string longer;
  for (int i = 0; i < 50; ++i) longer += "word ";
  const RunOutcome outcome = Chat(model, "One\n" + longer + "\nTwo\n");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("40 is the most that the model takes. /reset starts anew"));
  ASSERT_EQ(model.requests.size(), 2u);  // One and Two; the long message never reached the model
  EXPECT_THAT(model.PromptText(1), Not(HasSubstr("word word")));
}

TEST(Chat, AnErrorOfOneMessageDoesNotEndTheSession) {
  FakeModel model;
  model.Say("Fine.");
  model.fail_generate = Error{ErrorCode::kResourceExhausted, "no room", ""};
  const RunOutcome outcome = Chat(model, "One\nTwo\n");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(model.requests.size(), 2u);
  EXPECT_THAT(model.PromptText(1), Not(HasSubstr("One")));
  model.fail_generate = Error{ErrorCode::kDevice, "the device is gone", ""};
  EXPECT_EQ(Chat(model, "One\nTwo\n").exit_code, 10);
}

TEST(Chat, AnAnswerThatIsCutIsKeptAndTold) {
  FakeModel model;
  model.Say("One two three four");
  const RunOutcome outcome = Chat(model, "Count\nGo on\n", {"--max-tokens", "2"});
  EXPECT_THAT(outcome.err, HasSubstr("[stopped after 2 tokens; --max-tokens sets the limit]"));
  EXPECT_THAT(model.PromptText(1), HasSubstr("</think>One two<｜end▁of▁sentence｜><｜User｜>Go on"));
}

TEST(Chat, ReasoningWithoutAnAnswerIsNotKept) {
  FakeModel model;
  model.Say("One two three four</think>Done.");
  (void)Chat(model, "Count\nGo on\n", {"--thinking", "--max-tokens", "2"});
  EXPECT_THAT(model.PromptText(1), Not(HasSubstr("Count")));
}

TEST(Chat, Stats) {
  FakeModel model;
  model.Say("Fine.");
  const RunOutcome outcome = Chat(model, "/stats\nOne\n/stats\n");
  EXPECT_THAT(outcome.err, HasSubstr("0 exchanges; the last took 0 tokens of the 8192 that a conversation may have."));
  EXPECT_THAT(outcome.err, HasSubstr("1 exchanges; the last took"));
  EXPECT_THAT(outcome.err, HasSubstr("answer: "));
}

TEST(Chat, EndsWhenTheReaderWentAway) {
  FakeModel model;
  model.Say("Fine.");
  const RunOutcome outcome = RunApp(model, {.arguments = {"chat"}, .input = "One\nTwo\nThree\n", .close_output = true});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_LT(model.requests.size(), 3u);
}

}  // namespace
}  // namespace galley::app
