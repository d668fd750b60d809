// SPDX-License-Identifier: Apache-2.0
// Bodies that no honest client sends: each gets one answer that says what is wrong, costs little, and leaves the
// service as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "galley/serve/service_fixture.h"

namespace galley::serve {
namespace {

std::string Repeated(std::string_view part, std::size_t times) {
  std::string out;
  out.reserve(part.size() * times);
  for (std::size_t i = 0; i < times; ++i) out += part;
  return out;
}

std::string Chat(const std::string& more) {
  return R"({"model":"nano","messages":[{"role":"user","content":"Hi"}],"thinking":{"type":"disabled"})" + more + "}";
}

struct Hostile {
  std::string name;
  std::string body;
  int status = 400;
};

std::vector<Hostile> HostileChats() {
  constexpr std::size_t kMany = 200'000;
  std::string bias = R"(,"logit_bias":{)", tools = R"(,"tools":[)";
  for (int i = 0; i < 100'000; ++i) bias += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":1";
  for (int i = 0; i < 5000; ++i)
    tools += (i > 0 ? "," : "") + (R"({"type":"function","function":{"name":"f)" + std::to_string(i) +
                                   R"(","parameters":{"type":"object","properties":{}}}})");
  return {
      {"deep list", Repeated("[", kMany)},
      {"deep object", Repeated("{\"a\":", kMany)},
      {"deep member", Chat(R"(,"x":)" + Repeated("[", 5000) + Repeated("]", 5000))},
      {"deep schema", Chat(R"(,"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":)" +
                           Repeated(R"({"items":)", 3000) + "{}" + Repeated("}", 3000) + "}}")},
      {"NaN", Chat(R"(,"temperature":NaN)")},
      {"infinity", Chat(R"(,"temperature":Infinity)")},
      {"huge number", Chat(R"(,"temperature":1e999)")},
      {"negative zero", Chat(R"(,"temperature":-0.0)"), 200},
      {"half a byte", Chat(R"(,"user":")"
                           "\xC3\"")},
      {"overlong slash", Chat(",\"user\":\"\xC0\xAF\"")},
      {"surrogate in UTF-8", Chat(",\"user\":\"\xED\xA0\x80\"")},
      {"lone surrogate", Chat(R"(,"user":"\ud800")")},
      {"nul byte", Chat(std::string(",\"user\":\"\0\"", 11))},
      {"same key twice", Chat(R"(,"n":1,"n":2)")},
      {"same key, spelled differently", Chat(R"(,"n":1,"\u006e":2)")},
      {"n", Chat(R"(,"n":1000000000)")},
      {"n beyond integers", Chat(R"(,"n":1e300)")},
      {"n with a fraction", Chat(R"(,"n":1.5)")},
      {"max_tokens", Chat(R"(,"max_tokens":18446744073709551616)")},
      {"seed", Chat(R"(,"seed":-1)")},
      {"top_logprobs", Chat(R"(,"logprobs":true,"top_logprobs":1000000)")},
      {"bias of ids that do not exist", Chat(bias + "}")},
      {"bias key", Chat(R"(,"logit_bias":{"0x10":1})")},
      {"bias value", Chat(R"(,"logit_bias":{"5":1e308})")},
      {"empty allowed ids", Chat(R"(,"allowed_token_ids":[-1])")},
      {"stop without end", Chat(R"(,"stop":[)" + Repeated("\"x\",", 100'000) + "\"x\"]")},
      {"empty stop", Chat(R"(,"stop":"")")},
      {"5000 tools", Chat(tools + "]"), 0},  // allowed, if they fit
      {"tool name", Chat(R"(,"tools":[{"type":"function","function":{"name":"a\"><b","parameters":{}}}])")},
      {"regex bomb", Chat(R"(,"response_format":{"type":"regex","regex":")" + Repeated("(", 5000) + "\"}")},
      {"salt", Chat(R"(,"cache_salt":5)")},
      {"priority", Chat(R"(,"priority":1e9)")},
      {"blanks only", Repeated(" ", 1 << 20)},
      {"trailing text", Chat("") + "x"},
      {"long prompt", R"({"model":"nano","messages":[{"role":"user","content":")" + Repeated("ab ", 300'000) + "\"}]}"},
      {"many messages", R"({"model":"nano","messages":[)" + Repeated(R"({"role":"user","content":"a"},)", 20'000) +
                            R"({"role":"user","content":"a"}]})"},
  };
}

