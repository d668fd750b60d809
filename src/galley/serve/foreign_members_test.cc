// SPDX-License-Identifier: Apache-2.0
// Members that clients of other servers send: translated, refused by name, or ignored.
#include "galley/serve/foreign_members.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>

#include "galley/serve/sampling_fields.h"
#include "galley/serve/service_fixture.h"

namespace galley::serve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kPaths[] = {"/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"};
constexpr std::string_view kBodies[] = {
    R"({"model":"nano","messages":[{"role":"user","content":"Hi, json"}])", R"({"model":"nano","input":"Hi, json")",
    R"({"model":"nano","max_tokens":9,"messages":[{"role":"user","content":"Hi, json"}])",
    R"({"model":"nano","prompt":"Hi, json")"};

std::string Body(std::size_t api, std::string_view more) {
  return std::string(kBodies[api]) + std::string(more) + "}";
}
std::string Member(std::string_view name, std::string_view value) {
  return ",\"" + std::string(name) + "\":" + std::string(value);
}
std::string Chat(std::string_view more) {
  return Body(0, std::string(R"(,"thinking":{"type":"disabled"})") + std::string(more));
}

TEST(ForeignMembers, AreRefusedByNameAndOnlyWhereTheySaySomething) {
  Served served(Says("x"));
  for (const ForeignMember& member : ForeignMembers()) {
    for (std::size_t api = 0; api < std::size(kPaths); ++api) {
      if ((member.apis >> api & 1) == 0) continue;
      SCOPED_TRACE(std::string(kPaths[api]) + " " + std::string(member.name));
      const auto post = [&](std::string_view value) {
        return served.Post(kPaths[api], Body(api, Member(member.name, value)));
      };
      const auto refused = post(member.neutral ? "false" : R"({"a":1})");
      EXPECT_EQ(refused->status(), 400);
      EXPECT_THAT(At(refused->json(), "error.message"), HasSubstr(std::string(member.name) + " is not supported: "));
      EXPECT_EQ(post(member.neutral ? "true" : "false")->status(), 200);
      EXPECT_EQ(post("null")->status(), 200);
    }
  }
  EXPECT_EQ(At(served.Post(kPaths[0], Body(0, Member("functions", "[{}]")))->json(), "error.param"), R"("functions")");
  EXPECT_EQ(served.Post(kPaths[0], Body(0, Member("functions", "[]")))->status(), 200);
  EXPECT_EQ(served.Post(kPaths[0], Body(0, Member("modalities", R"(["text"])")))->status(), 200);
  EXPECT_EQ(served.Post(kPaths[0], Body(0, Member("modalities", R"(["text","audio"])")))->status(), 400);
}

