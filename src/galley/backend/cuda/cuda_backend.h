// SPDX-License-Identifier: Apache-2.0
// The backend for NVIDIA GPUs of compute capability 9.0 and up. Everything is issued on one stream; nothing but
// allocation, copies to the host and Synchronize waits for the device. Matrices are laid out at upload as the
// products read them (docs/cuda.md). Owned by a rank and used by its thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "galley/backend/backend.h"

namespace galley::backend {

struct CudaOptions {
  int device = 0;
};

// Errors: kUnsupported (no driver, no such device, too old a device), kDevice.
[[nodiscard]] Result<std::unique_ptr<Backend>> MakeCudaBackend(const CudaOptions& options);

// For benchmarks. Median microseconds of what `issue` issues on a backend made above: captured once as a graph after a
// run that warms up, then replayed `replays` times. `issue` may not wait for the device. Errors: kDevice.
[[nodiscard]] Result<double> MeasureMicroseconds(Backend& backend, const std::function<void()>& issue, int replays);
// The same for launches on the backend's stream that are not ops (a cudaStream_t as void*, to keep CUDA out of here).
[[nodiscard]] void* StreamOf(Backend& backend);

}  // namespace galley::backend
