// SPDX-License-Identifier: Apache-2.0
// `galley bench slice --backend cuda`: steps of the real forward pass over a few layers of V4.1-Flash's shape with
// random weights, its head included. A slice, never the model: no Engram, no draft head, fewer layers.
#pragma once

#include <string>
#include <vector>

#include "cuda_bench.h"
#include "galley/base/error.h"

namespace galley::bench {

struct SliceOptions {
  int layers = 8;                            // 4 or more: one of windows alone, then as many of ratio 2 as half of all
  std::vector<int> rows = {1, 16, 64, 256};  // sequences of decode steps
  int context = 8192;                        // tokens before the decode steps, run as one prefill step
};

// Errors: those of MakeCudaBackend, kResourceExhausted (a slice larger than the device).
[[nodiscard]] Status RunSliceBench(const SliceOptions& options, const CudaBenchWrite& write);

}  // namespace galley::bench
