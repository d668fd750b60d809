// SPDX-License-Identifier: Apache-2.0
// What the recipe vectors leave open: switches that are off there, Completions, limits, strict schemas.
#include "galley/protocol/request.h"

#include <gtest/gtest.h>

#include "galley/protocol/schema_check.h"

namespace galley::protocol {
namespace {

// The request, or a failed test and an empty one.
ParsedRequest Good(Protocol protocol, std::string_view body, const CodecOptions& options = {}) {
  Parsed<ParsedRequest> request = ParseRequest(protocol, body, options);
  EXPECT_TRUE(request.has_value()) << request.error().message;
  return request ? *std::move(request) : ParsedRequest();
}

std::string Bad(Protocol protocol, std::string_view body, const CodecOptions& options = {}) {
  const Parsed<ParsedRequest> request = ParseRequest(protocol, body, options);
  return request ? "accepted" : request.error().message;
}

constexpr std::string_view kModel = R"("model": "DeepSeek-V4.1-Flash")";
std::string Body(std::string_view members) {
  return "{" + std::string(kModel) + ", " + std::string(members) + "}";
}

TEST(Request, KeepsTheClientsCallOrderWhenAsked) {
  const std::string body = Body(R"("reasoning": {"effort": "none"}, "input": [
      {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
      {"type": "function_call", "call_id": "a", "name": "g", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "b", "output": "1"},
      {"type": "function_call_output", "call_id": "a", "output": "2"}])");
  const ParsedRequest sorted = Good(Protocol::kResponses, body);
  const ParsedRequest kept = Good(Protocol::kResponses, body, {.keep_call_order = true});
  ASSERT_EQ(sorted.conversation.messages.size(), 3u);
  ASSERT_EQ(kept.conversation.messages.size(), 3u);
  EXPECT_EQ(sorted.conversation.messages[0].tool_calls[0].id, "a");
  EXPECT_EQ(kept.conversation.messages[0].tool_calls[0].id, "b");
  EXPECT_EQ(kept.conversation.messages[1].content, "1");
}

TEST(Request, TellsWhichInputItemsWereLeftOut) {
  const ParsedRequest request = Good(Protocol::kResponses, Body(R"("input": [
      {"type": "message", "role": "user", "content": "hi"}, {"type": "foo", "x": 1}])"));
  EXPECT_EQ(request.conversation.messages.size(), 1u);
  ASSERT_EQ(request.warnings.size(), 1u);
  EXPECT_TRUE(request.warnings[0].starts_with("input[1]: items of type foo ")) << request.warnings[0];
  const ParsedRequest file = Good(Protocol::kResponses, Body(R"("input": [{"type": "message", "role": "user",
      "content": [{"type": "input_file", "filename": "a.pdf"}]}])"));
  const ParsedRequest document = Good(Protocol::kMessages, Body(R"("max_tokens": 9, "messages": [{"role": "user",
      "content": [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}]}])"));
  ASSERT_EQ(file.warnings.size() + document.warnings.size(), 2u);
  EXPECT_TRUE(file.warnings[0].starts_with("input[0].content[0]: files are not read")) << file.warnings[0];
  EXPECT_TRUE(document.warnings[0].starts_with("messages.0.content[0]: documents ")) << document.warnings[0];
}

TEST(Request, AnEmptySuffixIsNone) {
  const ParsedRequest without = Good(Protocol::kCompletions, Body(R"("prompt": "a")"));
  const ParsedRequest empty = Good(Protocol::kCompletions, Body(R"("prompt": "a", "suffix": "")"));
  EXPECT_EQ(empty.raw_prompt.text, without.raw_prompt.text);
}

TEST(Request, ContinuesAMessagesPrefillWhenAsked) {
  const std::string body = Body(R"("max_tokens": 9, "thinking": {"type": "disabled"}, "messages": [
      {"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once"}])");
  const auto ends_open = [&](bool asked) {
    const CodecOptions options{.continue_prefill = asked};
    return RenderRequest(Good(Protocol::kMessages, body, options), options).text.ends_with("</think>Once");
  };
  EXPECT_TRUE(ends_open(true));
  EXPECT_FALSE(ends_open(false));
}

