// SPDX-License-Identifier: Apache-2.0
// Everything but generation: routes, keys, traces, small endpoints, metrics, log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <regex>
#include <set>
#include <sstream>
#include <utility>

#include "galley/base/percent.h"
#include "galley/serve/api_error.h"
#include "galley/serve/routes.h"
#include "galley/serve/service_fixture.h"
#include "galley/serve/trace.h"
#include "galley/text/utf8.h"

namespace galley::serve {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kChat =
    R"({"model":"nano","messages":[{"role":"user","content":"my secret"}],"thinking":{"type":"disabled"}})";

TEST(Routes, ApiPathsHaveTheSpellingsOfAllClients) {
  for (const std::string_view prefix : {"", "/v1", "/beta", "/beta/v1", "/anthropic", "/anthropic/v1"}) {
    for (const Route& route : Routes()) {
      if (route.path.ends_with('*')) continue;
      const Match match = FindRoute(route.method, std::string(prefix) + std::string(route.path));
      const bool answers = route.api || prefix.empty();
      EXPECT_EQ(match.route != nullptr && match.route->endpoint == route.endpoint, answers) << prefix << route.path;
    }
  }
  EXPECT_EQ(FindRoute("GET", "/v1/models/a/b").rest, "a/b") << "names may have slashes";
  const std::pair<std::string_view, std::string_view> parts[] = {
      {"a%2Fb", "a/b"}, {"%2f%C3%a9", "/é"}, {"a+b%20c", "a+b c"}, {"%2", "%2"},
      {"%", "%"},       {"%zz%4", "%zz%4"},  {"%%41", "%A"}};
  for (const auto& [part, want] : parts) EXPECT_EQ(DecodePercent(part), want) << part;
  EXPECT_EQ(FindRoute("GET", "/v1/chat/completions").status, 405);
  EXPECT_EQ(FindRoute("GET", "/v1/chat/completions").allowed, "POST");
  EXPECT_EQ(FindRoute("PUT", "/flush_cache").allowed, "POST, GET");
  EXPECT_EQ(FindRoute("GET", "/v1/../etc/passwd").status, 404);
  EXPECT_EQ(FindRoute("GET", "/v1v1/models").status, 404);
  EXPECT_NE(FindRoute("HEAD", "/health").route, nullptr);
  EXPECT_NE(FindRoute("POST", "/v1/messages/").route, nullptr);
}

TEST(Keys, AreNeededWhereSomethingIsGivenAway) {
  Served served(Says("x"), {}, {"sk-one", "sk-two"});
  const auto status = [&](std::string_view method, std::string_view path, net::Headers headers) {
    return served.Ask(method, path, kChat, std::move(headers))->status();
  };
  EXPECT_EQ(status("POST", "/v1/chat/completions", {}), 401);
  EXPECT_EQ(status("POST", "/v1/chat/completions", {{"Authorization", "Bearer sk-three"}}), 401);
  EXPECT_EQ(status("POST", "/v1/chat/completions", {{"Authorization", "Bearer sk-on"}}), 401);
  EXPECT_EQ(status("POST", "/v1/chat/completions", {{"Authorization", "Bearer sk-one"}}), 200);
  EXPECT_EQ(status("POST", "/v1/chat/completions", {{"authorization", "bearer sk-two"}}), 200);
  EXPECT_EQ(status("POST", "/v1/chat/completions", {{"X-Api-Key", "sk-two"}}), 200);
  EXPECT_EQ(served.Ask("GET", "/v1/models")->header("www-authenticate"), "Bearer");
  EXPECT_EQ(status("GET", "/v1/nothing", {}), 401) << "a stranger learns nothing about paths";
  EXPECT_EQ(status("GET", "/health", {}), 200);
  EXPECT_EQ(status("POST", "/flush_cache", {}), 401);
  const auto requests = served.engine->requests();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_NE(requests[0].cache_salt, requests[1].cache_salt);
  EXPECT_EQ(requests[1].cache_salt, requests[2].cache_salt);
  EXPECT_FALSE(Keys::Create({"has blank"}));
  EXPECT_FALSE(Keys::Create({""}));
  EXPECT_EQ(KeysOfFile("# comment\n\n a \r\nb"), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(EqualInConstantTime("", ""));
  EXPECT_FALSE(EqualInConstantTime("a", ""));
  EXPECT_FALSE(EqualInConstantTime("abab", "ab"));
}

TEST(Trace, IdsAreTakenAndForwarded) {
  constexpr std::string_view kParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  Served served(Says("x"));
  const auto reply =
      served.Ask("POST", "/v1/chat/completions", kChat,
                 {{"X-Request-Id", "mine-1"}, {"traceparent", std::string(kParent)}, {"tracestate", "a=b"}});
  EXPECT_EQ(reply->header("x-request-id"), "mine-1");
  EXPECT_EQ(reply->header("traceparent"), kParent);
  EXPECT_EQ(reply->header("tracestate"), "a=b");
  const auto other = served.Ask("GET", "/version", "", {{"x-request-id", "a\"b"}, {"traceparent", "nonsense"}});
  EXPECT_THAT(other->header("x-request-id"), HasSubstr("req_"));
  EXPECT_EQ(other->header("traceparent"), "");
  EXPECT_FALSE(IsTraceparent("00-00000000000000000000000000000000-b7ad6b7169203331-01"));
  EXPECT_FALSE(IsTraceparent("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
  IdSource ids(7), same(7);
  EXPECT_EQ(ids.Next(), same.Next());
  EXPECT_NE(ids.Next(), ids.Next());
}

TEST(Endpoints, OtherServersSwitchOfThinkingIsKnown) {
  Served served(Says("x"));
  const std::string begin = R"({"model":"nano","messages":[{"role":"user","content":"hi"}])";
  for (const std::string_view rest :
       {R"(,"thinking":{"type":"disabled"}})", R"(,"chat_template_kwargs":{"enable_thinking":false}})",
        R"(,"chat_template_kwargs":{"thinking":false}})", R"(,"chat_template_kwargs":{"thinking":true}})", "}"})
    EXPECT_EQ(served.Ask("POST", "/v1/chat/completions", begin + std::string(rest))->status(), 200) << rest;
  const auto requests = served.engine->requests();
  ASSERT_EQ(requests.size(), 5u);
  EXPECT_EQ(requests[1].prompt_ids, requests[0].prompt_ids);
  EXPECT_EQ(requests[2].prompt_ids, requests[0].prompt_ids);
  EXPECT_EQ(requests[3].prompt_ids, requests[4].prompt_ids);  // thinking is the default
  EXPECT_NE(requests[4].prompt_ids, requests[0].prompt_ids);
  EXPECT_EQ(served.Ask("POST", "/v1/chat/completions", begin + R"(,"structured_outputs":{"foo":1}})")->status(), 400);
}

TEST(Endpoints, TokenizeAndBack) {
  Served served;
  const protocol::Json plain =
      served.Post("/tokenize", R"({"prompt":"Once upon a time","add_special_tokens":false,"return_token_strs":true})")
          ->json();
  EXPECT_EQ(At(plain, "tokens"), "[554,550,259,495]");
  EXPECT_EQ(At(plain, "count"), "4");
  EXPECT_EQ(At(plain, "max_model_len"), "8192");
  EXPECT_NE(At(plain, "token_strs.3"), "absent");
  EXPECT_EQ(At(served.Post("/v1/tokenize", R"({"prompt":"Once"})")->json(), "tokens.0"), "0") << "begin of sentence";
  EXPECT_EQ(At(served.Post("/tokenize", R"({"prompt":"<｜User｜>","add_special_tokens":false})")->json(), "count"),
            std::to_string(NanoTokenizer().Encode("<｜User｜>")->size()))
      << "text never becomes a control token";
  const protocol::Json chat = served.Post("/tokenize", R"({"messages":[{"role":"user","content":"Hi"}]})")->json();
  EXPECT_NE(At(chat, "tokens.3"), "absent");
  EXPECT_EQ(At(served.Post("/detokenize", R"({"tokens":[554,550,259,495]})")->json(), "prompt"),
            R"("Once upon a time")");
  EXPECT_EQ(served.Post("/detokenize", R"({"tokens":[-1]})")->status(), 400);
  EXPECT_EQ(served.Post("/detokenize", R"({"tokens":[5],"model":"other"})")->status(), 404);
  EXPECT_EQ(served.Post("/tokenize", R"({"prompt":"a","model":"other"})")->status(), 404);
  EXPECT_EQ(served.Post("/detokenize", R"({"tokens":[1e99]})")->status(), 400);
  EXPECT_EQ(served.Post("/tokenize", "{}")->status(), 400);
  EXPECT_NE(At(served.Post("/detokenize", R"({"tokens":"1"})")->json(), "error.message").find("list of token ids"),
            std::string::npos);
  const auto picture = served.Post("/tokenize", R"({"messages":[{"role":"user","content":[
      {"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}]}]})");
  EXPECT_EQ(picture->status(), 400) << "what the model is not given is not counted";
}

TEST(Endpoints, CountTokensEqualsTheUsage) {
  Served served(Says("x"));
  const std::string members = R"("model":"nano","messages":[{"role":"user","content":"Say hello."}]})";
  const auto count = served.Post("/v1/messages/count_tokens", "{" + members);
  const auto answer = served.Post("/v1/messages", R"({"max_tokens":5,)" + members);
  EXPECT_EQ(At(count->json(), "input_tokens"), At(answer->json(), "usage.input_tokens"));
}

TEST(Endpoints, InputTokensEqualsTheUsage) {
  Served served(Says("x"));
  const std::string_view body = R"({"model":"nano","input":"Say hello.","instructions":"Be brief."})";
  const auto count = served.Post("/v1/responses/input_tokens", body);
  EXPECT_EQ(At(count->json(), "object"), R"("response.input_tokens")");
  EXPECT_EQ(At(count->json(), "input_tokens"), At(served.Post("/v1/responses", body)->json(), "usage.input_tokens"));
}

TEST(Endpoints, PackedBodiesAreRefusedAsSuch) {
  Served served(Says("x"));
  const auto ask = [&](std::string coding) {
    return served.Ask("POST", "/v1/chat/completions", kChat, {{"Content-Encoding", std::move(coding)}});
  };
  EXPECT_EQ(ask("gzip")->status(), 415);
  EXPECT_THAT(At(ask("gzip")->json(), "error.message"), HasSubstr("send the body as it is"));
  EXPECT_THAT(At(ask("\xFF\xFE")->json(), "error.message"), HasSubstr("content-encoding ?? is not")) << "still UTF-8";
  EXPECT_EQ(ask("identity")->status(), 200);
}

TEST(Endpoints, ErrorsNameTheModelsThatThereAre) {
  ServiceOptions options;
  options.model_names = {"zulu", "alpha"};
  Served served(Says("x"), options);
  const auto message = [](const std::shared_ptr<MemoryReply>& reply) { return At(reply->json(), "error.message"); };
  const std::string names = "this server has zulu, alpha";
  EXPECT_THAT(message(served.Ask("GET", "/v1/models/none")), HasSubstr(names));
  const auto anthropic = served.Ask("GET", "/v1/models/none", "", {{"anthropic-version", "2023-06-01"}});
  EXPECT_THAT(message(anthropic), HasSubstr(names));
  EXPECT_EQ(At(anthropic->json(), "type"), R"("error")") << "as in Messages";
  EXPECT_THAT(message(served.Post("/tokenize", R"({"model":"none","messages":[]})")), HasSubstr(names));
  const std::string rest = R"("messages":[{"role":"user","content":"Hi"}]})";
  const auto other = served.Post("/v1/chat/completions", R"({"model":"none",)" + rest);
  EXPECT_EQ(other->status(), 404);
  EXPECT_THAT(message(other), HasSubstr(names));
  const auto missing = served.Post("/v1/chat/completions", "{" + rest);
  EXPECT_EQ(missing->status(), 400);
  EXPECT_THAT(message(missing), HasSubstr("missing field `model`; " + names));
}

TEST(Endpoints, WhatAClientCalledIsShownAsShortText) {
  Served served(Says("x"));
  const std::string odd = "\xFF" + std::string(300, 'a');
  for (const auto& [method, path] : {std::pair<std::string, std::string>{"GET", "/v1/models/" + odd},
                                     {"GET", "/v1/responses/" + odd},
                                     {"GET", "/" + odd},
                                     {odd, "/v1/models"}}) {
    const auto reply = served.Ask(method, path);
    EXPECT_TRUE(text::IsValidUtf8(reply->text())) << path;
    EXPECT_THAT(reply->text(), HasSubstr("\uFFFDaaa"));
    EXPECT_LT(reply->text().size(), 500u);
  }
  EXPECT_EQ(Shown(std::string(199, 'a') + "é"), std::string(199, 'a') + "…") << "a character is not cut in two";
}

TEST(Endpoints, ErrorsOfTheEngineHaveTheClientsNames) {
  const ApiError error = FromError(Error{ErrorCode::kInvalidArgument, "id 9 at place 0 is wrong", "prompt_ids"});
  EXPECT_EQ(error.message, "prompt: id 9 at place 0 is wrong");
  EXPECT_EQ(error.param, "prompt");
  EXPECT_EQ(CodeOf(error), "invalid_request_error");
  EXPECT_EQ(CodeOf(FromError(Error{ErrorCode::kDevice, "gone", ""})), "device");
}

TEST(Endpoints, ModelsVersionsAndState) {
  ServiceOptions options;
  options.model_names = {"nano", "alias"};
  options.version = "9.9";
  options.info = R"({"backend":"ref"})";
  Served served(Says("x"), options);
  const protocol::Json models = served.Ask("GET", "/v1/models")->json();
  EXPECT_EQ(At(models, "data.1.id"), R"("alias")");
  EXPECT_EQ(At(models, "models.0.name"), R"("nano")");
  // As Anthropic's clients read the list.
  EXPECT_EQ(At(models, "data.0.type"), R"("model")");
  EXPECT_EQ(At(models, "data.0.display_name"), R"("nano")");
  EXPECT_EQ(At(models, "data.0.created_at"), R"("1970-01-01T00:00:00Z")");
  EXPECT_EQ(At(models, "has_more"), "false");
  EXPECT_EQ(At(models, "last_id"), R"("alias")");
  EXPECT_EQ(served.Ask("GET", "/v1/models/alias")->status(), 200);
  EXPECT_EQ(served.Ask("GET", "/v1/models/none")->status(), 404);
  EXPECT_EQ(served.Ask("GET", "/v1/responses/resp_1")->status(), 404);
  EXPECT_EQ(At(served.Ask("GET", "/version")->json(), "version"), R"("9.9")");
  EXPECT_EQ(At(served.Ask("GET", "/server_info")->json(), "backend"), R"("ref")");
  EXPECT_EQ(At(served.Ask("GET", "/load")->json(), "server_load"), "0");
  for (const std::string_view path : {"/health", "/live", "/ready", "/ping"})
    EXPECT_EQ(served.Ask("GET", path)->status(), 200) << path;
  EXPECT_EQ(served.Ask("POST", "/flush_cache")->status(), 200);
  EXPECT_EQ(served.Ask("POST", "/reset_prefix_cache")->status(), 200);
  EXPECT_EQ(served.engine->cache_clears(), 2);
  EXPECT_EQ(served.Ask("GET", "/")->status(), 404) << "no page was given";
  const auto wrong = served.Ask("DELETE", "/v1/models");
  EXPECT_EQ(wrong->status(), 405);
  EXPECT_EQ(wrong->header("allow"), "GET");
}

TEST(Metrics, HaveBothNamesAndCount) {
  Served served(Says("Hello there"));
  (void)served.Post("/v1/chat/completions", kChat);
  (void)served.Post("/v1/chat/completions", "{");
  served.WaitIdle();
  const std::string text = served.Ask("GET", "/metrics")->text();
  for (const std::string_view line :
       {"galley_requests_finished_total{model_name=\"nano\",reason=\"stop\"} 1\n",
        "vllm:request_success_total{model_name=\"nano\",finished_reason=\"stop\"} 1\n",
        "vllm:num_requests_running{model_name=\"nano\"} 0\n", "vllm:num_requests_waiting{model_name=\"nano\"} 0\n",
        "vllm:time_to_first_token_seconds_count{model_name=\"nano\"} 1\n",
        "galley_e2e_request_latency_seconds_bucket{model_name=\"nano\",le=\"+Inf\"} 1\n",
        "galley_http_requests_total{model_name=\"nano\",route=\"/chat/completions\",status=\"400\"} 1\n",
        "galley_requests_refused_total{model_name=\"nano\",why=\"invalid\"} 1\n", "vllm:kv_cache_usage_perc",
        "galley_drafts_accepted_total{model_name=\"nano\"} 0\n", "vllm:spec_decode_num_draft_tokens_total",
        "galley_draft_time_saved_seconds", "galley_draft_budget{", "galley_draft_accepted_mean{",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"nano\",position=\"4\"} 0\n",
        "vllm:prefix_cache_queries_total", "vllm:num_preemptions_total", "vllm:cache_config_info{",
        "# TYPE vllm:inter_token_latency_seconds histogram\n"})
    EXPECT_THAT(text, HasSubstr(line));
  EXPECT_THAT(text, Not(HasSubstr("} nan")));
  EXPECT_THAT(text, HasSubstr("enable_prefix_caching=\"True\""));
}

// A family's lines stand together behind one HELP and one TYPE; no sample comes twice; buckets grow up to the count.
TEST(Metrics, AreWrittenAsPrometheusReadsThem) {
  ServiceOptions options;
  options.model_names = {"a \"quoted\" \\ name\nof two lines"};
  Served served(Says("Hello there"), options);
  (void)served.Post("/v1/completions", R"({"model":"x","prompt":"a"})");
  (void)served.Post("/v1/completions", R"({"prompt":"a","model":"a \"quoted\" \\ name\nof two lines"})");
  served.WaitIdle();
  static const std::regex help(R"(# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) .+)");
  static const std::regex type(R"(# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram))");
  static const std::regex sample(
      R"(([a-zA-Z_:][a-zA-Z0-9_:]*)\{([a-zA-Z_][a-zA-Z0-9_]*="([^"\\\n]|\\[\\"n])*",?)+\} [0-9.e+-]+)");
  const std::string text = served.Ask("GET", "/metrics")->text();
  ASSERT_TRUE(text.ends_with('\n'));
  std::set<std::string> families, samples;
  std::string family, kind;
  double before = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      family = match[1];
      EXPECT_TRUE(families.insert(family).second) << family << " comes twice";
    } else if (std::regex_match(line, match, type)) {
      EXPECT_EQ(match[1], family);
      kind = match[2];
      EXPECT_EQ(kind == "counter", family.ends_with("_total")) << family;
    } else {
      ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
      const std::string name = match[1];
      EXPECT_TRUE(samples.insert(line.substr(0, line.rfind(' '))).second) << line << " comes twice";
      EXPECT_TRUE(name == family || (kind == "histogram" && (name == family + "_bucket" || name == family + "_sum" ||
                                                             name == family + "_count")))
          << line << " stands in " << family;
      const double value = std::stod(line.substr(line.rfind(' ') + 1));
      if (name == family + "_bucket") {
        EXPECT_GE(value, before) << line;
        before = value;
      } else if (name == family + "_count") {
        EXPECT_EQ(value, before) << line << " is not the last bucket";
        before = 0;
      }
    }
  }
  for (const std::string_view name :
       {"requests_running", "requests_waiting", "kv_usage_ratio", "prefix_cache_queries_total",
        "prefix_cache_hits_total", "time_to_first_token_seconds", "inter_token_latency_seconds",
        "e2e_request_latency_seconds", "prompt_tokens_total", "generation_tokens_total", "preemptions_total",
        "requests_finished_total", "cache_config_info"})
    EXPECT_TRUE(families.contains("galley_" + std::string(name))) << name;
  for (const std::string_view name :
       {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total",
        "prefix_cache_hits_total", "time_to_first_token_seconds", "inter_token_latency_seconds",
        "e2e_request_latency_seconds", "prompt_tokens_total", "generation_tokens_total", "num_preemptions_total",
        "request_success_total", "cache_config_info"})
    EXPECT_TRUE(families.contains("vllm:" + std::string(name))) << name;
}

TEST(Metrics, TellWhetherPrefixesAreCached) {
  ServiceOptions options;
  options.prefix_cache = false;
  Served served(Says("x"), options);
  EXPECT_THAT(served.Ask("GET", "/metrics")->text(), HasSubstr("block_size=\"128\",num_gpu_blocks="));
  EXPECT_THAT(served.Ask("GET", "/metrics")->text(), HasSubstr("enable_prefix_caching=\"False\""));
}

// Takes the lines of a service's log, from whichever thread.
class Lines {
 public:
  void Into(ServiceOptions& options) {
    options.log = [this](std::string line) {
      std::lock_guard lock(mutex_);
      lines_.push_back(std::move(line));
    };
  }
  [[nodiscard]] std::vector<std::string> Take() {
    std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST(Log, OneJsonLineARequestWithoutItsText) {
  for (const bool prompts : {false, true}) {
    Lines log;
    ServiceOptions options;
    options.log_prompts = prompts;
    log.Into(options);
    Served served(Says("my answer"), options);
    (void)served.Ask("POST", "/v1/chat/completions", kChat, {{"x-request-id", "r1"}});
    served.WaitIdle();
    const std::vector<std::string> lines = log.Take();
    ASSERT_EQ(lines.size(), 1u);
    const protocol::Json line = *protocol::ParseJson(lines[0]);
    EXPECT_EQ(At(line, "request_id"), R"("r1")");
    EXPECT_EQ(At(line, "finish"), R"("stop")");
    EXPECT_EQ(At(line, "status"), "200");
    EXPECT_EQ(lines[0].find("my secret") != std::string::npos, prompts);
    EXPECT_EQ(lines[0].find("my answer") != std::string::npos, prompts);
  }
}

TEST(Log, HasALineForWhatIsRefusedAndNoneForProbes) {
  struct Case {
    std::string method, path, body;
    int status;
    std::string error;
  };
  const Case cases[] = {
      {"GET", "/nothing", "", 404, "not_found"},
      {"DELETE", "/v1/models", "", 405, "method_not_allowed"},
      {"POST", "/v1/chat/completions", R"({"model":"nano","messages":[{"role":"my secret"}]})", 400,
       "invalid_request_error"},
      {"POST", "/v1/completions", R"({"model":"nano","prompt":"a","stop":["my secret",""]})", 400,
       "invalid_request_error"},
      {"POST", "/v1/completions", R"({"model":"my secret"})", 404, "model_not_found"},
      {"GET", "/v1/models", "", 200, ""},
  };
  for (const bool prompts : {false, true}) {
    Lines log;
    ServiceOptions options;
    options.log_prompts = prompts;
    log.Into(options);
    Served served(Says("x"), options, {"sk-one"});
    for (const Case& test : cases) {
      (void)served.Ask(test.method, test.path, test.body, {{"authorization", "Bearer sk-one"}, {"x-request-id", "r2"}});
      const std::vector<std::string> lines = log.Take();
      ASSERT_EQ(lines.size(), 1u) << test.path;
      const protocol::Json line = *protocol::ParseJson(lines[0]);
      EXPECT_EQ(At(line, "request_id"), R"("r2")");
      EXPECT_EQ(At(line, "method"), '"' + test.method + '"');
      EXPECT_EQ(At(line, "status"), std::to_string(test.status)) << lines[0];
      EXPECT_EQ(At(line, "error"), test.error.empty() ? "absent" : '"' + test.error + '"');
      EXPECT_EQ(At(line, "key"), "0");
      EXPECT_TRUE(prompts || lines[0].find("my secret") == std::string::npos) << lines[0];
    }
    (void)served.Ask("GET", "/v1/models");
    const std::vector<std::string> lines = log.Take();
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_THAT(lines[0], HasSubstr(R"("key":null)"));
    EXPECT_THAT(lines[0], HasSubstr(R"("status":401)"));
    for (const std::string_view path : {"/health", "/metrics", "/version"}) (void)served.Ask("GET", path);
    EXPECT_TRUE(log.Take().empty());
    served.service->NoteRejection("127.0.0.1:9", 431, "too long");
    EXPECT_THAT(log.Take().at(0), HasSubstr(R"("status":431,"error":"too long")"));
    EXPECT_THAT(served.Ask("GET", "/metrics")->text(), HasSubstr(R"(route="none",status="431"} 1)"));
  }
}

TEST(Log, HasTheTokensOfAnswersThatWereBrokenOff) {
  Lines log;
  ServiceOptions options;
  log.Into(options);
  FakeEngineOptions engine;
  engine.say = [](const engine::EngineRequest&, int) { return std::vector<TokenId>{300, 301}; };
  engine.fail_after = Error{ErrorCode::kInvalidArgument, "nothing can follow", ""};
  Served served(engine, options);
  const auto reply = served.Post("/v1/chat/completions", kChat);
  EXPECT_EQ(reply->status(), 400);
  EXPECT_EQ(At(reply->json(), "error.type"), R"("invalid_request_error")");
  served.WaitIdle();
  const std::vector<std::string> lines = log.Take();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(At(*protocol::ParseJson(lines[0]), "completion_tokens"), "2") << lines[0];
}

TEST(Stats, RememberTheLastRequests) {
  Served served(Says("Hello"));
  (void)served.Post("/v1/chat/completions", kChat);
  served.WaitIdle();
  const protocol::Json stats = served.Ask("GET", "/stats")->json();
  EXPECT_EQ(At(stats, "recent.0.finish"), R"("stop")");
  EXPECT_EQ(At(stats, "open"), "0");
}

}  // namespace
}  // namespace galley::serve
