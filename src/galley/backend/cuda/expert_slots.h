// SPDX-License-Identifier: Apache-2.0
// Experts that are not on the device for good: the chosen ones of a layer are copied into places there before they are
// used, and those used most of late stay. They come arranged from pinned main memory, or in the checkpoint's order from
// a store that reads them from disk. Used by the backend's thread only. Bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "galley/backend/cuda/kernels.h"
#include "galley/backend/expert_store.h"
#include "galley/backend/hot_set.h"
#include "galley/base/error.h"

namespace galley::backend::cuda {

class ExpertSlots {
 public:
  // Since they were made.
  struct Counts {
    std::int64_t uses = 0;    // experts that steps needed
    std::int64_t copied = 0;  // of those, not on the device
  };

  // As many places as fit into `budget`, and at least as many as the largest layer has experts. `store_bytes`: main
  // memory for experts on disk; 0: all are arranged in memory that the device reads.
  ExpertSlots(std::size_t budget, std::size_t store_bytes);

  // Where experts on disk are read from.
  void ReadFrom(std::span<const io::WeightFile> files);
  // A layer whose experts will be brought, before Open.
  void Expect(std::span<const ExpertWeights> routed);
  // Takes the memory. Errors: kResourceExhausted, kDevice.
  [[nodiscard]] Status Open(cudaStream_t stream);
  [[nodiscard]] bool open() const { return hot_.has_value(); }

  // Begins to bring what is not there of `chosen`, which differ, and tells where each will lie. What the stream did
  // with earlier ones has ended. Errors: kDevice; those of reading, after which those read now count as zeros and are
  // read anew next time.
  [[nodiscard]] Status Bring(std::span<const ExpertWeights* const> chosen, std::span<ExpertPointers> places,
                             cudaStream_t stream);

  [[nodiscard]] Counts counts() const { return counts_; }

 private:
  [[nodiscard]] Status CopyFromStore(std::span<const ExpertWeights* const> experts, std::span<std::byte* const> to,
                                     cudaStream_t stream);

  const std::size_t budget_;
  std::unique_ptr<ExpertStore> store_;
  std::size_t experts_max_ = 0, expert_bytes_ = 0, array_bytes_ = 0;  // of those expected
  std::optional<HotSet> hot_;
  Buffer memory_, staging_;  // staging: an array before it is arranged
  Counts counts_;
  std::vector<const void*> keys_;
  std::vector<const ExpertWeights*> fresh_;
  std::vector<std::byte*> fresh_to_;
};

}  // namespace galley::backend::cuda
