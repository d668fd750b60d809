// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/render.h"

#include <gtest/gtest.h>

#include <map>

#include "galley/protocol/vectors_for_test.h"

namespace galley::protocol {
namespace {

Tool ToolOf(const Json& row) {
  Tool tool{.name = TextAt(row, {"name"}), .parameters = At(row, {"parameters"})};
  if (const Json d = At(row, {"description"}); d.is_string()) tool.description = *d.if_string();
  tool.defer_loading = At(row, {"defer_loading"}).is_bool();
  return tool;
}

Message MessageOf(const Json& row) {
  static const std::map<std::string, Role> roles = {{"system", Role::kSystem},
                                                    {"user", Role::kUser},
                                                    {"assistant", Role::kAssistant},
                                                    {"tool", Role::kTool},
                                                    {"latest_reminder", Role::kLatestReminder}};
  Message message{.role = roles.at(TextAt(row, {"role"})), .content = TextAt(row, {"content"})};
  if (const Json r = At(row, {"reasoning_content"}); r.is_string()) message.reasoning_content = *r.if_string();
  if (const Json calls = At(row, {"tool_calls"}); calls.is_array())
    for (const Json& call : *calls.if_array())
      message.tool_calls.push_back({TextAt(call, {"id"}), TextAt(call, {"name"}), TextAt(call, {"arguments"})});
  if (const Json tools = At(row, {"tools"}); tools.is_array())
    for (const Json& tool : *tools.if_array()) message.tools.push_back(ToolOf(tool));
  message.tool_call_id = TextAt(row, {"tool_call_id"});
  message.prefix = At(row, {"prefix"}).is_bool();
  return message;
}

Conversation ConversationOf(const Json& row) {
  static const std::map<std::string, Effort> efforts = {
      {"low", Effort::kLow}, {"high", Effort::kHigh}, {"xhigh", Effort::kXhigh}, {"max", Effort::kMax}};
  static const std::map<std::string, ResponseFormat> formats = {{"", ResponseFormat::kText},
                                                                {"json_object", ResponseFormat::kJsonObject},
                                                                {"json_schema", ResponseFormat::kJsonSchema},
                                                                {"regex", ResponseFormat::kRegex}};
  Conversation c;
  const Json messages = At(row, {"messages"}), tools = At(row, {"tools"});
  for (const Json& message : *messages.if_array()) c.messages.push_back(MessageOf(message));
  if (tools.is_array())
    for (const Json& tool : *tools.if_array()) c.tools.push_back(ToolOf(tool));
  c.thinking = *At(row, {"thinking"}).if_bool();
  if (const std::string effort = TextAt(row, {"effort"}); !effort.empty()) c.effort = efforts.at(effort);
  c.response_format = formats.at(TextAt(row, {"response_format"}));
  c.response_schema = At(row, {"response_schema"});
  const std::string choice = TextAt(row, {"tool_choice"});
  c.tool_choice = choice == "none"       ? ToolChoice::kNone
                  : choice == "required" ? ToolChoice::kRequired
                                         : ToolChoice::kAuto;
  return c;
}

Json RangesOf(const Prompt& prompt) {
  Json ranges(Json::Array{});
  for (const ByteRange& range : prompt.special)
    ranges.Push(Json(Json::Array{std::uint64_t{range.begin}, std::uint64_t{range.end}}));
  return ranges;
}

// Conversations with pictures need the places of the placeholders, which only the request has: see request_test.cc.
TEST(Render, MatchesEveryVectorWithoutPictures) {
  int checked = 0;
  for (const Json& row : ReadVectors("render")) {
    const Json expect = At(row, {"expect"});
    if (!expect.Find("prompt") || expect.Find("images")) continue;
    const ModelVersion version = TextAt(expect, {"model_version"}) == "v4" ? ModelVersion::kV4 : ModelVersion::kV41;
    RenderOptions options;
    const Json overrides = At(row, {"options", "special_tokens"});
    if (const Json::Object* members = overrides.if_object()) {
      for (const Json::Member& m : *members) ASSERT_TRUE(options.tokens.Override(m.key, *m.value.if_string()));
    }
    const Prompt prompt = RenderConversation(ConversationOf(At(expect, {"conversation"})), version, options);
    EXPECT_EQ(prompt.text, TextAt(expect, {"prompt"})) << TextAt(row, {"name"});
    EXPECT_EQ(DumpJson(RangesOf(prompt)), DumpJson(At(expect, {"special_ranges"}))) << TextAt(row, {"name"});
    ++checked;
  }
  EXPECT_EQ(checked, 894);
}

Conversation Ask(std::string text) {
  Conversation c;
  c.messages.push_back({.role = Role::kUser, .content = std::move(text)});
  return c;
}

TEST(Render, QuickTasksReplaceTheGenerationHeader) {
  Conversation c = Ask("hi");
  c.thinking = false;
  c.task = QuickTask::kQuery;
  EXPECT_EQ(RenderConversation(c, ModelVersion::kV41).text, "<｜begin▁of▁sentence｜><｜User｜>hi<｜query｜>");
  c.task = QuickTask::kAction;
  EXPECT_EQ(RenderConversation(c, ModelVersion::kV41).text,
            "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think><｜action｜>");
}

TEST(Render, FillInTheMiddleHasItsThreeTokensAroundPlainText) {
  const Prompt prompt = RenderFim("a<think>", "b");
  EXPECT_EQ(prompt.text, "<｜begin▁of▁sentence｜><｜fim▁begin｜>a<think><｜fim▁hole｜>b<｜fim▁end｜>");
  EXPECT_EQ(prompt.special.size(), 4u);  // begin of sentence and three; the user's <think> is plain
}

TEST(Render, KeepOrderLeavesAnOldPromptsBeginningAlone) {
  Conversation c = Ask("one");
  c.thinking = false;
  c.messages.push_back({.role = Role::kSystem, .content = "late"});
  const std::string moved = RenderConversation(c, ModelVersion::kV4).text;
  const std::string kept = RenderConversation(c, ModelVersion::kV4, {.keep_order = true}).text;
  EXPECT_EQ(moved, "<｜begin▁of▁sentence｜>late<｜User｜>one<｜Assistant｜></think>");
  EXPECT_EQ(kept, "<｜begin▁of▁sentence｜><｜User｜>one\n\nlate<｜Assistant｜></think>");
}

}  // namespace
}  // namespace galley::protocol
