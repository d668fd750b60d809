// SPDX-License-Identifier: Apache-2.0
// Remembers the tokens of short pieces. One slot is one cache line and a piece has one possible slot, so memory is
// bounded, a look-up touches one line, and no sequence of pieces can make it slow. Owned by one Encoder.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "galley/base/strong_id.h"

namespace galley::text {

class PieceCache {
 public:
  static constexpr std::size_t kPieceBytesMax = 31;
  static constexpr std::size_t kTokensMax = 7;

  // The piece, zero-padded, and its length in the last byte, so that pieces that differ in trailing NULs differ here.
  struct Key {
    std::array<std::uint64_t, 4> words;
    // Without the branches and the call that the generic comparison of arrays becomes.
    friend bool operator==(const Key& a, const Key& b) {
      return ((a.words[0] ^ b.words[0]) | (a.words[1] ^ b.words[1]) | (a.words[2] ^ b.words[2]) |
              (a.words[3] ^ b.words[3])) == 0;
    }
  };

  struct alignas(64) Slot {
    Key key{};
    std::array<TokenId, kTokensMax> ids{};
    std::uint32_t count = 0;
  };
  static_assert(sizeof(Slot) == 64);

  // `slots` is rounded up to a power of two, at least 2; 0 turns the cache off.
  explicit PieceCache(std::size_t slots)
      : slots_(slots == 0 ? 0 : std::bit_ceil(std::max<std::size_t>(slots, 2))),
        shift_(std::countl_zero(static_cast<std::uint64_t>(slots_.size() | 2)) + 1) {}

  [[nodiscard]] bool enabled() const { return !slots_.empty(); }

  // Requires 0 < size <= kPieceBytesMax. Reads nothing at or behind `limit`, the end of the text that holds the piece.
  [[nodiscard]] static Key KeyOf(const char* piece, std::size_t size, const char* limit) {
    Key key{};
    if (static_cast<std::size_t>(limit - piece) >= sizeof(key)) {
      // One copy of fixed size and a mask is several times faster than a copy of variable size.
      std::memcpy(&key, piece, sizeof(key));
      const auto& mask = kMasks[size];
      key.words[0] &= mask[0];
      key.words[1] &= mask[1];
      key.words[2] &= mask[2];
      key.words[3] &= mask[3];
    } else {
      std::memcpy(&key, piece, size);
    }
    key.words[3] |= static_cast<std::uint64_t>(size) << 56;
    return key;
  }

  // The only slot that may hold the key. Requires enabled().
  [[nodiscard]] Slot& SlotOf(const Key& key) {
    const std::uint64_t mixed = key.words[0] * 0x9E3779B97F4A7C15U + key.words[1] * 0xC2B2AE3D27D4EB4FU +
                                key.words[2] * 0x165667B19E3779F9U + key.words[3] * 0xD6E8FEB86659FD93U;
    return slots_[static_cast<std::size_t>(((mixed ^ (mixed >> 32)) * 0x9E3779B97F4A7C15U) >> shift_)];
  }

 private:
  using Masks = std::array<std::array<std::uint64_t, 4>, kPieceBytesMax + 1>;
  // kMasks[n] keeps the first n bytes of a key, in memory order.
  static constexpr Masks kMasks = [] {
    static_assert(std::endian::native == std::endian::little, "masks are written for little-endian words");
    Masks masks{};
    for (std::size_t n = 0; n <= kPieceBytesMax; ++n) {
      for (std::size_t byte = 0; byte < n; ++byte) masks[n][byte / 8] |= std::uint64_t{0xFF} << (8 * (byte % 8));
    }
    return masks;
  }();

  std::vector<Slot> slots_;
  int shift_;  // keeps the top log2(slots) bits of a hash
};

}  // namespace galley::text