TEST(ForeignMembers, StandInTheDocs) {
  std::ifstream in(std::string(GALLEY_SOURCE_DIR) + "/docs/serving.md");
  const std::string page{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  ASSERT_THAT(page, HasSubstr("Refused"));
  for (const ForeignMember& member : ForeignMembers())
    EXPECT_THAT(page, HasSubstr("`" + std::string(member.name) + "`")) << "not in docs/serving.md";
}

TEST(ForeignMembers, HarmlessOnesAreIgnored) {
  Served served(Says("x"));
  const std::string harmless =
      R"(,"user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto","prompt_cache_key":"k",)"
      R"("safety_identifier":"s","verbosity":"low","length_penalty":1.5,"spaces_between_special_tokens":true,)"
      R"("request_id":"r","kv_transfer_params":{"a":1},"vllm_xargs":{"a":1},"guided_decoding_backend":"xgrammar",)"
      R"("use_beam_search":false,"skip_special_tokens":true,"logits_processors":[],"context_management":{"edits":[]},)"
      R"("truncation":"auto","include":["reasoning.encrypted_content"],"client_metadata":{"a":"b"})";
  for (std::size_t api = 0; api < std::size(kPaths); ++api) {
    const auto reply = served.Post(kPaths[api], Body(api, harmless));
    EXPECT_EQ(reply->status(), 200) << reply->text();
  }
  const auto stream = served.Post(
      kPaths[0], Chat(R"(,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})"));
  EXPECT_EQ(stream->data().back(), "[DONE]");
}

TEST(ForeignMembers, ThinkingIsSwitchedByEverySpelling) {
  Served served(Says("x"));
  const std::string_view off[] = {R"(,"thinking":{"type":"disabled"})",
                                  R"(,"enable_thinking":false)",
                                  R"(,"chat_template_kwargs":{"enable_thinking":false})",
                                  R"(,"chat_template_kwargs":{"thinking":false})",
                                  R"(,"reasoning_effort":"none")",
                                  R"(,"chat_template_kwargs":{"reasoning_effort":"none"})"};
  for (const std::string_view more : off) EXPECT_EQ(served.Post(kPaths[0], Body(0, more))->status(), 200) << more;
  const auto requests = served.engine->requests();
  ASSERT_EQ(requests.size(), std::size(off));
  for (const auto& request : requests) EXPECT_EQ(request.prompt_ids, requests[0].prompt_ids);
  EXPECT_EQ(served.Post(kPaths[0], Body(0, R"(,"enable_thinking":"no")"))->status(), 400);
  const auto count = served.Post(
      "/tokenize", R"({"messages":[{"role":"user","content":"Hi, json"}],"chat_template_kwargs":{"thinking":false}})");
  EXPECT_EQ(At(count->json(), "count"), std::to_string(requests[0].prompt_ids.size())) << "as the chat itself";
}

TEST(ForeignMembers, ADeveloperIsTheSystem) {
  Served served(Says("x"));
  for (const std::string_view role : {"system", "developer"})
    (void)served.Post(kPaths[0], R"({"model":"nano","messages":[{"role":")" + std::string(role) +
                                     R"(","content":"Be brief."},{"role":"user","content":"Hi"}]})");
  const auto requests = served.engine->requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].prompt_ids, requests[1].prompt_ids);
  const auto call = served.Post(
      kPaths[0],
      R"({"model":"nano","messages":[{"role":"assistant","content":"a","function_call":{"name":"f","arguments":"{}"}}]})");
  EXPECT_THAT(At(call->json(), "error.message"), HasSubstr("messages[0].function_call"));
}

TEST(ForeignMembers, TheFinalMessageIsContinued) {
  Served served(Says(" upon a time"));
  const std::string messages =
      R"({"model":"nano","thinking":{"type":"disabled"},"messages":[{"role":"user","content":"Go"},{"role":"assistant","content":"Once")";
  for (const std::string_view rest :
       {R"(,"prefix":true}]})", R"(}],"continue_final_message":true,"add_generation_prompt":false})"})
    EXPECT_EQ(served.Post(kPaths[0], messages + std::string(rest))->status(), 200) << rest;
  const auto requests = served.engine->requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].prompt_ids, requests[1].prompt_ids);
  EXPECT_EQ(served.Post(kPaths[0], Chat(R"(,"continue_final_message":true)"))->status(), 400) << "ends with the user";
  EXPECT_EQ(served.Post(kPaths[0], Chat(R"(,"add_generation_prompt":false)"))->status(), 400);
}

TEST(ForeignMembers, TwoNamesOfOneLimitMustAgree) {
  Served served(Says("x"));
  EXPECT_EQ(served.Post(kPaths[0], Chat(R"(,"max_tokens":5,"max_completion_tokens":5)"))->status(), 200);
  const auto reply = served.Post(kPaths[0], Chat(R"(,"max_tokens":5,"max_completion_tokens":6)"));
  EXPECT_EQ(reply->status(), 400);
  EXPECT_EQ(At(reply->json(), "error.param"), R"("max_completion_tokens")");
}

