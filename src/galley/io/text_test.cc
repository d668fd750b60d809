// SPDX-License-Identifier: Apache-2.0
#include "galley/io/text.h"

#include <gtest/gtest.h>

#include "galley/io/json.h"
#include "galley/io/json_writer.h"

namespace galley::io {
namespace {

TEST(Text, Utf8SequenceLengthAcceptsExactlyWellFormedSequences) {
  struct Case {
    std::string_view bytes;
    std::size_t length;
  };
  const Case cases[] = {
      {"a", 1},
      {"\xC3\xA9", 2},          // é
      {"\xE2\x82\xAC", 3},      // €
      {"\xF0\x9F\x98\x80", 4},  // an emoji
      {"\xF4\x8F\xBF\xBF", 4},  // U+10FFFF
      {"\x80", 0},              // a continuation byte alone
      {"\xC0\x80", 0},          // overlong NUL
      {"\xC1\xBF", 0},          // overlong U+007F
      {"\xE0\x9F\xBF", 0},      // overlong U+07FF
      {"\xED\xA0\x80", 0},      // the surrogate U+D800
      {"\xF0\x8F\xBF\xBF", 0},  // overlong U+FFFF
      {"\xF4\x90\x80\x80", 0},  // U+110000
      {"\xF5\x80\x80\x80", 0},  // beyond any code point
      {"\xE2\x82", 0},          // cut off
      {"\xE2\x28\xA1", 0},      // a continuation byte replaced
  };
  for (const Case& c : cases) EXPECT_EQ(Utf8SequenceLength(c.bytes), c.length) << Printable(c.bytes);
}

TEST(Text, PrintableShowsControlAndMalformedBytesAsHex) {
  EXPECT_EQ(Printable("layer\n\x1b[31m"), "layer\\x0a\\x1b[31m");
  EXPECT_EQ(Printable("a\xFF"
                      "b"),
            "a\\xffb");
  EXPECT_EQ(Printable("größe"), "größe");
  EXPECT_EQ(Printable(std::string(300, 'x'), 10), std::string(10, 'x') + "…");
}

TEST(Text, JsonQuoteIsReadBackByTheParser) {
  const std::string text("quote \" backslash \\ tab \t nul \0 é", 34);
  const Result<Json> back = ParseJson(JsonQuote(text), "test");
  ASSERT_TRUE(back) << back.error().ToString();
  EXPECT_EQ(*back->string(), text);
  EXPECT_EQ(*ParseJson(JsonQuote("a\xFF"), "test")->string(), "a\xEF\xBF\xBD");
}

TEST(JsonWriter, WritesWhatTheParserReads) {
  JsonWriter json;
  json.BeginObject().Key("a").Int(-5).Key("b").BeginArray().Bool(true).Null().Double(0.1).String("x\"").EndArray();
  json.Key("empty").BeginObject().EndObject().Key("none").BeginArray().EndArray().EndObject();
  const std::string text = json.Take();
  const Result<Json> back = ParseJson(text, "test");
  ASSERT_TRUE(back) << text;
  EXPECT_EQ(back->Show(), R"({"a": -5, "b": [true, null, 0.1, "x\""], "empty": {}, "none": []})");
}

}  // namespace
}  // namespace galley::io
