// SPDX-License-Identifier: Apache-2.0
// Generation through the service, with an engine that says what the test wants.
#include "galley/serve/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "galley/serve/service_fixture.h"

namespace galley::serve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kChat =
    R"({"model":"nano","messages":[{"role":"user","content":"Hi"}],"thinking":{"type":"disabled"})";

std::string Chat(std::string_view more = "") {
  return std::string(kChat) + std::string(more) + "}";
}

TEST(Service, AnswersAChatWhole) {
  Served served(Says("Hello there"));
  const auto reply = served.Post("/v1/chat/completions", Chat());
  EXPECT_EQ(reply->status(), 200);
  const protocol::Json answer = reply->json();
  EXPECT_EQ(At(answer, "object"), R"("chat.completion")");
  EXPECT_EQ(At(answer, "choices.0.message.content"), R"("Hello there")");
  EXPECT_EQ(At(answer, "choices.0.finish_reason"), R"("stop")");
  const auto requests = served.engine->requests();
  ASSERT_EQ(requests.size(), 1u);
  const std::size_t answer_tokens = Saying(NanoTokenizer(), "Hello there").size();
  EXPECT_EQ(At(answer, "usage.prompt_tokens"), std::to_string(requests[0].prompt_ids.size()));
  EXPECT_EQ(At(answer, "usage.completion_tokens"), std::to_string(answer_tokens)) << "the end token counts";
  EXPECT_EQ(At(answer, "usage.prompt_cache_miss_tokens"), std::to_string(requests[0].prompt_ids.size()));
  EXPECT_EQ(requests[0].stop_ids, std::vector<TokenId>{served.engine->eos_id()});
  served.WaitIdle();
}

TEST(Service, TheUsageTellsAcceptedDrafts) {
  FakeEngineOptions options = Says("Hello there");
  options.drafts = true;
  Served served(options);
  const std::size_t tokens = Saying(NanoTokenizer(), "Hello there").size();
  const protocol::Json answer = served.Post("/v1/chat/completions", Chat())->json();
  EXPECT_EQ(At(answer, "usage.completion_tokens_details.accepted_prediction_tokens"), std::to_string(tokens - 1));
  const protocol::Json response =
      served.Post("/v1/responses", R"({"model":"nano","input":"Hi","reasoning":{"effort":"none"}})")->json();
  EXPECT_EQ(At(response, "usage.output_tokens_details.accepted_prediction_tokens"), std::to_string(tokens - 1));
  const protocol::Json message =
      served
          .Post(
              "/v1/messages",
              R"({"model":"nano","max_tokens":9,"messages":[{"role":"user","content":"Hi"}],"thinking":{"type":"disabled"}})")
          ->json();
  EXPECT_EQ(At(message, "usage.accepted_prediction_tokens"), std::to_string(tokens - 1));
  Served plain(Says("Hello there"));
  EXPECT_EQ(At(plain.Post("/v1/chat/completions", Chat())->json(), "usage.completion_tokens_details"), "absent");
}

TEST(Service, StreamsAChatAndEndsItOnce) {
  Served served(Says("Hello there"));
  const auto reply = served.Post("/chat/completions", Chat(R"(,"stream":true)"));
  EXPECT_THAT(reply->header("content-type"), HasSubstr("text/event-stream"));
  const std::vector<std::string> data = reply->data();
  ASSERT_GT(data.size(), 3u);
  EXPECT_THAT(data[0], HasSubstr(R"("role":"assistant")"));
  std::string text;
  int finishes = 0;
  for (std::size_t i = 0; i + 1 < data.size(); ++i) {
    const protocol::Json chunk = *protocol::ParseJson(data[i]);
    if (At(chunk, "choices.0.finish_reason") != "null") ++finishes;
    const protocol::Json* content = (*chunk.Find("choices")->if_array())[0].Find("delta")->Find("content");
    if (content != nullptr && content->is_string()) text += *content->if_string();
  }
  EXPECT_EQ(text, "Hello there");
  EXPECT_EQ(finishes, 1);
  EXPECT_EQ(data.back(), "[DONE]");
  EXPECT_EQ(reply->ends(), 1);
}

TEST(Service, UsageStandsInAChunkOfItsOwnWhenAskedFor) {
  Served served(Says("Hello"));
  const auto reply =
      served.Post("/v1/chat/completions", Chat(R"(,"stream":true,"stream_options":{"include_usage":true})"));
  const std::vector<std::string> data = reply->data();
  for (std::size_t i = 0; i + 2 < data.size(); ++i) EXPECT_THAT(data[i], HasSubstr(R"("usage":null)"));
  const protocol::Json last = *protocol::ParseJson(data[data.size() - 2]);
  EXPECT_EQ(At(last, "choices"), "[]");
  EXPECT_NE(At(last, "usage.total_tokens"), "absent");
}

