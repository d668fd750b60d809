// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/explain.h"

#include <gmock/gmock.h>

#include "galley/grammar/test_support.h"

namespace galley::grammar {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

Explanation ExplainSchema(std::string_view schema_text, std::string_view text) {
  const auto schema = ParseJson(schema_text);
  const ModelVocabulary bytes = ByteVocabulary();
  const auto grammar = CompileJsonSchema(*schema, {}, bytes.vocabulary);
  EXPECT_TRUE(grammar.has_value());
  Matcher matcher(*grammar);
  return Explain(matcher, text, &*schema, bytes.markers);
}

constexpr std::string_view kSchema =
    R"({"type":"object","properties":{"n":{"type":"array","items":{"$ref":"#/$defs/small"}},)"
    R"("s":{"enum":["on","off"]}},"required":["n","s"],"additionalProperties":false,)"
    R"("$defs":{"small":{"type":"integer","minimum":0,"maximum":9}}})";

TEST(Explain, NamesThePlaceAndWhatMayStandThere) {
  const Explanation e = ExplainSchema(kSchema, R"({"n": [3, 12], "s": "on"})");
  EXPECT_FALSE(e.judgement.prefix);
  EXPECT_EQ(e.judgement.bytes_ok, 11u);  // {"n": [3, 1 can still become 1] but not 12
  EXPECT_EQ(e.column, 12u);
  EXPECT_EQ(e.found, "\"2\"");
  EXPECT_EQ(e.place, "/n/1");
  EXPECT_EQ(e.schema_pointer, "/$defs/small");
  EXPECT_EQ(e.schema, R"({"type":"integer","minimum":0,"maximum":9})");
  EXPECT_EQ(std::count(e.allowed.begin(), e.allowed.end(), "\"]\""), 1);
  EXPECT_EQ(std::count(e.allowed.begin(), e.allowed.end(), "\"2\""), 0);
}

TEST(Explain, AnUnfinishedTextEndsTooEarly) {
  const Explanation e = ExplainSchema(kSchema, "{\"n\":[],\"s\":\"o");
  EXPECT_TRUE(e.judgement.prefix);
  EXPECT_EQ(e.found, "the end of the text");
  EXPECT_EQ(e.place, "/s");
  EXPECT_THAT(e.allowed, UnorderedElementsAre("\"f\"", "\"n\"", "\"\\\\\""));  // off, on, or an escape
  EXPECT_THAT(ToText(e, "{\"n\":[],\"s\":\"o"), HasSubstr("incomplete at byte 14"));
}

TEST(Explain, ForcedTextIsToldWhereThereIsNoChoice) {
  CompileOptions options;
  const ModelVocabulary bytes = ByteVocabulary();
  const auto grammar = CompileRegex("abc[de]", options, bytes.vocabulary);
  ASSERT_TRUE(grammar.has_value());
  Matcher matcher(*grammar);
  const Explanation e = Explain(matcher, "aé", nullptr, {});
  EXPECT_EQ(e.found, "\"é\"");
  EXPECT_EQ(e.forced, "bc");
  EXPECT_EQ(e.place, "");
  EXPECT_THAT(ToText(e, "aé"), HasSubstr("  aé\n   ^\n"));
  EXPECT_TRUE(Explain(matcher, "abcd", nullptr, {}).judgement.complete);
}

TEST(Explain, LinesAndColumnsCountCharacters) {
  CompileOptions options;
  options.whitespace = Whitespace::kFlexible;
  const ModelVocabulary bytes = ByteVocabulary();
  const auto schema = ParseJson("{\"type\":\"array\"}");
  const auto grammar = CompileJsonSchema(*schema, options, bytes.vocabulary);
  Matcher matcher(*grammar);
  const std::string text = "[\n  \"日本\", x\n]";  // the x: second line, two blanks, four characters, comma, blank
  const Explanation e = Explain(matcher, text, &*schema, bytes.markers);
  EXPECT_EQ(e.line, 2u);
  EXPECT_EQ(e.column, 9u);
  EXPECT_EQ(e.place, "/1");
}

TEST(Explain, ControlTokensAreNamed) {
  const ModelVocabulary bytes = ByteVocabulary();
  const auto spec = ParseJson(R"({"spelling":"v41","mode":"block","tools":[{"name":"f","parameters":{}}]})");
  const auto grammar = CompileKind("dsml", *spec, bytes.markers, {}, bytes.vocabulary);
  ASSERT_TRUE(grammar.has_value());
  Matcher matcher(*grammar);
  EXPECT_THAT(Explain(matcher, "<x", nullptr, bytes.markers).allowed, ElementsAre("control token \"｜DSML｜\""));
}

}  // namespace
}  // namespace galley::grammar
