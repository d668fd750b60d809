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

TEST(StructuralTag, RefusalsNameThePlace) {
  struct Row {
    const char* spec;
    const char* pointer;
  };
  for (const Row& row :
       {Row{R"({"format":{"type":"dispatch"}})", "/format/type"}, Row{R"({})", ""},
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
  const std::string regex = R"({"kind":"regex","spec":"[a-z]+!"})";
  EXPECT_TRUE(judge(regex, "hello!"));
  EXPECT_TRUE(judge(regex, call));
  EXPECT_FALSE(judge(regex, "Hello"));
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