TEST(Service, EveryApiStreamsToItsOwnEnd) {
  struct Case {
    std::string path;
    std::string body;
    std::string last_event;  // name; "" for [DONE]
  };
  const Case cases[] = {
      {"/v1/completions", R"({"model":"nano","prompt":"Once","stream":true})", ""},
      {"/beta/completions", R"({"model":"nano","prompt":"a","suffix":"b","stream":true})", ""},
      {"/v1/responses", R"({"model":"nano","input":"Hi","stream":true,"reasoning":{"effort":"none"}})",
       "response.completed"},
      {"/anthropic/v1/messages",
       R"({"model":"nano","max_tokens":9,"messages":[{"role":"user","content":"Hi"}],"stream":true})", "message_stop"}};
  for (const Case& test : cases) {
    Served served(Says("Hello</think>there"));
    const auto reply = served.Post(test.path, test.body);
    EXPECT_EQ(reply->status(), 200) << reply->text();
    if (test.last_event.empty())
      EXPECT_EQ(reply->data().back(), "[DONE]");
    else
      EXPECT_EQ(reply->names().back(), test.last_event);
    EXPECT_EQ(reply->ends(), 1);
  }
}

TEST(Service, AFailureOfTheEngineIsTheOneEnd) {
  FakeEngineOptions engine = Says("Hello");
  engine.say = [](const engine::EngineRequest&, int) { return std::vector<TokenId>{300, 301}; };
  engine.fail_after = Error{ErrorCode::kDevice, "the device is gone", ""};
  Served served(engine);
  const auto whole = served.Post("/v1/chat/completions", Chat());
  EXPECT_EQ(whole->status(), 500);
  EXPECT_EQ(At(whole->json(), "error.message"), R"("the device is gone")");
  const auto stream = served.Post("/v1/chat/completions", Chat(R"(,"stream":true)"));
  EXPECT_EQ(stream->status(), 200);
  EXPECT_THAT(stream->data().back(), HasSubstr(R"({"error":{"message":"the device is gone")"));
  EXPECT_EQ(stream->ends(), 1);
  const auto messages = served.Post(
      "/v1/messages", R"({"model":"nano","max_tokens":9,"messages":[{"role":"user","content":"Hi"}],"stream":true})");
  EXPECT_EQ(messages->names().back(), "error");
  const auto responses = served.Post("/v1/responses", R"({"model":"nano","input":"Hi","stream":true})");
  EXPECT_EQ(responses->names().back(), "response.failed");
}

TEST(Service, AnErrorBeforeTheFirstStepIsPlainJsonForStreamsToo) {
  FakeEngineOptions engine;
  engine.fail_submit = Error{ErrorCode::kResourceExhausted, "the queue is full", ""};
  Served served(engine);
  const auto reply = served.Post("/v1/chat/completions", Chat(R"(,"stream":true)"));
  EXPECT_EQ(reply->status(), 429);
  EXPECT_EQ(reply->header("content-type"), "application/json");
  EXPECT_EQ(reply->ends(), 1);
}

TEST(Service, AClientThatLeavesFreesItsSequences) {
  for (const std::string_view more : {"", R"(,"stream":true)", R"(,"stream":true,"n":3)", R"(,"n":2,"stop":"x")"}) {
    FakeEngineOptions engine;
    engine.step_gap = std::chrono::microseconds(200);
    engine.say = [](const engine::EngineRequest&, int) { return std::vector<TokenId>(4000, 300); };
    Served served(engine);
    const auto reply = served.Begin("POST", "/v1/chat/completions", Chat(std::string(more) + R"(,"max_tokens":4000)"));
    if (more.find("stream") != std::string_view::npos) reply->WaitForText("data:");
    reply->Close();
    served.WaitIdle();
    EXPECT_GE(served.engine->cancels(), 1) << more;
    EXPECT_EQ(served.service->open_requests(), 0) << more;
    EXPECT_THAT(served.Ask("GET", "/metrics")->text(), HasSubstr(R"(reason="abort"} 1)"));
  }
}

TEST(Service, AClientThatReadsTooSlowlyIsGivenUp) {
  FakeEngineOptions engine;
  engine.step_gap = std::chrono::microseconds(200);
  engine.say = [](const engine::EngineRequest&, int) { return std::vector<TokenId>(4000, 300); };
  Served served(engine);
  const auto reply = served.Begin("POST", "/v1/chat/completions", Chat(R"(,"stream":true,"max_tokens":4000)"));
  reply->WaitForText("data:");
  reply->RefuseWrites();
  served.WaitIdle();
  EXPECT_GE(served.engine->cancels(), 1);
}

TEST(Service, AStopStringEndsTheSequenceInTheEngine) {
  FakeEngineOptions engine = Says("one two three four");
  Served served(engine);
  const auto reply = served.Post("/v1/chat/completions", Chat(R"(,"stop":[" three"])"));
  EXPECT_EQ(At(reply->json(), "choices.0.message.content"), R"("one two")");
  EXPECT_EQ(At(reply->json(), "choices.0.finish_reason"), R"("stop")");
  served.WaitIdle();
  EXPECT_EQ(served.engine->cancels(), 1);
  const auto messages = served.Post(
      "/v1/messages",
      R"({"model":"nano","max_tokens":50,"messages":[{"role":"user","content":"Hi"}],"stop_sequences":["two"],"thinking":{"type":"disabled"}})");
  EXPECT_EQ(At(messages->json(), "stop_sequence"), R"("two")");
}

