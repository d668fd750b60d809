// SPDX-License-Identifier: Apache-2.0
// A tile of the two products of the experts (2.9) by bulk copies, for moe_wide.cu and moe_slim.cu. A tile of the first
// takes 64 rows of w1 with one warpgroup and the same rows of w3 with the other; a tile of the second 128 rows of w2.
#pragma once

#include "galley/backend/cuda/bulk_dot.cuh"
#include "galley/backend/cuda/moe_work.h"

namespace galley::backend::cuda {

inline constexpr int kMoeSplits = 4;  // parts of K, whose sums are added in order
inline constexpr int kGateRows = kPanelRows;

template <bool First, WeightFormat F>
__device__ __forceinline__ BulkTile TileOf(const MoeProblem& p, const Tile& t, int column) {
  const ExpertPointers& e = p.experts[t.expert];
  const int cols = First ? p.dim : p.inter, blocks = cols / kBlockK<F>, scale_cols = cols / 32;
  const auto codes = [&](const std::uint8_t* matrix, int row) { return matrix + TileOffset(row, kPanelRows, blocks); };
  const auto scales = [&](const std::uint8_t* matrix, int row) {
    return matrix + (F == WeightFormat::kMxfp4 ? TileOffset(row, kPanelRows, blocks) / kTileBytesPerScale
                                               : static_cast<std::int64_t>(row / 32) * scale_cols);
  };
  const int row = column * (First ? kGateRows : kTileRows), other = First ? row : row + kPanelRows;
  return {.codes = {codes(First ? e.w1 : e.w2, row), codes(First ? e.w3 : e.w2, other)},
          .scales = {scales(First ? e.s1 : e.s2, row), scales(First ? e.s3 : e.s2, other)},
          .x = (First ? p.work.y : p.work.activated) + static_cast<std::int64_t>(t.begin) * cols,
          .groups = PackedGroups(t.count),
          .blocks = blocks,
          .scale_cols = scale_cols};
}

// From the tile of sums: SwiGLU, the routing weight and the quantiser of the second product, whose packed x this is.
// Four lanes a group of 32 of a row of x.
template <WeightFormat F, typename Ring>
__device__ __forceinline__ void Activate(const MoeProblem& p, const Tile& t, int column, const Ring& ring,
                                         const Finishers& f) {
  constexpr int kV = kLaneValues<F>, kK = kBlockK<F>;
  const int pieces = t.count * (kGateRows / 8);
  // The same number of turns for a whole warp.
  for (int base = f.thread & ~31; base < pieces; base += f.threads) {
    const int i = min(base + f.thread % 32, pieces - 1);
    const int x_row = i / (kGateRows / 8), inner = i % (kGateRows / 8) * 8, k = column * kGateRows + inner;
    const uint4 gates = ring.Piece(x_row, inner), ups = ring.Piece(x_row, kGateRows + inner);
    const std::uint32_t g[4] = {gates.x, gates.y, gates.z, gates.w}, u[4] = {ups.x, ups.y, ups.z, ups.w};
    const float weight = p.work.weight[t.begin + x_row];
    float value[8], most = 0;
#pragma unroll
    for (int v = 0; v < 8; ++v) {
      const float gate = fminf(v % 2 == 0 ? LowHalf(g[v / 2]) : HighHalf(g[v / 2]), p.limit);
      const float up = ClampTo(v % 2 == 0 ? LowHalf(u[v / 2]) : HighHalf(u[v / 2]), p.limit);
      const float activated = gate / (1.0f + expf(-gate)) * up;
      value[v] = RoundToBFloat16(weight * activated);
      most = fmaxf(most, fabsf(value[v]));
    }
    most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, 2));
    const float scale = Fp8Scale(most);
#pragma unroll
    for (int v = 0; v < 8; ++v) value[v] = FakeFp8(value[v], scale);
    BFloat16* to = p.work.activated + static_cast<std::int64_t>(t.begin) * p.inter;
#pragma unroll
    for (int v = 0; v < 8; ++v) {
      if (v % 4 >= 2) continue;  // pairs lie two apart
      const std::int64_t at = PackedPlace(kK, PackedGroups(t.count), k / kK, x_row, SlotPlace(k % kK + v, kV, true));
      *reinterpret_cast<std::uint32_t*>(to + at) = Pack(value[v], value[v + 2]);
    }
  }
}

template <bool First, WeightFormat F, int N, typename Ring, typename Store>
__device__ __forceinline__ void MultiplyTile(const MoeProblem& p, const Tile& t, int column, Ring& ring,
                                             Store&& store) {
  float sum[N / 2];
  ring.template Multiply<F, N, true>(TileOf<First, F>(p, t, column), kMoeSplits, sum);
  store([&] { ring.template StoreTile<N>(sum); });
}

template <bool First, typename Ring>
__device__ __forceinline__ void FinishTile(const MoeProblem& p, const Tile& t, int column, const Ring& ring,
                                           const Finishers& f) {
  if constexpr (First) {
    t.expert == p.shared_expert ? Activate<WeightFormat::kFp8Block32>(p, t, column, ring, f)
                                : Activate<WeightFormat::kMxfp4>(p, t, column, ring, f);
  } else {
    for (int i = f.thread; i < t.count * (kTileRows / 8); i += f.threads) {
      const int x_row = i / (kTileRows / 8), row = i % (kTileRows / 8) * 8;
      *reinterpret_cast<uint4*>(p.work.y + static_cast<std::int64_t>(t.begin + x_row) * p.dim + column * kTileRows +
                                row) = ring.Piece(x_row, row);
    }
  }
}

// Calls run(tile, column) for this block's share of all tiles and their `columns`.
template <typename Run>
__device__ __forceinline__ void ForTiles(const MoeProblem& p, int columns, Run&& run) {
  for (int item = static_cast<int>(blockIdx.x); item < p.work.tiles_max * columns;
       item += static_cast<int>(gridDim.x)) {
    const Tile t = p.work.tiles[item / columns];
    if (t.count != 0) run(t, item % columns);
  }
}

// Packs x for the tiles, in the order of each one's weights.
inline void PackForTiles(const MoeProblem& p, int rows, int tile_rows, cudaStream_t stream) {
  PackRows({.x = p.x,
            .rows = rows,
            .cols = p.dim,
            .quantize = true,
            .tile_rows = tile_rows,
            .tiles = p.work.tiles,
            .tiles_max = p.work.tiles_max,
            .token = p.work.token,
            .shared_expert = p.shared_expert,
            .out = p.work.y},
           stream);
}

}  // namespace galley::backend::cuda
