// SPDX-License-Identifier: Apache-2.0
#include "galley/text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "galley/text/vocabulary.h"

namespace galley::text {
namespace {

// Up to this many bytes, scanning all pairs for each merge is faster than a heap.
constexpr std::size_t kShortPieceMax = 64;

constexpr int kRankBits = 22, kIdBits = 21;
constexpr std::uint64_t kEmptySlot = ~std::uint64_t{0};
static_assert(kTokenIdLimit == 1 << kIdBits && 2 * kIdBits + kRankBits == 64);

std::uint64_t PackPair(TokenId left, TokenId right) {
  return (static_cast<std::uint64_t>(left) << kIdBits) | static_cast<std::uint64_t>(right);
}

std::size_t HashPair(std::uint64_t pair) {
  return static_cast<std::size_t>((pair * 0x9E3779B97F4A7C15U) >> 32);
}

std::uint32_t RankOf(std::uint64_t slot) {
  return static_cast<std::uint32_t>(slot & ((1U << kRankBits) - 1));
}

// Heap entries order by rank, then by place: the leftmost of equal pairs comes first.
std::uint64_t HeapEntry(std::uint32_t rank, std::uint32_t at) {
  return (static_cast<std::uint64_t>(rank) << 32) | at;
}

}  // namespace

Result<BpeModel> BpeModel::Create(const std::array<TokenId, 256>& byte_ids, const std::vector<Merge>& merges) {
  if (merges.size() > kMergesMax) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("there are {} merges; the limit is {}", merges.size(), kMergesMax));
  }
  BpeModel model;
  model.byte_ids_ = byte_ids;
  model.slots_.resize(std::bit_ceil(2 * merges.size() + 2), kEmptySlot);
  model.products_.reserve(merges.size());
  const std::size_t mask = model.slots_.size() - 1;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::uint64_t pair = PackPair(merges[rank].left, merges[rank].right);
    std::size_t at = HashPair(pair) & mask;
    for (; model.slots_[at] != kEmptySlot; at = (at + 1) & mask) {
      if (model.slots_[at] >> kRankBits == pair) {
        return Err(ErrorCode::kCorrupt,
                   fmt::format("merges {} and {} join the same pair of tokens", RankOf(model.slots_[at]), rank));
      }
    }
    model.slots_[at] = (pair << kRankBits) | rank;
    model.products_.push_back(merges[rank].product);
  }
  return model;
}

std::uint32_t BpeModel::FindRank(TokenId left, TokenId right) const {
  const std::uint64_t pair = PackPair(left, right);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = HashPair(pair) & mask;; at = (at + 1) & mask) {
    const std::uint64_t slot = slots_[at];
    if (slot >> kRankBits == pair) return RankOf(slot);
    if (slot == kEmptySlot) return kNoMerge;
  }
}

std::span<const BpeScratch::Symbol> BpeModel::Encode(std::string_view piece, BpeScratch& scratch) const {
  auto& symbols = scratch.symbols;
  std::size_t size = piece.size();
  if (symbols.size() < size) symbols.resize(size);
  for (std::size_t i = 0; i < size; ++i) symbols[i].id = byte_ids_[static_cast<unsigned char>(piece[i])];
  if (size > 1) {
    for (std::size_t i = 0; i + 1 < size; ++i) symbols[i].rank = FindRank(symbols[i].id, symbols[i + 1].id);
    symbols[size - 1].rank = kNoMerge;
    scratch.steps += static_cast<std::int64_t>(size);
    size = size <= kShortPieceMax ? MergeShort(scratch, size) : MergeLong(scratch, size);
  }
  return {symbols.data(), size};
}

std::size_t BpeModel::MergeShort(BpeScratch& scratch, std::size_t size) const {
  BpeScratch::Symbol* symbols = scratch.symbols.data();
  while (true) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < size; ++i) best = symbols[i].rank < symbols[best].rank ? i : best;
    scratch.steps += static_cast<std::int64_t>(size);
    if (symbols[best].rank == kNoMerge) return size;
    symbols[best].id = products_[symbols[best].rank];
    --size;
    for (std::size_t i = best + 1; i < size; ++i) symbols[i] = symbols[i + 1];
    symbols[best].rank = best + 1 < size ? FindRank(symbols[best].id, symbols[best + 1].id) : kNoMerge;
    if (best > 0) symbols[best - 1].rank = FindRank(symbols[best - 1].id, symbols[best].id);
  }
}

std::size_t BpeModel::MergeLong(BpeScratch& scratch, std::size_t count) const {
  auto& symbols = scratch.symbols;
  auto& links = scratch.links;
  auto& heap = scratch.heap;
  const auto size = static_cast<std::uint32_t>(count);
  links.resize(size);
  heap.clear();
  for (std::uint32_t i = 0; i < size; ++i) {
    links[i] = {i - 1, i + 1};  // the first has no previous: 2^32 - 1, which no index reaches
    if (symbols[i].rank != kNoMerge) heap.push_back(HeapEntry(symbols[i].rank, i));
  }
  const std::greater<> later;
  std::make_heap(heap.begin(), heap.end(), later);
  const auto update = [&](std::uint32_t at) {
    const std::uint32_t next = links[at].next;
    symbols[at].rank = next == size ? kNoMerge : FindRank(symbols[at].id, symbols[next].id);
    ++scratch.steps;
    if (symbols[at].rank == kNoMerge) return;
    heap.push_back(HeapEntry(symbols[at].rank, at));
    std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const std::uint64_t entry = heap.back();
    heap.pop_back();
    ++scratch.steps;
    const auto at = static_cast<std::uint32_t>(entry);
    const auto rank = static_cast<std::uint32_t>(entry >> 32);
    if (symbols[at].rank != rank) continue;  // the pair has changed since, or its left symbol is gone
    const std::uint32_t gone = links[at].next;
    symbols[at].id = products_[rank];
    symbols[gone] = {-1, kNoMerge};
    links[at].next = links[gone].next;
    if (links[gone].next != size) links[links[gone].next].previous = at;
    update(at);
    if (links[at].previous < size) update(links[at].previous);
  }
  const auto end = symbols.begin() + static_cast<std::ptrdiff_t>(count);
  const auto left = std::remove_if(symbols.begin(), end, [](const auto& symbol) { return symbol.id < 0; });
  return static_cast<std::size_t>(left - symbols.begin());
}

}  // namespace galley::text
