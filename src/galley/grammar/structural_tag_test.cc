// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/test_support.h"

namespace galley::grammar {
namespace {

using testing::CompileText;
using testing::Takes;

constexpr const char* kTriggered = R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f="],
  "tags":[{"type":"tag","begin":"<f=add>","content":{"type":"json_schema","json_schema":{"type":"array",
           "items":{"type":"integer"}}},"end":"</f>"},
          {"type":"tag","begin":"<f=say>","content":{"type":"any_text"},"end":"</f>"}]}})";

TEST(StructuralTag, FreeTextUntilATriggerThenTheTagHolds) {
  EXPECT_TRUE(Takes("structural_tag", kTriggered, ""));
  EXPECT_TRUE(Takes("structural_tag", kTriggered, "no call, a <b> and <f"));
  EXPECT_TRUE(Takes("structural_tag", kTriggered, "x <f=add>[1,2]</f> y <f=say>hi <b></f>"));
  EXPECT_FALSE(Takes("structural_tag", kTriggered, "x <f=add>[1,\"a\"]</f>"));
  EXPECT_FALSE(Takes("structural_tag", kTriggered, "x <f=sub>[1]</f>"));
  EXPECT_FALSE(Takes("structural_tag", kTriggered, "x <f="));
  EXPECT_TRUE(Takes("structural_tag", kTriggered, "<<f=add>[]</f>"));
}

TEST(StructuralTag, OldFormMeansTheSame) {
  const char* old =
      R"({"structures":[{"begin":"<f=add>","schema":{"type":"integer"},"end":"</f>"}],"triggers":["<f="]})";
  EXPECT_TRUE(Takes("structural_tag", old, "x<f=add>3</f>"));
  EXPECT_FALSE(Takes("structural_tag", old, "x<f=add>a</f>"));
}

TEST(StructuralTag, PartsCombine) {
  const char* spec = R"({"format":{"type":"sequence","elements":[
    {"type":"or","elements":[{"type":"const_string","value":"A"},{"type":"regex","pattern":"[0-9]{2}"}]},
    {"type":"optional","content":{"type":"const_string","value":"-"}},
    {"type":"repeat","min":1,"max":2,"content":{"type":"grammar","grammar":"root ::= \"(\" root? \")\""}},
    {"type":"tags_with_separator","separator":",","at_least_one":true,
     "tags":[{"type":"tag","begin":"[","content":{"type":"plus","content":{"type":"const_string","value":"z"}},"end":"]"}]}]}})";
  EXPECT_TRUE(Takes("structural_tag", spec, "A-(())[z]"));
  EXPECT_TRUE(Takes("structural_tag", spec, "07()()[zz],[z]"));
  EXPECT_FALSE(Takes("structural_tag", spec, "07()()()[z]"));
  EXPECT_FALSE(Takes("structural_tag", spec, "A()"));
  EXPECT_FALSE(Takes("structural_tag", spec, "A()[]"));
}

TEST(StructuralTag, ControlTokensAreEdgesById) {
  // Ids 998 and 999 are "<tool>" and "</think>" in the case vocabulary.
  auto grammar = CompileText("structural_tag", R"({"format":{"type":"sequence","elements":[{"type":"any_text"},
    {"type":"const_string","value":"</think>"},{"type":"token","token":998},{"type":"json_schema","json_schema":{"type":"boolean"}}]}})");
  ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
  Matcher matcher(*grammar);
  for (const std::uint32_t id : grammar->vocabulary->Greedy("so </think")) ASSERT_TRUE(matcher.Accept(id));
  EXPECT_FALSE(matcher.can_stop());
  EXPECT_FALSE(matcher.Accept(998));
  EXPECT_TRUE(matcher.Accept(999));
  EXPECT_TRUE(matcher.Accept(998));
  for (const std::uint32_t id : grammar->vocabulary->Greedy("true")) ASSERT_TRUE(matcher.Accept(id));
  EXPECT_TRUE(matcher.can_stop());
}

