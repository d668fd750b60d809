// SPDX-License-Identifier: Apache-2.0
// Expert choice (2.9): a warp a row, or a block of threads where rows are few. Scores are sqrt(softplus); the largest
// biased ones win, equal ones by lower id.
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/numbers.cuh"
#include "galley/backend/cuda/ptx/async_copy.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kRowThreads = 128;

// softplus as torch has it: above 20 the input itself.
__device__ float Softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}

__device__ __forceinline__ float Score(const RouteArgs& args, const float* logits, std::int64_t row, int expert) {
  return sqrtf(Softplus(logits[row * args.gate.rows + expert] / args.temperature));
}

__device__ __forceinline__ float Biased(float sum) {
  return isnan(sum) ? -INFINITY : sum;  // keeps the order total
}

__device__ __forceinline__ const float* BiasOf(const RouteArgs& args, std::int64_t row) {
  const bool image = args.step.image_rows != nullptr && args.step.image_rows[row] != 0 && args.image_bias != nullptr;
  return image ? args.image_bias : args.bias;
}

// Every lane's candidate becomes the warp's best: the largest, of equal ones the lowest; `at` == `experts` is none.
__device__ __forceinline__ void ChooseOfWarp(float& best, int& at, int experts) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    const float other = __shfl_xor_sync(kFullWarp, best, step);
    const int other_at = __shfl_xor_sync(kFullWarp, at, step);
    const bool better = other_at < experts && (at == experts || other > best || (other == best && other_at < at));
    if (better) best = other, at = other_at;
  }
}

__global__ void RouteSelectKernel(RouteArgs args, const float* logits) {
  ptx::BeginKernel();
  extern __shared__ float shared[];  // [warps][2][experts]
  const int experts = static_cast<int>(args.gate.rows), lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / 32) + warp;
  if (t >= args.step.rows) return;
  float* score = shared + warp * 2 * experts;
  float* biased = score + experts;
  const float* bias = BiasOf(args, t);
  for (int e = lane; e < experts; e += 32) {
    score[e] = Score(args, logits, t, e);
    biased[e] = Biased(score[e] + bias[e]);
  }
  __syncwarp();
  float sum = 0;
  for (int i = 0; i < args.topk; ++i) {
    // Chosen experts are marked NaN; the first expert stands for "none yet", so minus infinity can be chosen too.
    float best = -INFINITY;
    int at = experts;
    for (int e = lane; e < experts; e += 32) {
      if (!isnan(biased[e]) && (at == experts || biased[e] > best)) best = biased[e], at = e;
    }
    ChooseOfWarp(best, at, experts);
    sum += score[at];
    if (lane == 0) args.experts[t * args.topk + i] = at;
    __syncwarp();
    if (lane == 0) biased[at] = NAN;
    __syncwarp();
  }
  for (int i = lane; i < args.topk; i += 32) {
    args.weights[t * args.topk + i] = score[args.experts[t * args.topk + i]] / (sum + 1e-20f) * args.scale;
  }
}

// A block of threads a row: all of them make the scores, then the first warp chooses, its experts in registers. The
// same scores, choice and sums as above.
template <int PerLane>
__global__ void __launch_bounds__(kRowThreads) RouteRowKernel(RouteArgs args, const float* logits) {
  ptx::BeginKernel();
  __shared__ float score[PerLane * 32], biased[PerLane * 32];
  const int experts = static_cast<int>(args.gate.rows), tid = static_cast<int>(threadIdx.x);
  const std::int64_t t = blockIdx.x;
  const float* bias = BiasOf(args, t);
#pragma unroll 4
  for (int e = tid; e < experts; e += kRowThreads) {
    score[e] = Score(args, logits, t, e);
    biased[e] = Biased(score[e] + bias[e]);
  }
  __syncthreads();
  if (tid >= 32) return;
  float own[PerLane];
#pragma unroll
  for (int i = 0; i < PerLane; ++i) own[i] = i * 32 + tid < experts ? biased[i * 32 + tid] : NAN;
  float sum = 0, chosen_score = 0;
  for (int i = 0; i < args.topk; ++i) {
    float best = -INFINITY;
    int at = experts;
#pragma unroll
    for (int j = 0; j < PerLane; ++j) {
      if (!isnan(own[j]) && (at == experts || own[j] > best)) best = own[j], at = j * 32 + tid;
    }
    ChooseOfWarp(best, at, experts);
    sum += score[at];
    if (tid == i) {
      chosen_score = score[at];
      args.experts[t * args.topk + i] = at;
    }
#pragma unroll
    for (int j = 0; j < PerLane; ++j) {
      if (j * 32 + tid == at) own[j] = NAN;
    }
  }
  if (tid < args.topk) args.weights[t * args.topk + tid] = chosen_score / (sum + 1e-20f) * args.scale;
}

}  // namespace

void RouteSelect(const RouteArgs& args, const float* logits, cudaStream_t stream) {
  if (args.step.rows == 0) return;
  if (args.step.rows < 512 && args.topk <= 32 && args.gate.rows <= 512) {
    const auto kernel = args.gate.rows <= 384 ? RouteRowKernel<12> : RouteRowKernel<16>;
    return LaunchKernel(kernel, static_cast<unsigned>(args.step.rows), kRowThreads, 0, stream, args, logits);
  }
  const int warps = args.step.rows < 512 ? 1 : 4;
  const auto shared = static_cast<std::size_t>(warps) * 2 * static_cast<std::size_t>(args.gate.rows) * sizeof(float);
  LaunchKernel(RouteSelectKernel, static_cast<unsigned>((args.step.rows + warps - 1) / warps),
               static_cast<unsigned>(warps * 32), shared, stream, args, logits);
}

}  // namespace galley::backend::cuda
