// SPDX-License-Identifier: Apache-2.0
// Byte-pair merging of one piece: starting from bytes, the neighbouring pair whose merge comes first in the file is
// joined, the leftmost of equals, until no pair has a merge. Short pieces scan for the best pair; long ones keep a
// heap, so that work grows as n log n and no input is quadratic. BpeModel is immutable and shared; BpeScratch belongs
// to one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "galley/base/error.h"
#include "galley/base/strong_id.h"

namespace galley::text {

struct Merge {
  TokenId left;
  TokenId right;
  TokenId product;
};

struct BpeScratch {
  struct Symbol {
    TokenId id;
    std::uint32_t rank;  // of the merge with the next symbol; kNoMerge: none
  };
  struct Links {
    std::uint32_t previous;
    std::uint32_t next;
  };
  std::vector<Symbol> symbols;  // as many as the longest piece so far had bytes
  std::vector<Links> links;
  std::vector<std::uint64_t> heap;
  std::int64_t steps = 0;  // pairs looked at, heap operations included; only ever grows
};

class BpeModel {
 public:
  static constexpr std::uint32_t kNoMerge = 0xFFFFFFFF;
  static constexpr std::size_t kMergesMax = (std::size_t{1} << 22) - 1;

  // `byte_ids[b]` is the token of byte b. `merges` are in order of rank; their ids are in [0, kTokenIdLimit). Errors:
  // kInvalidArgument (more than kMergesMax merges), kCorrupt (a pair is listed twice).
  [[nodiscard]] static Result<BpeModel> Create(const std::array<TokenId, 256>& byte_ids,
                                               const std::vector<Merge>& merges);

  // Tokens of `piece`, as the ids of the symbols that are left; valid until the scratch is used again. Requires
  // piece.size() < 2^32 - 1.
  std::span<const BpeScratch::Symbol> Encode(std::string_view piece, BpeScratch& scratch) const;

 private:
  // Rank of the merge of two tokens, or kNoMerge.
  [[nodiscard]] std::uint32_t FindRank(TokenId left, TokenId right) const;
  // Both merge the first `size` symbols of the scratch and return how many are left.
  std::size_t MergeShort(BpeScratch& scratch, std::size_t size) const;
  std::size_t MergeLong(BpeScratch& scratch, std::size_t size) const;

  std::array<TokenId, 256> byte_ids_{};
  // Open addressing over pairs of tokens; a power of two. A slot packs the left id, the right id and the rank into 21,
  // 21 and 22 bits, because this table is read at random and should fit into the caches.
  std::vector<std::uint64_t> slots_;
  std::vector<TokenId> products_;  // by rank
};

}  // namespace galley::text
