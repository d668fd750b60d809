// SPDX-License-Identifier: Apache-2.0
// Scores of experts (2.9), sqrt(softplus). The largest biased ones win, equal ones by lower id.
#pragma once

#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/numbers.cuh"

namespace galley::backend::cuda {

// softplus as torch has it: above 20 the input itself.
__device__ __forceinline__ float Softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}

__device__ __forceinline__ float Score(float logit, float temperature) {
  return sqrtf(Softplus(logit / temperature));
}

__device__ __forceinline__ float Biased(float sum) {
  return isnan(sum) ? -INFINITY : sum;  // keeps the order total
}

__device__ __forceinline__ const float* BiasOf(const RouteArgs& args, std::int64_t row) {
  const bool image = args.step.image_rows != nullptr && args.step.image_rows[row] != 0 && args.image_bias != nullptr;
  return image ? args.image_bias : args.bias;
}

__device__ __forceinline__ float RoutingWeight(float score, float sum, float scale) {
  return score / (sum + 1e-20f) * scale;
}

}  // namespace galley::backend::cuda
