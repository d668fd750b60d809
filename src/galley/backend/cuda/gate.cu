// SPDX-License-Identifier: Apache-2.0
// Router for few rows in one launch (2.9): a block of threads multiplies some rows of the gate with some rows of x, and
// the last blocks of these rows to arrive choose the experts, a row each. The product adds what matmul.cu adds in
// the same order: a warp a part of K, the parts in ascending order. The gate is on its way before the previous kernel
// ends.
#include "galley/backend/cuda/gate_choice.cuh"
#include "galley/backend/cuda/last_blocks.cuh"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/async_copy.cuh"
#include "galley/backend/cuda/stream_dot.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kRowsMax = 64;  // so that the blocks of threads that finish rows are few
constexpr int kK = kBlockK<WeightFormat::kBF16>;

struct Scratch {
  float* logits;  // [T][experts]
  std::uint32_t* arrivals;
};

struct Shared {
  float part[kWarps][16][16 + 1];  // [row of the gate][row of x]
  float score[kGateExpertsMax];
  std::uint32_t key[kGateExpertsMax];
  int number;
};

// Scores by all threads, the choice by the first warp, its experts' keys in registers. Chosen ones become 0.
__device__ __forceinline__ void ChooseExperts(const RouteArgs& args, const float* logits, std::int64_t t,
                                              Shared& shared) {
  const int experts = static_cast<int>(args.gate.rows), tid = static_cast<int>(threadIdx.x);
  const float* bias = BiasOf(args, t);
  for (int e = tid; e < experts; e += kThreads) {
    const float score = Score(__ldcg(logits + t * experts + e), args.temperature);
    shared.score[e] = score;
    shared.key[e] = KeyOf(Biased(score + bias[e]));
  }
  __syncthreads();
  if (tid < 32) {
    std::uint32_t own[kGatePerLane];
#pragma unroll
    for (int j = 0; j < kGatePerLane; ++j) own[j] = j * 32 + tid < experts ? shared.key[j * 32 + tid] : 0;
    ChooseByWarp(args, t, shared.score, own);
  }
  __syncthreads();
}

// Where a lane finds 8 values of a block of K, of 8 rows of the gate or of x.
struct Lane {
  const uint4* piece;  // of row l / 4, first block
  int step;            // pieces from block to block
  bool there;

  __device__ __forceinline__ static Lane OfRows(const BFloat16* matrix, int first, int rows, int cols, int begin) {
    const BFloat16* row = matrix + static_cast<std::int64_t>(first + Row()) * cols + begin * kK + Column();
    return {reinterpret_cast<const uint4*>(row), kK * 2 / 16, first + Row() < rows};
  }
  // Rows `first` on, a multiple of 8, of the gate, which may be tiled.
  __device__ __forceinline__ static Lane OfGate(const Weight& gate, int first, int begin) {
    const int rows = static_cast<int>(gate.rows), cols = static_cast<int>(gate.cols);
    const LaneWeights at =
        FindLaneWeights<WeightFormat::kBF16>(static_cast<const std::uint8_t*>(gate.data), first / 16 * 16, rows, cols);
    const std::uint8_t* from = at.from + (first % 16 != 0 ? at.half : 0) + std::int64_t{begin} * at.step;
    return {reinterpret_cast<const uint4*>(from), at.step / 16, first + Row() < rows};
  }
  __device__ __forceinline__ static int Row() { return static_cast<int>(threadIdx.x) % 32 / 4; }
  __device__ __forceinline__ static int Column() { return static_cast<int>(threadIdx.x) % 4 * 8; }
  // `values`: how many of K there are from the warp's part on.
  __device__ __forceinline__ uint4 Read(int block, int values) const {
    const bool inside = there && block * kK + Column() < values;
    return inside ? __ldcg(piece + block * step) : uint4{};
  }
};

