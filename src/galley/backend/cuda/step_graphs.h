// SPDX-License-Identifier: Apache-2.0
// Steps of decode recorded as CUDA graphs and replayed: one launch instead of a thousand. A graph holds addresses, so
// it is thrown away when scratch has moved since; memory of the model never moves. Used by the backend's thread only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "galley/backend/backend.h"
#include "galley/backend/cuda/cuda_backend.h"

namespace galley::backend::cuda {

class StepGraphs {
 public:
  explicit StepGraphs(bool on) : on_(on) {}
  ~StepGraphs() { Clear(); }
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  [[nodiscard]] bool on() const { return on_; }
  [[nodiscard]] CudaGraphCounts counts() const;

  // What to do with a step.
  enum class Turn {
    kIssue,   // as it is: the first of its kind, in which scratch grows and kernels are loaded
    kRecord,  // between BeginRecording and EndRecording
    kReplay,
  };
  // `scratch` counts how often scratch has moved.
  [[nodiscard]] bool Unmoved(std::int64_t scratch) const { return scratch == scratch_; }
  [[nodiscard]] Turn Next(const StepKey& key, std::int64_t scratch);
  [[nodiscard]] cudaError_t Replay(const StepKey& key, cudaStream_t stream);

  [[nodiscard]] cudaError_t BeginRecording(cudaStream_t stream);
  // Ends what BeginRecording began; `good`: what was issued can be kept. With an error, or when not good, nothing is
  // kept and the step has not run. Otherwise Replay runs it.
  [[nodiscard]] cudaError_t EndRecording(const StepKey& key, bool good, cudaStream_t stream);
  // No more recording: a device or driver that cannot do it. The reason is logged once.
  void GiveUp(cudaError_t reason);

 private:
  struct Entry {
    StepKey key;
    cudaGraphExec_t run = nullptr;  // null: seen, not recorded
    std::int64_t last_use = 0;
  };
  [[nodiscard]] Entry* Find(const StepKey& key);
  void DropOldest(cudaStream_t stream);
  void Clear();

  bool on_;
  std::vector<Entry> entries_;
  std::int64_t scratch_ = -1, clock_ = 0;
  CudaGraphCounts counts_;
};

}  // namespace galley::backend::cuda
