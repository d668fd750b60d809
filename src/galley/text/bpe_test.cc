// SPDX-License-Identifier: Apache-2.0
#include "galley/text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>

#include "galley/text/splitter.h"
#include "galley/text/test_data.h"

namespace galley::text {
namespace {

using Ids = std::vector<TokenId>;

std::array<TokenId, 256> ByteIds() {
  std::array<TokenId, 256> ids{};
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<TokenId>(i);
  return ids;
}

// The definition: find the best pair, join it, start over.
Ids NaiveEncode(std::string_view piece, const std::vector<Merge>& merges) {
  Ids ids;
  for (const char c : piece) ids.push_back(static_cast<unsigned char>(c));
  std::map<std::pair<TokenId, TokenId>, std::size_t> ranks;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) ranks[{merges[rank].left, merges[rank].right}] = rank;
  while (true) {
    std::optional<std::size_t> best_rank, best_at;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found == ranks.end() || (best_rank && found->second >= *best_rank)) continue;
      best_rank = found->second;
      best_at = i;
    }
    if (!best_rank) return ids;
    const auto at = ids.begin() + static_cast<std::ptrdiff_t>(*best_at);
    *at = merges[*best_rank].product;
    ids.erase(at + 1);
  }
}

// Random merges in random order: products may rank before their parts, which real files never do.
std::vector<Merge> RandomMerges(test::Random& random) {
  std::vector<Merge> merges;
  std::set<std::pair<TokenId, TokenId>> taken;
  std::vector<TokenId> tokens = {'a', 'b', 'c'};
  for (TokenId next = 256; next < 276; ++next) {
    const TokenId left = tokens[random() % tokens.size()], right = tokens[random() % tokens.size()];
    if (!taken.insert({left, right}).second) continue;
    merges.push_back({left, right, next});
    tokens.push_back(next);
  }
  std::shuffle(merges.begin(), merges.end(), random);
  return merges;
}

TEST(Bpe, ShortAndLongPiecesFollowTheDefinition) {
  test::Random random(4105);
  for (int round = 0; round < 200; ++round) {
    const std::vector<Merge> merges = RandomMerges(random);
    const BpeModel model = *BpeModel::Create(ByteIds(), merges);
    BpeScratch scratch;
    for (const std::size_t size : {1U, 2U, 3U, 17U, 63U, 64U, 65U, 66U, 130U, 400U}) {
      std::string piece;
      for (std::size_t i = 0; i < size; ++i) piece.push_back(static_cast<char>('a' + random() % 3));
      Ids ids;
      for (const auto& symbol : model.Encode(piece, scratch)) ids.push_back(symbol.id);
      ASSERT_EQ(ids, NaiveEncode(piece, merges)) << "round " << round << " piece " << piece;
    }
  }
}

TEST(Bpe, RefusesAPairTwice) {
  const auto model = BpeModel::Create(ByteIds(), {{'a', 'b', 256}, {'c', 'd', 257}, {'a', 'b', 258}});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().message, "merges 0 and 2 join the same pair of tokens");
}

// Texts that made other tokenizers quadratic or overflow their stack. Twice the text may take twice the steps and no
// more; a quadratic algorithm would take four times as many.
TEST(Bpe, HostileTextsTakeLinearWork) {
  const Tokenizer tokenizer = test::NanoTokenizer();
  const std::string_view units[] = {"a", " ", "^",    "\n",     "ab", "the", "é",  "中",
                                    "0", "A", "\xFF", "\u0301", "😀",  " x",  "-\n"};
  for (const std::string_view unit : units) {
    std::array<std::int64_t, 2> steps{};
    for (std::size_t i = 0; i < 2; ++i) {
      std::string text;
      while (text.size() < (i + 1) * 200'000) text += unit;
      Encoder encoder(tokenizer);
      const auto ids = encoder.Encode(text);
      ASSERT_TRUE(ids);
      ASSERT_EQ(test::JoinBytes(tokenizer, *ids), text);
      steps[i] = encoder.work().merge_steps + encoder.work().pieces + OfficialSplitSteps(text);
    }
    EXPECT_LE(steps[1], 2.1 * static_cast<double>(steps[0]) + 1000)
        << "unit " << nlohmann::json(unit).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    EXPECT_LE(steps[0], 20 * 200'000);
  }
}

}  // namespace
}  // namespace galley::text