// Up to 8 rows of x are multiplied with 8 rows of the gate, more with 16: fewer bytes of the gate a block of threads,
// or fewer of x. The operands change places then, which sums do not notice.
template <bool Few>
__global__ void __launch_bounds__(kThreads, 1) GateKernel(RouteArgs args, Scratch scratch, int splits) {
  constexpr int kExperts = Few ? 8 : 16, kRows = Few ? 8 : 16, kColumns = Few ? 1 : 2, kAhead = Few ? 20 : 10;
  __shared__ Shared shared;
  ptx::LetNextKernelStart();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int experts = static_cast<int>(args.gate.rows), cols = static_cast<int>(args.gate.cols);
  const int expert0 = static_cast<int>(blockIdx.x) * kExperts, row0 = static_cast<int>(blockIdx.y) * kRows;
  const int all = (cols + kK - 1) / kK, begin = warp < splits ? SplitBegin(all, splits, warp) : 0;
  const int blocks = warp < splits ? SplitBegin(all, splits, warp + 1) - begin : 0, values = cols - begin * kK;
  const Lane gate_low = Lane::OfGate(args.gate, expert0, begin),
             gate_high = Lane::OfGate(args.gate, expert0 + 8, begin);
  const Lane x_low = Lane::OfRows(args.x, row0, args.step.rows, cols, begin),
             x_high = Lane::OfRows(args.x, row0 + 8, args.step.rows, cols, begin);
  float acc[kColumns][4] = {};
  bool waits = true;
  // All of a turn is under way before any of it is used, because loads that are still to come would be waited for too.
  for (int b0 = 0; b0 < blocks || waits; b0 += kAhead) {
    uint4 wide[kAhead][2], narrow[kAhead][kColumns];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if constexpr (Few) {
        narrow[j][0] = gate_low.Read(b0 + j, values);
      } else {
        wide[j][0] = gate_low.Read(b0 + j, values), wide[j][1] = gate_high.Read(b0 + j, values);
      }
    }
    if (waits) ptx::WaitForPreviousKernel();
    waits = false;
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if constexpr (Few) {
        wide[j][0] = x_low.Read(b0 + j, values), wide[j][1] = {};
      } else {
        narrow[j][0] = x_low.Read(b0 + j, values), narrow[j][1] = x_high.Read(b0 + j, values);
      }
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (b0 + j >= blocks) break;  // the same for the whole warp
      const uint4 &top = wide[j][0], &bottom = wide[j][1];
      const std::uint32_t first[4] = {top.x, bottom.x, top.y, bottom.y}, second[4] = {top.z, bottom.z, top.w, bottom.w};
#pragma unroll
      for (int n = 0; n < kColumns; ++n) ptx::Mma16x8x16(acc[n], first, narrow[j][n].x, narrow[j][n].y);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) ptx::Mma16x8x16(acc[n], second, narrow[j][n].z, narrow[j][n].w);
    }
  }
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int high = Lane::Row() + i / 2 * 8, low = n * 8 + Lane::Column() / 4 + i % 2;
      if (!Few || i < 2) shared.part[warp][Few ? low : high][Few ? high : low] = acc[n][i];
    }
  }
  __syncthreads();
  const int rows = min(args.step.rows - row0, kRows);
  for (int i = static_cast<int>(threadIdx.x); i < kExperts * kRows; i += kThreads) {
    const int expert = i % kExperts, row = i / kExperts;
    float sum = 0;
    for (int s = 0; s < splits; ++s) sum += shared.part[s][expert][row];
    if (expert0 + expert < experts && row < rows) {
      scratch.logits[static_cast<std::int64_t>(row0 + row) * experts + expert0 + expert] = sum;
    }
  }
  const int group = static_cast<int>(blockIdx.y), all_blocks = static_cast<int>(gridDim.x);
  const int finishers = min(rows, all_blocks);
  const int number = ArriveInGroup(scratch.arrivals, group, all_blocks, finishers, shared.number);
  for (int row = number; row >= 0 && row < rows; row += finishers) {
    ChooseExperts(args, scratch.logits, row0 + row, shared);
  }
}

}  // namespace

bool TakesGate(const RouteArgs& args) {
  return args.gate.format == WeightFormat::kBF16 && args.gate.cols % 8 == 0 && args.gate.rows <= kGateExpertsMax &&
         args.topk <= 32 && args.step.rows <= kRowsMax;
}

void GateAndSelect(const RouteArgs& args, float* logits, std::uint32_t* arrivals, cudaStream_t stream) {
  const int rows = args.step.rows;
  if (rows == 0) return;
  const bool few = rows <= 8;
  const int tile = few ? 8 : 16;
  LaunchKernel(
      few ? GateKernel<true> : GateKernel<false>,
      dim3(static_cast<unsigned>((args.gate.rows + tile - 1) / tile), static_cast<unsigned>((rows + tile - 1) / tile)),
      kThreads, 0, stream, args, Scratch{logits, arrivals}, SplitsOf(args.gate.cols));
}

}  // namespace galley::backend::cuda
