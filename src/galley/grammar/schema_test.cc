// SPDX-License-Identifier: Apache-2.0
// Rules of the schema compiler that the case files do not pin down.
#include "galley/grammar/test_support.h"

namespace galley::grammar {
namespace {

using testing::CompileText;
using testing::Takes;

TEST(Schema, OneOfIsExactWithoutDisjointness) {
  const char* schema = R"({"oneOf":[{"multipleOf":3,"type":"integer"},{"multipleOf":5,"type":"integer"}]})";
  for (int v = -30; v <= 30; ++v) {
    EXPECT_EQ(Takes("json_schema", schema, std::to_string(v)), (v % 3 == 0) != (v % 5 == 0)) << v;
  }
}

TEST(Schema, NegatedClosedObjectsBecomeAlternatives) {
  const char* schema = R"({"oneOf":[
    {"type":"object","properties":{"a":{"type":"integer"},"b":{}},"additionalProperties":false},
    {"type":"object","properties":{"a":{},"c":{}},"additionalProperties":false}]})";
  EXPECT_FALSE(Takes("json_schema", schema, "{}"));  // both
  EXPECT_FALSE(Takes("json_schema", schema, R"({"a":1})"));
  EXPECT_TRUE(Takes("json_schema", schema, R"({"a":"x"})"));  // the second only
  EXPECT_TRUE(Takes("json_schema", schema, R"({"b":1})"));
  EXPECT_TRUE(Takes("json_schema", schema, R"({"c":1})"));
  EXPECT_FALSE(Takes("json_schema", schema, R"({"b":1,"c":1})"));
}

TEST(Schema, RefusalsCarryPointerAndKeyword) {
  const auto grammar =
      CompileText("json_schema", R"({"type":"object","properties":{"a/b":{"type":"array","uniqueItems":true}}})");
  ASSERT_FALSE(grammar.has_value());
  EXPECT_EQ(grammar.error().code, CompileCode::kUnsupportedKeyword);
  EXPECT_EQ(grammar.error().pointer, "/properties/a~1b");
  EXPECT_EQ(grammar.error().keyword, "uniqueItems");
}

TEST(Schema, NoMemberNameTwiceInOpenObjects) {
  const char* schema = R"({"type":"object","additionalProperties":{"type":"integer"}})";
  EXPECT_TRUE(Takes("json_schema", schema, R"({"k":1,"l":2})"));
  EXPECT_FALSE(Takes("json_schema", schema, R"({"k":1,"k":2})"));
  EXPECT_FALSE(Takes("json_schema", schema, R"({"k":1,"\u006b":2})"));  // the same name, spelled otherwise
}

TEST(Schema, AFiniteSetOfNamesRunsOut) {
  const char* schema =
      R"({"type":"object","patternProperties":{"^[ab]$":{"type":"null"}},"additionalProperties":false})";
  auto grammar = CompileText("json_schema", schema);
  ASSERT_TRUE(grammar.has_value());
  Matcher matcher(*grammar);
  const auto tokens = grammar->vocabulary->Greedy(R"({"a":null,"b":null)");
  ASSERT_EQ(matcher.Accept(tokens), tokens.size());
  EXPECT_FALSE(matcher.Accept(grammar->vocabulary->Greedy(",")[0]));  // no third name exists
  EXPECT_TRUE(matcher.Accept(grammar->vocabulary->Greedy("}")[0]));
}

TEST(Schema, DependentAndConditionalFormsAreExact) {
  const char* schema = R"({"type":"object","properties":{"k":{"enum":["x","y"]},"n":{"type":"integer"}},
    "if":{"properties":{"k":{"const":"x"}},"required":["k"]},"then":{"required":["n"]},"additionalProperties":false})";
  EXPECT_TRUE(Takes("json_schema", schema, R"({"k":"y"})"));
  EXPECT_FALSE(Takes("json_schema", schema, R"({"k":"x"})"));
  EXPECT_TRUE(Takes("json_schema", schema, R"({"k":"x","n":1})"));
  EXPECT_TRUE(Takes("json_schema", schema, "{}"));
}