// Every number of every API, below, above and beside what it may be: the error has the client's name for it, the value
// and the limits.
TEST(Numbers, AreRefusedWithNameValueAndLimits) {
  Served served(Says("x"));
  const ServiceOptions options;
  const FieldLimits limits{.options = options, .vocab_size = NanoTokenizer().vocab_size(), .max_seq_len = 8192};
  int refused = 0;
  for (const NumberMember& member : NumberMembers()) {
    const NumberRange range = RangeOf(member, limits);
    const std::string name(range.name);
    std::vector<std::string> wrong = {fmt::format("{}", range.low_open ? range.low : range.low - 1),
                                      fmt::format("{}", range.high + 1), "1e+300", "\"5\"", "true"};
    if (range.whole) wrong.push_back(fmt::format("{}", range.low + 0.5));
    for (std::size_t api = 0; api < std::size(kPaths); ++api) {
      if ((member.apis >> api & 1) == 0) continue;
      for (const std::string& value : wrong) {
        std::string body = Body(api, Member(name, value));
        if (api == 2 && name == "max_tokens") body.erase(body.find("\"max_tokens\":9,"), 15);
        const auto reply = served.Post(kPaths[api], body);
        EXPECT_EQ(reply->status(), 400) << body;
        const std::string says =
            fmt::format("Invalid {0} value, the valid range of {0} is {1}: {2} was given", name, range.Text(), value);
        EXPECT_EQ(At(reply->json(), "error.message"), DumpJson(protocol::Json(says))) << body;
        EXPECT_EQ(At(reply->json(), "error.param"), api == 2 ? "absent" : '"' + name + '"');
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 200);
  EXPECT_TRUE(served.engine->requests().empty());
}

TEST(Numbers, ListsAreRefusedWithThePlaceAndWhatIsWrong) {
  Served served(Says("x"));
  const std::string long_word = '"' + std::string(1025, 'a') + '"';
  const auto many = [](std::string_view one, int count) {
    std::string list = "[";
    for (int i = 0; i < count; ++i) list += (i > 0 ? "," : "") + std::string(one);
    return list + "]";
  };
  struct Case {
    std::size_t api;
    std::string member, value, says;
  };
  const Case cases[] = {
      {0, "stop", "5", "Invalid stop value 5: it must be a text or a list of up to 16 texts"},
      {3, "stop", many("\"a\"", 17),
       "Invalid stop value of 17 elements: it must be a text or a list of up to 16 texts"},
      {0, "stop", "\"\"", "Invalid stop value \"\": it must be a text that is not empty"},
      {2, "stop_sequences", R"(["a",""])", "Invalid stop_sequences[1] value \"\": it must be a text that is not empty"},
      {2, "stop_sequences", "\"a\"", "Invalid stop_sequences value \"a\": it must be a list of up to 16 texts"},
      {0, "bad_words", many("\"a\"", 65),
       "Invalid bad_words value of 65 elements: it must be a list of up to 64 texts"},
      {1, "bad_words", "[" + long_word + "]",
       "Invalid bad_words[0] value of 1025 bytes: it must be a text of up to 1024 bytes"},
      {0, "stop_token_ids", many("5", 1024),
       "Invalid stop_token_ids value of 1024 elements: it must be a list of up to 1023 token ids"},
      {0, "stop_token_ids", "[5,5.5]",
       "Invalid stop_token_ids[1] value, the valid range of stop_token_ids[1] is [0, 2559], whole numbers: 5.5 was "
       "given"},
      {0, "stop_token_ids", "{}", "Invalid stop_token_ids value {…}: it must be a list of up to 1023 token ids"},
      {0, "allowed_token_ids", many("5", 2561),
       "Invalid allowed_token_ids value of 2561 elements: it must be a list of up to 2560 token ids"},
      {0, "logit_bias", R"({"05":1})", "Invalid logit_bias key \"05\": it must be a token id in [0, 2559]"},
      {0, "logit_bias", R"({"5":101})",
       "Invalid logit_bias[\"5\"] value, the valid range of logit_bias[\"5\"] is [-100, 100]: 101 was given"},
      {0, "seed", "1e18", "Invalid seed value 1e+18: it must be a whole number in [0, 2^63), written in digits only"},
      {3, "best_of", "2", "Invalid best_of value 2: it must be n, which is 1: answers are not ranked"},
      {0, "ignore_eos", "1", "Invalid ignore_eos value 1: it must be true or false"},
      {2, "tool_choice", R"({"type":"auto","disable_parallel_tool_use":1})",
       "Invalid tool_choice.disable_parallel_tool_use value 1: it must be true or false"},
      {0, "structured_outputs", "\"json\"", "structured_outputs must be an object, not of type string"},
      {0, "guided_json_object", "1", "guided_json_object must be true or false, not of type integer"},
      {0, "guided_choice", "\"a\"", "guided_choice must be a list of strings, not of type string"},
      {0, "guided_regex", "[]", "guided_regex must be a string, not of type array"},
      {0, "structural_tag", "5", "structural_tag must be a JSON object or its text, not of type integer"},
      {0, "modalities", "\"audio\"", "modalities must be a list, as [\"text\"], not string"},
      {0, "enable_thinking", "{}", "enable_thinking must be true or false, not {}"},
      {0, "chat_template_kwargs", R"({"thinking":{"type":"disabled"}})",
       "thinking must be true or false, not {\"type\":\"disabled\"}"},
      {0, "chat_template_kwargs", "[]",
       "chat_template_kwargs must be an object, as {\"enable_thinking\": false}, not array"},
      {0, "chat_template_kwargs", R"({"reasoning_effort":5})", "reasoning_effort: expected a string, found integer"},
  };
  for (const Case& test : cases) {
    const auto reply = served.Post(kPaths[test.api], Body(test.api, Member(test.member, test.value)));
    EXPECT_EQ(reply->status(), 400);
    EXPECT_EQ(At(reply->json(), "error.message"), DumpJson(protocol::Json(test.says)));
  }
}

// What the codec or the server changes of a request stands in a header of the answer.
TEST(Warnings, TellWhatIsNotUsed) {
  Served served(Says("x"));
  constexpr std::string_view kCall =
      R"(,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required","response_format":{"type":"regex","regex":"a"},"thinking":{"type":"disabled"})";
  struct Case {
    std::size_t api;
    std::string more, says;
  };
  const Case cases[] = {
      {0, R"(,"temperature":0.5)", "temperature: 0.5 is not used while the model thinks; it is 1"},
      {0, R"(,"top_p":0.5,"temperature":1)", "top_p: 0.5 is not used where the model thinks; it is 0.95"},
      {0, R"(,"top_p":0.97)", ""},
      {0, R"(,"top_p":0.5,"temperature":0.5,"thinking":{"type":"disabled"})",
       "top_p: 0.5 is not used where the model does not think; it is 1"},
      {1, R"(,"temperature":0)", "temperature: 0 is not used while the model thinks; it is 1"},
      {2, R"(,"thinking":{"type":"enabled","budget_tokens":1024})",
       "thinking.budget_tokens is not used; the effort and max_tokens limit thinking"},
      {3, R"(,"top_p":0.5,"temperature":0.5)", ""},
      {0, R"(,"guided_regex":"not enforced","temperature":1)", "guided_regex: not enforced"},
      {0, std::string(kCall), "the format of the answer is not used, since tool_choice demands a call"},
  };
  for (const Case& test : cases) {
    const auto reply = served.Post(kPaths[test.api], Body(test.api, test.more));
    EXPECT_EQ(reply->status(), 200) << reply->text();
    EXPECT_EQ(reply->header("x-galley-warning"), test.says) << test.more;
  }
  EXPECT_EQ(served.engine->requests()[2].sampling.top_p, static_cast<double>(0.97f));
  EXPECT_EQ(served.engine->requests()[6].sampling.top_p, 0.5);
  const auto large =
      served.Post(kPaths[2], R"({"model":"nano","max_tokens":32000,"messages":[{"role":"user","content":"Hi"}]})");
  const engine::EngineRequest request = served.engine->requests().back();
  EXPECT_EQ(request.max_tokens, 8192 - std::ssize(request.prompt_ids));
  EXPECT_THAT(large->header("x-galley-warning"), HasSubstr("max_tokens: 32000 is lowered to "));
}

TEST(ForeignMembers, TheStopSequenceCanBePartOfTheAnswer) {
  Served served(Says("one two three"));
  const auto content = [&](std::string_view more) {
    return At(served.Post(kPaths[0], Chat(R"(,"stop":[" two"])" + std::string(more)))->json(),
              "choices.0.message.content");
  };
  EXPECT_EQ(content(""), R"("one")");
  EXPECT_EQ(content(R"(,"include_stop_str_in_output":true)"), R"("one two")");
  EXPECT_EQ(content(R"(,"no_stop_trim":true)"), R"("one two")");
}

TEST(ForeignMembers, ReasoningCanBeLeftOut) {
  Served served(Says("hidden</think>shown"));
  for (const std::string_view stream : {"false", "true"}) {
    const auto reply = served.Post(kPaths[0], Body(0, R"(,"include_reasoning":false,"stream":)" + std::string(stream)));
    EXPECT_EQ(reply->status(), 200);
    EXPECT_THAT(reply->text(), HasSubstr("own"));
    EXPECT_THAT(reply->text(), Not(HasSubstr("hid")));
    EXPECT_THAT(reply->text(), HasSubstr("reasoning_tokens")) << "they cost all the same";
  }
}

TEST(ForeignMembers, ReachTheEngine) {
  Served served(Says("x"));
  EXPECT_EQ(served.Post(kPaths[0], Chat(R"(,"bad_words":["foo","bar baz"],"prompt_logprobs":3)"))->status(), 200);
  EXPECT_EQ(served.Post(kPaths[1], Body(1, R"(,"seed":7)"))->status(), 200);
  EXPECT_EQ(served.Post(kPaths[2], Body(2, R"(,"seed":8)"))->status(), 200);
  const auto requests = served.engine->requests();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_THAT(requests[0].banned_words, ElementsAre("foo", "bar baz"));
  EXPECT_EQ(requests[0].prompt_logprobs, 3);
  EXPECT_EQ(requests[1].sampling.seed, 7u);
  EXPECT_EQ(requests[2].sampling.seed, 8u);
  for (const std::string_view more :
       {R"(,"bad_words":"foo")", R"(,"bad_words":[""])", R"(,"prompt_logprobs":21)", R"(,"prompt_logprobs":-1)",
        R"(,"prompt_logprobs":1,"stream":true)", R"(,"seed":1e30)"})
    EXPECT_EQ(served.Post(kPaths[0], Chat(more))->status(), 400) << more;
}

// Every way in which a client can ask for a form, in each API that has it, as what the grammar layer is given.
TEST(ForeignMembers, EverySurfaceOfStructuredOutputsReachesTheCompiler) {
  constexpr unsigned kAnyApi = 15, kChat = 1, kResponses = 2, kMessages = 4, kCompletions = 8;
  struct Case {
    unsigned apis;  // bits in the order of kPaths
    std::string_view more, kind, spec;
  };
  constexpr std::string_view kObject = R"({"type":"object"})", kInteger = R"({"type":"integer"})",
                             kTag = R"("any_text")";
  constexpr Case kCases[] = {
      {kChat | kCompletions, R"("response_format":{"type":"json_object"})", "json_schema", kObject},
      {kChat | kCompletions,
       R"("response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"type":"integer"}}})",
       "json_schema", kInteger},
      {kChat | kCompletions, R"("response_format":{"type":"regex","regex":"a+"})", "regex", R"("a+")"},
      {kChat | kCompletions, R"("response_format":{"type":"structural_tag","format":{"type":"any_text"}})",
       "structural_tag", kTag},
      {kChat | kCompletions, R"("response_format":{"type":"structural_tag","structures":[],"triggers":["<"]})",
       "structural_tag", R"("triggers":["<"])"},
      {kResponses, R"("text":{"format":{"type":"json_schema","name":"a","schema":{"type":"integer"}}})", "json_schema",
       kInteger},
      {kResponses, R"("text":{"format":{"type":"json_object"}})", "json_schema", kObject},
      {kMessages, R"("output_config":{"format":{"type":"json_schema","schema":{"type":"integer"}}})", "json_schema",
       kInteger},
      {kMessages, R"("output_format":{"type":"json_schema","schema":{"type":"integer"}})", "json_schema", kInteger},
      {kChat, R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object"}}}])",
       "dsml", R"("strict":true)"},
      {kResponses, R"("tools":[{"type":"function","name":"f","strict":true,"parameters":{"type":"object"}}])", "dsml",
       R"("strict":true)"},
      {kMessages, R"("tools":[{"name":"f","strict":true,"input_schema":{"type":"object"}}])", "dsml",
       R"("strict":true)"},
      {kAnyApi, R"("structured_outputs":{"json":{"type":"integer"},"disable_any_whitespace":true})", "json_schema",
       kInteger},
      {kAnyApi, R"("structured_outputs":{"json":"{\"type\":\"integer\"}"})", "json_schema", kInteger},
      {kAnyApi, R"("structured_outputs":{"json_object":true})", "json_schema", kObject},
      {kAnyApi, R"("structured_outputs":{"regex":"a+"})", "regex", R"("a+")"},
      {kAnyApi, R"("structured_outputs":{"choice":["a","b"]})", "choice", R"(["a","b"])"},
      {kAnyApi, R"("structured_outputs":{"grammar":"root ::= \"a\""})", "ebnf", "root ::="},
      {kAnyApi, R"("structured_outputs":{"structural_tag":{"format":{"type":"any_text"}}})", "structural_tag", kTag},
      {kAnyApi, R"("guided_json":{"type":"integer"})", "json_schema", kInteger},
      {kAnyApi, R"("guided_json_object":true)", "json_schema", kObject},
      {kAnyApi, R"("guided_regex":"a+")", "regex", R"("a+")"},
      {kAnyApi, R"("guided_choice":["a"])", "choice", R"(["a"])"},
      {kAnyApi, R"("guided_grammar":"root ::= \"a\"")", "ebnf", "root ::="},
      {kAnyApi, R"("json_schema":"{\"type\":\"integer\"}")", "json_schema", kInteger},
      {kAnyApi, R"("regex":"a+")", "regex", R"("a+")"},
      {kAnyApi, R"("ebnf":"root ::= \"a\"")", "ebnf", "root ::="},
      {kAnyApi, R"("structural_tag":{"format":{"type":"any_text"}})", "structural_tag", kTag},
      {kAnyApi, R"("so_args":{"schema_type":"json_schema","schema":{"type":"integer"}})", "json_schema", kInteger},
      {kAnyApi, R"("so_args":{"schema_type":"json","schema":"{\"type\":\"integer\"}"})", "json_schema", kInteger},
      {kAnyApi, R"("so_args":{"schema_type":"json_object"})", "json_schema", kObject},
      {kAnyApi, R"("so_args":{"schema_type":"regex","schema":"a+"})", "regex", R"("a+")"},
      {kAnyApi, R"("so_args":{"schema_type":"choice","schema":["a"]})", "choice", R"(["a"])"},
      {kAnyApi, R"("so_args":{"schema_type":"ebnf","schema":"root ::= \"a\""})", "ebnf", "root ::="},
      // Refused: an empty kind.
      {kChat | kCompletions, R"("response_format":"json")", "", ""},
      {kChat | kCompletions, R"("response_format":{"type":"structural"})", "", ""},
      {kChat | kCompletions, R"("response_format":{"type":"json_schema","json_schema":{"name":"a"}})", "", ""},
      {kMessages,
       R"("output_format":{"type":"json_schema","schema":{}},"output_config":{"format":{"type":"json_schema","schema":{}}})",
       "", ""},
      {kChat | kCompletions,
       R"("response_format":{"type":"structural_tag","format":{"type":"any_text"}},"structured_outputs":{"regex":"a"})",
       "", ""},
      {kAnyApi, R"("structured_outputs":{"regex":"a","whitespace_pattern":" *"})", "", ""},
      {kAnyApi, R"("structured_outputs":{"json":{},"disable_additional_properties":true})", "", ""},
      {kAnyApi, R"("structured_outputs":{"disable_any_whitespace":true})", "", ""},
      {kAnyApi, R"("structured_outputs":"json")", "", ""},
      {kAnyApi, R"("structured_outputs":[{"regex":"a"}])", "", ""},
      {kAnyApi, R"("structured_outputs":{"regex":"a","jsn":{}})", "", ""},
      {kAnyApi, R"("structured_outputs":{"json_object":"yes"})", "", ""},
      {kAnyApi, R"("guided_json_object":1)", "", ""},
      {kAnyApi, R"("so_args":{"schema_type":"lark","schema":"a"})", "", ""},
      {kAnyApi, R"("so_args":{"schema_type":"regex"})", "", ""},
      {kAnyApi, R"("so_args":{"schema_type":"regex","schema":"a"},"regex":"a")", "", ""},
      {kAnyApi, R"("so_args":"a")", "", ""},
  };
  for (std::size_t api = 0; api < std::size(kPaths); ++api) {
    for (const Case& test : kCases) {
      if ((test.apis >> api & 1) == 0) continue;
      SCOPED_TRACE(std::string(kPaths[api]) + " " + std::string(test.more));
      Served served(Says("{}"));
      const auto reply = served.Post(kPaths[api], Body(api, "," + std::string(test.more)));
      const auto compiled = served.engine->compiled();
      EXPECT_EQ(reply->status(), test.kind.empty() ? 400 : 200);
      EXPECT_EQ(compiled.size(), test.kind.empty() ? 0u : 1u);
      if (compiled.empty()) continue;
      EXPECT_EQ(compiled[0].kind, test.kind);
      EXPECT_THAT(compiled[0].spec, HasSubstr(std::string(test.spec)));
      // Errors name the client's own member.
      const std::string_view asked = test.more.substr(1, test.more.find('"', 1) - 1);
      const std::map<std::string_view, std::string_view> params = {{"response_format", "response_format"},
                                                                   {"so_args", "so_args"},
                                                                   {"text", "text.format"},
                                                                   {"output_config", "output_config.format"},
                                                                   {"output_format", "output_config.format"}};
      if (const auto param = params.find(asked); param != params.end()) {
        EXPECT_EQ(compiled[0].param, param->second);
      }
    }
  }
}

// Each of three prompt tokens has itself and one alternative; the first has nothing before it.
TEST(ForeignMembers, PromptLogprobsAreTold) {
  Served served(Says("x"));
  const protocol::Json completion =
      served.Post(kPaths[3], R"({"model":"nano","prompt":[554,550,259],"n":2,"prompt_logprobs":1})")->json();
  EXPECT_EQ(At(completion, "choices.0.prompt_logprobs.0"), "null");
  EXPECT_NE(At(completion, "choices.0.prompt_logprobs.1.550.logprob"), "absent");
  EXPECT_NE(At(completion, "choices.1.prompt_logprobs.2.259.logprob"), "absent");
  EXPECT_EQ(At(completion, "choices.0.prompt_logprobs.3"), "absent");
  EXPECT_EQ(At(completion, "choices.0.logprobs"), "null");
  const protocol::Json chat = served.Post(kPaths[0], Chat(R"(,"prompt_logprobs":0)"))->json();
  EXPECT_EQ(At(chat, "prompt_logprobs.0"), "null");
  EXPECT_NE(At(chat, "prompt_logprobs.1"), "absent");
}

}  // namespace
}  // namespace galley::serve
