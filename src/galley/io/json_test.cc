// SPDX-License-Identifier: Apache-2.0
#include "galley/io/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace galley::io {
namespace {

using ::testing::HasSubstr;

TEST(Json, KeepsKindsAndTheOrderOfMembers) {
  const Result<Json> json = ParseJson(R"({"z": 1, "a": [true, null, 2.5, 4.0, "é"], "m": {"k": -3}})", "test");
  ASSERT_TRUE(json) << json.error().ToString();
  EXPECT_EQ(json->Show(), R"({"z": 1, "a": [true, null, 2.5, 4.0, "é"], "m": {"k": -3}})");
  EXPECT_EQ(*json->Find("m")->Find("k")->integer(), -3);
  EXPECT_EQ(json->Find("k"), nullptr);
  EXPECT_EQ(json->Find("z")->floating(), nullptr);  // an integer is not a double
}

TEST(Json, IntegersBeyond64BitsBecomeDoubles) {
  const Result<Json> json = ParseJson("[9223372036854775807, 9223372036854775808, -9223372036854775808]", "test");
  ASSERT_TRUE(json);
  EXPECT_EQ(*(*json->array())[0].integer(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(*(*json->array())[1].floating(), 9223372036854775808.0);  // 2^63
  EXPECT_EQ(*(*json->array())[2].integer(), std::numeric_limits<std::int64_t>::min());
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const std::string_view text : {"", " ", "{", "[1,]", "{\"a\":}", "NaN", "[Infinity]", "[1e999]", "{\"a\":1}x",
                                      "\"\xFF\"", "\"\xED\xA0\x80\"", "'a'", "[01]", "\"\\ud800\"", "[1 2]", "\x01"}) {
    const Result<Json> json = ParseJson(text, "file");
    ASSERT_FALSE(json) << text;
    EXPECT_EQ(json.error().code, ErrorCode::kCorrupt) << text;
    EXPECT_EQ(json.error().where, "file");
    EXPECT_THAT(json.error().message, HasSubstr("not valid JSON near byte"));
  }
}

TEST(Json, RefusesRepeatedKeysInOneObjectOnly) {
  EXPECT_TRUE(ParseJson(R"({"a": {"b": 1}, "c": {"b": 2}})", "file"));
  const Result<Json> twice = ParseJson(R"({"a": {"b": 1, "c": 2, "b": 3}})", "file");
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().ToString(), "file: the key \"b\" appears twice in one object");
}

TEST(Json, LimitsHoldExactly) {
  const JsonLimits limits = {.max_bytes = 20, .max_depth = 3, .max_values = 5};
  EXPECT_TRUE(ParseJson("[[[1]]]", "file", limits));
  EXPECT_EQ(ParseJson("[[[[]]]]", "file", limits).error().code, ErrorCode::kResourceExhausted);
  EXPECT_TRUE(ParseJson("[1,2,3,4]", "file", limits));  // four elements and their array
  EXPECT_EQ(ParseJson("[1,2,3,4,5]", "file", limits).error().code, ErrorCode::kResourceExhausted);
  EXPECT_TRUE(ParseJson('"' + std::string(18, 'x') + '"', "file", limits));
  EXPECT_EQ(ParseJson('"' + std::string(19, 'x') + '"', "file", limits).error().code, ErrorCode::kResourceExhausted);
}

// A parser that recurses would overflow its stack here.
TEST(Json, AMillionBracketsAreAnError) {
  const std::string text(1'000'000, '[');
  EXPECT_EQ(ParseJson(text, "file").error().code, ErrorCode::kResourceExhausted);
}

TEST(Json, ShowIsCut) {
  const Result<Json> json = ParseJson("[" + std::string(500, ' ') + "123456789, 123456789, 123456789]", "file");
  EXPECT_EQ(json->Show(12), "[123456789, …");
}

}  // namespace
}  // namespace galley::io
