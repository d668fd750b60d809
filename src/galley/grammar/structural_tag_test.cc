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

}  // namespace
}  // namespace galley::grammar
