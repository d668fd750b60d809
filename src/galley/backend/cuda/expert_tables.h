// SPDX-License-Identifier: Apache-2.0
// Where the kernels of a Moe find its experts: a table on the device for each layer. With slots, those that a step has
// chosen are brought there first. Used by the backend's thread only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "galley/backend/cuda/expert_slots.h"

namespace galley::backend::cuda {

class ExpertTables {
 public:
  // Without slots experts are read where they lie.
  explicit ExpertTables(std::unique_ptr<ExpertSlots> slots) : slots_(std::move(slots)) {}

  // On the device, by expert, the shared one last; with slots right for what `args` chose alone, which is waited for.
  // Experts that cannot be read count as zeros. Errors: kResourceExhausted, kDevice.
  [[nodiscard]] Result<const ExpertPointers*> Of(const MoeArgs& args, cudaStream_t stream);
  // Why the step is worth nothing, if so; told once.
  [[nodiscard]] std::optional<Error> TakeUnread() { return std::exchange(unread_, {}); }

  [[nodiscard]] ExpertSlots* slots() const { return slots_.get(); }

 private:
  struct Table {
    Buffer device;
    std::vector<ExpertPointers> pointers;
  };
  [[nodiscard]] Status Bring(const MoeArgs& args, std::span<ExpertPointers> table, cudaStream_t stream);

  const std::unique_ptr<ExpertSlots> slots_;
  std::unordered_map<const ExpertWeights*, Table> tables_;
  std::optional<Error> unread_;
  std::vector<std::int32_t> chosen_;
  std::vector<const ExpertWeights*> experts_;
  std::vector<ExpertPointers> places_;
};

}  // namespace galley::backend::cuda
