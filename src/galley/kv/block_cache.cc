// SPDX-License-Identifier: Apache-2.0
#include "galley/kv/block_cache.h"

#include <algorithm>
#include <array>
#include <bit>

#include "galley/base/check.h"
#include "galley/kv/index.h"

namespace galley::kv {
namespace {

constexpr std::array<std::string_view, 8> kLabels = {"none",      "short_prompt", "never_seen",      "evicted",
                                                     "collision", "opt_out",      "prompt_logprobs", "share_timeout"};

std::span<const TokenId> BlockSpan(std::span<const TokenId> tokens, int index) {
  return tokens.subspan(static_cast<std::size_t>(index) * kBlockTokens, kBlockTokens);
}

}  // namespace

std::string_view Label(HitLimit limit) {
  return kLabels[static_cast<std::size_t>(limit)];
}

BlockRef::~BlockRef() {
  if (cache_ != nullptr) cache_->Drop(id_.value);
}

BlockRef BlockRef::Share() const {
  CHECK(cache_ != nullptr);
  cache_->Hold(id_.value);
  return BlockRef(cache_, id_);
}

BlockCache::BlockCache(int blocks)
    : nodes_(Idx(blocks)),
      tokens_(static_cast<std::size_t>(blocks) * kBlockTokens),
      table_(std::bit_ceil(static_cast<std::size_t>(blocks) * 2), -1),
      evicted_(std::bit_ceil(static_cast<std::size_t>(blocks) * 2), 0),
      evictable_(blocks) {
  CHECK(blocks > 0);
  free_.reserve(Idx(blocks));
  for (int block = blocks - 1; block >= 0; --block) free_.push_back(block);
}

BlockCache::~BlockCache() {
  CHECK(active_ == 0) << active_ << " of " << total() << " blocks are still held";
}

void BlockCache::Hold(int block) {
  Node& node = nodes_[Idx(block)];
  if (node.refs++ > 0) return;
  ++active_;
  if (!node.published) return;
  --cached_;
  if (node.children == 0) evictable_.Remove(block);
}

void BlockCache::Drop(int block) {
  Node& node = nodes_[Idx(block)];
  DCHECK(node.refs > 0);
  if (--node.refs > 0) return;
  --active_;
  if (!node.published) {
    free_.push_back(block);
    return;
  }
  ++cached_;
  node.last_use = ++clock_;
  if (node.children == 0) evictable_.Push(block, node.last_use);
}

bool BlockCache::Allocate(int count, std::vector<BlockRef>& table) {
  if (count > available()) return false;
  for (; count > 0; --count) {
    if (free_.empty()) EvictOne();
    const int block = free_.back();
    free_.pop_back();
    nodes_[Idx(block)].refs = 1;
    ++active_;
    table.push_back(BlockRef(this, BlockId(block)));
  }
  return true;
}

void BlockCache::EvictOne() {
  CHECK(!evictable_.empty()) << cached_ << " cached blocks, none of them a leaf";
  const int block = evictable_.top();
  const std::uint64_t prefix = nodes_[Idx(block)].key.prefix();
  evicted_[prefix & (evicted_.size() - 1)] = prefix;
  Unpublish(block);
  --cached_;
  ++evictions_;
  free_.push_back(block);
}

// Takes a cached leaf out of the index.
void BlockCache::Unpublish(int block) {
  Node& node = nodes_[Idx(block)];
  evictable_.Remove(block);
  if (node.parent >= 0) {
    Node& parent = nodes_[Idx(node.parent)];
    if (--parent.children == 0 && parent.refs == 0) evictable_.Push(node.parent, parent.last_use);
  }
  // Close the gap in the probe sequence: a later cell moves up unless its own home lies behind the gap.
  const std::size_t mask = table_.size() - 1;
  std::size_t gap = Cell(node.key);
  for (std::size_t next = (gap + 1) & mask; table_[next] >= 0; next = (next + 1) & mask) {
    const std::size_t home = nodes_[Idx(table_[next])].key.prefix() & mask;
    if (((next - home) & mask) < ((next - gap) & mask)) continue;
    table_[gap] = table_[next];
    gap = next;
  }
  table_[gap] = -1;
  node.published = false;
  node.parent = -1;
}

std::size_t BlockCache::Cell(const BlockKey& key) const {
  const std::size_t mask = table_.size() - 1;
  std::size_t cell = key.prefix() & mask;
  while (table_[cell] >= 0 && nodes_[Idx(table_[cell])].key != key) cell = (cell + 1) & mask;
  return cell;
}

bool BlockCache::TokensMatch(int block, std::span<const TokenId> tokens, int index) const {
  const std::span<const TokenId> wanted = BlockSpan(tokens, index);
  return std::equal(wanted.begin(), wanted.end(), tokens_.begin() + static_cast<std::ptrdiff_t>(block) * kBlockTokens);
}

int BlockCache::Probe(const KeyChain& chain, std::span<const TokenId> tokens, int known) const {
  int hits = std::min(known, static_cast<int>(chain.blocks.size()));
  // A published block's ancestors are published, so the deepest one that is still there vouches for the rest.
  while (hits > 0 && Find(chain.blocks[Idx(hits - 1)]) < 0) --hits;
  for (; hits < static_cast<int>(chain.blocks.size()); ++hits) {
    const int block = Find(chain.blocks[Idx(hits)]);
    if (block < 0 || !TokensMatch(block, tokens, hits)) break;
  }
  return hits;
}

int BlockCache::CountCached(const KeyChain& chain, int blocks) const {
  if (blocks == 0) return 0;
  int count = 0;
  for (int block = Find(chain.blocks[Idx(blocks - 1)]); block >= 0; block = nodes_[Idx(block)].parent) {
    // Whoever holds a block holds its ancestors.
    if (nodes_[Idx(block)].refs > 0) break;
    ++count;
  }
  return count;
}

Hit BlockCache::Lookup(const KeyChain& chain, std::span<const TokenId> tokens) {
  Hit hit;
  const int full = static_cast<int>(chain.blocks.size());
  hit.blocks.reserve(static_cast<std::size_t>(full));
  for (int index = 0; index < full; ++index) {
    const int block = Find(chain.blocks[Idx(index)]);
    if (block < 0) {
      hit.limit = WhyMissing(chain, index);
      return hit;
    }
    if (!TokensMatch(block, tokens, index)) {
      hit.limit = HitLimit::kCollision;
      return hit;
    }
    Hold(block);
    hit.blocks.push_back(BlockRef(this, BlockId(block)));
  }
  hit.limit = full == 0 ? HitLimit::kShortPrompt : HitLimit::kNone;
  return hit;
}

HitLimit BlockCache::WhyMissing(const KeyChain& chain, int block) const {
  const std::uint64_t prefix = chain.blocks[Idx(block)].prefix();
  return evicted_[prefix & (evicted_.size() - 1)] == prefix ? HitLimit::kEvicted : HitLimit::kNeverSeen;
}

PublishResult BlockCache::Publish(BlockId block, const BlockKey& key, BlockId parent, const BlockKey& parent_key,
                                  std::span<const TokenId> tokens, const Origin& origin) {
  Node& node = nodes_[Idx(block.value)];
  CHECK(node.refs > 0 && !node.published && tokens.size() == kBlockTokens)
      << "block " << block.value << ": refs " << node.refs << ", published " << node.published;
  if (parent.valid() && !(nodes_[Idx(parent.value)].published && nodes_[Idx(parent.value)].key == parent_key)) {
    return PublishResult::kOrphan;
  }
  const std::size_t cell = Cell(key);
  if (table_[cell] >= 0) return PublishResult::kDuplicate;
  table_[cell] = block.value;
  node.key = key;
  node.origin = origin;
  node.parent = parent.value;
  node.children = 0;
  node.published = true;
  if (parent.valid()) ++nodes_[Idx(parent.value)].children;
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + static_cast<std::ptrdiff_t>(block.value) * kBlockTokens);
  return PublishResult::kPublished;
}

