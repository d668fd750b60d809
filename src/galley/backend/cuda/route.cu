// SPDX-License-Identifier: Apache-2.0
// Expert choice (2.9), a warp a row. Few rows: gate.cu.
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/numbers.cuh"
#include "galley/backend/cuda/ptx/async_copy.cuh"
#include "galley/backend/cuda/route_score.cuh"

namespace galley::backend::cuda {
namespace {

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
    score[e] = Score(logits[t * experts + e], args.temperature);
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
    args.weights[t * args.topk + i] = RoutingWeight(score[args.experts[t * args.topk + i]], sum, args.scale);
  }
}

}  // namespace

void RouteSelect(const RouteArgs& args, const float* logits, cudaStream_t stream) {
  if (args.step.rows == 0) return;
  const int warps = args.step.rows < 512 ? 1 : 4;
  const auto shared = static_cast<std::size_t>(warps) * 2 * static_cast<std::size_t>(args.gate.rows) * sizeof(float);
  LaunchKernel(RouteSelectKernel, static_cast<unsigned>((args.step.rows + warps - 1) / warps),
               static_cast<unsigned>(warps * 32), shared, stream, args, logits);
}

}  // namespace galley::backend::cuda
