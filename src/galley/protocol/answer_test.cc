// SPDX-License-Identifier: Apache-2.0
// Completions answers, which no vector covers, call ids, and the order in which an answer may be told things.
#include "galley/protocol/answer.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>

namespace galley::protocol {
namespace {

ParsedRequest Completions(std::string_view members) {
  const std::string body = R"({"model": "DeepSeek-V4-Pro", "prompt": "ab", )" + std::string(members) + "}";
  Parsed<ParsedRequest> request = ParseRequest(Protocol::kCompletions, body);
  EXPECT_TRUE(request.has_value());
  return *std::move(request);
}

const AnswerOptions kOptions{.id = "cmpl-1", .model = "m", .created_s = 7};

OutputPiece Piece(std::string text, double logprob) {
  OutputPiece piece{text};
  piece.tokens = 1;
  piece.logprobs = {{text, logprob, {{text, logprob}, {"z", -3.0}}}};
  return piece;
}

TEST(Answer, CompletionsShowTextLogprobsAndOffsets) {
  const ParsedRequest request = Completions(R"("echo": true, "logprobs": 2)");
  Answer answer(request, kOptions);
  EXPECT_EQ(answer.Ready({.prompt_tokens = 3, .cached_tokens = 1}).size(), 1u);  // the echo
  const std::vector<AnswerEvent> events = answer.Push(Piece("cd", -0.5));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(DumpJson(events[0].data),
            R"({"id":"cmpl-1","object":"text_completion","created":7,"model":"m","system_fingerprint":null,"choices":[)"
            R"({"text":"cd","index":0,"logprobs":{"tokens":["cd"],"token_logprobs":[-0.5],)"
            R"("top_logprobs":[{"cd":-0.5,"z":-3.0}],"text_offset":[2]},"finish_reason":null}]})");
  (void)answer.Push(Piece("e", -1));
  EXPECT_EQ(answer.End(Finish::kLength).size(), 1u);
  EXPECT_TRUE(answer.done());
  EXPECT_EQ(answer.done_data(), "[DONE]");
  const Json response = answer.Response();
  EXPECT_EQ(DumpJson(*response.Find("choices")),
            R"([{"text":"abcde","index":0,"logprobs":{"tokens":["cd","e"],"token_logprobs":[-0.5,-1.0],)"
            R"("top_logprobs":[{"cd":-0.5,"z":-3.0},{"e":-1.0,"z":-3.0}],"text_offset":[2,4]},)"
            R"("finish_reason":"length"}])");
  EXPECT_EQ(*response.Find("usage")->Find("completion_tokens"), Json(2));
  EXPECT_EQ(*response.Find("usage")->Find("prompt_tokens"), Json(3));
}

TEST(Answer, CompletionsStopAtAStopStringAndReadNoMarkup) {
  const ParsedRequest request = Completions(R"("stop": "END")");
  Answer answer(request, kOptions);
  (void)answer.Push({"</think><｜DSML｜ calls> {"});
  (void)answer.Push({"E"});
  EXPECT_FALSE(answer.done());
  (void)answer.Push({"ND more"});
  EXPECT_TRUE(answer.done());
  EXPECT_TRUE(answer.Push({"late"}).empty());
  EXPECT_TRUE(answer.End(Finish::kStop).empty());
  EXPECT_TRUE(answer.Ready({}).empty());
  const Json response = answer.Response();
  const Json& choice = (*response.Find("choices")->if_array())[0];
  EXPECT_EQ(*choice.Find("text"), Json("</think><｜DSML｜ calls> {"));
  EXPECT_EQ(*choice.Find("finish_reason"), Json("stop"));
}

TEST(Answer, AnEmptyAnswerIsCompleteInEveryApi) {
  constexpr std::string_view kModel = R"({"model": "DeepSeek-V4.1-Flash", )";
  const std::vector<std::pair<Protocol, std::string>> bodies = {
      {Protocol::kChat, R"("messages": [{"role": "user", "content": "hi"}]})"},
      {Protocol::kResponses, R"("input": "hi"})"},
      {Protocol::kMessages, R"("max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]})"},
      {Protocol::kCompletions, R"("prompt": "hi"})"}};
  for (const auto& [protocol, members] : bodies) {
    const Parsed<ParsedRequest> request = ParseRequest(protocol, std::string(kModel) + members);
    ASSERT_TRUE(request.has_value()) << Name(protocol);
    Answer answer(*request, kOptions);
    EXPECT_FALSE(answer.End(std::nullopt).empty()) << Name(protocol);
    EXPECT_TRUE(answer.Response().Find("usage") != nullptr) << Name(protocol);
  }
}

TEST(Answer, AFailureIsTheLastEventInTheApisOwnForm) {
  constexpr std::string_view kModel = R"({"model": "DeepSeek-V4.1-Flash", )";
  struct Case {
    Protocol protocol;
    std::string members;
    std::string event;
    std::string data;  // the end of the event's data
  };
  const Case cases[] = {{Protocol::kChat, R"("messages": [{"role": "user", "content": "hi"}]})", "",
                         R"({"error":{"message":"gone","type":"server_error","param":null,"code":"internal"}})"},
                        {Protocol::kCompletions, R"("prompt": "hi"})", "",
                         R"({"error":{"message":"gone","type":"server_error","param":null,"code":"internal"}})"},
                        {Protocol::kMessages, R"("max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]})",
                         "error", R"({"type":"error","error":{"type":"api_error","message":"gone"}})"},
                        {Protocol::kResponses, R"("input": "hi"})", "response.failed", R"("sequence_number":)"}};
  for (const Case& test : cases) {
    const Parsed<ParsedRequest> request = ParseRequest(test.protocol, std::string(kModel) + test.members);
    ASSERT_TRUE(request.has_value());
    Answer answer(*request, kOptions);
    (void)answer.Push({"half an ans"});
    const std::vector<AnswerEvent> events = answer.Fail({.message = "gone"});
    ASSERT_FALSE(events.empty()) << Name(test.protocol);
    EXPECT_EQ(events.back().name, test.event);
    EXPECT_NE(DumpJson(events.back().data).find(test.data), std::string::npos) << DumpJson(events.back().data);
    EXPECT_TRUE(answer.done());
    EXPECT_TRUE(answer.End(Finish::kStop).empty());
    EXPECT_TRUE(answer.Fail({.message = "again"}).empty());
  }
}

TEST(Answer, OneOfSeveralChoicesSaysWhichItIs) {
  const Parsed<ParsedRequest> request = ParseRequest(
      Protocol::kChat, R"({"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": "hi"}]})");
  ASSERT_TRUE(request.has_value());
  AnswerOptions options = kOptions;
  options.choice_index = 2;
  Answer answer(*request, options);
  for (const AnswerEvent& event : answer.End(Finish::kStop))
    EXPECT_EQ(*(*event.data.Find("choices")->if_array())[0].Find("index"), Json(2));
}

TEST(CallIds, AreReproducibleDistinctAndOfTheApisForm) {
  const auto ids = SeededCallIds(5), same = SeededCallIds(5), other = SeededCallIds(6);
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const std::string id = ids(i, false);
    EXPECT_TRUE(std::regex_match(id, std::regex("call_[0-9]{2}_[A-Za-z0-9]{20}[0-9]{4}"))) << id;
    EXPECT_EQ(id, same(i, false));
    EXPECT_NE(id.substr(8), other(i, false).substr(8));
    EXPECT_TRUE(seen.insert(id.substr(8)).second);
  }
  EXPECT_TRUE(ids(3, true).starts_with("call_03_ET_"));
}

}  // namespace
}  // namespace galley::protocol
