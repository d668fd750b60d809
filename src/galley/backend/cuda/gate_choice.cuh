// SPDX-License-Identifier: Apache-2.0
// The choice of a row's experts (2.9) by one warp that holds all keys in registers, for gate.cu and gate_wide.cu.
#pragma once

#include "galley/backend/cuda/route_score.cuh"

namespace galley::backend::cuda {

inline constexpr int kGatePerLane = 16, kGateExpertsMax = kGatePerLane * 32;

// Integers in the order of the numbers; none is 0.
__device__ __forceinline__ std::uint32_t KeyOf(float biased) {
  const std::uint32_t bits = __float_as_uint(biased);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Of row `t`; the lane's j-th key is that of expert 32 j + lane, 0 if there is none. `score` [experts] is in shared
// memory. Chosen keys become 0.
__device__ __forceinline__ void ChooseByWarp(const RouteArgs& args, std::int64_t t, const float* score,
                                             std::uint32_t (&own)[kGatePerLane]) {
  const int experts = static_cast<int>(args.gate.rows), lane = static_cast<int>(threadIdx.x) % 32;
  float sum = 0, chosen_score = 0;
  for (int i = 0; i < args.topk; ++i) {
    std::uint32_t best = own[0];
#pragma unroll
    for (int j = 1; j < kGatePerLane; ++j) best = max(best, own[j]);
    best = __reduce_max_sync(kFullWarp, best);
    auto at = static_cast<unsigned>(experts);
#pragma unroll
    for (int j = kGatePerLane - 1; j >= 0; --j) {
      if (own[j] == best) at = static_cast<unsigned>(j * 32 + lane);
    }
    at = __reduce_min_sync(kFullWarp, at);
#pragma unroll
    for (int j = 0; j < kGatePerLane; ++j) {
      if (j * 32 + lane == static_cast<int>(at)) own[j] = 0;
    }
    sum += score[at];
    if (lane == i) {
      chosen_score = score[at];
      args.experts[t * args.topk + i] = static_cast<std::int32_t>(at);
    }
  }
  if (lane < args.topk) args.weights[t * args.topk + lane] = RoutingWeight(chosen_score, sum, args.scale);
}

}  // namespace galley::backend::cuda
