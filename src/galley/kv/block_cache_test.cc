// SPDX-License-Identifier: Apache-2.0
#include "galley/kv/block_cache.h"

#include <gtest/gtest.h>

#include <list>
#include <map>
#include <random>

#include "galley/kv/slot_pool.h"
#include "galley/kv/test_keys.h"

namespace galley::kv {
namespace {

// Computes `tokens` as a sequence would: takes what is cached, allocates the rest, publishes every full block.
// Returns the table, or an empty one when the cache is too small.
std::vector<BlockRef> Compute(BlockCache& cache, const KeyChain& chain, std::span<const TokenId> tokens) {
  Hit hit = cache.Lookup(chain, tokens);
  const int hits = static_cast<int>(hit.blocks.size());
  const int blocks = static_cast<int>((tokens.size() + kBlockTokens - 1) / kBlockTokens);
  if (!cache.Allocate(blocks - hits, hit.blocks)) {
    ReleaseTail(hit.blocks);
    return {};
  }
  for (int i = hits; i < static_cast<int>(chain.blocks.size()); ++i) {
    const auto part = tokens.subspan(static_cast<std::size_t>(i) * kBlockTokens, kBlockTokens);
    (void)cache.Publish(hit.blocks[i].id(), chain.blocks[i], i == 0 ? BlockId() : hit.blocks[i - 1].id(),
                        chain.parent(i), part);
  }
  return std::move(hit.blocks);
}

void RunAndRelease(BlockCache& cache, std::span<const TokenId> tokens, std::string_view salt = "") {
  std::vector<BlockRef> table = Compute(cache, MakeKeyChain(TestRoot(salt), tokens), tokens);
  ReleaseTail(table);
}

int Hits(const BlockCache& cache, std::span<const TokenId> tokens, std::string_view salt = "") {
  return cache.Probe(MakeKeyChain(TestRoot(salt), tokens), tokens);
}

TEST(BlockCache, BlocksMoveBetweenFreeActiveAndCached) {
  BlockCache cache(4);
  const std::vector<TokenId> tokens = TestPrompt(300, 0, 0);  // two full blocks and a partial one
  std::vector<BlockRef> table = Compute(cache, MakeKeyChain(TestRoot(), tokens), tokens);
  EXPECT_EQ(cache.active(), 3);
  EXPECT_EQ(cache.free(), 1);
  ReleaseTail(table);
  EXPECT_EQ(cache.active(), 0);
  EXPECT_EQ(cache.cached(), 2);  // the partial block was never published
  EXPECT_EQ(cache.free(), 2);
  EXPECT_EQ(cache.available(), 4);
  cache.CheckInvariants();
}

TEST(BlockCache, SharedBlocksHaveOneHolderPerTable) {
  BlockCache cache(8);
  const std::vector<TokenId> a = TestPrompt(384, 256, 0), b = TestPrompt(384, 256, 1);
  std::vector<BlockRef> table_a = Compute(cache, MakeKeyChain(TestRoot(), a), a);
  std::vector<BlockRef> table_b = Compute(cache, MakeKeyChain(TestRoot(), b), b);
  EXPECT_EQ(table_a[1].id(), table_b[1].id());
  EXPECT_NE(table_a[2].id(), table_b[2].id());
  EXPECT_EQ(cache.ref_count(table_a[0].id()), 2);
  EXPECT_EQ(cache.active(), 4);  // two shared, one each
  ReleaseTail(table_a);
  EXPECT_EQ(cache.ref_count(table_b[0].id()), 1);
  ReleaseTail(table_b);
  cache.CheckInvariants();
}

// Prompts of every length around block borders hit exactly their whole blocks.
TEST(BlockCache, K24_HitsAtTheGranularityOfOneBlock) {
  BlockCache cache(64);
  const std::vector<TokenId> whole = TestPrompt(4097, 4097, 0);
  RunAndRelease(cache, whole);
  for (int length = 1; length <= 4097; length += length % 128 > 1 && length % 128 < 126 ? 31 : 1) {
    const std::span<const TokenId> prompt(whole.data(), static_cast<std::size_t>(length));
    const KeyChain chain = MakeKeyChain(TestRoot(), prompt);
    Hit hit = cache.Lookup(chain, prompt);
    EXPECT_EQ(static_cast<int>(hit.blocks.size()), length / 128) << length;
    EXPECT_EQ(hit.limit, length < 128 ? HitLimit::kShortPrompt : HitLimit::kNone) << length;
    ReleaseTail(hit.blocks);
  }
}

// B shares 64 tokens with A: half a block is never used.
TEST(BlockCache, K11_AHalfSharedBlockIsAMiss) {
  BlockCache cache(8);
  RunAndRelease(cache, TestPrompt(256, 192, 0));
  EXPECT_EQ(Hits(cache, TestPrompt(256, 192, 1)), 1);  // tokens 0..127; block 1 agrees only on 128..191
  EXPECT_EQ(Hits(cache, TestPrompt(256, 64, 1)), 0);
}

TEST(BlockCache, K9_SameSaltHitsOtherSaltMisses) {
  BlockCache cache(8);
  const std::vector<TokenId> tokens = TestPrompt(256, 256, 0);
  RunAndRelease(cache, tokens, "tenant a");
  EXPECT_EQ(Hits(cache, tokens, "tenant a"), 2);
  EXPECT_EQ(Hits(cache, tokens, "tenant b"), 0);
  EXPECT_EQ(Hits(cache, tokens, ""), 0);
}

// The same 256-bit key for other tokens, as after a collision of the hash: compared token by token, it is a miss.
TEST(BlockCache, K28_AForcedCollisionIsAMiss) {
  BlockCache cache(8);
  const std::vector<TokenId> a = TestPrompt(256, 0, 0), b = TestPrompt(256, 0, 1);
  const KeyChain chain = MakeKeyChain(TestRoot(), a);
  std::vector<BlockRef> table = Compute(cache, chain, a);
  EXPECT_EQ(cache.Probe(chain, b), 0);
  Hit hit = cache.Lookup(chain, b);
  EXPECT_TRUE(hit.blocks.empty());
  EXPECT_EQ(hit.limit, HitLimit::kCollision);
  // B may not take the key over either, nor chain anything behind its private block.
  std::vector<BlockRef> other;
  ASSERT_TRUE(cache.Allocate(2, other));
  const std::span<const TokenId> tokens(b);
  EXPECT_EQ(cache.Publish(other[0].id(), chain.blocks[0], BlockId(), chain.root, tokens.first(128)),
            PublishResult::kDuplicate);
  EXPECT_EQ(cache.Publish(other[1].id(), chain.blocks[1], other[0].id(), chain.blocks[0], tokens.last(128)),
            PublishResult::kOrphan);
  EXPECT_EQ(cache.Probe(chain, a), 2);
  ReleaseTail(other);
  ReleaseTail(table);
  cache.CheckInvariants();
}

TEST(BlockCache, EvictsLeastRecentlyUsedLeavesFirst) {
  BlockCache cache(6);
  const std::vector<TokenId> old_prompt = TestPrompt(384, 0, 0), new_prompt = TestPrompt(384, 0, 1);
  RunAndRelease(cache, old_prompt);
  RunAndRelease(cache, new_prompt);
  EXPECT_EQ(cache.available(), 6);
  std::vector<BlockRef> table;
  ASSERT_TRUE(cache.Allocate(2, table));
  EXPECT_EQ(Hits(cache, old_prompt), 1);  // its two tail blocks made room, the head stayed
  EXPECT_EQ(Hits(cache, new_prompt), 3);
  ASSERT_TRUE(cache.Allocate(2, table));
  EXPECT_EQ(Hits(cache, old_prompt), 0);
  EXPECT_EQ(Hits(cache, new_prompt), 2);
  Hit hit = cache.Lookup(MakeKeyChain(TestRoot(), old_prompt), old_prompt);
  EXPECT_EQ(hit.limit, HitLimit::kEvicted);
  ReleaseTail(table);
  cache.CheckInvariants();
}

// A hit renews a prefix; only the branch that nobody came back to is evicted.
TEST(BlockCache, AHitRenewsThePrefix) {
  BlockCache cache(6);
  RunAndRelease(cache, TestPrompt(256, 128, 0));  // shared head, tail 0
  RunAndRelease(cache, TestPrompt(256, 128, 1));  // same head, tail 1
  RunAndRelease(cache, TestPrompt(256, 128, 0));  // comes back
  EXPECT_EQ(cache.cached(), 3);
  std::vector<BlockRef> table;
  ASSERT_TRUE(cache.Allocate(4, table));  // three free ones and one eviction
  EXPECT_EQ(Hits(cache, TestPrompt(256, 128, 0)), 2);
  EXPECT_EQ(Hits(cache, TestPrompt(256, 128, 1)), 1);
  ReleaseTail(table);
}

TEST(BlockCache, ShortAndUnknownPromptsSayWhy) {
  BlockCache cache(4);
  const std::vector<TokenId> brief = TestPrompt(127, 0, 0), unknown = TestPrompt(128, 0, 0);
  EXPECT_EQ(cache.Lookup(MakeKeyChain(TestRoot(), brief), brief).limit, HitLimit::kShortPrompt);
  EXPECT_EQ(cache.Lookup(MakeKeyChain(TestRoot(), unknown), unknown).limit, HitLimit::kNeverSeen);
  EXPECT_EQ(Label(HitLimit::kShareTimeout), "share_timeout");
}

// After any evictions a key that is listed is backed by the very tokens that it stands for, and a chain that is cut
// says so: nothing is listed whose content is gone.
TEST(BlockCache, K12_WhatIsListedAfterEvictionsIsThere) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  BlockCache cache(20);
  int evicted = 0;
  for (int round = 0; round < 500; ++round) {
    RunAndRelease(cache, TestPrompt(1 + static_cast<int>(random() % 1000), 256, static_cast<int>(random() % 6)));
    for (int id = 0; id < 6; ++id) {
      const std::vector<TokenId> tokens = TestPrompt(1000, 256, id);
      const KeyChain chain = MakeKeyChain(TestRoot(), tokens);
      const int listed = cache.Probe(chain, tokens);
      Hit hit = cache.Lookup(chain, tokens);
      ASSERT_EQ(static_cast<int>(hit.blocks.size()), listed);
      for (const BlockRef& block : hit.blocks) ASSERT_TRUE(cache.published(block.id()));
      if (listed < 7) {
        ASSERT_NE(hit.limit, HitLimit::kNone);
        evicted += hit.limit == HitLimit::kEvicted ? 1 : 0;
      }
      ReleaseTail(hit.blocks);
    }
    cache.CheckInvariants();
  }
  EXPECT_GT(evicted, 0);
  EXPECT_GT(cache.evictions(), 100);
}

// Two long requests in turn, both fitting the pool: the first still hits whole.
TEST(BlockCache, K23_TwoLongRequestsInTurnBothStayCached) {
  constexpr int kBlocks = 8192;  // 1,048,576 tokens each
  BlockCache cache(2 * kBlocks);
  const std::vector<TokenId> a = TestPrompt(kBlocks * 128, 0, 0), b = TestPrompt(kBlocks * 128, 0, 1);
  RunAndRelease(cache, a);
  RunAndRelease(cache, b);
  EXPECT_EQ(Hits(cache, a), kBlocks);
  EXPECT_EQ(Hits(cache, b), kBlocks);
}

// A warm key stays a full hit while other prompts are written all the time, as long as there is room for both.
TEST(BlockCache, K29_AWarmPrefixStaysAFullHitUnderWriteLoad) {
  BlockCache cache(40);
  const std::vector<TokenId> warm = TestPrompt(8 * 128, 0, 0);
  RunAndRelease(cache, warm);
  for (int round = 1; round <= 500; ++round) {
    RunAndRelease(cache, TestPrompt(16 * 128, 0, round));
    EXPECT_EQ(Hits(cache, warm), 8) << round;
    RunAndRelease(cache, warm);  // the reader that keeps it warm
  }
  EXPECT_GT(cache.evictions(), 7000);  // 500 * 16 written, 32 places
}

// A conversation that grows for 50 turns: every turn finds all whole blocks of the turn before.
TEST(BlockCache, K22_EveryTurnOfALongSessionHitsThePreviousOne) {
  BlockCache cache(900);
  int previous = 0;
  for (int turn = 1; turn <= 50; ++turn) {
    const std::vector<TokenId> tokens = TestPrompt(2200 * turn, 2200 * turn, 0);
    EXPECT_GE(Hits(cache, tokens) * 128, previous - 127) << "turn " << turn;
    RunAndRelease(cache, tokens);
    previous = static_cast<int>(tokens.size());
  }
}

TEST(BlockCache, AllocationIsAllOrNothing) {
  BlockCache cache(3);
  std::vector<BlockRef> table;
  EXPECT_FALSE(cache.Allocate(4, table));
  EXPECT_TRUE(table.empty());
  EXPECT_TRUE(cache.Allocate(3, table));
  EXPECT_FALSE(cache.Allocate(1, table));
  ReleaseTail(table, 2);
  EXPECT_EQ(cache.available(), 1);
  ReleaseTail(table);
}

TEST(BlockCache, CountCachedIsWhatALookupTakesFromAvailable) {
  BlockCache cache(8);
  const std::vector<TokenId> a = TestPrompt(512, 256, 0), b = TestPrompt(384, 256, 1);
  RunAndRelease(cache, a);
  const KeyChain chain = MakeKeyChain(TestRoot(), a);
  std::vector<BlockRef> holder = Compute(cache, MakeKeyChain(TestRoot(), b), b);  // holds the two shared blocks
  const int hits = cache.Probe(chain, a);
  EXPECT_EQ(hits, 4);
  EXPECT_EQ(cache.CountCached(chain, hits), 2);
  const int before = cache.available();
  Hit hit = cache.Lookup(chain, a);
  EXPECT_EQ(before - cache.available(), 2);
  ReleaseTail(hit.blocks);
  ReleaseTail(holder);
}

TEST(BlockCache, ProbeWithAHintAgreesWithAFullProbe) {
  BlockCache cache(16);
  const std::vector<TokenId> tokens = TestPrompt(1024, 1024, 0);
  const KeyChain chain = MakeKeyChain(TestRoot(), tokens);
  RunAndRelease(cache, std::span(tokens).first(512));
  EXPECT_EQ(cache.Probe(chain, tokens, 0), 4);
  EXPECT_EQ(cache.Probe(chain, tokens, 2), 4);
  EXPECT_EQ(cache.Probe(chain, tokens, 8), 4);  // a stale hint from before an eviction
  RunAndRelease(cache, tokens);
  EXPECT_EQ(cache.Probe(chain, tokens, 4), 8);
}

TEST(BlockCache, ClearForgetsContentButNotHolders) {
  BlockCache cache(6);
  const std::vector<TokenId> held = TestPrompt(256, 0, 0), gone = TestPrompt(256, 0, 1);
  RunAndRelease(cache, gone);
  std::vector<BlockRef> table = Compute(cache, MakeKeyChain(TestRoot(), held), held);
  cache.Clear();
  cache.CheckInvariants();
  EXPECT_EQ(Hits(cache, held), 0);
  EXPECT_EQ(Hits(cache, gone), 0);
  EXPECT_EQ(cache.active(), 2);
  ReleaseTail(table);
  EXPECT_EQ(cache.free(), 6);
}

// Random tables over a handful of prompt families against a plain model: published content is only ever found under the
// tokens it was published for, and the counts add up after every operation.
TEST(BlockCache, RandomOperationsKeepEveryInvariant) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  BlockCache cache(24);
  std::map<BlockId, std::vector<TokenId>> content;  // what a device would hold, by block
  std::list<std::vector<BlockRef>> live;
  for (int step = 0; step < 4000; ++step) {
    if (below(3) == 0 && !live.empty()) {
      auto victim = std::next(live.begin(), below(static_cast<int>(live.size())));
      ReleaseTail(*victim);
      live.erase(victim);
    } else if (below(200) == 0) {
      cache.Clear();
    } else {
      const std::vector<TokenId> tokens = TestPrompt(1 + below(900), 128 * below(5), below(4));
      const KeyChain chain = MakeKeyChain(TestRoot(), tokens);
      const int hits = cache.Probe(chain, tokens);
      std::vector<BlockRef> table = Compute(cache, chain, tokens);
      if (table.empty()) continue;
      for (int i = 0; i < static_cast<int>(chain.blocks.size()); ++i) {
        const auto part = std::span(tokens).subspan(static_cast<std::size_t>(i) * 128, 128);
        if (i < hits) {
          ASSERT_TRUE(std::ranges::equal(content[table[i].id()], part)) << "step " << step << " block " << i;
        } else {
          content[table[i].id()].assign(part.begin(), part.end());
        }
      }
      live.push_back(std::move(table));
    }
    cache.CheckInvariants();
  }
  for (auto& table : live) ReleaseTail(table);
  EXPECT_EQ(cache.active(), 0);
}

TEST(SlotPool, SlotsComeBackWhenTheirHandleDies) {
  SlotPool pool(2);
  {
    std::optional<SlotRef> a = pool.Acquire(), b = pool.Acquire();
    ASSERT_TRUE(a && b);
    EXPECT_NE(a->id(), b->id());
    EXPECT_FALSE(pool.Acquire());
    SlotRef moved = std::move(*a);
    EXPECT_FALSE(a->valid());
    EXPECT_EQ(pool.available(), 0);
  }
  EXPECT_EQ(pool.available(), 2);
}

TEST(BlockCacheDeathTest, ALeakedBlockIsCaught) {
  EXPECT_DEATH(
      {
        std::vector<BlockRef> leaked;
        BlockCache cache(2);
        if (!cache.Allocate(1, leaked)) return;
        cache.~BlockCache();
      },
      "1 of 2 blocks are still held");
}

}  // namespace
}  // namespace galley::kv
