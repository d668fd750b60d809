// SPDX-License-Identifier: Apache-2.0
#include "galley/text/utf8.h"

#include <gtest/gtest.h>

#include "galley/text/test_data.h"

#include <vector>

namespace galley::text {
namespace {

TEST(Utf8, EveryCodePointSurvivesEncodingAndDecoding) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    AppendUtf8(text, code);
    const Utf8Char c = DecodeUtf8(text, 0);
    ASSERT_EQ(c.kind, Utf8Kind::kValid) << static_cast<std::uint32_t>(code);
    ASSERT_EQ(c.code, code);
    ASSERT_EQ(c.length, text.size());
  }
}

TEST(Utf8, SurrogatesAndLargeValuesAreWrittenAsReplacement) {
  for (const char32_t code : {0xD800U, 0xDFFFU, 0x110000U, 0xFFFFFFFFU}) {
    std::string text;
    AppendUtf8(text, code);
    EXPECT_EQ(text, kReplacementUtf8);
  }
}

struct RepairCase {
  std::string_view bytes;
  std::string_view repaired;
};

// Expected values are those of Python 3's bytes.decode("utf-8", "replace").
constexpr RepairCase kRepairCases[] = {
    {"plain", "plain"},
    {"\x80", "�"},
    {"a\xFF"
     "b",
     "a�b"},
    {"\xC0\xAF", "��"},                                  // overlong: C0 is never a lead byte
    {"\xE0\x80\x80", "���"},                             // overlong: 80 may not follow E0
    {"\xED\xA0\x80", "���"},                             // surrogate: A0 may not follow ED
    {"\xF4\x90\x80\x80", "����"},                        // above U+10FFFF
    {"\xE4\xB8", "�"},                                   // cut at the end: one subpart of two bytes
    {"\xE4\xB8x", "�x"},                                 // cut in the middle
    {"\xF0\x9F\x98", "�"},                               // three bytes, one subpart
    {"\xF0\x9F\x98\xE4\xB8\xAD", "�中"},                 // the next character starts inside
    {"\xE4\xE4\xB8\xAD", "�中"},                         // lead byte after lead byte
    {"\xE4\xB8\xAD\xAD", "中�"},                         // one continuation byte too many
    {"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80", "a���b�"},  // the example of the Unicode standard, section 3.9
};

TEST(Utf8, RepairsByMaximalSubparts) {
  for (const RepairCase& c : kRepairCases) {
    EXPECT_EQ(ReplaceInvalidUtf8(c.bytes), c.repaired);
    EXPECT_EQ(IsValidUtf8(c.bytes), c.bytes == c.repaired);
  }
}

TEST(Utf8, ValidateNamesTheFirstBadByte) {
  EXPECT_TRUE(ValidateUtf8("été", "content"));
  const Status bad = ValidateUtf8("0123456789\xE4\xB8.", "content");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(bad.error().ToString(),
            "content: byte 10 of 13 (value 0xE4) is not valid UTF-8; send the text encoded as UTF-8");
}

TEST(Utf8Stream, AnyChunkingGivesTheWholeRepair) {
  test::Random random(4100);
  const std::string_view alphabet = "a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80\xED\xA0\xFF\xF4\x8F";
  for (int round = 0; round < 5000; ++round) {
    std::string bytes;
    for (unsigned n = random() % 12; n > 0; --n) bytes += alphabet[random() % alphabet.size()];
    Utf8Stream stream;
    std::string out;
    for (std::size_t pos = 0; pos < bytes.size();) {
      const std::size_t size = 1 + random() % 3;
      const std::string chunk = stream.Append(std::string_view(bytes).substr(pos, size));
      ASSERT_TRUE(IsValidUtf8(chunk)) << "a chunk holds half a character";
      out += chunk;
      pos += size;
    }
    out += stream.Finish();
    ASSERT_EQ(out, ReplaceInvalidUtf8(bytes)) << "round " << round;
  }
}

TEST(Utf8Stream, ErrorShowsAsSoonAsItIsCertain) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Append("\xF0\x9F"), "");  // 😀 may still come
  EXPECT_EQ(stream.pending(), "\xF0\x9F");
  EXPECT_EQ(stream.Append("\x98\x80"), "😀");
  EXPECT_EQ(stream.Append("\xED"), "");
  EXPECT_EQ(stream.Append("\xA0"), "��");  // ED A0 is no prefix of anything, and A0 starts nothing
  EXPECT_EQ(stream.Append("\xE4\xB8"), "");
  EXPECT_EQ(stream.Finish(), "�");
  EXPECT_EQ(stream.Finish(), "");
}

}  // namespace
}  // namespace galley::text
