// SPDX-License-Identifier: Apache-2.0
// Router for few rows in one launch (2.9): a block of threads multiplies 16 rows of the gate with up to 16 rows of x,
// and the last blocks of these rows to arrive choose the experts, a row each. The product adds what matmul.cu adds in
// the same order: a warp a part of K, the parts in ascending order. The gate is on its way before the previous kernel
// ends.
#include "galley/backend/cuda/last_blocks.cuh"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/async_copy.cuh"
#include "galley/backend/cuda/route_score.cuh"
#include "galley/backend/cuda/stream_dot.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kAhead = 10;
constexpr int kPerLane = 16, kExpertsMax = kPerLane * 32;  // experts whose keys the choosing warp holds
constexpr int kRowsMax = 64;
constexpr int kFinishersMax = 64;  // of all groups together
constexpr int kK = kBlockK<WeightFormat::kBF16>;

struct Scratch {
  float* logits;  // [T][experts]
  std::uint32_t* arrivals;
};

struct Shared {
  float part[kWarps][16][16 + 1];  // [row of the gate][row of x]
  float score[kExpertsMax];
  std::uint32_t key[kExpertsMax];
  int number;
};

// Integers in the order of the numbers; none is 0.
__device__ __forceinline__ std::uint32_t KeyOf(float biased) {
  const std::uint32_t bits = __float_as_uint(biased);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

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
    std::uint32_t own[kPerLane];
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) own[j] = j * 32 + tid < experts ? shared.key[j * 32 + tid] : 0;
    float sum = 0, chosen_score = 0;
    for (int i = 0; i < args.topk; ++i) {
      std::uint32_t best = own[0];
#pragma unroll
      for (int j = 1; j < kPerLane; ++j) best = max(best, own[j]);
      best = __reduce_max_sync(kFullWarp, best);
      auto at = static_cast<unsigned>(experts);
#pragma unroll
      for (int j = kPerLane - 1; j >= 0; --j) {
        if (own[j] == best) at = static_cast<unsigned>(j * 32 + tid);
      }
      at = __reduce_min_sync(kFullWarp, at);
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        if (j * 32 + tid == static_cast<int>(at)) own[j] = 0;
      }
      const float score = shared.score[at];
      sum += score;
      if (tid == i) {
        chosen_score = score;
        args.experts[t * args.topk + i] = static_cast<std::int32_t>(at);
      }
    }
    if (tid < args.topk) args.weights[t * args.topk + tid] = RoutingWeight(chosen_score, sum, args.scale);
  }
  __syncthreads();
}

// What a lane has of the gate and of x: 8 values of K of rows l / 4 and, of the gate, l / 4 + 8.
template <int NT>
struct Lane {
  const BFloat16 *gate, *x[NT];
  bool upper, lower, column[NT];
  int cols, values;  // of a row, and of it from the warp's part on

  __device__ __forceinline__ bool Inside(int block) const {
    return block * kK + static_cast<int>(threadIdx.x) % 4 * 8 < values;
  }
  __device__ __forceinline__ void ReadGate(uint4 (&w)[2], int block) const {
    w[0] = ptx::LoadOnce16(gate + block * kK, upper && Inside(block));
    w[1] = ptx::LoadOnce16(gate + std::int64_t{8} * cols + block * kK, lower && Inside(block));
  }
  __device__ __forceinline__ void ReadX(uint4 (&v)[NT], int block) const {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      v[n] = column[n] && Inside(block) ? __ldcg(reinterpret_cast<const uint4*>(x[n] + block * kK)) : uint4{};
    }
  }
};

