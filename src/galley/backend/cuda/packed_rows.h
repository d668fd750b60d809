// SPDX-License-Identifier: Apache-2.0
// The order of x that products with many rows read (bulk_dot.cuh): tiles of rows, each the blocks of K one after the
// other, in a block the tile's groups of 8 rows, in a group cores of 8 rows by 8 slots of 16 bytes a row.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "galley/backend/ops.h"

namespace galley::backend::cuda {

inline constexpr int kPackedRows = 8;  // of a group

[[nodiscard]] __host__ __device__ constexpr int PackedGroups(int rows) {
  return (rows + kPackedRows - 1) / kPackedRows;
}
// Rows that so many take when packed.
[[nodiscard]] __host__ __device__ constexpr int PackedRowCount(int rows) {
  return PackedGroups(rows) * kPackedRows;
}
// Element of value `slot` (0 … block_k - 1, SlotPlace within a block) of a row of a tile of so many groups.
[[nodiscard]] __host__ __device__ constexpr std::int64_t PackedPlace(int block_k, int groups, int block, int row,
                                                                     int slot) {
  return (std::int64_t{block} * groups + row / kPackedRows) * (kPackedRows * block_k) + slot / 8 * (8 * kPackedRows) +
         row % kPackedRows * 8 + slot % 8;
}

struct Tile {
  std::int32_t expert, begin, count;  // rows [begin, begin + count) of those grouped by expert
};

// Packs rows of x [..][cols], with `quantize` after FP8 fake quantisation in groups of 32; cols is a multiple of a
// block of K. Without `tiles`, rows are cut into tiles of `tile_rows`, a multiple of 8, for `format`. With that list
// on the device, row i is x[token[i]], tiles begin at multiples of 8 and hold at most `tile_rows`, and all but those of
// `shared_expert` are for MXFP4 weights.
struct PackArgs {
  const BFloat16* x = nullptr;
  int rows = 0, cols = 0;
  bool quantize = false;
  WeightFormat format = WeightFormat::kFp8Block32;  // or kBF16
  int tile_rows = 0;
  const Tile* tiles = nullptr;
  int tiles_max = 0;
  const std::int32_t* token = nullptr;
  int shared_expert = 0;
  BFloat16* out = nullptr;  // PackedGroups(rows) * 8 rows, or as many as the tiles span
};
void PackRows(const PackArgs& args, cudaStream_t stream);

}  // namespace galley::backend::cuda
