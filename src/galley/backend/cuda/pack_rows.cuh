// SPDX-License-Identifier: Apache-2.0
// Bringing values of x into the order of packed_rows.h.
#pragma once

#include "galley/backend/cuda/packed_rows.h"
#include "galley/backend/cuda/wide_dot.cuh"

namespace galley::backend::cuda {

// Element of value k of a row of x [rows][cols] that is packed in tiles of `tile_rows` for FP8 weights.
__device__ __forceinline__ std::int64_t PackedElement(int rows, int cols, int tile_rows, int row, int k) {
  constexpr int kV = kLaneValues<WeightFormat::kFp8Block32>, kK = kBlockK<WeightFormat::kFp8Block32>;
  const int begin = row / tile_rows * tile_rows, groups = PackedGroups(min(tile_rows, rows - begin));
  return static_cast<std::int64_t>(begin) * cols +
         PackedPlace(kK, groups, k / kK, row - begin, SlotPlace(k % kK, kV, true));
}

// A warp's block of K of 8 rows: a lane takes of row lane / 4 what a lane of the product holds of a row of weights, and
// the warp writes whole cores.
template <WeightFormat F>
struct PackedPiece {
  static constexpr int kV = kLaneValues<F>;
  uint4 raw[kV / 8] = {};

  // `from`: the block's first value in this lane's row.
  __device__ __forceinline__ void Load(const BFloat16* from) {
    const auto* pieces = reinterpret_cast<const uint4*>(from + threadIdx.x % 4 * kV);
#pragma unroll
    for (int i = 0; i < kV / 8; ++i) raw[i] = pieces[i];
  }
  // `to`: the group's block of K. With `quantize`, after FP8 fake quantisation in groups of 32.
  __device__ __forceinline__ void Store(bool quantize, BFloat16* to) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float value[kV];
#pragma unroll
    for (int i = 0; i < kV / 8; ++i) {
      const std::uint32_t words[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        value[i * 8 + 2 * j] = LowHalf(words[j]), value[i * 8 + 2 * j + 1] = HighHalf(words[j]);
      }
    }
    if (quantize) {
      float most = 0;
#pragma unroll
      for (int i = 0; i < kV; ++i) most = fmaxf(most, fabsf(value[i]));
      if constexpr (kV == 16) most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, 1));
      const float scale = Fp8Scale(most);
#pragma unroll
      for (int i = 0; i < kV; ++i) value[i] = FakeFp8(value[i], scale);
    }
    to += PackedPlace(kBlockK<F>, 1, 0, lane / 4, lane % 4 * 2);
#pragma unroll
    for (int core = 0; core < kV / 2; ++core) {
      // Of quantised weights pairs lie two apart (SlotPlace).
      constexpr bool kPaired = F != WeightFormat::kBF16;
      const int v = kPaired ? core / 2 * 4 + core % 2 : 2 * core;
      *reinterpret_cast<std::uint32_t*>(to + core * 8 * kPackedRows) = Pack(value[v], value[v + (kPaired ? 2 : 1)]);
    }
  }
};

}  // namespace galley::backend::cuda
