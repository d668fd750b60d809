// SPDX-License-Identifier: Apache-2.0
// What a sequence costs in KV memory, as its StateLayout has it: history (blocks of 128 tokens over the owner layers)
// and state (one slot). Pure; bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "galley/backend/memory_formats.h"
#include "galley/model/config.h"

namespace galley::model {

struct OwnerCost {
  int layer;
  int ratio;                 // tokens that one entry covers
  std::int64_t entry_bytes;  // compressed record and index key
  [[nodiscard]] double bytes_per_token() const { return static_cast<double>(entry_bytes) / ratio; }
};

struct KvCost {
  std::vector<OwnerCost> owners;
  double history_bytes_per_token = 0;  // of all owners
  std::int64_t block_bytes = 0;        // history of one block
  // One slot, by kind of state. Rings are as deep as the layer looks back plus what a rejected draft takes back.
  std::int64_t window_bytes = 0;
  std::int64_t compressor_bytes = 0;
  std::int64_t engram_bytes = 0;
  std::int64_t draft_bytes = 0;
  [[nodiscard]] std::int64_t slot_bytes() const { return window_bytes + compressor_bytes + engram_bytes + draft_bytes; }
  // Whole blocks that hold `tokens` tokens, in bytes, without the slot.
  [[nodiscard]] std::int64_t HistoryBytes(std::int64_t tokens) const;
};

[[nodiscard]] KvCost ComputeKvCost(const Config& config);

}  // namespace galley::model