void BlockCache::Clear() {
  while (!evictable_.empty()) EvictOne();
  for (Node& node : nodes_) {
    node.published = false;
    node.parent = -1;
    node.children = 0;
  }
  std::fill(table_.begin(), table_.end(), -1);
}

void BlockCache::CheckInvariants() const {
  int active = 0, cached = 0;
  std::vector<int> children(nodes_.size(), 0);
  for (int block = 0; block < total(); ++block) {
    const Node& node = nodes_[Idx(block)];
    active += node.refs > 0 ? 1 : 0;
    cached += node.refs == 0 && node.published ? 1 : 0;
    if (!node.published) continue;
    CHECK(Find(node.key) == block) << "published block " << block << " is not found under its key";
    if (node.parent < 0) continue;
    const Node& parent = nodes_[Idx(node.parent)];
    CHECK(parent.published) << "block " << block << " chains to unpublished block " << node.parent;
    CHECK(node.refs == 0 || parent.refs > 0)
        << "block " << block << " is held but its parent " << node.parent << " not";
    ++children[Idx(node.parent)];
  }
  CHECK(active == active_ && cached == cached_) << active << " " << active_ << " " << cached << " " << cached_;
  CHECK(free() + cached_ + active_ == total()) << free() << " + " << cached_ << " + " << active_ << " != " << total();
  for (int block = 0; block < total(); ++block) {
    const Node& node = nodes_[Idx(block)];
    CHECK(!node.published || node.children == children[Idx(block)])
        << "block " << block << " counts its children wrong";
    const bool leaf = node.published && node.refs == 0 && children[Idx(block)] == 0;
    CHECK(evictable_.contains(block) == leaf) << "block " << block << " leaf " << leaf;
  }
}

int CountOfLineage(const BlockCache& cache, std::span<const BlockRef> blocks, std::span<const Origin> lineage) {
  int count = 0;
  for (const BlockRef& block : blocks) {
    if (cache.origin(block.id()) != OriginAt(lineage, Position{count} * kBlockTokens)) break;
    ++count;
  }
  return count;
}

Lineage LineageOf(const BlockCache& cache, std::span<const BlockRef> blocks) {
  Lineage lineage;
  for (const BlockRef& block : blocks) AppendOrigin(lineage, cache.origin(block.id()));
  return lineage;
}

void ReleaseTail(std::vector<BlockRef>& table, std::size_t keep) {
  while (table.size() > keep) table.pop_back();
}

}  // namespace galley::kv
