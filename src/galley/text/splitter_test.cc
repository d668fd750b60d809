// SPDX-License-Identifier: Apache-2.0
#include "galley/text/splitter.h"

#include <gtest/gtest.h>

#include "galley/text/regex_splitter.h"
#include "galley/text/test_data.h"
#include "galley/text/unicode.h"

namespace galley::text {
namespace {

std::vector<std::string> Pieces(std::string_view text) {
  std::vector<std::string> pieces;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = OfficialPieceEnd(text, begin);
    pieces.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

std::vector<std::size_t> Ends(std::string_view text) {
  std::vector<std::size_t> ends;
  for (std::size_t end = 0; end < text.size();) {
    end = OfficialPieceEnd(text, end);
    ends.push_back(end);
  }
  return ends;
}

RegexSplitter Pcre(const std::vector<std::string>& patterns) {
  Result<RegexSplitter> splitter = RegexSplitter::Create(patterns, "test");
  EXPECT_TRUE(splitter) << splitter.error().ToString();
  return std::move(*splitter);
}

struct Case {
  std::string_view text;
  std::vector<std::string> pieces;
};

TEST(OfficialSplit, CutsWherePatternsCut) {
  const Case cases[] = {
      {"Hello world", {"Hello", " world"}},
      {"12345", {"123", "45"}},                // digits in threes from the left
      {"x1y", {"x", "1", "y"}},                // digits never join words
      {"  1", {"  ", "1"}},                    // white space before a digit ends its piece, so it stays whole
      {"  x", {" ", " x"}},                    // the last space belongs to the word
      {"\t\tx", {"\t", "\tx"}},                // any single character but CR, LF, letters, P and S may lead a word
      {" \n \n x", {" \n \n", " x"}},          // up to the last newline
      {"\n\n\nx", {"\n\n\n", "x"}},            // a newline leads no word
      {"x  ", {"x", "  "}},                    // trailing white space
      {".foo", {".foo"}},                      // ASCII punctuation joins ASCII letters
      {"..foo", {"..", "foo"}},                // but a run of it does not
      {".été", {".", "été"}},                  // nor does it join other letters
      {"'aé", {"'a", "é"}},                    // which do not continue such a piece
      {" .\r\n\nx", {" .\r\n\n", "x"}},        // a space leads punctuation, newlines trail it
      {"\t.", {"\t", "."}},                    // a tab does not
      {"中文abc", {"中文", "abc"}},            // pattern 2 has its own pieces
      {" 中", {" ", "中"}},                    // nothing joins across their border
      {"。中", {"。", "中"}},                  // U+3002 is outside of pattern 2
      {"カ・キ\n", {"カ", "・", "キ", "\n"}},  // pattern 3 cuts inside; the newline is outside
      {"ア・\n", {"ア", "・", "\n"}},          // so it does not trail the dot
      {"\u3040\u3042", {"\u3040\u3042"}},      // an unassigned character of the range leads a word of the range
      {"\u3040x", {"\u3040", "x"}},            // but not one outside
      {"\u200B\u200Bab",
       {"\u200B",
        "\u200B"
        "ab"}},                                    // a gap leaves its last character to the word
      {"\u200B\u200B.", {"\u200B\u200B", "."}},    // but not to punctuation
      {"e\u0301\u0301.", {"e\u0301\u0301", "."}},  // marks continue words
      {"\u0301a",
       {"\u0301"
        "a"}},  // and start them
      {"a\u00A0b",
       {"a",
        "\u00A0"
        "b"}},                                   // a no-break space leads a word
      {"\u2028\u2028x", {"\u2028", "\u2028x"}},  // a line separator is white space, not a newline
      {"\u180Ex", {"\u180Ex"}},                  // U+180E is no white space
      {"\x01", {"\x01"}},                        // a gap alone
      {"a\xFF"
       "b",
       {"a",
        "\xFF"
        "b"}},  // an invalid byte is a character without a class
      {"", {}},
  };
  for (const Case& c : cases) EXPECT_EQ(Pieces(c.text), c.pieces) << '"' << c.text << '"';
}

TEST(OfficialSplit, BothSpellingsAreRecognisedAndNothingElse) {
  std::vector<std::string> patterns = test::OfficialPatterns();
  EXPECT_TRUE(IsOfficialSplit(patterns));
  std::string& third = patterns[2];
  for (const auto& [escape, raw] : {std::pair{"\\r", "\r"}, {"\\n", "\n"}, {"\\\"", "\""}}) {
    for (std::size_t at = 0; (at = third.find(escape, at)) != std::string::npos;) third.replace(at, 2, raw);
  }
  EXPECT_TRUE(IsOfficialSplit(patterns));  // the spelling of the released file
  third += "|x";
  EXPECT_FALSE(IsOfficialSplit(patterns));
  patterns = test::OfficialPatterns();
  patterns.pop_back();
  EXPECT_FALSE(IsOfficialSplit(patterns));
  EXPECT_FALSE(IsOfficialSplit({}));
}

// PCRE2 has the tables of another Unicode version, but characters that were known in Unicode 14 have not changed.
TEST(OfficialSplit, AgreesWithPcre2OnRandomTexts) {
  test::Random random(4101);
  const RegexSplitter oracle = Pcre(test::OfficialPatterns());
  const auto& chars = test::InterestingChars();
  for (int round = 0; round < 15000; ++round) {
    std::string text;
    const std::size_t spread = 1 + random() % chars.size();  // few distinct characters make long runs
    const std::size_t start = random() % chars.size();
    for (unsigned n = 1 + random() % 24; n > 0; --n) {
      char32_t code = chars[(start + random() % spread) % chars.size()];
      if (random() % 16 == 0) code = random() % 0x110000;
      const bool surrogate = code >= 0xD800 && code < 0xE000;
      // PCRE2 counts U+180E as white space, the reference library does not.
      if (surrogate || code == 0x180E || IsNewerThanUnicode14(code)) continue;
      AppendUtf8(text, code);
    }
    const auto expected = oracle.Split(text);
    ASSERT_TRUE(expected) << expected.error().ToString();
    ASSERT_EQ(Ends(text), *expected) << "round " << round << " text " << nlohmann::json(text);
  }
}

TEST(OfficialSplit, InvalidBytesActAsCharactersOfNoClass) {
  test::Random random(4102);
  const std::vector<std::string> units = {"a",    "é",        "中",           " ",   "\n", ".", "7",
                                          "\xFF", "\xE4\xB8", "\xF0\x9F\x98", "\x80"};
  for (int round = 0; round < 5000; ++round) {
    std::string broken, whole;
    std::vector<std::size_t> broken_at{0}, whole_at{0};
    for (unsigned n = 1 + random() % 12; n > 0; --n) {
      std::string unit = units[random() % units.size()];
      // A continuation byte right behind a cut sequence would complete it.
      if (unit == "\x80" && !broken.empty() && !IsValidUtf8(broken.substr(broken.size() - 1))) unit = "a";
      broken += unit;
      whole += IsValidUtf8(unit) ? unit : "\uE000";  // private use: a valid character of no class
      broken_at.push_back(broken.size());
      whole_at.push_back(whole.size());
    }
    std::vector<std::size_t> expected;
    for (const std::size_t end : Ends(whole)) {
      const auto at = std::find(whole_at.begin(), whole_at.end(), end) - whole_at.begin();
      expected.push_back(broken_at[static_cast<std::size_t>(at)]);
    }
    ASSERT_EQ(Ends(broken), expected) << "round " << round;
  }
}

TEST(UnicodeTables, AgreeWithPcre2OnEveryCharacterOfUnicode14) {
  struct Group {
    const char* pattern;
    CharGroup group;
  };
  const Group groups[] = {{"\\p{L}", CharGroup::kLetter}, {"\\p{M}", CharGroup::kMark},
                          {"\\p{N}", CharGroup::kNumber}, {"\\p{P}", CharGroup::kPunctuation},
                          {"\\p{S}", CharGroup::kSymbol}, {"\\s", CharGroup::kSpace}};
  for (const Group& group : groups) {
    const RegexSplitter oracle = Pcre({group.pattern});
    for (char32_t block = 0; block < 0x110000; block += 0x1000) {
      // NULs between the characters: a character that matches starts a piece, another lies inside a gap.
      std::string text(1, '\0');
      std::vector<char32_t> code_at(1, 0);
      for (char32_t code = block; code < block + 0x1000; ++code) {
        if (code >= 0xD800 && code < 0xE000) continue;
        AppendUtf8(text, code);
        code_at.resize(text.size(), code);
        text.push_back('\0');
        code_at.push_back(0);
      }
      const auto ends = oracle.Split(text);
      ASSERT_TRUE(ends);
      std::vector<bool> starts(text.size() + 1, false);
      for (const std::size_t end : *ends) starts[end] = true;
      for (std::size_t at = 1; at < text.size(); at += DecodeUtf8(text, at).length + std::size_t{1}) {
        const char32_t code = code_at[at];
        if (IsNewerThanUnicode14(code) || code == 0x180E) continue;
        ASSERT_EQ(starts[at], GroupOf(code) == group.group)
            << group.pattern << " U+" << std::hex << std::uint32_t{code};
      }
    }
  }
}

// Characters that came with Unicode 15 to 16: the reference library knows them, the system's PCRE2 may not.
TEST(UnicodeTables, AreVersion16) {
  EXPECT_EQ(GroupOf(0x10D40), CharGroup::kNumber);  // Garay digit zero, 16.0
  EXPECT_EQ(GroupOf(0x2FFC), CharGroup::kSymbol);   // ideographic description character, 15.1
  EXPECT_EQ(GroupOf(0x1E4D0), CharGroup::kLetter);  // Nag Mundari, 15.0
  EXPECT_TRUE(IsNewerThanUnicode14(0x10D40));
  EXPECT_FALSE(IsNewerThanUnicode14('a'));
  EXPECT_EQ(GroupOf(0x180E), CharGroup::kOther);
  EXPECT_EQ(GroupOf(0x10FFFF), CharGroup::kOther);
}

}  // namespace
}  // namespace galley::text