TEST(Service, SeveralChoicesAndPrompts) {
  FakeEngineOptions engine;
  engine.say = [](const engine::EngineRequest& request, int branch) {
    return Saying(NanoTokenizer(), "say " + std::to_string(request.prompt_ids.size()) + std::to_string(branch));
  };
  Served served(engine);
  const protocol::Json chat = served.Post("/v1/chat/completions", Chat(R"(,"n":3)"))->json();
  EXPECT_EQ(At(chat, "choices.2.index"), "2");
  EXPECT_EQ(At(chat, "choices.3"), "absent");
  EXPECT_THAT(At(chat, "choices.2.message.content"), HasSubstr("2\""));
  ASSERT_EQ(served.engine->requests().size(), 1u) << "choices without stop strings share one request";
  EXPECT_EQ(served.engine->requests()[0].n, 3);

  const auto seeded = served.Post("/v1/chat/completions", Chat(R"(,"n":2,"seed":5,"stop":"#")"));
  const auto requests = served.engine->requests();
  ASSERT_EQ(requests.size(), 3u) << "with stop strings each choice must be able to end alone";
  EXPECT_EQ(requests[1].sampling.seed, engine::BranchSeed(5, 0));
  EXPECT_EQ(requests[2].sampling.seed, engine::BranchSeed(5, 1));

  const protocol::Json many =
      served.Post("/v1/completions", R"({"model":"nano","prompt":["a","b c d","e"],"n":2})")->json();
  EXPECT_EQ(At(many, "choices.5.index"), "5");
  EXPECT_EQ(At(many, "choices.6"), "absent");
  const protocol::Json ids = served.Post("/v1/completions", R"({"model":"nano","prompt":[300,301,302]})")->json();
  EXPECT_EQ(At(ids, "usage.prompt_tokens"), "3");
}

TEST(Service, StreamedChoicesEndOnceEachAndUsageComesWithTheLast) {
  Served served(Says("word"));
  const auto reply = served.Post("/v1/chat/completions", Chat(R"(,"n":2,"stream":true)"));
  int finishes[2] = {0, 0}, usages = 0;
  const std::vector<std::string> data = reply->data();
  for (std::size_t i = 0; i + 1 < data.size(); ++i) {
    const protocol::Json chunk = *protocol::ParseJson(data[i]);
    const int index = std::stoi(At(chunk, "choices.0.index"));
    if (At(chunk, "choices.0.finish_reason") != "null") ++finishes[index];
    if (At(chunk, "usage.total_tokens") != "absent") ++usages;
  }
  EXPECT_THAT(finishes, ElementsAre(1, 1));
  EXPECT_EQ(usages, 1);
}

TEST(Service, FieldsReachTheEngine) {
  Served served(Says("x"));
  (void)served.Post(
      "/v1/chat/completions",
      Chat(R"(,"temperature":0.5,"top_k":40,"min_p":0.1,"repetition_penalty":1.2,"frequency_penalty":0.3,)"
           R"("presence_penalty":-0.4,"min_tokens":2,"ignore_eos":true,"stop_token_ids":[310],"seed":77,)"
           R"("max_completion_tokens":33,"logit_bias":{"320":5,"321":-100},"priority":3,"logprobs":true,)"
           R"("top_logprobs":4,"cache_salt":"tenant")"));
  const auto requests = served.engine->requests();
  ASSERT_EQ(requests.size(), 1u);
  const engine::EngineRequest& r = requests[0];
  EXPECT_EQ(r.sampling.temperature, 0.5);
  EXPECT_EQ(r.sampling.top_k, 40);
  EXPECT_EQ(r.sampling.min_p, 0.1);
  EXPECT_EQ(r.sampling.seed, 77u);
  EXPECT_EQ(r.sampling.top_logprobs, 4);
  EXPECT_EQ(r.rules.repetition_penalty, 1.2);
  EXPECT_EQ(r.rules.frequency_penalty, 0.3);
  EXPECT_EQ(r.rules.presence_penalty, -0.4);
  EXPECT_EQ(r.min_tokens, 2);
  EXPECT_EQ(r.max_tokens, 33);
  EXPECT_EQ(r.priority, 3);
  EXPECT_EQ(r.stop_ids, std::vector<TokenId>{310}) << "the end token is banned instead";
  EXPECT_THAT(r.rules.banned_ids, ElementsAre(321, served.engine->eos_id()));
  ASSERT_EQ(r.rules.bias.size(), 1u);
  EXPECT_EQ(r.rules.bias[0].first, 320);
  EXPECT_THAT(r.cache_salt, HasSubstr("tenant"));
}

TEST(Service, DefaultsOfTheModelApplyWhereTheCodecLeavesThemOpen) {
  ServiceOptions options;
  options.defaults = *ReadGenerationConfig(R"({"temperature":0.6,"top_p":0.9,"top_k":50,"eos_token_id":1})");
  Served served(Says("x"), options);
  (void)served.Post("/v1/chat/completions", Chat());
  (void)served.Post("/v1/chat/completions", Chat(R"(,"temperature":1.5)"));
  (void)served.Post("/v1/chat/completions", R"({"model":"nano","messages":[{"role":"user","content":"Hi"}]})");
  (void)served.Post("/v1/completions", R"({"model":"nano","prompt":"a"})");
  const auto r = served.engine->requests();
  EXPECT_EQ(r[0].sampling.temperature, 0.6);
  EXPECT_EQ(r[0].sampling.top_k, 50);
  EXPECT_EQ(r[0].sampling.top_p, 1.0) << "V4.1 without thinking has no top_p";
  EXPECT_EQ(r[1].sampling.temperature, 1.5);
  EXPECT_EQ(r[2].sampling.temperature, 1.0) << "fixed while thinking";
  EXPECT_EQ(r[2].sampling.top_p, 0.9);
  EXPECT_EQ(r[3].sampling.top_p, 0.9);
  EXPECT_FALSE(ReadGenerationConfig(R"({"temperature":-1})"));
  EXPECT_FALSE(ReadGenerationConfig("[]"));
}

TEST(Service, LogprobsComeAsAskedFor) {
  Served served(Says("Hello"));
  const protocol::Json chat = served.Post("/v1/chat/completions", Chat(R"(,"logprobs":true,"top_logprobs":2)"))->json();
  EXPECT_EQ(At(chat, "choices.0.logprobs.content.0.logprob"), "-0.5");
  EXPECT_NE(At(chat, "choices.0.logprobs.content.0.top_logprobs.1"), "absent");
  EXPECT_EQ(At(chat, "choices.0.logprobs.content.0.top_logprobs.2"), "absent");
  const protocol::Json text = served.Post("/v1/completions", R"({"model":"nano","prompt":"a","logprobs":1})")->json();
  EXPECT_EQ(At(text, "choices.0.logprobs.token_logprobs.0"), "-0.5");
}

TEST(Service, ParallelCallsCanBeTurnedOff) {
  constexpr std::string_view kTool =
      R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}])";
  const std::string invoke = "<｜DSML｜ invoke name=\"f\">\n</｜DSML｜ invoke>\n";
  const std::string calls = "<｜DSML｜ calls>\n" + invoke + invoke + "</｜DSML｜ calls>";
  Served served(Says(calls));
  const protocol::Json two = served.Post("/v1/chat/completions", Chat(kTool))->json();
  EXPECT_NE(At(two, "choices.0.message.tool_calls.1"), "absent");
  const protocol::Json one =
      served.Post("/v1/chat/completions", Chat(std::string(kTool) + R"(,"parallel_tool_calls":false)"))->json();
  EXPECT_NE(At(one, "choices.0.message.tool_calls.0"), "absent");
  EXPECT_EQ(At(one, "choices.0.message.tool_calls.1"), "absent");
  EXPECT_EQ(At(one, "choices.0.finish_reason"), R"("tool_calls")");
}

