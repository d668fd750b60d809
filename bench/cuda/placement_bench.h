// SPDX-License-Identifier: Apache-2.0
// What experts cost that lie in main memory, at V4.1-Flash's shape with random weights: kernels that read them over
// PCIe and copies of those that were chosen, against a plain copy of the same pinned memory in the same run.
#pragma once

#include "cuda_bench.h"

namespace galley::bench {

// Errors: those of MakeCudaBackend; kResourceExhausted (2 GB that can be pinned); kIo (2 GB in the
// directory for temporary files).
[[nodiscard]] Status RunPlacementBench(const CudaBenchWrite& write);

}  // namespace galley::bench
