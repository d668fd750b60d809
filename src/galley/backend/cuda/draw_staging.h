// SPDX-License-Identifier: Apache-2.0
// What draws need besides logits, packed on the host and copied at once by a stream of its own, so that it arrives
// while the device still computes the logits; and their results, which the device writes to pinned memory of the host.
// Owned by the backend and used by its thread.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "galley/backend/backend.h"
#include "galley/backend/cuda/kernels.h"

namespace galley::backend::cuda {

// Sets `filters` and `plain` of a launch, whose `vocab` is set, for draws of `requests`.
void ChooseForm(std::span<const DrawRequest> requests, DrawLaunch& launch);

class DrawStaging {
 public:
  DrawStaging() = default;
  ~DrawStaging();
  DrawStaging(const DrawStaging&) = delete;
  DrawStaging& operator=(const DrawStaging&) = delete;

  // Issues the draws on `stream`. Requires that those before have ended. Errors: kUnsupported (too large a vocabulary),
  // kResourceExhausted, kDevice.
  [[nodiscard]] Status Issue(const DrawArgs& args, cudaStream_t stream);
  // Their results, when they have ended.
  void Deliver(const DrawArgs& args) const;

 private:
  // What is issued on `stream` from now on finds the arguments.
  [[nodiscard]] Result<DrawLaunch> Upload(const DrawArgs& args, cudaStream_t stream);
  [[nodiscard]] Status Reserve(std::size_t in_bytes, std::size_t out_bytes);

  Buffer packed_, arguments_, results_;  // pinned, on the device, pinned
  cudaStream_t copies_ = nullptr;
  cudaEvent_t copied_ = nullptr;
};

}  // namespace galley::backend::cuda