TEST(Service, DemandsOnTheFormReachTheCompiler) {
  constexpr std::string_view kStrict =
      R"(,"tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","properties":{}}}}])";
  constexpr std::string_view kLoose =
      R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}])";
  struct Case {
    std::string more;
    std::string kind;
    std::string spec;  // part of it
  };
  const Case cases[] = {
      {std::string(kStrict), "dsml", R"("mode":"auto")"},
      {std::string(kLoose), "dsml", R"({"name":"f","parameters":null,"strict":false})"},
      {std::string(kLoose) + R"(,"tool_choice":"required")", "dsml", R"("parameters":{"type":"object")"},
      {std::string(kLoose) +
           R"(,"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"type":"integer"}}})",
       "dsml", R"("otherwise":{"kind":"json_schema","spec":{"type":"integer"}})"},
      {std::string(kStrict) + R"(,"guided_regex":"a+")", "dsml", R"("otherwise":{"kind":"regex","spec":"a+"})"},
      {std::string(kLoose) + R"(,"guided_choice":["a"])", "choice", R"(["a"])"},
      {std::string(kStrict) + R"(,"tool_choice":"required","parallel_tool_calls":false)", "dsml",
       R"("mode":"inside","parallel":false)"},
  };
  for (const Case& test : cases) {
    Served served(Says("x"));
    EXPECT_EQ(served.Post("/v1/chat/completions", Chat(test.more))->status(), 200) << test.more;
    const auto compiled = served.engine->compiled();
    ASSERT_EQ(compiled.size(), 1u) << test.more;
    EXPECT_EQ(compiled[0].kind, test.kind);
    EXPECT_THAT(compiled[0].spec, HasSubstr(test.spec));
    EXPECT_FALSE(compiled[0].after_thinking);
  }
  Served served(Says("x"));
  (void)served.Post("/v1/chat/completions",
                    R"({"model":"nano","messages":[{"role":"user","content":"Hi"}],"regex":"a"})");
  ASSERT_EQ(served.engine->compiled().size(), 1u);
  EXPECT_TRUE(served.engine->compiled()[0].after_thinking) << "the reasoning is free";
  EXPECT_EQ(served.Post("/v1/chat/completions", Chat(R"(,"regex":"a","ebnf":"b")"))->status(), 400);
  EXPECT_EQ(served.Post("/v1/chat/completions", Chat(R"(,"regex":5)"))->status(), 400);
  EXPECT_EQ(served.Post("/v1/chat/completions", Chat(std::string(kStrict) + R"(,"ebnf":"root ::= \"a\"")"))->status(),
            400);
  const std::size_t before = served.engine->compiled().size();
  EXPECT_EQ(served.Post("/v1/chat/completions", Chat(std::string(kLoose) + R"(,"tool_choice":"none")"))->status(), 200);
  EXPECT_EQ(served.engine->compiled().size(), before) << "no call, no grammar";
}

