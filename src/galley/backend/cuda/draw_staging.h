// SPDX-License-Identifier: Apache-2.0
// What draws need besides logits, packed on the host and copied at once by a stream of its own, so that it arrives
// while the device still computes the logits; and their results, which the device writes to pinned memory of the host.
// Owned by the backend and used by its thread.
#pragma once

#include <cuda_runtime_api.h>

#include "galley/backend/backend.h"
#include "galley/backend/cuda/kernels.h"

namespace galley::backend::cuda {

class DrawStaging {
 public:
  DrawStaging() = default;
  ~DrawStaging();
  DrawStaging(const DrawStaging&) = delete;
  DrawStaging& operator=(const DrawStaging&) = delete;

  // Work issued on `stream` from now on finds the arguments. Requires that the launch before has ended. Errors:
  // kResourceExhausted, kDevice.
  [[nodiscard]] Result<DrawLaunch> Upload(const DrawArgs& args, cudaStream_t stream);
  // Results of the launch, which has ended.
  void Deliver(const DrawArgs& args) const;

 private:
  [[nodiscard]] Status Reserve(std::size_t in_bytes, std::size_t out_bytes);

  Buffer packed_, arguments_, results_;  // pinned, on the device, pinned
  cudaStream_t copies_ = nullptr;
  cudaEvent_t copied_ = nullptr;
};

}  // namespace galley::backend::cuda
