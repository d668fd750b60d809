// SPDX-License-Identifier: Apache-2.0
// The blocks of one rank: who holds each, and what the ones that nobody holds still remember. A block is free (no
// holder, no content), active (held by sequences or by steps in flight) or cached (no holder, but its content is in the
// prefix index and can be hit or evicted): free + cached + active = total, always. Full blocks of committed tokens are
// published under their key and from then on immutable and shared by reference count.
//
// Eviction is by block, least recently used first, and only of leaves: a published block's parent is published too and
// is held by every holder of the child, so nothing unreachable stays cached and everything cached can be evicted.
// Blocks that were never published go back to the free list, which is used before anything cached is evicted, so
// transient state never pushes out history.
//
// Owned by the rank thread; outlives its handles. All memory is fixed at construction.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "galley/base/strong_id.h"
#include "galley/kv/block_key.h"
#include "galley/kv/index.h"
#include "galley/kv/indexed_heap.h"
#include "galley/kv/lineage.h"

namespace galley::kv {

class BlockCache;

// One holder of a block. Move-only: sharing is explicit.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(BlockRef&& other) noexcept : cache_(std::exchange(other.cache_, nullptr)), id_(other.id_) {}
  BlockRef& operator=(BlockRef&& other) noexcept {
    std::swap(cache_, other.cache_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~BlockRef();

  [[nodiscard]] BlockRef Share() const;
  [[nodiscard]] BlockId id() const { return id_; }

 private:
  friend class BlockCache;
  BlockRef(BlockCache* cache, BlockId id) : cache_(cache), id_(id) {}

  BlockCache* cache_ = nullptr;
  BlockId id_;
};

// Why a prompt's hit ended where it did. kNone: every full block was hit.
enum class HitLimit {
  kNone,
  kShortPrompt,     // shorter than one block
  kNeverSeen,       // the next block was not computed here, or so long ago that its eviction is forgotten
  kEvicted,         // the next block was cached and had to make room
  kCollision,       // the next key is taken by other tokens
  kOptOut,          // the request does not use the cache
  kPromptLogprobs,  // the request needs every row computed
  kShareTimeout,    // the sequence that was computing the next block made no progress
};
[[nodiscard]] std::string_view Label(HitLimit limit);

struct Hit {
  std::vector<BlockRef> blocks;
  HitLimit limit = HitLimit::kNone;
};

enum class PublishResult {
  kPublished,
  kDuplicate,  // the key is taken (same tokens computed twice, or a collision); the block stays private
  kOrphan,     // the parent block is private, so this one stays private too
};

class BlockCache {
 public:
  // Requires blocks > 0.
  explicit BlockCache(int blocks);
  // CHECKs that no handle is left.
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  [[nodiscard]] int total() const { return static_cast<int>(nodes_.size()); }
  [[nodiscard]] int free() const { return static_cast<int>(free_.size()); }
  [[nodiscard]] int cached() const { return cached_; }
  [[nodiscard]] int active() const { return active_; }
  // Blocks that Allocate can still give.
  [[nodiscard]] int available() const { return free() + cached_; }
  [[nodiscard]] int ref_count(BlockId block) const { return nodes_[Idx(block.value)].refs; }
  [[nodiscard]] bool published(BlockId block) const { return nodes_[Idx(block.value)].published; }
  // Of a published block.
  [[nodiscard]] const Origin& origin(BlockId block) const { return nodes_[Idx(block.value)].origin; }
  [[nodiscard]] std::int64_t evictions() const { return evictions_; }

  // Appends `count` fresh private blocks to `table`, evicting cached ones as needed; false, and nothing done, when
  // fewer are available.
  [[nodiscard]] bool Allocate(int count, std::vector<BlockRef>& table);

  // Leading blocks of the chain that a Lookup would return, without holding them and without moving them in the LRU
  // order. `known` is an earlier answer for the same chain: the work is then proportional to what changed since.
  [[nodiscard]] int Probe(const KeyChain& chain, std::span<const TokenId> tokens, int known = 0) const;
  // Of the first `blocks` blocks of the chain, all of which a Probe found, how many are cached rather than active:
  // those leave available() when a Lookup takes them.
  [[nodiscard]] int CountCached(const KeyChain& chain, int blocks) const;
  // Holds the longest cached chain of leading blocks. Token ids are compared block by block, so that a hash collision
  // is a miss.
  [[nodiscard]] Hit Lookup(const KeyChain& chain, std::span<const TokenId> tokens);

  // Makes `block`, which holds the history of `tokens` completely, available to others. `parent` is the block before it
  // in the same table (invalid for the first), `parent_key` its key (the root for the first). `origin` is the run that
  // computed it.
  [[nodiscard]] PublishResult Publish(BlockId block, const BlockKey& key, BlockId parent, const BlockKey& parent_key,
                                      std::span<const TokenId> tokens, const Origin& origin = {});

  // Forgets all content: cached blocks become free, active ones private.
  void Clear();

  // Recomputes every count and link from scratch and CHECKs them. For tests and the simulator: linear in total().
  void CheckInvariants() const;

 private:
  friend class BlockRef;
  struct Node {
    BlockKey key;
    Origin origin;
    std::uint64_t last_use = 0;
    int refs = 0;
    int parent = -1;
    int children = 0;  // published blocks chained to this one
    bool published = false;
  };

  void Hold(int block);
  void Drop(int block);
  void EvictOne();
  void Unpublish(int block);
  // Place of `key` in table_, or of the empty cell where it would go.
  [[nodiscard]] std::size_t Cell(const BlockKey& key) const;
  [[nodiscard]] int Find(const BlockKey& key) const { return table_[Cell(key)]; }
  [[nodiscard]] bool TokensMatch(int block, std::span<const TokenId> tokens, int index) const;
  [[nodiscard]] HitLimit WhyMissing(const KeyChain& chain, int block) const;

  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;         // [total][kBlockTokens], of published blocks
  std::vector<int> free_;               // stack
  std::vector<int> table_;              // open addressing by key prefix, -1: empty; a power of two, at most half full
  std::vector<std::uint64_t> evicted_;  // key prefixes of recent evictions, by prefix modulo size
  IndexedHeap evictable_;               // cached leaves by last use
  std::uint64_t clock_ = 0;             // advances with each release
  std::int64_t evictions_ = 0;
  int cached_ = 0;
  int active_ = 0;
};

// Leading blocks of `blocks` that the runs of `lineage` computed, and nobody else.
[[nodiscard]] int CountOfLineage(const BlockCache& cache, std::span<const BlockRef> blocks,
                                 std::span<const Origin> lineage);
// Origins of `blocks`, which are the history of a sequence from its beginning.
[[nodiscard]] Lineage LineageOf(const BlockCache& cache, std::span<const BlockRef> blocks);

// Releases the references of a table from its end, so that the tail of a prefix is evicted before its head.
void ReleaseTail(std::vector<BlockRef>& table, std::size_t keep = 0);

}  // namespace galley::kv