TEST(Service, AFormatBesideToolsMeansCallsOrThatForm) {
  constexpr std::string_view kFormat =
      R"(,"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"type":"integer"}}})";
  const auto tools = [](std::string_view strict) {
    return R"(,"tools":[{"type":"function","function":{"name":"f","strict":)" + std::string(strict) +
           R"(,"parameters":{"type":"object","properties":{}}}}])";
  };
  struct Case {
    std::string more;
    std::string kind;  // "" for a refusal
    std::string spec;  // part of it
  };
  const Case cases[] = {
      {tools("false") + std::string(kFormat), "dsml",
       R"("otherwise":{"kind":"json_schema","spec":{"type":"integer"}})"},
      {tools("true") + std::string(kFormat), "dsml", R"("otherwise":{"kind":"json_schema")"},
      {tools("false") + R"(,"response_format":{"type":"json_object"},"stop":[])", "dsml",
       R"("otherwise":{"kind":"json_schema","spec":{"type":"object"}})"},
      {tools("false") + R"(,"guided_regex":"a+")", "dsml", R"("otherwise":{"kind":"regex","spec":"a+"})"},
      {tools("false") + std::string(kFormat) + R"(,"tool_choice":"required")", "dsml", R"("mode":"inside")"},
      {tools("false") + std::string(kFormat) + R"(,"tool_choice":"none")", "json_schema", R"({"type":"integer"})"},
      {tools("false") + R"(,"structured_outputs":{"choice":["a"]})", "choice", R"(["a"])"},
      {tools("true") + R"(,"structured_outputs":{"choice":["a"]})", "", ""},
      {tools("false") + R"(,"regex":"a","tool_choice":"required")", "", ""},
  };
  for (const Case& test : cases) {
    Served served(Says("7"));
    const auto reply = served.Post(
        "/v1/chat/completions",
        R"({"model":"nano","messages":[{"role":"user","content":"Answer with JSON."}],"thinking":{"type":"disabled"})" +
            test.more + "}");
    EXPECT_EQ(reply->status(), test.kind.empty() ? 400 : 200) << test.more << reply->text();
    const auto compiled = served.engine->compiled();
    if (test.kind.empty()) continue;
    ASSERT_EQ(compiled.size(), 1u) << test.more;
    EXPECT_EQ(compiled[0].kind, test.kind);
    EXPECT_THAT(compiled[0].spec, HasSubstr(test.spec));
    EXPECT_EQ(compiled[0].spec.find("otherwise") == std::string::npos,
              test.spec.find("otherwise") == std::string::npos);
  }
}

