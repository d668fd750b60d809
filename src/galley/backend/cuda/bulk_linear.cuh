// SPDX-License-Identifier: Apache-2.0
// What the two forms of linear layers by bulk copies share (bulk_matmul.cu, bulk_split.cu): where a tile's operands lie
// and what becomes of its sums.
#pragma once

#include "galley/backend/cuda/bulk_dot.cuh"
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/pack_rows.cuh"
#include "galley/backend/cuda/step.cuh"

namespace galley::backend::cuda {

// Rows of weights of both matrices of a launch, one matrix behind the other.
__host__ __device__ __forceinline__ int RowsOf(const ProductArgs& args) {
  return static_cast<int>(args.weight.rows + args.also.rows);
}

// kTileRows rows of weights from `row0` on, in the matrix that they belong to.
struct TileMatrix {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  void* out;
  std::int64_t out_stride;
  int row0;
};
__device__ __forceinline__ TileMatrix MatrixOf(const ProductArgs& args, int row0) {
  const int first = static_cast<int>(args.weight.rows);
  if (row0 < first) {
    return {static_cast<const std::uint8_t*>(args.weight.data), args.weight.scales, args.out, args.out_stride, row0};
  }
  return {static_cast<const std::uint8_t*>(args.also.data), args.also.scales, args.also_out, args.also.rows,
          row0 - first};
}

// A tile by up to N rows of x from `x0` on, over blocks [begin, end) of K.
template <WeightFormat F, int N>
__device__ __forceinline__ BulkTile TileOf(const ProductArgs& args, const TileMatrix& m, int x0, int begin, int end) {
  const int cols = static_cast<int>(args.weight.cols), groups = PackedGroups(min(N, args.rows - x0));
  const int x_begin =
      args.group_rows == 0 ? 0 : static_cast<int>(m.row0 / args.group_rows * args.group_stride) / kBlockK<F>;
  const auto codes = [&](int row) {
    return m.codes + TileOffset(row, kPanelRows, cols / kBlockK<F>) +
           static_cast<std::int64_t>(begin) * TileStep(kPanelRows);
  };
  const std::uint8_t* scales = m.scales + static_cast<std::int64_t>(m.row0 / 32) * (cols / 32) + begin * 2;
  return {.codes = {codes(m.row0), codes(m.row0 + kPanelRows)},
          .scales = {scales, scales + kPanelRows / 32 * (cols / 32)},
          .x = args.x + x0 * args.x_stride + PackedPlace(kBlockK<F>, groups, x_begin + begin, 0, 0),
          .groups = groups,
          .blocks = end - begin,
          .scale_cols = cols / 32};
}

// Sends out `Count` sums of neighbouring rows of weights, the first being `row` of the matrix, of a row of x. With
// out_tile_rows the lanes of 32 such rows do so together; `lanes` names at least those.
template <int Count>
__device__ __forceinline__ void SendSums(const ProductArgs& args, const TileMatrix& m, int x_row, int row,
                                         const float (&sum)[Count], unsigned lanes) {
  const std::int64_t at = x_row * m.out_stride + row;
  if (args.float_out) {
#pragma unroll
    for (int i = 0; i < Count; i += 4) {
      *reinterpret_cast<float4*>(static_cast<float*>(m.out) + at + i) = {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]};
    }
    return;
  }
  float value[Count];
#pragma unroll
  for (int i = 0; i < Count; ++i) value[i] = RoundToBFloat16(sum[i]);
  if (args.out_tile_rows > 0) {
    float most = 0;
#pragma unroll
    for (int i = 0; i < Count; ++i) most = fmaxf(most, fabsf(value[i]));
#pragma unroll
    for (int step = 1; step < 32 / Count; step *= 2) most = fmaxf(most, __shfl_xor_sync(lanes, most, step));
    const float scale = Fp8Scale(most);
#pragma unroll
    for (int i = 0; i < Count; ++i) value[i] = FakeFp8(value[i], scale);
    // Pairs lie two apart, neighbouring pairs a core.
    BFloat16* to = static_cast<BFloat16*>(m.out) +
                   PackedElement(args.rows, static_cast<int>(args.weight.rows), args.out_tile_rows, x_row, row);
#pragma unroll
    for (int i = 0; i < Count; i += 4) {
      *reinterpret_cast<std::uint32_t*>(to + i / 2 * 8 * kPackedRows) = Pack(value[i], value[i + 2]);
      *reinterpret_cast<std::uint32_t*>(to + (i / 2 + 1) * 8 * kPackedRows) = Pack(value[i + 1], value[i + 3]);
    }
    return;
  }
  if (args.angles != nullptr && row % args.head_dim >= args.head_dim - args.rotated) {
    const float2* angle =
        args.angles + (x_row * args.rotated + row % args.head_dim - (args.head_dim - args.rotated)) / 2;
#pragma unroll
    for (int i = 0; i < Count; i += 2) {
      const float2 turned = Turn(value[i], value[i + 1], angle[i / 2]);
      value[i] = turned.x, value[i + 1] = turned.y;
    }
  }
  std::uint32_t pairs[Count / 2];
#pragma unroll
  for (int i = 0; i < Count / 2; ++i) pairs[i] = Pack(value[2 * i], value[2 * i + 1]);
  if constexpr (Count == 4) {
    *reinterpret_cast<uint2*>(static_cast<BFloat16*>(m.out) + at) = {pairs[0], pairs[1]};
  } else {
    *reinterpret_cast<uint4*>(static_cast<BFloat16*>(m.out) + at) = {pairs[0], pairs[1], pairs[2], pairs[3]};
  }
}

}  // namespace galley::backend::cuda