TEST(Hostile, BodiesAreAnsweredAndCostLittle) {
  Served served(Says("x"));
  for (const Hostile& test : HostileChats()) {
    const std::clock_t start = std::clock();
    const auto reply = served.Post("/v1/chat/completions", test.body);
    // Processor time: the machine may have other things to do.
    const double took_s = static_cast<double>(std::clock() - start) / static_cast<double>(CLOCKS_PER_SEC);
    if (test.status == 0) {
      EXPECT_LT(reply->status(), 500) << test.name;
    } else {
      EXPECT_EQ(reply->status(), test.status) << test.name << ": " << reply->text().substr(0, 300);
    }
    EXPECT_EQ(reply->ends(), 1) << test.name;
    EXPECT_LT(reply->text().size(), 20'000u) << test.name << ": an error does not repeat what was sent";
    EXPECT_LT(took_s, 5) << test.name;
  }
  EXPECT_EQ(served.Post("/v1/chat/completions", Chat(""))->status(), 200);
  served.WaitIdle();
}

TEST(Hostile, OtherEndpoints) {
  Served served(Says("x"));
  struct Case {
    std::string path;
    std::string body;
  };
  const Case cases[] = {
      {"/tokenize", R"({"prompt":5})"},
      {"/tokenize", R"({"messages":[5]})"},
      {"/tokenize", R"({"messages":[{"role":"user","content":"a"}],"model":5})"},
      {"/detokenize", R"({"tokens":[)" + Repeated("0,", 1000) + "1e308]}"},
      {"/tokenize", R"({"prompt":"a","add_special_tokens":"no"})"},
      {"/tokenize", R"({"prompt":"a","return_token_strs":1})"},
      {"/detokenize", R"({"tokens":[0.5]})"},
      {"/detokenize", R"({"tokens":[null]})"},
      {"/v1/messages/count_tokens", R"({"model":"nano","messages":[]})"},
      {"/v1/messages/count_tokens", "[]"},
      {"/v1/completions", R"({"model":"nano","prompt":[[]]})"},
      {"/v1/completions", R"({"model":"nano","prompt":["a",5]})"},
      {"/v1/completions", R"({"model":"nano","prompt":[)" + Repeated("\"a\",", 300) + "\"a\"]}"},
      {"/v1/completions", R"({"model":"nano","prompt":"a","logprobs":21})"},
      {"/v1/completions",
       R"({"model":"nano","echo":true,"logprobs":20,"n":16,"prompt":[)" + Repeated("5,", 4000) + "5]}"},
      {"/v1/completions", R"({"model":"nano","prompt":"a","stop_token_ids":[)" + Repeated("5.5,", 10) + "5]}"},
      {"/v1/responses", R"({"model":"nano","input":{}})"},
      {"/v1/messages", R"({"model":"nano","max_tokens":0,"messages":[{"role":"user","content":"a"}]})"},
  };
  for (const Case& test : cases) {
    const auto reply = served.Post(test.path, test.body);
    EXPECT_EQ(reply->status(), 400) << test.path << test.body.substr(0, 100) << reply->text().substr(0, 300);
    EXPECT_NE(At(reply->json(), "error.message"), "absent") << test.path;
  }
}

// What an error quotes stays short and whole, however long the client's words are.
TEST(Hostile, ErrorsDoNotGrowWithTheRequest) {
  Served served(Says("x"));
  const std::string word = Repeated("é", 500'000);
  for (const std::string_view pattern :
       {R"(,"@":1,"@":2)", R"(,"top_k":1@)", R"(,"top_k":"@")", R"(,"tool_choice":"@")",
        R"(,"response_format":{"type":"@"})", R"(,"tools":[{"type":"function","function":{"name":"@"}}])"}) {
    std::string more(pattern);
    for (std::size_t at = more.find('@'); at != std::string::npos; at = more.find('@')) more.replace(at, 1, word);
    const auto reply = served.Post("/v1/chat/completions", Chat(more));
    EXPECT_EQ(reply->status(), 400) << reply->text().substr(0, 300);
    EXPECT_LT(reply->text().size(), 2500u);
    EXPECT_NE(At(reply->json(), "error.message"), "absent");
  }
}

// Field values that a careless log or response would turn into something else.
TEST(Hostile, HeadersAreTakenAsTheyAreOrNotAtAll) {
  Served served(Says("x"), {}, {"sk-!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"});
  const std::string key = "sk-!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
  EXPECT_EQ(served.Ask("GET", "/v1/models", "", {{"authorization", "Bearer " + key}})->status(), 200);
  EXPECT_EQ(served.Ask("GET", "/v1/models", "", {{"x-api-key", key}})->status(), 200);
  for (const std::string& wrong : {std::string("Bearer"), std::string("Bearer "), "Bearer " + key + "x", "Basic " + key,
                                   "Bearer " + key.substr(1), std::string("Bearer \xC3\xA9"), std::string(8000, 'a')})
    EXPECT_EQ(served.Ask("GET", "/v1/models", "", {{"authorization", wrong}})->status(), 401) << wrong.substr(0, 50);
  const auto reply = served.Ask("GET", "/health", "", {{"x-request-id", std::string(129, 'a')}});
  EXPECT_TRUE(reply->header("x-request-id").starts_with("req_")) << "too long to be kept";
  for (const std::string& odd : {std::string("a\tb"), std::string("\x7F"), std::string("a\xFF")})
    EXPECT_TRUE(served.Ask("GET", "/health", "", {{"x-request-id", odd}})->header("x-request-id").starts_with("req_"));
}

}  // namespace
}  // namespace galley::serve
