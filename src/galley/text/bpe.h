// SPDX-License-Identifier: Apache-2.0
// Byte-pair merging of one piece: starting from bytes, the neighbouring pair whose merge comes first in the file is
// joined, the leftmost of equals, until no pair has a merge. Short pieces scan for the best pair; long ones keep a
// heap, so that work grows as n log n and no input is quadratic. BpeModel is immutable and shared; BpeScratch belongs
// to one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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
  std::vector<Symbol> symbols;
  std::vector<Links> links;
  std::vector<std::uint64_t> heap;
  std::int64_t steps = 0;  // pairs looked at, heap operations included; only ever grows
};

class BpeModel {
 public:
  static constexpr std::uint32_t kNoMerge = 0xFFFFFFFF;

  // `byte_ids[b]` is the token of byte b. `merges` are in order of rank. Errors: kCorrupt when a pair is listed twice.
  [[nodiscard]] static Result<BpeModel> Create(const std::array<TokenId, 256>& byte_ids,
                                               const std::vector<Merge>& merges);

  // Appends the tokens of `piece`. Requires piece.size() < 2^32 - 1.
  void Encode(std::string_view piece, BpeScratch& scratch, std::vector<TokenId>& out) const;

 private:
  struct Slot {
    TokenId left = -1;
    TokenId right = -1;
    std::uint32_t rank = kNoMerge;
    TokenId product = -1;
  };
  struct Found {
    std::uint32_t rank = kNoMerge;
    TokenId product = -1;
  };

  [[nodiscard]] Found Find(TokenId left, TokenId right) const;
  void EncodeShort(BpeScratch& scratch) const;
  void EncodeLong(BpeScratch& scratch) const;

  std::array<TokenId, 256> byte_ids_{};
  std::vector<Slot> slots_;        // open addressing over (left, right); a power of two
  std::vector<TokenId> products_;  // by rank
};

}  // namespace galley::text