// Whether `parts`, tokens by id and texts, are a whole sentence.
bool TakesTokens(const char* spec, const std::vector<std::pair<std::uint32_t, std::string>>& parts) {
  auto grammar = CompileText("structural_tag", spec);
  EXPECT_TRUE(grammar.has_value()) << spec << (grammar ? "" : grammar.error().message);
  if (!grammar) return false;
  Matcher matcher(*grammar);
  for (const auto& [token, text] : parts) {
    if (token != 0 && !matcher.Accept(token)) return false;
    for (const std::uint32_t id : grammar->vocabulary->Greedy(text)) {
      if (!matcher.Accept(id)) return false;
    }
  }
  return matcher.can_stop();
}
constexpr std::uint32_t kTool = 998, kThinkEnd = 999;  // "<tool>" and "</think>" of the case vocabulary

TEST(StructuralTag, DispatchHoldsWhatFollowsATrigger) {
  const char* loop = R"({"format":{"type":"dispatch","excludes":["!"],
    "rules":[["n=",{"type":"regex","pattern":"[0-9]+;"}],["b=",{"type":"json_schema","json_schema":{"type":"boolean"}}]]}})";
  EXPECT_TRUE(Takes("structural_tag", loop, "no rule"));
  EXPECT_TRUE(Takes("structural_tag", loop, "x n=12; y b=true z n=3;"));
  EXPECT_FALSE(Takes("structural_tag", loop, "x n=a"));
  EXPECT_FALSE(Takes("structural_tag", loop, "x!"));
  const char* once = R"({"format":{"type":"sequence","elements":[{"type":"dispatch","loop":false,
    "rules":[["n=",{"type":"regex","pattern":"[0-9]"}]]},{"type":"const_string","value":"."}]}})";
  EXPECT_TRUE(Takes("structural_tag", once, "a n=1."));
  EXPECT_FALSE(Takes("structural_tag", once, "a n=1 n=2."));
}

TEST(StructuralTag, TokensTriggerTags) {
  const char* tags = R"({"format":{"type":"token_triggered_tags","trigger_tokens":["<tool>"],"tags":[{"type":"tag",
    "begin":{"type":"token","token":998},"content":{"type":"json_schema","json_schema":{"type":"integer"}},
    "end":{"type":"token","token":"</think>"}}]}})";
  EXPECT_TRUE(TakesTokens(tags, {{0, "free <tool> text"}}));
  EXPECT_TRUE(TakesTokens(tags, {{0, "a"}, {kTool, "12"}, {kThinkEnd, "b"}, {kTool, "3"}, {kThinkEnd, ""}}));
  EXPECT_TRUE(TakesTokens(tags, {{kThinkEnd, "b"}})) << "any other control token is free";
  EXPECT_FALSE(TakesTokens(tags, {{0, "a"}, {kTool, "x"}}));
  EXPECT_FALSE(TakesTokens(tags, {{0, "a"}, {kTool, "12"}}));
  std::string some = tags;
  some.insert(some.find("\"tags\""), R"("at_least_one":true,"stop_after_first":true,"exclude_tokens":[999],)");
  EXPECT_FALSE(TakesTokens(some.c_str(), {{0, "a"}}));
  EXPECT_TRUE(TakesTokens(some.c_str(), {{kTool, "1"}, {kThinkEnd, ""}}));
  EXPECT_FALSE(TakesTokens(some.c_str(), {{kTool, "1"}, {kThinkEnd, "b"}}));
}

TEST(StructuralTag, TokenDispatchAndAnyTokens) {
  const char* dispatch = R"({"format":{"type":"token_dispatch","loop":false,"exclude_tokens":["</think>"],
    "rules":[["<tool>",{"type":"const_string","value":"go"}]]}})";
  EXPECT_TRUE(TakesTokens(dispatch, {{0, "text"}}));
  EXPECT_TRUE(TakesTokens(dispatch, {{0, "text"}, {kTool, "go"}}));
  EXPECT_FALSE(TakesTokens(dispatch, {{0, "text"}, {kTool, "gone"}}));
  EXPECT_FALSE(TakesTokens(dispatch, {{kThinkEnd, ""}}));
  const char* tag = R"({"format":{"type":"tag","begin":"[","content":{"type":"any_tokens"},
    "end":{"type":"token","token":"</think>"}}})";
  EXPECT_TRUE(TakesTokens(tag, {{0, "[a"}, {kTool, "b"}, {kTool, ""}, {kThinkEnd, ""}}));
  EXPECT_FALSE(TakesTokens(tag, {{0, "[a"}, {kThinkEnd, "b"}})) << "the end of the tag is its end";
}

