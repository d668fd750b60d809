// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cuda/expert_slots.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "galley/backend/cuda/device_memory.h"
#include "galley/base/check.h"

namespace galley::backend::cuda {
namespace {

constexpr std::size_t kAlignment = 256;

// One of an expert's arrays, and where it lies in a place.
struct Part {
  const void* from;
  std::size_t bytes, at;
  Arrangement arrangement;
};

// In the order of ExpertPointers.
std::array<Part, 6> PartsOf(const ExpertWeights& expert) {
  std::array<Part, 6> parts{};
  std::size_t i = 0, at = 0;
  const auto add = [&](const void* from, std::size_t bytes, const Arrangement& arrangement) {
    parts[i++] = {from, bytes, at, arrangement};
    at += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  for (const Weight* w : {&expert.w1, &expert.w3, &expert.w2}) {
    const int rows = static_cast<int>(w->rows), cols = static_cast<int>(w->cols);
    add(w->data, CodeBytes(*w), ArrangementOfCodes(w->format, rows, cols));
    add(w->scales, ScaleBytes(*w), ArrangementOfScales(w->format, rows, cols));
  }
  return parts;
}

std::size_t RoomOf(const ExpertWeights& expert) {
  const Part last = PartsOf(expert).back();
  return (last.at + last.bytes + kAlignment - 1) / kAlignment * kAlignment;
}

ExpertPointers PointersTo(const ExpertWeights& expert, const std::byte* place) {
  const std::array<Part, 6> parts = PartsOf(expert);
  const auto at = [&](std::size_t i) { return reinterpret_cast<const std::uint8_t*>(place + parts[i].at); };
  return {.w1 = at(0), .s1 = at(1), .w3 = at(2), .s3 = at(3), .w2 = at(4), .s2 = at(5)};
}

// With `staging`, `expert` is in the checkpoint's order.
Status Copy(const ExpertWeights& expert, std::byte* to, std::byte* staging, cudaStream_t stream) {
  for (const Part& part : PartsOf(expert)) {
    const bool arrange = staging != nullptr && part.arrangement.kind != Arrangement::Kind::kNone;
    const cudaError_t code =
        cudaMemcpyAsync(arrange ? staging : to + part.at, part.from, part.bytes, cudaMemcpyHostToDevice, stream);
    if (code != cudaSuccess) return Err(DeviceError(code, "copying an expert"));
    if (arrange) Arrange(part.arrangement, staging, part.bytes, to + part.at, stream);
  }
  return {};
}

}  // namespace

ExpertSlots::ExpertSlots(std::size_t budget, std::size_t store_bytes) : budget_(budget) {
  constexpr int kReadsAtOnce = 8;  // 4 MiB in flight
  if (store_bytes == 0) return;
  store_ = std::make_unique<ExpertStore>(ExpertStore::Options{
      .budget = store_bytes, .depth = kReadsAtOnce, .reading = Reading::kRing, .allocate = AllocateForCopies});
}

void ExpertSlots::ReadFrom(std::span<const io::WeightFile> files) {
  if (store_ != nullptr) store_->ReadFrom(std::make_unique<io::WeightReader>(files));
}

void ExpertSlots::Expect(std::span<const ExpertWeights> routed) {
  CHECK(!open()) << "experts are being used";
  experts_max_ = std::max(experts_max_, routed.size());
  for (const ExpertWeights& expert : routed) {
    expert_bytes_ = std::max(expert_bytes_, RoomOf(expert));
    for (const Part& part : PartsOf(expert)) array_bytes_ = std::max(array_bytes_, part.bytes);
  }
}

Status ExpertSlots::Open(cudaStream_t stream) {
  if (open() || expert_bytes_ == 0) return {};
  const std::size_t places = std::max(budget_ / expert_bytes_, experts_max_);
  ASSIGN_OR_RETURN(memory_,
                   AllocateDevice(places * expert_bytes_, "routed experts that a step chose (--expert-cache)", stream));
  if (store_ != nullptr) {
    ASSIGN_OR_RETURN(staging_, AllocateDevice(array_bytes_, "an expert before it is arranged", stream));
  }
  hot_.emplace(places);
  return {};
}

Status ExpertSlots::Bring(std::span<const ExpertWeights* const> chosen, std::span<ExpertPointers> places,
                          cudaStream_t stream) {
  CHECK(open() && chosen.size() <= hot_->places()) << chosen.size() << " experts";
  keys_.clear();
  for (const ExpertWeights* expert : chosen) keys_.push_back(expert->w1.data);
  const std::span<const HotSet::Placed> placed = hot_->Place(keys_);
  fresh_.clear();
  fresh_to_.clear();
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    std::byte* to = memory_.data() + placed[i].place * expert_bytes_;
    places[i] = PointersTo(*chosen[i], to);
    if (!placed[i].fresh) continue;
    fresh_.push_back(chosen[i]);
    fresh_to_.push_back(to);
  }
  counts_.uses += static_cast<std::int64_t>(chosen.size());
  counts_.copied += static_cast<std::int64_t>(fresh_.size());
  Status status;
  if (store_ != nullptr) {
    status = CopyFromStore(fresh_, fresh_to_, stream);
  } else {
    for (std::size_t i = 0; i < fresh_.size() && status; ++i) {
      status = Copy(*fresh_[i], fresh_to_[i], nullptr, stream);
    }
  }
  if (!status) {
    for (const ExpertWeights* expert : fresh_) hot_->Drop(expert->w1.data);
  }
  return status;
}

Status ExpertSlots::CopyFromStore(std::span<const ExpertWeights* const> experts, std::span<std::byte* const> to,
                                  cudaStream_t stream) {
  // A group takes at most half of the store, so that the next one is read while this one is copied.
  const auto end_of_group = [&](std::size_t begin) {
    std::size_t end = begin, bytes = 0;
    for (; end < experts.size(); ++end) {
      bytes += ExpertRoom(BytesOf(*experts[end]));
      if (end > begin && bytes > store_->budget() / 2) break;
    }
    return end;
  };
  for (std::size_t begin = 0, end = 0; begin < experts.size(); begin = end) {
    end = end_of_group(begin);
    // The store may now let go what copies still read.
    if (const cudaError_t code = begin > 0 ? cudaStreamSynchronize(stream) : cudaSuccess; code != cudaSuccess) {
      return Err(DeviceError(code, "copying experts"));
    }
    store_->Start(experts.subspan(begin, end - begin));
    store_->Prefetch(experts.subspan(end, end_of_group(end) - end));
    for (std::size_t i = begin; i < end; ++i) {
      store_->Wait(experts.subspan(i, 1));
      RETURN_IF_ERROR(Copy(store_->Loaded(*experts[i]), to[i], staging_.data(), stream));
    }
  }
  return store_->TakeError();
}

}  // namespace galley::backend::cuda