TEST(Schema, HalvesOfSurrogatePairsAreNoStrings) {
  for (const char* schema :
       {R"({"const":"\ud800"})", R"({"enum":["\ud83d","a\udc00b"]})", R"({"type":"object","required":["\ud800"]})"}) {
    const auto grammar = CompileText("json_schema", schema);
    ASSERT_FALSE(grammar.has_value()) << schema;
    EXPECT_EQ(grammar.error().code, CompileCode::kUnsatisfiable) << schema;
  }
  const char* rest = R"({"enum":["a\udc00b","ac","\ud83d\ude00"]})";
  EXPECT_TRUE(Takes("json_schema", rest, R"("ac")"));
  EXPECT_TRUE(Takes("json_schema", rest, R"("\ud83d\ude00")"));
  EXPECT_FALSE(Takes("json_schema", rest, R"("a\udc00b")"));
  auto grammar = CompileText("json_schema", rest);
  ASSERT_TRUE(grammar.has_value());
  Matcher matcher(*grammar);
  for (const char* byte : {"\"", "a", "\\", "u"}) ASSERT_TRUE(matcher.Accept(grammar->vocabulary->Greedy(byte)[0]));
  EXPECT_FALSE(matcher.Accept(grammar->vocabulary->Greedy("d")[0]));  // "\ud…" leads nowhere, "\u0063" is the c
  EXPECT_TRUE(matcher.Accept(grammar->vocabulary->Greedy("0")[0]));
  const char* optional = R"({"properties":{"\ud800":{},"k":{"type":"null"}},"additionalProperties":false})";
  EXPECT_TRUE(Takes("json_schema", optional, R"({"k":null})"));
  EXPECT_FALSE(CompileText("choice", R"(["yes","\ud800"])").has_value());
}

TEST(Schema, ExponentialAlternativesMeetALimit) {
  std::string schema = R"({"type":"integer"})";
  for (int i = 0; i < 14; ++i) {
    schema = R"({"oneOf":[)" + schema + R"(,{"minimum":)" + std::to_string(i) + R"(},{"maximum":)" +
             std::to_string(-i) + R"(},{"multipleOf":)" + std::to_string(i + 2) + "}]}";
  }
  const auto grammar = CompileText("json_schema", schema);
  ASSERT_FALSE(grammar.has_value());
  EXPECT_EQ(grammar.error().code, CompileCode::kTooComplex) << grammar.error().message;
}

TEST(LineServer, NeverFailsOnBadInput) {
  LineServer server({testing::Vocab1k().vocabulary, {}, [] { return 0; }, "test"});
  for (const char* line : {"", "{", "[]", "{\"op\":1}", "{\"op\":\"mask\"}", "{\"op\":\"accept\",\"token\":-5}",
                           "{\"op\":\"compile\"}", "{\"op\":\"compile\",\"kind\":\"x\",\"spec\":1}"}) {
    EXPECT_NE(server.Handle(line).find("\"ok\":false"), std::string::npos) << line;
  }
  EXPECT_NE(server.Handle(R"({"op":"compile","kind":"regex","spec":"a+"})").find("\"ok\":true"), std::string::npos);
  EXPECT_NE(server.Handle(R"({"op":"compile","kind":"regex","spec":"(a"})").find("\"position\":0"), std::string::npos);
  EXPECT_NE(server.Handle(R"({"op":"accept","tokens":[99999999,1]})").find("\"accepted\":0"), std::string::npos);
  EXPECT_NE(server.Handle(R"({"op":"walk","tokens":[100,100]})").find("\"rejected_at\":-1"), std::string::npos);
}

// Which of many values came before is no matter of search.
TEST(Schema, ManyUniqueItemsAreQuick) {
  std::string values, half;
  for (int i = 0; i < 500; ++i) values += (i == 0 ? "" : ",") + std::to_string(i);
  for (int i = 499; i >= 250; --i) half += (i == 499 ? "" : ",") + std::to_string(i);  // 250 of them
  const std::string schema = R"({"type":"array","uniqueItems":true,"minItems":300,"items":{"enum":[)" + values + "]}}";
  Matcher matcher(*CompileText("json_schema", schema));
  EXPECT_TRUE(matcher.Check("[" + half + ",").prefix);
  EXPECT_FALSE(matcher.Check("[" + half + "]").prefix);
  EXPECT_FALSE(matcher.Check("[" + half + ",250]").prefix);
  EXPECT_TRUE(matcher.Check("[" + values + "]").complete);
  EXPECT_FALSE(matcher.Check("[" + values + ",").prefix);
  EXPECT_FALSE(matcher.failed()) << matcher.FailureText();
}

}  // namespace
}  // namespace galley::grammar
