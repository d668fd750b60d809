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

// As a caller does: what is known, or a compile that is then kept.
Compiled<Grammar> Get(GrammarCache& cache, std::string pattern, const CompileOptions& options = {}) {
  const JsonValue spec = Text(std::move(pattern));
  const auto vocabulary = testing::Vocab1k().vocabulary;
  std::string key = GrammarCache::KeyOf("regex", spec, {}, options, vocabulary.get());
  if (auto known = cache.Find(key)) return std::move(*known);
  Compiled<Grammar> result = CompileKind("regex", spec, {}, options, vocabulary);
  cache.Put(std::move(key), result);
  return result;
}

TEST(GrammarCache, SharesEqualRequestsAndKeepsRefusals) {
  GrammarCache cache(64 << 20);
  const auto first = Get(cache, "a+");
  const auto second = Get(cache, "a+");
  EXPECT_EQ(first->program, second->program);
  CompileOptions other;
  other.whitespace = Whitespace::kFlexible;
  EXPECT_NE(Get(cache, "a+", other)->program, first->program);
  EXPECT_FALSE(Get(cache, "(a").has_value());
  EXPECT_FALSE(Get(cache, "(a").has_value());
  EXPECT_EQ(cache.stats().hits, 2u);
  EXPECT_EQ(cache.stats().misses, 3u);
}

TEST(GrammarCache, DropsTheLeastRecentlyUsedByBytes) {
  GrammarCache cache(60'000);
  for (int i = 0; i < 200; ++i) {
    const auto grammar = Get(cache, "[a-f]{3}x" + std::to_string(i));
    ASSERT_TRUE(grammar.has_value());
    static_cast<void>(Get(cache, "kept"));
  }
  EXPECT_LE(cache.stats().bytes, 60'000u);
  EXPECT_LT(cache.stats().entries, 200u);
  const std::uint64_t hits = cache.stats().hits;
  static_cast<void>(Get(cache, "kept"));
  EXPECT_EQ(cache.stats().hits, hits + 1);
}

}  // namespace
}  // namespace galley::grammar
