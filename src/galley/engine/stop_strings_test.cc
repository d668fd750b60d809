// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/stop_strings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "galley/text/utf8.h"

namespace galley::engine {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  std::string text;
  std::optional<std::size_t> stopped;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  return out << '"' << o.text << "\" stopped by " << (o.stopped ? std::to_string(*o.stopped) : "none");
}

Outcome Feed(const StopSet& set, std::span<const std::string> pieces) {
  StopMatcher matcher(set);
  Outcome outcome;
  for (const std::string& piece : pieces) outcome.text += matcher.Append(piece);
  if (!matcher.stopped()) outcome.text += matcher.Flush();
  outcome.stopped = matcher.stopped();
  return outcome;
}

// The rule in its plainest form: look for every string at every end.
Outcome Expected(std::span<const std::string> stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    for (std::size_t i = 0; i < stops.size(); ++i) {
      if (text.substr(0, end).ends_with(stops[i])) return {text.substr(0, end - stops[i].size()), i};
    }
  }
  return {text, std::nullopt};
}

struct Case {
  std::vector<std::string> stops;
  std::string text;
  Outcome outcome;
};

TEST(StopStrings, CutsBeforeTheFirstThatEnds) {
  const Case cases[] = {
      {{}, "abc", {"abc", std::nullopt}},
      {{"b"}, "abc", {"a", 0}},
      {{"bcd"}, "abc", {"abc", std::nullopt}},  // an unfinished one is text after all
      {{"abcd", "bc"}, "abcd", {"a", 1}},       // "bc" ends at 3, "abcd" at 4
      {{"b", "ab"}, "ab", {"a", 0}},            // both end at 2: the first of the list
      {{"ab", "b"}, "ab", {"", 0}},
      {{"aab"}, "aaab", {"a", 0}},  // the match starts inside a failed one
      {{"abab!"}, "ababab!", {"ab", 0}},
      {{"\n\n"}, "a\nb\n\nc", {"a\nb", 0}},
      {{"é", "日本"}, "caf日é", {"caf日", 0}},
      {{"###", "##"}, "a###", {"a", 1}},  // "##" ends first
      {{"x", "x"}, "ax", {"a", 0}},       // the same string twice
  };
  for (const Case& c : cases) {
    const Result<StopSet> set = StopSet::Create(c.stops);
    ASSERT_TRUE(set.has_value()) << set.error().ToString();
    EXPECT_EQ(Feed(*set, std::vector<std::string>{c.text}), c.outcome) << c.text;
    EXPECT_EQ(Expected(c.stops, c.text), c.outcome) << c.text;
  }
}

TEST(StopStrings, EverySplitGivesTheSame) {
  const std::vector<std::string> stops = {"aba", "bb", "caé"};
  const StopSet set = *StopSet::Create(stops);
  for (const std::string text : {"abcaba", "acbcaébb", "abacab", "cacaécaca", "ab"}) {
    const Outcome expected = Expected(stops, text);
    // Bit i of `mask` cuts after byte i: every way to cut the text, also inside characters.
    const unsigned masks = 1u << (text.size() - 1);
    for (unsigned mask = 0; mask < masks; ++mask) {
      std::vector<std::string> pieces(1);
      for (std::size_t i = 0; i < text.size(); ++i) {
        pieces.back() += text[i];
        if ((mask >> i & 1) != 0) pieces.emplace_back();
      }
      ASSERT_EQ(Feed(set, pieces), expected) << text << " cut by mask " << mask;
    }
  }
}

TEST(StopStrings, HoldsBackOnlyWhatMayStillMatch) {
  const StopSet set = *StopSet::Create(std::vector<std::string>{"END", "\n\nUser"});
  StopMatcher matcher(set);
  EXPECT_EQ(matcher.Append("Hi\n"), "Hi");
  EXPECT_EQ(matcher.Append("E"), "\n");
  EXPECT_EQ(matcher.Append("x"), "Ex");
  EXPECT_EQ(matcher.Append("EN"), "");
  EXPECT_EQ(matcher.Append("EN"), "EN");
  EXPECT_EQ(matcher.Flush(), "EN");
  EXPECT_EQ(matcher.Append("D"), "D");  // what was given out no longer counts
  EXPECT_EQ(matcher.Append("EN"), "");
  EXPECT_EQ(matcher.Append("D and more"), "");
  EXPECT_EQ(matcher.stopped(), 0u);
  EXPECT_EQ(matcher.Append("more"), "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopStrings, NeverTearsACharacter) {
  // The stop string shares its first bytes with other characters: é is C3 A9, ü is C3 BC.
  const StopSet set = *StopSet::Create(std::vector<std::string>{"é!", "日本"});
  StopMatcher matcher(set);
  for (const std::string piece : {"ü", "é", "ü", "日", "é", "日", "日", "x"}) {
    EXPECT_TRUE(text::IsValidUtf8(matcher.Append(piece)));
  }
}

TEST(StopStrings, RandomTextsAgreeWithThePlainRule) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto word = [&](std::size_t longest, unsigned letters) {
    std::string text(1 + random() % longest, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % letters);
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    const unsigned letters = 1 + static_cast<unsigned>(random() % 3);
    std::vector<std::string> stops(random() % 6), pieces(1 + random() % 8);
    for (std::string& stop : stops) stop = word(6, letters);
    for (std::string& piece : pieces) piece = word(5, letters + 1);
    std::string text;
    for (const std::string& piece : pieces) text += piece;
    ASSERT_EQ(Feed(*StopSet::Create(stops), pieces), Expected(stops, text)) << text;
  }
}

TEST(StopStrings, LimitsAreErrorsWithTheIndex) {
  const auto error = [](std::vector<std::string> stops) {
    const Result<StopSet> set = StopSet::Create(stops);
    return set ? "no error" : set.error().ToString();
  };
  EXPECT_EQ(error({"a", ""}), "stop[1]: the string is empty; leave it out");
  EXPECT_EQ(error({std::string(1025, 'a')}), "stop[0]: the string has 1025 bytes, at most 1024 are allowed");
  EXPECT_EQ(error(std::vector<std::string>(65, "a")), "stop: 65 strings were given, at most 64 are allowed");
  EXPECT_THAT(error({"\xC3"}), HasSubstr("stop[0]"));
  EXPECT_EQ(error(std::vector<std::string>(64, std::string(1024, 'a'))), "no error");
}

TEST(StopStrings, WorkIsLinearForTheWorstStrings) {
  // 64 strings a…ab of all lengths against a text of a's: a naive search compares 64 x 1024 bytes at every position,
  // 13 G in all. Linear work takes milliseconds; the bound is loose for slow machines and sanitizers.
  std::vector<std::string> stops;
  for (std::size_t i = 0; i < kStopStringsMax; ++i)
    stops.push_back(std::string(kStopStringBytesMax - 1 - i, 'a') + "b");
  const StopSet set = *StopSet::Create(stops);
  StopMatcher matcher(set);
  const auto start = std::chrono::steady_clock::now();
  std::size_t emitted = 0;
  for (int i = 0; i < 200'000; ++i) emitted += matcher.Append("a").size();
  EXPECT_EQ(emitted, 200'000 - (kStopStringBytesMax - 1));  // the longest prefix stays
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

}  // namespace
}  // namespace galley::engine
