// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/grammar_cache.h"

#include "galley/grammar/test_support.h"

namespace galley::grammar {
namespace {

JsonValue Text(std::string text) {
  JsonValue out;
  out.type = JsonValue::Type::kString;
  out.text = std::move(text);
  return out;
}

TEST(GrammarCache, SharesEqualRequestsAndKeepsRefusals) {
  GrammarCache cache(64 << 20);
  const auto vocabulary = testing::Vocab1k().vocabulary;
  const auto first = cache.Get("regex", Text("a+"), {}, {}, vocabulary);
  const auto second = cache.Get("regex", Text("a+"), {}, {}, vocabulary);
  EXPECT_EQ(first->program, second->program);
  CompileOptions other;
  other.whitespace = Whitespace::kFlexible;
  EXPECT_NE(cache.Get("regex", Text("a+"), {}, other, vocabulary)->program, first->program);
  EXPECT_FALSE(cache.Get("regex", Text("(a"), {}, {}, vocabulary).has_value());
  EXPECT_FALSE(cache.Get("regex", Text("(a"), {}, {}, vocabulary).has_value());
  EXPECT_EQ(cache.stats().hits, 2u);
  EXPECT_EQ(cache.stats().misses, 3u);
}

TEST(GrammarCache, DropsTheLeastRecentlyUsedByBytes) {
  GrammarCache cache(60'000);
  const auto vocabulary = testing::Vocab1k().vocabulary;
  for (int i = 0; i < 200; ++i) {
    const auto grammar = cache.Get("regex", Text("[a-f]{3}x" + std::to_string(i)), {}, {}, vocabulary);
    ASSERT_TRUE(grammar.has_value());
    static_cast<void>(cache.Get("regex", Text("kept"), {}, {}, vocabulary));
  }
  EXPECT_LE(cache.stats().bytes, 60'000u);
  EXPECT_LT(cache.stats().entries, 200u);
  const std::uint64_t hits = cache.stats().hits;
  static_cast<void>(cache.Get("regex", Text("kept"), {}, {}, vocabulary));
  EXPECT_EQ(cache.stats().hits, hits + 1);
}

TEST(FillMasks, RowsAreSharedOutByGrammarAndEqualRowsOneByOne) {
  GrammarCache cache(64 << 20);
  const auto vocabulary = testing::Vocab1k().vocabulary;
  std::vector<std::unique_ptr<Matcher>> owned;
  std::vector<Matcher*> matchers;
  for (int i = 0; i < 12; ++i) {
    // Three grammars, four matchers each, so that some share a grammar and some do not.
    owned.push_back(std::make_unique<Matcher>(
        *cache.Get("regex", Text("[a-z]{" + std::to_string(i % 3 + 1) + "}1"), {}, {}, vocabulary)));
    matchers.push_back(i == 5 ? nullptr : owned.back().get());
  }
  const std::size_t words = vocabulary->mask_words();
  std::vector<MaskWord> out(words * matchers.size());
  FillMasks(matchers, out, [](std::size_t n, const std::function<void(std::size_t)>& run) {
    EXPECT_EQ(n, 3u);  // one share of the work per grammar
    for (std::size_t i = n; i-- > 0;) run(i);
  });
  for (std::size_t i = 0; i < matchers.size(); ++i) {
    std::vector<MaskWord> want(words, 0);
    if (matchers[i] != nullptr) matchers[i]->FillMask(want);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), out.begin() + static_cast<std::ptrdiff_t>(i * words))) << i;
  }
}

}  // namespace
}  // namespace galley::grammar