TEST(Service, AnEchoHasTheLogProbabilitiesOfThePrompt) {
  Served served(Says(" a time"));
  // The tokens of "Once upon" are those behind the one that begins every text prompt: -1, -2 and so on.
  const protocol::Json text =
      served.Post("/v1/completions", R"({"model":"nano","prompt":"Once upon","echo":true,"logprobs":2})")->json();
  EXPECT_EQ(At(text, "choices.0.text"), R"("Once upon a time")");
  EXPECT_EQ(At(text, "choices.0.logprobs.tokens"), R"(["Once"," upon"," a"," time"])");
  EXPECT_EQ(At(text, "choices.0.logprobs.token_logprobs"), "[-1.0,-2.0,-0.5,-0.5]");
  EXPECT_EQ(At(text, "choices.0.logprobs.text_offset"), "[0,4,9,11]");
  EXPECT_EQ(At(text, "choices.0.logprobs.top_logprobs.1. upon"), "-2.0") << "beside the two likeliest";
  // Of a prompt of ids every token is shown, and the first has nothing before it.
  const auto ids = served.Post("/v1/completions",
                               R"({"model":"nano","prompt":[554,550],"echo":true,"logprobs":0,"n":2,"stop":"#"})");
  for (const std::string choice : {"choices.0.", "choices.1."}) {
    EXPECT_EQ(At(ids->json(), choice + "logprobs.token_logprobs"), "[null,-1.0,-0.5,-0.5]") << ids->text();
    EXPECT_EQ(At(ids->json(), choice + "logprobs.top_logprobs.0"), "null");
  }
  const auto stream =
      served.Post("/v1/completions", R"({"model":"nano","prompt":"Once upon","echo":true,"logprobs":1,"stream":true})");
  EXPECT_THAT(stream->data()[0], HasSubstr(R"("token_logprobs":[-1.0,-2.0])"));
  EXPECT_EQ(served.engine->requests()[0].prompt_logprobs, 2);
  (void)served.Post("/v1/completions", R"({"model":"nano","prompt":"Once","logprobs":2})");
  EXPECT_EQ(served.engine->requests().back().prompt_logprobs, -1) << "without an echo nobody sees them";
}

// What lm-evaluation-harness asks for: the prompt's scores and nothing more.
TEST(Service, APromptIsScoredWithoutASingleToken) {
  Served served(Says(" a time"));
  for (const std::string_view stream : {"false", "true"}) {
    const auto reply = served.Post(
        "/v1/completions", R"({"model":"nano","prompt":"Once upon","echo":true,"logprobs":1,"max_tokens":0,"stream":)" +
                               std::string(stream) + "}");
    EXPECT_EQ(reply->status(), 200);
    EXPECT_THAT(reply->text(), HasSubstr(R"("token_logprobs":[-1.0,-2.0])"));
    EXPECT_THAT(reply->text(), HasSubstr(R"("finish_reason":"length")"));
    EXPECT_THAT(reply->text(), HasSubstr(R"("completion_tokens":0)"));
    EXPECT_EQ(reply->ends(), 1);
  }
  served.WaitIdle();
  const auto without = served.Post("/v1/completions", R"({"model":"nano","prompt":"Once","max_tokens":0})");
  EXPECT_THAT(At(without->json(), "error.message"), HasSubstr("range of max_tokens is [1, 8192], and 0 where echo"));
  EXPECT_EQ(served.Post("/v1/chat/completions", Chat(R"(,"max_tokens":0)"))->status(), 400);
}

TEST(Service, TheTokenItselfIsAmongItsAlternatives) {
  Served served(Says(" time"));
  for (const int k : {0, 2}) {
    const protocol::Json answer =
        served.Post("/v1/completions", R"({"model":"nano","prompt":"Once","logprobs":)" + std::to_string(k) + "}")
            ->json();
    EXPECT_EQ(At(answer, "choices.0.logprobs.top_logprobs.0. time"), "-0.5");
    const protocol::Json* tops = (*answer.Find("choices")->if_array())[0].Find("logprobs")->Find("top_logprobs");
    EXPECT_EQ((*tops->if_array())[0].if_object()->size(), static_cast<std::size_t>(k == 0 ? 1 : k)) << "once";
  }
}

TEST(Service, MessagesDemandACallBehindTheThoughts) {
  Served served(Says("x"));
  const std::string begin =
      R"({"model":"nano","max_tokens":9,"messages":[{"role":"user","content":"Hi"}],"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":)";
  for (const std::string_view more : {R"({"type":"any"},"thinking":{"type":"enabled","budget_tokens":1024}})",
                                      R"({"type":"any"},"thinking":{"type":"disabled"}})"})
    EXPECT_EQ(served.Post("/v1/messages", begin + std::string(more))->status(), 200) << more;
  const auto compiled = served.engine->compiled();
  ASSERT_EQ(compiled.size(), 2u);
  EXPECT_THAT(compiled[0].spec, HasSubstr(R"("mode":"block")"));
  EXPECT_TRUE(compiled[0].after_thinking);
  EXPECT_FALSE(compiled[0].optional);
  EXPECT_THAT(compiled[1].spec, HasSubstr(R"("mode":"inside")"));
  EXPECT_FALSE(compiled[1].after_thinking);
  const auto named =
      served.Post("/v1/messages", begin + R"({"type":"tool","name":"f"},"thinking":{"type":"adaptive"}})");
  EXPECT_EQ(named->status(), 400);
  EXPECT_THAT(At(named->json(), "error.message"),
              HasSubstr(R"(turn thinking off with thinking: {\"type\": \"disabled\"})"));
}

TEST(Service, BuiltInToolsAreNeverLeftOutInSilence) {
  Served served(Says("x"));
  const auto ask = [&](std::string_view tools, std::string_view more = "") {
    return served.Post("/v1/responses", R"({"model":"nano","input":"Hi","reasoning":{"effort":"none"},"tools":)" +
                                            std::string(tools) + std::string(more) + "}");
  };
  const auto alone = ask(R"([{"type":"web_search"}])");
  EXPECT_EQ(alone->status(), 400);
  EXPECT_THAT(At(alone->json(), "error.message"), HasSubstr("tools[0]: web_search is not supported"));
  EXPECT_EQ(ask(R"([{"type":"web_search"}])", R"(,"tool_choice":"required")")->status(), 400);
  // Codex declares them beside its own, always.
  const std::string_view both = R"([{"type":"function","name":"f"},{"type":"image_generation"}])";
  const auto beside = ask(both);
  EXPECT_EQ(beside->status(), 200);
  EXPECT_THAT(beside->header("x-galley-warning"), HasSubstr("tools[1]: image_generation is ignored"));
  const auto demanded = ask(both, R"(,"tool_choice":{"type":"web_search"})");
  EXPECT_EQ(demanded->status(), 400);
  EXPECT_THAT(At(demanded->json(), "error.message"), HasSubstr("web_search cannot be demanded"));
  EXPECT_EQ(ask("[]")->status(), 200);
}

TEST(Service, MarkupNeverReachesTheClient) {
  const std::string call =
      "Well<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  Served served(Says(call));
  const std::string tool = R"([{"type":"function","function":{"name":"f"}}])";
  for (const std::string& more : {std::string(), R"(,"tools":)" + tool + R"(,"tool_choice":"none")"}) {
    for (const std::string_view stream : {"false", "true"}) {
      const auto reply = served.Post("/v1/chat/completions", Chat(more + R"(,"stream":)" + std::string(stream)));
      EXPECT_THAT(reply->text(), Not(HasSubstr("DSML")));
      EXPECT_THAT(reply->text(), HasSubstr("Well"));
    }
  }
  const auto none = served.Post("/v1/chat/completions", Chat());
  EXPECT_EQ(At(none->json(), "choices.0.message.content"),
            R"("Well<calls>\n<invoke name=\"f\">\n\n</invoke>\n</calls>")");
}

// Whatever ends it, a stream of each API ends exactly once and in its own words.
TEST(Service, EveryStreamEndsOnceHoweverItEnds) {
  struct Api {
    std::string path;
    std::string body;
    std::vector<std::string> ends;  // event names or data that end a stream
  };
  const Api apis[] = {
      {"/v1/chat/completions", Chat(R"(,"stream":true,"max_tokens":4000)"), {R"({"error":)", "[DONE]"}},
      {"/v1/completions",
       R"({"model":"nano","prompt":"a","stream":true,"max_tokens":4000})",
       {R"({"error":)", "[DONE]"}},
      {"/v1/responses",
       R"({"model":"nano","input":"Hi","stream":true,"max_output_tokens":4000})",
       {"response.completed", "response.failed", "response.incomplete"}},
      {"/v1/messages",
       R"({"model":"nano","max_tokens":4000,"messages":[{"role":"user","content":"Hi"}],"stream":true})",
       {"message_stop", "error"}}};
  for (const Api& api : apis) {
    for (const std::string_view how : {"end", "error", "drain", "cancel"}) {
      FakeEngineOptions engine;
      const std::size_t tokens = how == "end" || how == "error" ? 5 : 4000;
      engine.say = [tokens](const engine::EngineRequest&, int) { return std::vector<TokenId>(tokens, 300); };
      engine.step_gap = std::chrono::microseconds(200);
      if (how == "error") engine.fail_after = Error{ErrorCode::kDevice, "gone", ""};
      Served served(engine);
      const auto reply = served.Begin("POST", api.path, api.body);
      reply->WaitForText("data:");
      if (how == "drain") served.service->Shutdown();
      if (how == "cancel") reply->Close();
      if (how != "cancel") reply->Wait();
      served.WaitIdle();
      int ends = 0;
      const std::vector<std::string> names = reply->names(), data = reply->data();
      for (const std::string& end : api.ends) {
        ends += static_cast<int>(std::count(names.begin(), names.end(), end));
        for (const std::string& line : data) ends += end == "[DONE]" || end[0] == '{' ? line.starts_with(end) : 0;
      }
      EXPECT_EQ(ends, how == "cancel" ? 0 : 1) << api.path << " " << how << "\n" << reply->text().substr(0, 2000);
      EXPECT_EQ(reply->ends(), how == "cancel" ? 0 : 1) << api.path << " " << how;
      EXPECT_EQ(served.service->open_requests(), 0);
    }
  }
}

TEST(Service, TimingsOnDemand) {
  FakeEngineOptions engine = Says("Hello");
  engine.cached_tokens = 2;
  Served served(engine);
  const protocol::Json whole = served.Post("/v1/chat/completions", Chat(R"(,"timings":true)"))->json();
  const std::string first_ms = At(whole, "timings.first_token_ms");
  EXPECT_LE(first_ms.size() - first_ms.find('.'), 4u) << first_ms << ": no digits behind the microsecond";
  EXPECT_EQ(At(whole, "timings.cached_tokens"), "2");
  EXPECT_EQ(At(whole, "usage.prompt_tokens_details.cached_tokens"), "2");
  EXPECT_EQ(At(whole, "usage.prompt_cache_hit_tokens"), "2");
  const auto stream = served.Post("/v1/chat/completions", Chat(R"(,"timings":true,"stream":true)"));
  EXPECT_THAT(stream->data()[stream->data().size() - 2], HasSubstr("first_token_ms"));
  EXPECT_EQ(At(served.Post("/v1/chat/completions", Chat())->json(), "timings"), "absent");
}

TEST(Service, MistakesOfClientsAreNamed) {
  struct Case {
    std::string path;
    std::string body;
    int status;
    std::string says;
  };
  const Case cases[] = {
      {"/v1/chat/completions", "{", 400, "JSON"},
      {"/v1/chat/completions", "[]", 400, "object"},
      {"/v1/chat/completions", R"({"model":"other","messages":[]})", 404, "model_not_found"},
      {"/v1/chat/completions", R"({"messages":[]})", 400, "model"},
      {"/v1/chat/completions", R"({"model":"nano","messages":[]})", 400, "Empty input messages"},
      {"/v1/chat/completions", Chat(R"(,"n":0)"), 400, "\"param\":\"n\""},
      {"/v1/chat/completions", Chat(R"(,"n":1.5)"), 400, "\"param\":\"n\""},
      {"/v1/chat/completions", Chat(R"(,"top_k":"x")"), 400, "top_k"},
      {"/v1/chat/completions", Chat(R"(,"min_p":2)"), 400, "min_p"},
      {"/v1/chat/completions", Chat(R"(,"repetition_penalty":0)"), 400, "repetition_penalty"},
      {"/v1/chat/completions", Chat(R"(,"ignore_eos":1)"), 400, "ignore_eos"},
      {"/v1/chat/completions", Chat(R"(,"logit_bias":{"x":1})"), 400, "logit_bias"},
      {"/v1/chat/completions", Chat(R"(,"stop_token_ids":[99999])"), 400, "stop_token_ids"},
      {"/v1/chat/completions", Chat(R"(,"tool_choice":"required")"), 400, "tool_choice"},
      {"/v1/chat/completions",
       R"({"model":"nano","messages":[{"role":"user","content":")" + std::string(40'000, '7') + "\"}]}", 400,
       "the prompt alone is too long"},
      {"/v1/chat/completions", Chat(R"(,"max_tokens":8192)"), 400, "context_length_exceeded"},
      {"/v1/chat/completions",
       R"({"model":"nano","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://127.0.0.1/x.png"}}]}]})",
       400, "images"},
      {"/v1/completions", R"({"model":"nano","prompt":[]})", 400, "prompt"},
      {"/v1/completions", R"({"model":"nano","prompt":[99999]})", 400, "99999"},
      {"/v1/completions", R"({"model":"nano","prompt":"a","best_of":3})", 400, "best_of"},
      {"/v1/responses", R"({"model":"nano","input":"x","previous_response_id":"r"})", 400, "previous_response_id"},
      {"/v1/messages", R"({"model":"nano","messages":[{"role":"user","content":"x"}]})", 400, "max_tokens"},
      {"/v1/messages",
       R"({"model":"nano","max_tokens":9,"messages":[{"role":"user","content":"x"}],"tool_choice":{"type":"any"}})",
       400, "there are no tools"},
      {"/v1/messages",
       R"({"model":"nano","max_tokens":9,"messages":[{"role":"user","content":"x"}],"tool_choice":{"type":"tool","name":"f"}})",
       400, "there are no tools"},
      {"/v1/chat/completions", Chat(R"(,"allowed_token_ids":[])"), 400, "\"param\":\"allowed_token_ids\""},
      {"/v1/chat/completions", Chat(R"(,"min_tokens":9,"max_tokens":8)"), 400, "\"param\":\"min_tokens\""},
      {"/v1/responses", R"({"model":"nano","input":"x","tool_choice":"required"})", 400, "there are no tools"},
      {"/v1/responses", R"({"model":"nano","input":"x","tool_choice":{"type":"function","name":"f"}})", 400,
       "there are no tools"},
      {"/v1/completions", R"({"model":"nano","prompt":"a","min_tokens":17})", 400, "17 are more than the 16 tokens"},
      {"/v1/completions", R"({"model":"nano","prompt":"a","suffix":"b","echo":true})", 400, "\"param\":\"echo\""},
  };
  Served served(Says("x"));
  for (const Case& test : cases) {
    const auto reply = served.Post(test.path, test.body);
    EXPECT_EQ(reply->status(), test.status) << test.body << reply->text();
    EXPECT_THAT(reply->text(), HasSubstr(test.says)) << test.body;
    if (test.path == "/v1/messages")
      EXPECT_EQ(At(reply->json(), "type"), R"("error")");
    else
      EXPECT_NE(At(reply->json(), "error.type"), "absent") << reply->text();
  }
  EXPECT_TRUE(served.engine->requests().empty());
}

