// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "galley/protocol/vectors_for_test.h"

namespace galley::protocol {
namespace {

TEST(Json, WritesEveryNumberVectorAsThePromptsDo) {
  int checked = 0;
  for (const Json& row : ReadVectors("numbers")) {
    const std::string text = TextAt(row, {"json"});
    const Result<Json> value = ParseJson(text);
    ASSERT_EQ(value.has_value(), At(row, {"invalid"}).is_null()) << text;
    ++checked;
    if (!value) continue;
    const std::string* as_string = value->if_string();
    ASSERT_EQ(as_string != nullptr, *At(row, {"string"}).if_bool()) << text;
    const std::string v41 = as_string != nullptr ? *as_string : DumpJson(*value, JsonStyle::kPromptV41);
    const std::string v4 = as_string != nullptr ? *as_string : DumpJson(*value, JsonStyle::kPromptV4);
    EXPECT_EQ(v41, TextAt(row, {"text"})) << text;
    EXPECT_EQ(v4, At(row, {"text_v4"}).is_null() ? TextAt(row, {"text"}) : TextAt(row, {"text_v4"})) << text;
  }
  EXPECT_EQ(checked, 512);
}

TEST(Json, KeepsKeyOrderAndTheLastOfDuplicatesAtTheFirstPlace) {
  const auto value = ParseJson(R"( {"b":1,"a":[true,null],"b":{"c":-0}} )");
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(DumpJson(*value), R"({"b":{"c":-0.0},"a":[true,null]})");
  EXPECT_EQ(DumpJson(*value, JsonStyle::kPromptV41), R"({"b": {"c": -0.0}, "a": [true, null]})");
  EXPECT_FALSE(ParseJson(R"({"b":1,"b":2})", {.refuse_duplicates = true}).has_value());
}

TEST(Json, FindsDuplicatesInLargeObjectsToo) {
  std::string text = "{";
  for (int i = 0; i < 1000; ++i) text += "\"k" + std::to_string(i % 500) + "\":" + std::to_string(i) + ",";
  text.back() = '}';
  const auto value = ParseJson(text);
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(value->if_object()->size(), 500u);
  EXPECT_EQ(DumpJson(*value->Find("k499")), "999");  // 499 first, 999 = 500 + 499 last
}

TEST(Json, BoundsDepth) {
  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') + std::string(static_cast<std::size_t>(depth), ']');
  };
  EXPECT_TRUE(ParseJson(nested(127)).has_value());
  EXPECT_FALSE(ParseJson(nested(128)).has_value());
  EXPECT_FALSE(ParseJson(nested(100000)).has_value());
}

TEST(Json, RefusesWhatIsNotOneJsonText) {
  for (const char* text :
       {"",       " ",         "1 2",      "1,2",       "]",           "[1],[2]",        "1],[2",    "nul",
        "nulll",  "truefalse", "{\"a\":1", "[1,]",      "\"\\ud800\"", "\"a\tb\"",       "\"\xff\"", "{\"a\":1,}",
        "[",      "'a'",       "1e999",    "--1",       "0x1",         "\xef\xbb\xbf{}", "null\f",   "[null\f]",
        "true\f", "1\f",       "\fnull",   "[null\x1a]"})
    EXPECT_FALSE(ParseJson(text).has_value()) << text;
}

TEST(Json, SaysWhatIsWrongWithAText) {
  for (const char* text : {R"(["\ud800"])", R"({"\udc00":1})", R"("\x")"})
    EXPECT_NE(ParseJson(text).error().message.find("unknown escape or half a surrogate pair"), std::string::npos)
        << text << ": " << ParseJson(text).error().message;
}

TEST(Json, AgreesWithAnotherParserOnDamagedTexts) {
  const std::uint32_t seed = 20261129;
  std::mt19937 random(seed);
  const std::string base = R"({"a":[1,-2.5e3,"x\n\u00e9"],"b":{"c":null,"d":true,"e":false},"":[[],{}]})";
  const std::string alphabet = "{}[]\",:0123456789.eE+-truefalsn\\u \n\f\x01\x1a";
  for (int round = 0; round < 20000; ++round) {
    std::string text = base;
    const auto edits = 1 + random() % 4;
    for (unsigned e = 0; e < edits; ++e) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = alphabet[random() % alphabet.size()];
          break;
        case 1:
          text.erase(at, 1);
          break;
        default:
          text.insert(at, 1, alphabet[random() % alphabet.size()]);
      }
    }
    ASSERT_EQ(ParseJson(text).has_value(), nlohmann::json::accept(text))
        << "seed " << seed << " round " << round << "\n"
        << text;
  }
}

TEST(Json, EscapesInPiecesAsInOne) {
  std::string whole, parts;
  AppendEscaped(whole, "a\"\\\n\x01é");
  for (char c : std::string("a\"\\\n\x01é")) AppendEscaped(parts, std::string_view(&c, 1));
  EXPECT_EQ(whole, "a\\\"\\\\\\n\\u0001é");
  EXPECT_EQ(parts, whole);
}

}  // namespace
}  // namespace galley::protocol
