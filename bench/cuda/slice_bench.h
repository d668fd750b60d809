// SPDX-License-Identifier: Apache-2.0
// `galley bench slice --backend cuda`: steps of the real forward pass over a few layers of a model's shape with random
// weights (SliceOf), its head included. A slice, never the model: small Engram tables, no draft head, fewer layers.
#pragma once

#include <string>
#include <vector>

#include "cuda_bench.h"
#include "galley/base/error.h"
#include "galley/model/shapes.h"

namespace galley::bench {

struct SliceOptions {
  const model::ModelShape& shape;
  int layers = 8;                            // kSliceLayersMin or more
  std::vector<int> rows = {1, 16, 64, 256};  // sequences of decode steps
  int context = 8192;                        // tokens before the decode steps, run as one prefill step
};

// Errors: those of MakeCudaBackend, kResourceExhausted (a slice larger than the device).
[[nodiscard]] Status RunSliceBench(const SliceOptions& options, const CudaBenchWrite& write);

}  // namespace galley::bench