TEST(Service, AFullQueueIsToldWhenToComeBack) {
  ServiceOptions options;
  options.max_queue = 2;
  Served served(Says("x"), options);
  served.engine->SetAdmitting(false);
  const auto first = served.Begin("POST", "/v1/chat/completions", Chat());
  const auto second = served.Begin("POST", "/v1/chat/completions", Chat());
  const auto third = served.Ask("POST", "/v1/chat/completions", Chat());
  EXPECT_EQ(third->status(), 429);
  EXPECT_GE(std::stoi(third->header("retry-after")), 1);
  EXPECT_EQ(At(third->json(), "error.type"), R"("rate_limit_error")");
  served.engine->SetAdmitting(true);
  first->Wait();
  second->Wait();
  served.WaitIdle();
  EXPECT_EQ(served.Ask("POST", "/v1/chat/completions", Chat())->status(), 200) << "the queue has emptied";
}

TEST(Service, DrainingRefusesNewAndEndsOldRequests) {
  FakeEngineOptions engine;
  engine.say = [](const engine::EngineRequest&, int) { return std::vector<TokenId>(4000, 300); };
  engine.step_gap = std::chrono::microseconds(200);
  Served served(engine);
  const auto open = served.Begin("POST", "/v1/chat/completions", Chat(R"(,"stream":true,"max_tokens":4000)"));
  open->WaitForText("data:");
  served.service->SetReady(false);
  EXPECT_EQ(served.Ask("GET", "/ready")->status(), 503);
  EXPECT_EQ(served.Ask("GET", "/health")->header("retry-after"), "5");
  EXPECT_EQ(served.Ask("GET", "/live")->status(), 200);
  served.service->RefuseNew();
  EXPECT_EQ(served.Ask("POST", "/v1/chat/completions", Chat())->status(), 503);
  EXPECT_FALSE(served.service->WaitIdle(std::chrono::milliseconds(10)));
  EXPECT_FALSE(open->ended());
  served.service->Shutdown();
  open->Wait();
  EXPECT_THAT(open->data().back(), HasSubstr("shutting down"));
  EXPECT_EQ(open->ends(), 1);
  served.WaitIdle();
}

