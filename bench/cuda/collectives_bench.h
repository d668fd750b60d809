// SPDX-License-Identifier: Apache-2.0
// What NCCL's collectives take between the GPUs of this machine, which is what several ranks will cost; and whether
// what they compute is right. With one GPU they are copies on it, and the report says so.
#pragma once

#include "cuda_bench.h"

namespace galley::bench {

// Errors: kUnsupported (no NCCL, no GPU), kDevice (a fault), kInternal (a wrong result).
[[nodiscard]] Status RunCollectivesBench(const CudaBenchWrite& write);

}  // namespace galley::bench
