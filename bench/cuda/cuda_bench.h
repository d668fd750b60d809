// SPDX-License-Identifier: Apache-2.0
// `galley bench kernels` and `layers --backend cuda`: ops of the CUDA backend on a model's shapes with random
// weights, replayed from CUDA graphs: microseconds in each form of the products, bytes moved, and the fraction of the
// time that reading those bytes takes at the bandwidth measured in the same run. Ops and layers, not the model.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "galley/base/error.h"
#include "galley/model/shapes.h"

namespace galley::bench {

using CudaBenchWrite = std::function<void(const std::string& text)>;

struct CudaBenchOptions {
  const model::ModelShape& shape;
  std::vector<std::string> only;             // parts to run; empty: all
  std::vector<int> rows = {1, 16, 64, 256};  // of decode steps
  int prefill = 8192;                        // rows of a prefill step; 0: none
};

// Errors: kInvalidArgument (an unknown part), those of MakeCudaBackend.
[[nodiscard]] Status RunCudaBench(const CudaBenchOptions& options, const CudaBenchWrite& write);

}  // namespace galley::bench
