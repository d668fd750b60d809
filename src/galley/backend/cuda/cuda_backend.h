// SPDX-License-Identifier: Apache-2.0
// The backend for NVIDIA GPUs of compute capability 9.0 and up. Everything is issued on one stream; nothing but
// allocation, copies to the host and Synchronize waits for the device. Matrices are laid out at upload as the
// products read them (docs/cuda.md). Owned by a rank and used by its thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "galley/backend/backend.h"
#include "galley/backend/weight_place.h"

namespace galley::backend {

// How a product is computed; all give the same bits.
enum class ProductForm {
  kAuto,    // the constants of kernels.h say
  kStream,  // always warps that stream weights past x (stream_dot.cuh)
  kSplit,   // where auto would stream, warpgroup products; those of linears with parts of K on the blocks of a cluster
};

struct CudaOptions {
  int device = 0;
  bool graphs = true;        // record and replay decode steps (StepKey)
  bool device_draws = true;  // Backend::draws
  // Routed experts. On the host they are in pinned memory, which kernels read, or with a cache copies are made from. On
  // disk a store reads them.
  WeightPlace experts_at = WeightPlace::kDevice;
  std::size_t expert_memory = 0;  // > 0 with experts on disk: main memory for them
  std::size_t expert_cache = 0;   // ExpertSlots's budget; 0: none on the host, the least on disk
  // Engram's tables. On the host they are in pinned memory, which the device reads rows from.
  WeightPlace engram_at = WeightPlace::kDevice;
  // For tests and benchmarks.
  ProductForm linears = ProductForm::kAuto;
  ProductForm experts = ProductForm::kAuto;
};

// Graphs that a backend holds at most, and the device memory that a plan sets aside for each.
inline constexpr std::size_t kCudaGraphsMax = 24;
inline constexpr std::size_t kCudaGraphBytes = std::size_t{16} << 20;
// Memory that weights are loaded through: pinned on the host, and a thirteenth of it on the device.
inline constexpr std::size_t kCudaLoadDeviceBytes = std::size_t{16} << 20;
inline constexpr std::size_t kCudaLoadBytes = 13 * kCudaLoadDeviceBytes;
struct CudaGraphCounts {
  bool on = false;  // false: switched off, or given up
  int recorded = 0, held = 0;
  std::int64_t replayed = 0;
  std::size_t bytes = 0;      // device memory that all those recorded took, as the driver tells it
  std::size_t nodes_max = 0;  // launches and copies of the largest
};

// Errors: kUnsupported (no driver, no such device, too old a device), kDevice.
[[nodiscard]] Result<std::unique_ptr<Backend>> MakeCudaBackend(const CudaOptions& options);

// Whether experts are copied when a step has chosen them: it then waits for the choice, and is not recorded.
[[nodiscard]] constexpr bool CopiesChosenExperts(const CudaOptions& options) {
  return options.experts_at == WeightPlace::kDisk ||
         (options.experts_at == WeightPlace::kHost && options.expert_cache > 0);
}

// Of a backend made above.
[[nodiscard]] CudaGraphCounts GraphCountsOf(const Backend& backend);

// Of the device's memory, what nothing uses; 0 when there is no device.
[[nodiscard]] std::uint64_t CudaFreeBytes();

// For benchmarks. Median microseconds of what `issue` issues on a backend made above: captured once as a graph after a
// run that warms up, then replayed `replays` times. `issue` may not wait for the device. Errors: kDevice.
[[nodiscard]] Result<double> MeasureMicroseconds(Backend& backend, const std::function<void()>& issue, int replays);
// The same for launches on the backend's stream that are not ops (a cudaStream_t as void*, to keep CUDA out of here).
[[nodiscard]] void* StreamOf(Backend& backend);

}  // namespace galley::backend
