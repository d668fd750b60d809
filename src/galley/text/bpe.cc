// SPDX-License-Identifier: Apache-2.0
#include "galley/text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "galley/text/hash.h"

namespace galley::text {
namespace {

// Up to this many bytes, scanning all pairs for each merge is faster than a heap.
constexpr std::size_t kShortPieceMax = 64;

std::size_t HashPair(TokenId left, TokenId right) {
  const std::uint64_t pair =
      (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
  return static_cast<std::size_t>((pair * 0x9E3779B97F4A7C15U) >> 32);
}

// Heap entries order by rank, then by place: the leftmost of equal pairs comes first.
std::uint64_t HeapEntry(std::uint32_t rank, std::uint32_t at) {
  return (static_cast<std::uint64_t>(rank) << 32) | at;
}

}  // namespace

Result<BpeModel> BpeModel::Create(const std::array<TokenId, 256>& byte_ids, const std::vector<Merge>& merges) {
  BpeModel model;
  model.byte_ids_ = byte_ids;
  model.slots_.resize(std::bit_ceil(2 * merges.size() + 2));
  model.products_.reserve(merges.size());
  const std::size_t mask = model.slots_.size() - 1;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    std::size_t at = HashPair(merge.left, merge.right) & mask;
    for (; model.slots_[at].rank != kNoMerge; at = (at + 1) & mask) {
      if (model.slots_[at].left == merge.left && model.slots_[at].right == merge.right) {
        return Err(ErrorCode::kCorrupt,
                   fmt::format("merges {} and {} join the same pair of tokens", model.slots_[at].rank, rank));
      }
    }
    model.slots_[at] = {merge.left, merge.right, static_cast<std::uint32_t>(rank), merge.product};
    model.products_.push_back(merge.product);
  }
  return model;
}

BpeModel::Found BpeModel::Find(TokenId left, TokenId right) const {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = HashPair(left, right) & mask;; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.left == left && slot.right == right) return {slot.rank, slot.product};
    if (slot.rank == kNoMerge) return {};
  }
}

void BpeModel::Encode(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>& out) const {
  auto& symbols = scratch.symbols;
  symbols.resize(piece.size());
  for (std::size_t i = 0; i < piece.size(); ++i) {
    symbols[i].id = byte_ids_[static_cast<unsigned char>(piece[i])];
  }
  if (symbols.size() > 1) {
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      symbols[i].rank = Find(symbols[i].id, symbols[i + 1].id).rank;
    }
    symbols.back().rank = kNoMerge;
    scratch.steps += static_cast<std::int64_t>(piece.size());
    if (piece.size() <= kShortPieceMax) {
      EncodeShort(scratch);
    } else {
      EncodeLong(scratch);
    }
  }
  for (const BpeScratch::Symbol& symbol : symbols) out.push_back(symbol.id);
}

void BpeModel::EncodeShort(BpeScratch& scratch) const {
  auto& symbols = scratch.symbols;
  while (true) {
    const auto best =
        std::min_element(symbols.begin(), symbols.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
    scratch.steps += static_cast<std::int64_t>(symbols.size());
    if (best->rank == kNoMerge) return;
    best->id = products_[best->rank];
    symbols.erase(best + 1);
    best->rank = best + 1 == symbols.end() ? kNoMerge : Find(best->id, (best + 1)->id).rank;
    if (best != symbols.begin()) (best - 1)->rank = Find((best - 1)->id, best->id).rank;
  }
}

void BpeModel::EncodeLong(BpeScratch& scratch) const {
  auto& [symbols, links, heap, steps] = scratch;
  const auto size = static_cast<std::uint32_t>(symbols.size());
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
    symbols[at].rank = next == size ? kNoMerge : Find(symbols[at].id, symbols[next].id).rank;
    ++steps;
    if (symbols[at].rank == kNoMerge) return;
    heap.push_back(HeapEntry(symbols[at].rank, at));
    std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const std::uint64_t entry = heap.back();
    heap.pop_back();
    ++steps;
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
  std::erase_if(symbols, [](const auto& symbol) { return symbol.id < 0; });
}

}  // namespace galley::text
