// SPDX-License-Identifier: Apache-2.0
// The two products of the experts for many rows (2.9), in the tiles of moe.cu. A block of the first takes 64 rows of w1
// with one warpgroup and the same rows of w3 with the other; a block of the second 128 rows of w2. Rows of x are
// gathered by token while they are copied to shared memory.
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/moe_work.h"
#include "galley/backend/cuda/wide_dot.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kThreads = 256, kSplits = 4, kRows = 128, kStride = kRows + 4;

// The sums of a block as [rows of x][128] in shared memory.
template <WeightFormat F, int N>
__device__ __forceinline__ float* Multiply(WideDot<F, N>& dot, std::uint8_t* shared) {
  using Dot = WideDot<F, N>;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  dot.shared = shared;
  float sum[Dot::kSums];
  dot.Run(kSplits, sum);
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
  const float* sums = Multiply<F, N>(dot, shared);
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
  const float* sums = Multiply<F, N>(dot, shared);
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

// `Shared`: tiles of the shared expert, the last ones; otherwise the routed ones.
template <bool First, WeightFormat F, bool Shared>
__global__ void __launch_bounds__(kThreads, 1) WideExpertKernel(MoeProblem p) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  ptx::BeginKernel();
  const Tile t = p.work.tiles[blockIdx.y];
  if (t.count == 0 || (t.expert == p.shared_expert) != Shared) return;
  const BFloat16* x = Shared ? p.shared_x : p.x;
  if (t.count <= 64) return RunTile<First, F, 64>(p, t, x, shared);
  if (t.count <= 128) return RunTile<First, F, 128>(p, t, x, shared);
  RunTile<First, F, kWideTile>(p, t, x, shared);
}

template <WeightFormat F>
constexpr int SharedBytes(int cols) {
  const int stages = WideDot<F, kWideTile>::SharedBytes(cols), sums = kWideTile * kStride * 4;
  return stages > sums ? stages : sums;
}

template <bool First, WeightFormat F, bool Shared>
void LaunchWideExperts(const MoeProblem& p, int rows, int cols, cudaStream_t stream) {
  const auto kernel = WideExpertKernel<First, F, Shared>;
  const int bytes = SharedBytes<F>(cols);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  LaunchKernel(kernel, dim3(static_cast<unsigned>(rows), static_cast<unsigned>(p.work.tiles_max)), kThreads,
               static_cast<std::size_t>(bytes), stream, p);
}

}  // namespace

void WideExperts(const MoeProblem& p, cudaStream_t stream) {
  LaunchWideExperts<true, WeightFormat::kMxfp4, false>(p, p.inter / 64, p.dim, stream);
  LaunchWideExperts<true, WeightFormat::kFp8Block32, true>(p, p.inter / 64, p.dim, stream);
  LaunchWideExperts<false, WeightFormat::kMxfp4, false>(p, p.dim / kRows, p.inter, stream);
  LaunchWideExperts<false, WeightFormat::kFp8Block32, true>(p, p.dim / kRows, p.inter, stream);
}

}  // namespace galley::backend::cuda
