// SPDX-License-Identifier: Apache-2.0
#include "galley/text/regex_splitter.h"

#include <gtest/gtest.h>

#include "galley/text/test_data.h"

namespace galley::text {
namespace {

std::vector<std::string> Pieces(const std::vector<std::string>& patterns, std::string_view text) {
  const Result<RegexSplitter> splitter = RegexSplitter::Create(patterns, "test");
  EXPECT_TRUE(splitter) << splitter.error().ToString();
  const auto ends = splitter->Split(text);
  EXPECT_TRUE(ends) << ends.error().ToString();
  std::vector<std::string> pieces;
  std::size_t begin = 0;
  for (const std::size_t end : *ends) {
    pieces.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

using Strings = std::vector<std::string>;

TEST(RegexSplitter, KeepsMatchesAndGaps) {
  EXPECT_EQ(Pieces({"\\d+"}, "ab12c3"), (Strings{"ab", "12", "c", "3"}));
  EXPECT_EQ(Pieces({"x"}, "abc"), Strings{"abc"});
  EXPECT_EQ(Pieces({}, "abc"), Strings{"abc"});
  EXPECT_EQ(Pieces({"x"}, ""), Strings{});
}

TEST(RegexSplitter, PatternsApplyToThePiecesOfTheOneBefore) {
  // The look-ahead sees the end of its piece, not the digit behind it.
  EXPECT_EQ(Pieces({"\\d", "a+(?!\\S)"}, "aa1"), (Strings{"aa", "1"}));
  EXPECT_EQ(Pieces({"\\d", "^a"}, "aa1aa"), (Strings{"a", "a", "1", "a", "a"}));  // each piece has a start of its own
}

TEST(RegexSplitter, EmptyMatchesCutAndEnd) {
  EXPECT_EQ(Pieces({"(?=b)"}, "abab"), (Strings{"a", "ba", "b"}));
  EXPECT_EQ(Pieces({"a*"}, "baab"), (Strings{"b", "aa", "b"}));
  EXPECT_EQ(Pieces({""}, "é中"), (Strings{"é", "中"}));
}

TEST(RegexSplitter, MovedMatchStarts) {
  EXPECT_EQ(Pieces({"a\\Kb"}, "abab"), (Strings{"a", "b", "a", "b"}));
}

TEST(RegexSplitter, InvalidBytesStayInGaps) {
  EXPECT_EQ(Pieces({"\\w+"},
                   "ab\xFF\x80"
                   "cd"),
            (Strings{"ab", "\xFF\x80", "cd"}));
  EXPECT_EQ(Pieces({".+"}, "\xE4\xB8"), Strings{"\xE4\xB8"});
}

TEST(RegexSplitter, ClassesAreUnicode) {
  EXPECT_EQ(Pieces({"\\s"}, "a\u3000b"), (Strings{"a", "\u3000", "b"}));
  EXPECT_EQ(Pieces({"\\d"}, "a\u0660b"), (Strings{"a", "\u0660", "b"}));
}

TEST(RegexSplitter, RefusesWhatPcre2Refuses) {
  for (const std::string& pattern :
       {std::string("(a"), std::string("[z-a]"), std::string("a\\C"), std::string(4097, 'a')}) {
    const auto splitter = RegexSplitter::Create(std::vector<std::string>{pattern}, "f");
    ASSERT_FALSE(splitter) << pattern;
    EXPECT_EQ(splitter.error().code, ErrorCode::kUnsupported);
  }
}

// Where the JIT may not be used a match validates the text that is left, so a text of many pieces would take quadratic
// time: minutes for 1 MB. Valid texts are split as with the JIT, others until the budget ends.
TEST(RegexSplitter, WithoutJitTheWorkIsBoundedToo) {
  const auto with = RegexSplitter::Create(std::vector<std::string>{"\\p{L}|\\d+"}, "f");
  const auto without = RegexSplitter::Create(std::vector<std::string>{"(*NO_JIT)\\p{L}|\\d+"}, "f");
  ASSERT_TRUE(with && without);
  std::string text;
  while (text.size() < 200'000) text += "a\u00e4 12,";
  const auto expected = with->Split(text), ends = without->Split(text);
  ASSERT_TRUE(expected && ends);
  EXPECT_EQ(*ends, *expected);
  const auto invalid = without->Split(text + "\xFF");
  ASSERT_FALSE(invalid);
  EXPECT_EQ(invalid.error().code, ErrorCode::kResourceExhausted);
  const std::string few = text.substr(0, 7 * 100) + "\xFF!";
  EXPECT_EQ(*without->Split(few), *with->Split(few));
}

// Exponential and quadratic patterns give an error in bounded time; an unbounded search would not end while the test
// runs. The patterns of ordinary tokenizers stay far below the budget, even on the worst text for them.
TEST(RegexSplitter, HostilePatternsRunOutOfBudget) {
  const std::string text = std::string(300'000, 'a') + "!";
  for (const char* pattern :
       {"(a+)+[yz]", "(a|aa)+[yz]", "a*a*a*a*[yz]", "(?=a*+[yz]).", "(?:a?){50}a{50}[yz]", "[^x]*+[yz]"}) {
    const auto splitter = RegexSplitter::Create(std::vector<std::string>{pattern}, "f");
    ASSERT_TRUE(splitter) << pattern;
    const auto ends = splitter->Split(text);
    ASSERT_FALSE(ends) << pattern;
    EXPECT_EQ(ends.error().code, ErrorCode::kResourceExhausted) << pattern;
  }
  const RegexSplitter official = std::move(*RegexSplitter::Create(test::OfficialPatterns(), "f"));
  for (const std::string_view unit : {"a", " ", "\n", "^", "1", "中", " x", "  x", "\u200B", "\xFF"}) {
    std::string hostile;
    while (hostile.size() < 300'000) hostile += unit;
    EXPECT_TRUE(official.Split(hostile)) << unit;
    EXPECT_TRUE(official.Split(hostile + "x")) << unit;
  }
}

}  // namespace
}  // namespace galley::text