TEST(StructuralTag, FormatsHaveTheirOptions) {
  const char* text = R"({"format":{"type":"sequence","elements":[{"type":"any_text","max_chars":3,"excludes":["b"]},
    {"type":"const_string","value":"."}]}})";
  EXPECT_TRUE(Takes("structural_tag", text, "aéa."));
  EXPECT_FALSE(Takes("structural_tag", text, "aaaa."));
  EXPECT_FALSE(Takes("structural_tag", text, "ab."));
  const char* schema = R"({"format":{"type":"json_schema","any_order":true,"max_whitespace_cnt":0,"json_schema":
    {"type":"object","properties":{"a":{},"b":{}},"required":["a","b"],"additionalProperties":false}}})";
  EXPECT_TRUE(Takes("structural_tag", schema, R"({"b":1,"a":2})"));
  EXPECT_FALSE(Takes("structural_tag", schema, R"({"b": 1,"a":2})"));
  EXPECT_FALSE(Takes("structural_tag", schema, R"({"b":1})"));
}

TEST(StructuralTag, RefusalsNameThePlace) {
  struct Row {
    const char* spec;
    const char* pointer;
  };
  for (const Row& row :
       {Row{R"({"format":{"type":"exclude_token"}})", "/format/type"}, Row{R"({})", ""},
        Row{R"({"format":{"type":"dispatch","rules":[["",{"type":"any_text"}]]}})", "/format/rules/0/0"},
        Row{R"({"format":{"type":"dispatch","rules":[["a",{"type":"x"}]]}})", "/format/rules/0/1/type"},
        Row{R"({"format":{"type":"token_dispatch","rules":[[5,{"type":"any_text"}]]}})", "/format/rules/0/0"},
        Row{R"({"format":{"type":"any_tokens","max_tokens":5}})", "/format"},
        Row{R"({"format":{"type":"any_text","excludes":"x"}})", "/format/excludes"},
        Row{R"({"format":{"type":"json_schema","json_schema":{},"excludes":["a"]}})", "/format/excludes"},
        Row{R"({"format":{"type":"json_schema","json_schema":{},"style":"qwen_xml"}})", "/format/style"},
        Row{R"({"format":{"type":"grammar","grammar":"start: x","syntax":"lark"}})", "/format/syntax"},
        Row{R"({"format":{"type":"triggered_tags","triggers":["<"],"tags":[{"begin":"<a","content":{"type":"any_text"},
                "end":">","capture":"x"}]}})",
            "/format/tags/0"},
        Row{R"({"format":{"type":"regex","pattern":"("}})", "/format/pattern"},
        Row{R"({"format":{"type":"sequence","elements":[{"type":"json_schema","json_schema":{"type":"x"}}]}})",
            "/format/elements/0/json_schema"}}) {
    const auto grammar = CompileText("structural_tag", row.spec);
    ASSERT_FALSE(grammar.has_value()) << row.spec;
    EXPECT_EQ(grammar.error().pointer, row.pointer) << grammar.error().message;
  }
}

TEST(Dsml, WithAResponseFormatTheAnswerIsACallOrOfThatForm) {
  const auto judge = [](const std::string& otherwise, std::string_view text) {
    const auto spec =
        ParseJson(R"({"mode":"auto","tools":[{"name":"f","parameters":{}}],"otherwise":)" + otherwise + "}");
    const auto bytes = ByteVocabulary();
    const auto grammar = CompileKind("dsml", *spec, bytes.markers, {}, bytes.vocabulary);
    EXPECT_TRUE(grammar.has_value()) << grammar.error().message;
    return Matcher(*grammar).Check(text, kDsmlMarker, kByteMarker).complete;
  };
  const std::string call = "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  const std::string schema = R"({"kind":"json_schema","spec":{"type":"integer"}})";
  EXPECT_TRUE(judge(schema, "12"));
  EXPECT_TRUE(judge(schema, call));
  EXPECT_TRUE(judge(schema, "\n\n" + call)) << "as the model was trained to write it";
  EXPECT_FALSE(judge(schema, "\n" + call));
  EXPECT_FALSE(judge(schema, "twelve"));
  EXPECT_FALSE(judge(schema, "12" + call));
  EXPECT_TRUE(judge(schema, "\n\n" + call)) << "as the models begin a block";
  EXPECT_FALSE(judge(schema, "\n\n12"));
  const std::string regex = R"({"kind":"regex","spec":"[a-z]+!"})";
  EXPECT_TRUE(judge(regex, "hello!"));
  EXPECT_TRUE(judge(regex, call));
  EXPECT_FALSE(judge(regex, "Hello"));
}

