// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/regex.h"

#include "galley/grammar/test_support.h"

namespace galley::grammar {
namespace {

using testing::Takes;

TEST(Regex, RefusalNamesTheByte) {
  struct Row {
    std::string_view pattern;
    std::uint64_t position;
  };
  // Positions count bytes: "é" is two of them.
  for (const Row& row : {Row{"ab(?=c)", 2}, Row{"é(a)\\1", 5}, Row{"[z-a]", 1}, Row{"a{3,2}", 1}, Row{"(a", 0}}) {
    const auto regex = ParseRegex(row.pattern, Limits{});
    ASSERT_FALSE(regex.has_value()) << row.pattern;
    EXPECT_EQ(regex.error().code, CompileCode::kBadRegex);
    EXPECT_EQ(regex.error().position, row.position) << row.pattern << ": " << regex.error().message;
  }
}

TEST(Regex, AnchorsAndWordEdgesInsideAPattern) {
  EXPECT_FALSE(Takes("regex", "a$b", "ab"));
  EXPECT_TRUE(Takes("regex", "(?:^a|b)c", "ac"));
  EXPECT_TRUE(Takes("regex", "\\bfoo\\b.*", "foo bar"));
  EXPECT_FALSE(Takes("regex", "\\bfoo\\b.*", "foobar"));
  EXPECT_TRUE(Takes("regex", "(?m)a$\\n^b", "a\nb"));
  // What looks to the left behind what does not.
  EXPECT_TRUE(Takes("regex", "a$(?:b*)+\\b", "a"));
  EXPECT_FALSE(Takes("regex", "a$\\B", "a"));
  EXPECT_TRUE(Takes("regex", "-$\\B", "-"));
  EXPECT_TRUE(Takes("regex", "(?:^a?$){2}", ""));
  EXPECT_FALSE(Takes("regex", "(?:^a?$){2}", "a"));
  EXPECT_TRUE(Takes("regex", "(?m)(?:a$\\n^)+", "a\na\n"));
}

TEST(Regex, CaseFoldingFollowsUnicode) {
  EXPECT_TRUE(Takes("regex", "(?i)σ", "ς"));       // both fold to σ
  EXPECT_TRUE(Takes("regex", "(?i)k", "\u212A"));  // the Kelvin sign folds to k
  EXPECT_FALSE(Takes("regex", "(?i)i", "ı"));
}

TEST(Regex, LongRepeatsStayLinearAndHugeOnesAreRefused) {
  EXPECT_TRUE(Takes("regex", "[a-z]{1,5000}", std::string(5000, 'q')));
  EXPECT_FALSE(Takes("regex", "[a-z]{1,5000}", std::string(5001, 'q')));
  const auto bomb = testing::CompileText("regex", "((a{1000}){1000}){1000}");
  ASSERT_FALSE(bomb.has_value());
  EXPECT_EQ(bomb.error().code, CompileCode::kTooComplex);
}

TEST(CodePointSet, NegationAndIntersectionAreExact) {
  const CodePointSet set = CodePointSet::Range('b', 'd').Intersected(CodePointSet::Range('c', 'z'));
  EXPECT_EQ(set, CodePointSet::Range('c', 'd'));
  EXPECT_EQ(set.Negated().Negated(), set);
  EXPECT_FALSE(set.Negated().Contains('c'));
  EXPECT_TRUE(set.Negated().Contains(kCodePointMax));
}

}  // namespace
}  // namespace galley::grammar
