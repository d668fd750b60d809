// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cuda/expert_tables.h"

#include <algorithm>
#include <string_view>

#include "galley/backend/cuda/device_memory.h"

namespace galley::backend::cuda {
namespace {

Status Checked(cudaError_t code, std::string_view doing) {
  if (code == cudaSuccess) return {};
  return Err(DeviceError(code, doing));
}

ExpertPointers PointersTo(const ExpertWeights& e) {
  const auto codes = [](const Weight& w) { return static_cast<const std::uint8_t*>(w.data); };
  return {codes(e.w1), e.w1.scales, codes(e.w3), e.w3.scales, codes(e.w2), e.w2.scales};
}

}  // namespace

Result<const ExpertPointers*> ExpertTables::Of(const MoeArgs& args, cudaStream_t stream) {
  Table& table = tables_[args.routed];
  const bool made = table.device.data() != nullptr;
  if (!made) {
    for (int e = 0; e < args.expert_count; ++e) table.pointers.push_back(PointersTo(args.routed[e]));
    table.pointers.push_back(PointersTo(args.shared));
    ASSIGN_OR_RETURN(table.device,
                     AllocateDevice(table.pointers.size() * sizeof(ExpertPointers), "table of experts", stream));
  }
  if (slots_ != nullptr && args.rows > 0 && args.expert_count > 0) {
    if (Status brought = Bring(args, table.pointers, stream); !brought) {
      // A disk that fails is no fault of the device: the step goes on to its end.
      const bool disk = brought.error().code == ErrorCode::kIo || brought.error().code == ErrorCode::kCorrupt;
      if (!disk) return Err(std::move(brought.error()));
      unread_ = std::move(brought.error());
    }
  }
  if (!made || slots_ != nullptr) {
    RETURN_IF_ERROR(Checked(cudaMemcpyAsync(table.device.data(), table.pointers.data(), table.device.bytes(),
                                            cudaMemcpyHostToDevice, stream),
                            "the table of experts"));
  }
  return table.device.as<ExpertPointers>();
}

Status ExpertTables::Bring(const MoeArgs& args, std::span<ExpertPointers> table, cudaStream_t stream) {
  if (!slots_->open()) {  // nobody has told of the layers before
    slots_->Expect({args.routed, static_cast<std::size_t>(args.expert_count)});
    RETURN_IF_ERROR(slots_->Open(stream));
  }
  chosen_.resize(static_cast<std::size_t>(args.rows) * static_cast<std::size_t>(args.topk));
  RETURN_IF_ERROR(Checked(cudaMemcpyAsync(chosen_.data(), args.experts, chosen_.size() * sizeof(chosen_[0]),
                                          cudaMemcpyDeviceToHost, stream),
                          "reading the router's choice"));
  RETURN_IF_ERROR(Checked(cudaStreamSynchronize(stream), "the router"));
  std::ranges::sort(chosen_);
  chosen_.erase(std::ranges::unique(chosen_).begin(), chosen_.end());
  experts_.clear();
  for (const std::int32_t e : chosen_) experts_.push_back(&args.routed[e]);
  places_.resize(chosen_.size());
  Status brought = slots_->Bring(experts_, places_, stream);
  for (std::size_t i = 0; i < chosen_.size(); ++i) table[static_cast<std::size_t>(chosen_[i])] = places_[i];
  return brought;
}

}  // namespace galley::backend::cuda