// What the models write for a call without arguments has an empty line in V4.1 and none in V4; a tool without
// parameters takes any, each name once.
TEST(Dsml, CallsWithoutArgumentsAndToolsWithoutParameters) {
  const auto bytes = ByteVocabulary();
  const auto takes = [&](const std::string& spelling, const std::string& c, const std::string& i,
                         const std::string& body) {
    const auto spec =
        ParseJson(R"({"mode":"block","spelling":")" + spelling + R"(","tools":[{"name":"f"},{"name":"g"}]})");
    const auto grammar = CompileKind("dsml", *spec, bytes.markers, {}, bytes.vocabulary);
    EXPECT_TRUE(grammar.has_value()) << grammar.error().message;
    const std::string marker(kDsmlMarker);
    return Matcher(*grammar)
        .Check("<" + marker + c + ">\n<" + marker + i + " name=\"g\">\n" + body + "</" + marker + i + ">\n</" + marker +
                   c + ">",
               kDsmlMarker, kByteMarker)
        .complete;
  };
  const auto parameter = [](const std::string& name, const std::string& value) {
    return "<｜DSML｜ parameter name=\"" + name + "\" string=\"false\">" + value + "</｜DSML｜ parameter>\n";
  };
  EXPECT_TRUE(takes("v41", " calls", " invoke", ""));
  EXPECT_TRUE(takes("v41", " calls", " invoke", "\n"));
  EXPECT_FALSE(takes("v41", " calls", " invoke", "\n\n"));
  EXPECT_TRUE(takes("v4", "tool_calls", "invoke", ""));
  EXPECT_FALSE(takes("v4", "tool_calls", "invoke", "\n"));
  EXPECT_TRUE(takes("v41", " calls", " invoke", parameter("a", "[1]") + parameter("b", "null")));
  EXPECT_FALSE(takes("v41", " calls", " invoke", parameter("a", "1") + parameter("a", "2"))) << "a name twice";
  EXPECT_FALSE(takes("v41", " calls", " invoke", parameter("a", "[1")));
  EXPECT_FALSE(takes("v41", " calls", " invoke", parameter("a", "1") + "\n")) << "the empty line is of no arguments";
}

TEST(Dsml, ABadOtherwiseNamesThePlace) {
  const auto refusal = [](std::string_view members) {
    const auto spec = ParseJson("{\"tools\":[{\"name\":\"f\",\"parameters\":{}}]," + std::string(members) + "}");
    const auto bytes = ByteVocabulary();
    const auto grammar = CompileKind("dsml", *spec, bytes.markers, {}, bytes.vocabulary);
    return grammar ? std::string("compiled") : grammar.error().pointer;
  };
  EXPECT_EQ(refusal(R"("mode":"block","otherwise":{"kind":"regex","spec":"a"})"), "/otherwise");
  EXPECT_EQ(refusal(R"("mode":"auto","otherwise":{"kind":"ebnf","spec":"a"})"), "/otherwise");
  EXPECT_EQ(refusal(R"("mode":"auto","otherwise":{"kind":"json_schema","spec":{"properties":{"a":{"type":"x"}}}})"),
            "/otherwise/spec/properties/a");
  EXPECT_EQ(refusal(R"("mode":"auto","otherwise":{"kind":"regex","spec":"a**b\\"})"), "/otherwise/spec");
}

}  // namespace
}  // namespace galley::grammar