template <int NT>
__global__ void __launch_bounds__(kThreads, 1) GateKernel(RouteArgs args, Scratch scratch, int splits) {
  __shared__ Shared shared;
  ptx::LetNextKernelStart();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int experts = static_cast<int>(args.gate.rows), cols = static_cast<int>(args.gate.cols);
  const int expert0 = static_cast<int>(blockIdx.x) * 16, row0 = static_cast<int>(blockIdx.y) * NT * 8;
  const int all = (cols + kK - 1) / kK, begin = warp < splits ? SplitBegin(all, splits, warp) : 0;
  const int blocks = warp < splits ? SplitBegin(all, splits, warp + 1) - begin : 0;

  Lane<NT> in;
  in.cols = cols, in.values = cols - begin * kK;
  in.upper = expert0 + lane / 4 < experts, in.lower = expert0 + lane / 4 + 8 < experts;
  in.gate = static_cast<const BFloat16*>(args.gate.data) + static_cast<std::int64_t>(expert0 + lane / 4) * cols +
            begin * kK + lane % 4 * 8;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int row = row0 + n * 8 + lane / 4;
    in.column[n] = row < args.step.rows;
    in.x[n] = args.x + static_cast<std::int64_t>(row) * cols + begin * kK + lane % 4 * 8;
  }
  uint4 w[kAhead][2], x[kAhead][NT];
#pragma unroll
  for (int j = 0; j < kAhead; ++j) {
    if (j < blocks) in.ReadGate(w[j], j);
  }
  ptx::WaitForPreviousKernel();
#pragma unroll
  for (int j = 0; j < kAhead; ++j) {
    if (j < blocks) in.ReadX(x[j], j);
  }
  float acc[NT][4] = {};
  for (int b0 = 0; b0 < blocks; b0 += kAhead) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (b0 + j >= blocks) continue;  // the same for the whole warp
      const std::uint32_t first[4] = {w[j][0].x, w[j][1].x, w[j][0].y, w[j][1].y};
      const std::uint32_t second[4] = {w[j][0].z, w[j][1].z, w[j][0].w, w[j][1].w};
#pragma unroll
      for (int n = 0; n < NT; ++n) ptx::Mma16x8x16(acc[n], first, x[j][n].x, x[j][n].y);
#pragma unroll
      for (int n = 0; n < NT; ++n) ptx::Mma16x8x16(acc[n], second, x[j][n].z, x[j][n].w);
      if (b0 + j + kAhead < blocks) in.ReadGate(w[j], b0 + j + kAhead), in.ReadX(x[j], b0 + j + kAhead);
    }
  }
#pragma unroll
  for (int n = 0; n < NT; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) shared.part[warp][lane / 4 + i / 2 * 8][n * 8 + lane % 4 * 2 + i % 2] = acc[n][i];
  }
  __syncthreads();
  const int rows = min(args.step.rows - row0, NT * 8);
  for (int i = static_cast<int>(threadIdx.x); i < 16 * NT * 8; i += kThreads) {
    const int expert = i % 16, row = i / 16;
    float sum = 0;
    for (int s = 0; s < splits; ++s) sum += shared.part[s][expert][row];
    if (expert0 + expert < experts && row < rows) {
      scratch.logits[static_cast<std::int64_t>(row0 + row) * experts + expert0 + expert] = sum;
    }
  }
  const int groups = static_cast<int>(gridDim.y),
            finishers = min(min(rows, static_cast<int>(gridDim.x)), kFinishersMax / groups);
  const int number = ArriveInGroup(scratch.arrivals, static_cast<int>(blockIdx.y), static_cast<int>(gridDim.x),
                                   finishers, shared.number);
  for (int row = number; row >= 0 && row < rows; row += finishers) {
    ChooseExperts(args, scratch.logits, row0 + row, shared);
  }
}

}  // namespace

bool TakesGate(const RouteArgs& args) {
  return args.gate.format == WeightFormat::kBF16 && args.gate.cols % 8 == 0 && args.gate.rows <= kExpertsMax &&
         args.topk <= 32 && args.step.rows <= kRowsMax;
}

void GateAndSelect(const RouteArgs& args, float* logits, std::uint32_t* arrivals, cudaStream_t stream) {
  const int rows = args.step.rows;
  if (rows == 0) return;
  const auto kernel = rows <= 8 ? GateKernel<1> : GateKernel<2>;
  const int at_once = rows <= 8 ? 8 : 16;
  LaunchKernel(
      kernel,
      dim3(static_cast<unsigned>((args.gate.rows + 15) / 16), static_cast<unsigned>((rows + at_once - 1) / at_once)),
      kThreads, 0, stream, args, Scratch{logits, arrivals}, SplitsOf(args.gate.cols));
}

}  // namespace galley::backend::cuda
