// SPDX-License-Identifier: Apache-2.0
// Where loaded weights go: from pinned buffers to their places on the device, arranged on the way, or on the host. Used
// by the backend's thread only. Bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <span>

#include "galley/backend/cuda/kernels.h"
#include "galley/base/error.h"
#include "galley/io/weight_loader.h"

namespace galley::backend::cuda {

struct WeightPlace {
  std::byte* to = nullptr;
  Arrangement arrangement;
  bool on_host = false;  // then not arranged
};

struct WeightSinkArgs {
  std::span<const WeightPlace> places;  // outlive the sink
  std::byte* staging = nullptr;         // device memory as large as a buffer: weights before they are arranged
  std::size_t buffers = 0, buffer_bytes = 0;
  cudaStream_t stream = nullptr;
};

// Errors: kDevice.
[[nodiscard]] Result<std::unique_ptr<io::WeightSink>> MakeWeightSink(const WeightSinkArgs& args);

}  // namespace galley::backend::cuda
