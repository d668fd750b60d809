// SPDX-License-Identifier: Apache-2.0
// The two products of the experts for few rows each (2.9), by warpgroup products in tiles of 8, 16 or 32 rows of x.
// Blocks of threads as in moe_wide.cu, but small enough that three share a multiprocessor, and routed and shared
// experts in one launch. Bits are those of the other forms.
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/moe_work.h"
#include "galley/backend/cuda/wide_dot.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kThreads = 256, kSplits = 4, kRows = 128, kStride = kRows + 4;

template <WeightFormat F, int N, bool Waits>
__device__ __forceinline__ const float* Multiply(WideDot<F, N>& dot, std::uint8_t* shared) {
  using Dot = WideDot<F, N>;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  dot.shared = shared;
  float sum[Dot::kSums];
  dot.template RunBlocks<Waits>(0, dot.cols / kBlockK<F>, kSplits, sum);
  auto* tile = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < Dot::kSums; ++i) {
    tile[(i / 4 * 8 + lane % 4 * 2 + i % 2) * kStride + warp * 16 + lane / 4 + i / 2 % 2 * 8] = sum[i];
  }
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
    const float g = RoundToBFloat16(sums[i * kStride + column]), u = RoundToBFloat16(sums[i * kStride + 64 + column]);
    const float gate = fminf(g, p.limit), up = ClampTo(u, p.limit);
    const float activated = gate / (1.0f + expf(-gate)) * up;
    const float value = RoundToBFloat16(p.work.weight[t.begin + i] * activated);
    const float scale = Fp8Scale(WarpMax(fabsf(value)));
    p.work.activated[static_cast<std::int64_t>(t.begin + i) * p.inter + SlotPlace(column0 + column, Dot::kV, true)] =
        ToBFloat16(FakeFp8(value, scale));
  }
}

template <WeightFormat F, int N>
__device__ __forceinline__ void Down(const MoeProblem& p, const Tile& t, std::uint8_t* shared) {
  using Dot = WideDot<F, N>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const ExpertPointers& expert = p.experts[t.expert];
  const int row0 = static_cast<int>(blockIdx.x) * kRows;
  Dot dot;
  dot.cols = p.inter;
  dot.tile = {.data = expert.w2, .scales = expert.s2, .row = row0 + warp * 16, .end = p.dim};
#pragma unroll
  for (int i = 0; i < Dot::kTurns; ++i) {
    const int at = Dot::Token(i);
    dot.x[i] =
        at < t.count ? p.work.activated + static_cast<std::int64_t>(t.begin + at) * p.inter + Dot::Piece() : nullptr;
  }
  const float* sums = Multiply<F, N, true>(dot, shared);
  for (int i = static_cast<int>(threadIdx.x); i < t.count * kRows; i += kThreads) {
    const int row = i % kRows, token = i / kRows;
    p.work.y[static_cast<std::int64_t>(t.begin + token) * p.dim + row0 + row] = ToBFloat16(sums[token * kStride + row]);
  }
}

template <bool First, WeightFormat F, int N>
__device__ __forceinline__ void RunTile(const MoeProblem& p, const Tile& t, const BFloat16* x, std::uint8_t* shared) {
  if constexpr (First) {
    GateUp<F, N>(p, t, x, shared);
  } else {
    Down<F, N>(p, t, shared);
  }
}

template <bool First>
__global__ void __launch_bounds__(kThreads, 3) SlimExpertKernel(MoeProblem p) {
  constexpr auto kFp4 = WeightFormat::kMxfp4, kFp8 = WeightFormat::kFp8Block32;
  extern __shared__ __align__(128) std::uint8_t shared[];
  // As in moe.cu: the second product starts while the first still runs, and its tiles are there by then.
  if constexpr (First) ptx::WaitForPreviousKernel();
  ptx::LetNextKernelStart();
  const Tile t = p.work.tiles[blockIdx.y];
  if (t.count == 0) return;
  if (t.expert == p.shared_expert) {
    if (t.count <= 8) return RunTile<First, kFp8, 8>(p, t, p.shared_x, shared);
    return RunTile<First, kFp8, kSlimSharedTile>(p, t, p.shared_x, shared);
  }
  if (t.count <= 8) return RunTile<First, kFp4, 8>(p, t, p.x, shared);
  RunTile<First, kFp4, 16>(p, t, p.x, shared);
}

int SharedBytes(int cols) {
  return max(max(WideDot<WeightFormat::kMxfp4, 16>::SharedBytes(cols),
                 WideDot<WeightFormat::kFp8Block32, kSlimSharedTile>::SharedBytes(cols)),
             kSlimSharedTile * kStride * 4);
}

template <bool First>
void LaunchSlimExperts(const MoeProblem& p, int blocks, int cols, cudaStream_t stream) {
  const auto kernel = SlimExpertKernel<First>;
  const int bytes = SharedBytes(cols);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  LaunchKernel(kernel, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(p.work.tiles_max)), kThreads,
               static_cast<std::size_t>(bytes), stream, p);
}

}  // namespace

void SlimExperts(const MoeProblem& p, cudaStream_t stream) {
  LaunchSlimExperts<true>(p, p.inter / 64, p.dim, stream);
  LaunchSlimExperts<false>(p, p.dim / kRows, p.inter, stream);
}

}  // namespace galley::backend::cuda