TEST(Request, DemandsACallForAnyWhenAsked) {
  const std::string body = Body(R"("max_tokens": 9, "thinking": {"type": "disabled"},
      "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"},
      "messages": [{"role": "user", "content": "hi"}])");
  EXPECT_EQ(Good(Protocol::kMessages, body).inference.constraint->kind, "tool_call");
  EXPECT_EQ(Good(Protocol::kMessages, body, {.enforce_any = true}).inference.constraint->kind, "tool_call_required");
}

TEST(Request, RefusesWhatNeedsStoredResponsesWhenAsked) {
  const CodecOptions strict{.refuse_stateful = true};
  const std::string previous = Body(R"("input": "hi", "previous_response_id": "resp_1")");
  EXPECT_EQ(Bad(Protocol::kResponses, previous), "accepted");
  EXPECT_NE(Bad(Protocol::kResponses, previous, strict).find("not stored"), std::string::npos);
  EXPECT_NE(Bad(Protocol::kResponses, Body(R"("input": "hi", "background": true)"), strict).find("background"),
            std::string::npos);
}

TEST(Request, CompletionsTakeTextIdsOrAGap) {
  const auto text = [](std::string_view members) {
    return RenderRequest(Good(Protocol::kCompletions, Body(members))).text;
  };
  EXPECT_EQ(text(R"("prompt": "a<think>")"), "<｜begin▁of▁sentence｜>a<think>");
  EXPECT_EQ(text(R"("prompt": ["a"])"), "<｜begin▁of▁sentence｜>a");
  EXPECT_EQ(text(R"("prompt": "a", "suffix": "b")"),
            "<｜begin▁of▁sentence｜><｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>");
  const ParsedRequest ids = Good(Protocol::kCompletions, Body(R"("prompt": [1, 2], "top_p": 0.5, "logprobs": 2)"));
  EXPECT_EQ(ids.prompt_ids, (std::vector<std::vector<std::uint32_t>>{{1, 2}}));
  EXPECT_EQ(ids.inference.max_tokens, 16u);
  EXPECT_EQ(ids.inference.top_p, 0.5);
  EXPECT_EQ(ids.inference.top_logprobs, 2);
  EXPECT_TRUE(ids.parsing.raw);

  EXPECT_EQ(Bad(Protocol::kCompletions, Body(R"("prompt": [])")),
            "prompt: the list is empty. Give a text or token ids.");
  EXPECT_NE(Bad(Protocol::kCompletions, Body(R"("prompt": ["a", "b"])")).find("2 texts"), std::string::npos);
  EXPECT_NE(Bad(Protocol::kCompletions, Body(R"("prompt": [1, "b"])")).find("mixed"), std::string::npos);
  EXPECT_NE(Bad(Protocol::kCompletions, Body(R"("prompt": [[1], [2]])")).find("2 prompts"), std::string::npos);
  EXPECT_NE(Bad(Protocol::kCompletions, Body(R"("prompt": "a", "n": 2)")).find("n = 1"), std::string::npos);
  EXPECT_NE(Bad(Protocol::kCompletions, Body(R"("prompt": "a", "logprobs": 21)")).find("[0, 20]"), std::string::npos);
}

TEST(Request, SaysWhereABodyIsWrong) {
  const auto ask = [](std::string_view body) {
    const Parsed<ParsedRequest> request = ParseRequest(Protocol::kChat, body);
    return request ? std::pair(RequestErrorKind::kConversion, std::string("accepted"))
                   : std::pair(request.error().kind, request.error().message);
  };
  EXPECT_EQ(ask("{").first, RequestErrorKind::kJson);
  EXPECT_EQ(ask(Body(R"("messages": [], "messages": [])")).first, RequestErrorKind::kBody);
  EXPECT_EQ(ask(std::string(200, '[')).first, RequestErrorKind::kJson);
  const auto [kind, message] =
      ask(Body(R"("messages": [{"role": "user", "content": "a"}, {"role": "user", "content": 5}])"));
  EXPECT_EQ(kind, RequestErrorKind::kBody);
  EXPECT_NE(message.find("messages[1].content"), std::string::npos) << message;
  EXPECT_EQ(ask(Body(R"("messages": [{"role": "user", "content": "a"}], "max_tokens": 1e400)")).first,
            RequestErrorKind::kJson);
  EXPECT_EQ(ask(Body(R"("messages": [{"role": "user", "content": "a"}], "max_tokens": 99999999999)")).first,
            RequestErrorKind::kBody);
}