TEST(Service, ManyStreamsAtOnceDoNotMix) {
  FakeEngineOptions engine;
  engine.say = [](const engine::EngineRequest& request, int) {
    return std::vector<TokenId>(20, static_cast<TokenId>(300 + request.sampling.seed));
  };
  Served served(engine);
  std::vector<std::shared_ptr<MemoryReply>> replies;
  for (int i = 0; i < 500; ++i)
    replies.push_back(served.Begin(
        "POST", "/v1/completions",
        R"({"model":"nano","prompt":"x","max_tokens":20,"stream":true,"seed":)" + std::to_string(i) + "}"));
  for (int i = 0; i < 500; ++i) {
    replies[static_cast<std::size_t>(i)]->Wait();
    std::string want;
    for (int k = 0; k < 20; ++k) want += *NanoTokenizer().TokenBytes(static_cast<TokenId>(300 + i));
    std::string text;
    const std::vector<std::string> data = replies[static_cast<std::size_t>(i)]->data();
    for (std::size_t k = 0; k + 1 < data.size(); ++k) {
      const protocol::Json chunk = *protocol::ParseJson(data[k]);
      text += *(*chunk.Find("choices")->if_array())[0].Find("text")->if_string();
    }
    EXPECT_EQ(text, want);
    EXPECT_EQ(data.back(), "[DONE]");
  }
}

}  // namespace
}  // namespace galley::serve
