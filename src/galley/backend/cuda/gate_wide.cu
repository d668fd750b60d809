// SPDX-License-Identifier: Apache-2.0
// Router for more rows than gate.cu takes, also in one launch (2.9): a block of threads multiplies one part of K of
// some rows of the gate with some rows of x, both in shared memory, and the last blocks of these rows to arrive add up
// the parts in ascending order and choose the experts, a warp a row. The order is that of gate.cu. The gate is on its
// way before the previous kernel ends.
#include <algorithm>

#include "galley/backend/cuda/gate_choice.cuh"
#include "galley/backend/cuda/last_blocks.cuh"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/async_copy.cuh"
#include "galley/backend/cuda/stream_dot.cuh"

namespace galley::backend::cuda {
namespace {

constexpr auto kFormat = WeightFormat::kBF16;
constexpr int kWarps = 8, kThreads = kWarps * 32, kK = kBlockK<kFormat>;
constexpr int kExperts = 96, kRows = 64;  // of a block of threads
constexpr int kTiles = kExperts / 16, kGroups = kRows / 8;
constexpr int kWarpTiles = 3, kWarpGroups = 2;  // of a warp
constexpr int kAtOnce = 20;                     // blocks of K in shared memory
constexpr int kTileBytes = 1024, kGroupBytes = 512;
constexpr int kXAt = kAtOnce * kTiles * kTileBytes, kSharedBytes = kXAt + kAtOnce * kGroups * kGroupBytes;
static_assert(kWarps * kGateExpertsMax * 4 <= kSharedBytes);

// A lane's 16 bytes of a tile of the gate lie where its product takes them, those of 8 rows of x likewise.
__device__ __forceinline__ void CopyGate(const RouteArgs& args, int expert0, int block0, int blocks,
                                         std::uint8_t* shared) {
  const int experts = static_cast<int>(args.gate.rows), all = static_cast<int>(args.gate.cols) / kK;
  constexpr int kPieces = kTileBytes / 16;
  for (int i = static_cast<int>(threadIdx.x); i < blocks * kTiles * kPieces; i += kThreads) {
    const int block = i / (kTiles * kPieces), tile = i / kPieces % kTiles, row = expert0 + tile * 16;
    const std::uint8_t* from = static_cast<const std::uint8_t*>(args.gate.data) +
                               TileOffset(min(row, experts - 16), experts, all) +
                               std::int64_t{block0 + block} * TileStep(experts) + i % kPieces * 16;
    ptx::CopyAsync16(shared + i * 16, from, row < experts);
  }
}
__device__ __forceinline__ void CopyX(const RouteArgs& args, int row0, int block0, int from, int to,
                                      std::uint8_t* shared) {
  const std::int64_t cols = args.gate.cols;
  constexpr int kPieces = kGroupBytes / 16;
  for (int i = from * kGroups * kPieces + static_cast<int>(threadIdx.x); i < to * kGroups * kPieces; i += kThreads) {
    const int block = i / (kGroups * kPieces), row = row0 + i / kPieces % kGroups * 8 + i % kPieces / 4;
    const BFloat16* at = args.x + min(row, args.step.rows - 1) * cols + (block0 + block) * kK + i % 4 * 8;
    ptx::CopyAsync16(shared + kXAt + i * 16, at, row < args.step.rows);
  }
}

__device__ __forceinline__ void Multiply(const std::uint8_t* shared, int from, int to,
                                         float (&acc)[kWarpTiles][kWarpGroups][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int tile0 = warp % 2 * kWarpTiles, group0 = warp / 2 * kWarpGroups;
#pragma unroll 2
  for (int b = from; b < to; ++b) {
    const auto* gate = reinterpret_cast<const uint4*>(shared + (b * kTiles + tile0) * kTileBytes) + lane;
    const auto* x = reinterpret_cast<const uint4*>(shared + kXAt + (b * kGroups + group0) * kGroupBytes) + lane;
    uint4 narrow[kWarpGroups];
#pragma unroll
    for (int n = 0; n < kWarpGroups; ++n) narrow[n] = x[n * 32];
#pragma unroll
    for (int m = 0; m < kWarpTiles; ++m) {
      const uint4 top = gate[m * 64], bottom = gate[m * 64 + 32];
      const std::uint32_t first[4] = {top.x, bottom.x, top.y, bottom.y}, second[4] = {top.z, bottom.z, top.w, bottom.w};
#pragma unroll
      for (int n = 0; n < kWarpGroups; ++n) ptx::Mma16x8x16(acc[m][n], first, narrow[n].x, narrow[n].y);
#pragma unroll
      for (int n = 0; n < kWarpGroups; ++n) ptx::Mma16x8x16(acc[m][n], second, narrow[n].z, narrow[n].w);
    }
  }
}

// By a warp: the row's sums of parts [part][T][experts], then scores and the choice.
__device__ __forceinline__ void ChooseExperts(const RouteArgs& args, const float* parts, int part_count, std::int64_t t,
                                              float* score) {
  const int experts = static_cast<int>(args.gate.rows), lane = static_cast<int>(threadIdx.x) % 32;
  const float* bias = BiasOf(args, t);
  float logit[kGatePerLane] = {};
#pragma unroll 4
  for (int s = 0; s < part_count; ++s) {
    const float* part = parts + (static_cast<std::int64_t>(s) * args.step.rows + t) * experts;
#pragma unroll
    for (int j = 0; j < kGatePerLane; ++j) {
      if (j * 32 + lane < experts) logit[j] += __ldcg(part + j * 32 + lane);
    }
  }
  std::uint32_t own[kGatePerLane];
#pragma unroll
  for (int j = 0; j < kGatePerLane; ++j) {
    const int e = j * 32 + lane;
    own[j] = 0;
    if (e >= experts) continue;
    score[e] = Score(logit[j], args.temperature);
    own[j] = KeyOf(Biased(score[e] + bias[e]));
  }
  __syncwarp();
  ChooseByWarp(args, t, score, own);
}

__global__ void __launch_bounds__(kThreads, 1) WideGateKernel(RouteArgs args, float* parts, std::uint32_t* arrivals) {
  extern __shared__ __align__(16) std::uint8_t shared[];
  __shared__ int number;
  ptx::LetNextKernelStart();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int part = static_cast<int>(blockIdx.x), part_count = static_cast<int>(gridDim.x);
  const int expert0 = static_cast<int>(blockIdx.y) * kExperts, row0 = static_cast<int>(blockIdx.z) * kRows;
  const int all = static_cast<int>(args.gate.cols) / kK, end = SplitBegin(all, part_count, part + 1);
  float acc[kWarpTiles][kWarpGroups][4] = {};
  bool waits = true;
  for (int block0 = SplitBegin(all, part_count, part); block0 < end; block0 += kAtOnce) {
    const int blocks = min(end - block0, kAtOnce);
    __syncthreads();
    CopyGate(args, expert0, block0, blocks, shared);
    if (waits) ptx::WaitForPreviousKernel();
    waits = false;
    CopyX(args, row0, block0, 0, blocks / 2, shared);
    ptx::CommitCopies();
    CopyX(args, row0, block0, blocks / 2, blocks, shared);
    ptx::CommitCopies();
    ptx::WaitCopies<1>();
    __syncthreads();
    Multiply(shared, 0, blocks / 2, acc);
    ptx::WaitCopies<0>();
    __syncthreads();
    Multiply(shared, blocks / 2, blocks, acc);
  }
  const int experts = static_cast<int>(args.gate.rows);
  float* out = parts + static_cast<std::int64_t>(part) * args.step.rows * experts;
#pragma unroll
  for (int m = 0; m < kWarpTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kWarpGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = row0 + (warp / 2 * kWarpGroups + n) * 8 + lane % 4 * 2 + i % 2;
        const int expert = expert0 + (warp % 2 * kWarpTiles + m) * 16 + lane / 4 + i / 2 * 8;
        if (row < args.step.rows && expert < experts)
          out[static_cast<std::int64_t>(row) * experts + expert] = acc[m][n][i];
      }
    }
  }
  const int rows = min(args.step.rows - row0, kRows), blocks = part_count * static_cast<int>(gridDim.y);
  const int finishers = min((rows + kWarps - 1) / kWarps, blocks);
  ArriveInGroup(arrivals, static_cast<int>(blockIdx.z), blocks, finishers, number);
  if (number < 0) return;
  for (int row = number * kWarps + warp; row < rows; row += finishers * kWarps) {
    ChooseExperts(args, parts, part_count, row0 + row, reinterpret_cast<float*>(shared) + warp * kGateExpertsMax);
  }
}

// Whether the device has so much shared memory for a block of threads: those other than 9.0 and 10.x have half of it.
bool FitsDevice() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return kSharedBytes <= bytes;
}

}  // namespace

bool TakesWideGate(const RouteArgs& args) {
  return args.gate.format == kFormat && IsTiled<kFormat>(args.gate.rows, args.gate.cols) &&
         args.gate.rows <= kGateExpertsMax && args.topk <= 32 && args.step.rows <= kWideGateRowsMax && FitsDevice();
}

std::int64_t WideGateFloats(const RouteArgs& args) {
  return SplitsOf(args.gate.cols) * std::min(args.step.rows, kWideGateRowsMax) * args.gate.rows;
}

void WideGateAndSelect(const RouteArgs& args, float* parts, std::uint32_t* arrivals, cudaStream_t stream) {
  static_assert(kWideGateRowsMax / kRows <= kArrivalGroups);
  if (args.step.rows == 0) return;
  cudaFuncSetAttribute(WideGateKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  LaunchKernel(WideGateKernel,
               dim3(static_cast<unsigned>(SplitsOf(args.gate.cols)),
                    static_cast<unsigned>((args.gate.rows + kExperts - 1) / kExperts),
                    static_cast<unsigned>((args.step.rows + kRows - 1) / kRows)),
               kThreads, static_cast<std::size_t>(kSharedBytes), stream, args, parts, arrivals);
}

}  // namespace galley::backend::cuda
