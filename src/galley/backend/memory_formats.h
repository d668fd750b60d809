// SPDX-License-Identifier: Apache-2.0
// Where the two kinds of KV memory keep their bytes. History lives in one slab per owner layer, addressed by block id;
// state lives in slots, as rings addressed by absolute position. Pointers are device addresses (host addresses for the
// ref and cpu backends); the arithmetic is the same everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

#include "galley/base/strong_id.h"

namespace galley::backend {

inline constexpr int kBlockTokens = 128;  // tokens of history in one block

// History of one owner layer. A block holds kBlockTokens / ratio entries; within a block the parts follow each other:
// latent codes (two e2m1 a byte), latent scales (e4m3 per 16), index key codes, index key scales (UE8M0 per 32).
struct HistorySlab {
  std::byte* base = nullptr;
  int ratio = 1;       // tokens per entry
  int latent_dim = 0;  // head_dim
  int index_dim = 0;

  [[nodiscard]] constexpr int entries() const { return kBlockTokens / ratio; }
  [[nodiscard]] constexpr std::size_t latent_bytes() const { return static_cast<std::size_t>(latent_dim) / 2; }
  [[nodiscard]] constexpr std::size_t latent_scales() const { return static_cast<std::size_t>(latent_dim) / 16; }
  [[nodiscard]] constexpr std::size_t key_bytes() const { return static_cast<std::size_t>(index_dim) / 2; }
  [[nodiscard]] constexpr std::size_t key_scales() const { return static_cast<std::size_t>(index_dim) / 32; }
  [[nodiscard]] constexpr std::size_t entry_bytes() const {
    return latent_bytes() + latent_scales() + key_bytes() + key_scales();
  }
  [[nodiscard]] constexpr std::size_t block_bytes() const {
    return static_cast<std::size_t>(entries()) * entry_bytes();
  }
};

// Addresses of one entry.
struct HistoryEntry {
  std::uint8_t* latent;
  std::uint8_t* latent_scales;
  std::uint8_t* key;
  std::uint8_t* key_scales;
};

// Entry `j` (tokens j * ratio and on) of a sequence whose block ids, in order, are `blocks`.
[[nodiscard]] inline HistoryEntry EntryAt(const HistorySlab& slab, const std::int32_t* blocks, std::int64_t j) {
  const auto n = static_cast<std::size_t>(slab.entries());
  const auto block = static_cast<std::size_t>(blocks[j / slab.entries()]);
  const auto i = static_cast<std::size_t>(j % slab.entries());
  auto* at = reinterpret_cast<std::uint8_t*>(slab.base) + block * slab.block_bytes();
  std::uint8_t* scales = at + n * slab.latent_bytes();
  std::uint8_t* keys = scales + n * slab.latent_scales();
  std::uint8_t* key_scales = keys + n * slab.key_bytes();
  return {at + i * slab.latent_bytes(), scales + i * slab.latent_scales(), keys + i * slab.key_bytes(),
          key_scales + i * slab.key_scales()};
}

// A ring inside every slot: row p of a sequence is at base + slot * slot_bytes + (p mod rows) * row_bytes.
struct Ring {
  std::byte* base = nullptr;  // address of the ring in slot 0
  std::size_t slot_bytes = 0;
  int rows = 0;
  std::size_t row_bytes = 0;

  [[nodiscard]] std::byte* At(std::int32_t slot, Position p) const {
    return base + static_cast<std::size_t>(slot) * slot_bytes + static_cast<std::size_t>(p % rows) * row_bytes;
  }
};

// A window record: `head_dim` e4m3 codes followed by head_dim / 32 UE8M0 scales.
[[nodiscard]] constexpr std::size_t WindowRecordBytes(int head_dim) {
  return static_cast<std::size_t>(head_dim) + static_cast<std::size_t>(head_dim) / 32;
}

}  // namespace galley::backend