TEST(Request, RefusesABodyBeyondItsLimit) {
  CodecOptions options;
  options.limits.body_bytes_max = 100;
  const std::string body = Body(R"("messages": [{"role": "user", "content": ")" + std::string(100, 'x') + R"("}])");
  EXPECT_EQ(Good(Protocol::kChat, body).conversation.messages.size(), 1u);
  EXPECT_NE(Bad(Protocol::kChat, body, options), "accepted");
}

TEST(Request, ErrorBodiesHaveTheApisForm) {
  EXPECT_EQ(DumpJson(ErrorBody({RequestErrorKind::kConversion, "no \"x\""})),
            R"({"error":{"message":"no \"x\"","type":"invalid_request_error","param":null,)"
            R"("code":"invalid_request_error"}})");
}

TEST(Strict, ClosesObjectsAndRequiresEveryProperty) {
  const auto strict = [](std::string_view schema) {
    const Result<Json> result = MakeStrict(*ParseJson(schema));
    return result ? DumpJson(*result) : result.error().message;
  };
  EXPECT_EQ(strict(R"({"title": "t", "type": "object", "properties": {"b": {"type": "string", "maxLength": 3}}})"),
            R"({"type":"object","properties":{"b":{"type":"string","maxLength":3}},"additionalProperties":false,)"
            R"("required":["b"]})");
  EXPECT_EQ(strict(R"({"$ref": "#/$defs/x", "$defs": {"x": {"const": 1}}})"),
            R"({"$ref":"#/$defs/x","$defs":{"x":{"const":1}}})");
  EXPECT_NE(strict(R"({"type": "object", "patternProperties": {}})").find("`patternProperties`"), std::string::npos);
  EXPECT_NE(strict(R"({"type": "array"})").find("missing field `items`"), std::string::npos);
  EXPECT_NE(strict(R"({"type": "object", "properties": {"a": {"type": "null"}}, "required": []})").find("must match"),
            std::string::npos);
  EXPECT_NE(strict("true").find("expected an object"), std::string::npos);
}

TEST(Regex, SyntaxIsCheckedWithoutRunningIt) {
  for (const char* good : {"", "a+?b*", "(a|b)?", "[]a]", "[^]]", "\\d{2,3}", "(?:x)", "a\\*", "^$"})
    EXPECT_TRUE(CheckRegexSyntax(good).has_value()) << good;
  for (const char* bad : {"(", ")", "[a", "*", "a|+", "\\", "(?", "a(*b)"})
    EXPECT_FALSE(CheckRegexSyntax(bad).has_value()) << bad;
}

TEST(Request, AStrictFormatIsNoTool) {
  const auto request = ParseRequest(
      Protocol::kChat,
      Body(
          R"("messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": true, "schema": {"type": "object", "properties": {"a": {"type": "array"}}}}})"));
  ASSERT_FALSE(request);
  EXPECT_EQ(request.error().message, "Invalid json schema: missing field `items`");
  EXPECT_EQ(request.error().detail, "at /properties/a");
}

// The words are the original's; the place is ours.
TEST(Request, WhatIsWrongInASchemaIsSaidWithItsPlace) {
  struct Case {
    const char* schema;
    const char* message;
    const char* detail;
  };
  const Case cases[] = {
      {R"({"type": "nope"})", "is not valid under any of the schemas", "at /type"},
      {R"({"properties": {"a/b": {"items": {"minItems": -1}}}})", "-1 is less than the minimum of 0",
       "at /properties/a~1b/items/minItems"},
      {R"({"anyOf": [true, {"pattern": "a("}]})", R"("a(" is not a "regex")",
       "at /anyOf/1/pattern: a group is not closed at byte 1"},
      {R"({"patternProperties": {"[": true}})", R"("[" is not a "regex")",
       "at /patternProperties/[: a character class is not closed at byte 0"},
      {R"({"properties": {"x": {"$ref": "#/nope"}}})", "Pointer '/nope' does not exist", "at /properties/x/$ref"},
      {"5", "5 is not of types", "at the top"}};
  for (const Case& test : cases) {
    const auto request = ParseRequest(
        Protocol::kChat,
        Body(
            std::string(
                R"("messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": )") +
            test.schema + "}}"));
    ASSERT_FALSE(request) << test.schema;
    EXPECT_NE(request.error().message.find(test.message), std::string::npos) << request.error().message;
    EXPECT_EQ(request.error().detail, test.detail);
    EXPECT_EQ(request.error().param, "response_format");
  }
}

}  // namespace
}  // namespace galley::protocol
