// SPDX-License-Identifier: Apache-2.0
// A tile of the two products of the experts (2.9) by warpgroup products, for moe_wide.cu and moe_slim.cu. A block of
// the first takes 64 rows of w1 with one warpgroup and the same rows of w3 with the other; a block of the second 128
// rows of w2. Rows of x are gathered by token while they are copied to shared memory.
#pragma once

#include "galley/backend/cuda/moe_work.h"
#include "galley/backend/cuda/wide_dot.cuh"

namespace galley::backend::cuda {

inline constexpr int kMoeSplits = 4;  // parts of K, whose sums are added in order

// The sums of a block as [rows of x][kTileRows] in shared memory. `Waits` as in WideDot::RunPart.
template <WeightFormat F, int N, bool Waits>
__device__ __forceinline__ const float* Multiply(WideDot<F, N>& dot, std::uint8_t* shared) {
  using Dot = WideDot<F, N>;
  dot.shared = shared;
  float sum[Dot::kSums];
  dot.template RunBlocks<Waits>(0, (dot.cols + kBlockK<F> - 1) / kBlockK<F>, kMoeSplits, sum);
  const float* tile = dot.StoreSums(sum);
  __syncthreads();
  return tile;
}

template <WeightFormat F, int N>
__device__ __forceinline__ void GateUp(const MoeProblem& p, const Tile& t, const BFloat16* x, std::uint8_t* shared) {
  using Dot = WideDot<F, N>;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const ExpertPointers& expert = p.experts[t.expert];
  const int column0 = static_cast<int>(blockIdx.x) * 64;
  Dot dot;
  dot.cols = p.dim;
  dot.tile = {.data = warp < 4 ? expert.w1 : expert.w3,
              .scales = warp < 4 ? expert.s1 : expert.s3,
              .row = column0 + warp % 4 * 16,
              .end = p.inter};
#pragma unroll
  for (int i = 0; i < Dot::kTurns; ++i) {
    const int at = Dot::Token(i);
    dot.x[i] =
        at < t.count ? x + static_cast<std::int64_t>(p.work.token[t.begin + at]) * p.dim + Dot::Piece() : nullptr;
  }
  const float* sums = Multiply<F, N, false>(dot, shared);
  // A warp a row of x and 32 of the 64 columns: a group of the quantiser.
  for (int unit = warp; unit < t.count * 2; unit += 8) {
    const int i = unit / 2, column = unit % 2 * 32 + lane;
    const float g = RoundToBFloat16(sums[i * kTileStride + column]),
                u = RoundToBFloat16(sums[i * kTileStride + 64 + column]);
    const float gate = fminf(g, p.limit), up = ClampTo(u, p.limit);
    const float activated = gate / (1.0f + expf(-gate)) * up;
    const float value = RoundToBFloat16(p.work.weight[t.begin + i] * activated);
    const float scale = Fp8Scale(WarpMax(fabsf(value)));
    p.work.activated[static_cast<std::int64_t>(t.begin + i) * p.inter + SlotPlace(column0 + column, Dot::kV, true)] =
        ToBFloat16(FakeFp8(value, scale));
  }
}

template <WeightFormat F, int N, bool Waits>
__device__ __forceinline__ void Down(const MoeProblem& p, const Tile& t, std::uint8_t* shared) {
  using Dot = WideDot<F, N>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const ExpertPointers& expert = p.experts[t.expert];
  const int row0 = static_cast<int>(blockIdx.x) * kTileRows;
  Dot dot;
  dot.cols = p.inter;
  dot.tile = {.data = expert.w2, .scales = expert.s2, .row = row0 + warp * 16, .end = p.dim};
#pragma unroll
  for (int i = 0; i < Dot::kTurns; ++i) {
    const int at = Dot::Token(i);
    dot.x[i] =
        at < t.count ? p.work.activated + static_cast<std::int64_t>(t.begin + at) * p.inter + Dot::Piece() : nullptr;
  }
  const float* sums = Multiply<F, N, Waits>(dot, shared);
  for (int i = static_cast<int>(threadIdx.x); i < t.count * kTileRows; i += kWideThreads) {
    const int row = i % kTileRows, token = i / kTileRows;
    p.work.y[static_cast<std::int64_t>(t.begin + token) * p.dim + row0 + row] =
        ToBFloat16(sums[token * kTileStride + row]);
  }
}

// `Waits`: of the second product, whose kernel may start while the first still runs.
template <bool First, WeightFormat F, int N, bool Waits>
__device__ __forceinline__ void RunTile(const MoeProblem& p, const Tile& t, const BFloat16* x, std::uint8_t* shared) {
  if constexpr (First) {
    GateUp<F, N>(p, t, x, shared);
  } else {
    Down<F, N, Waits>(p, t, shared);
  }
}

}  // namespace galley::backend::cuda
