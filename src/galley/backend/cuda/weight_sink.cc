// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cuda/weight_sink.h"

#include <cstring>
#include <vector>

#include "galley/backend/cuda/device_memory.h"
#include "galley/base/aligned_bytes.h"
#include "galley/base/log.h"

namespace galley::backend::cuda {
namespace {

class WeightSink final : public io::WeightSink {
 public:
  explicit WeightSink(const WeightSinkArgs& args) : args_(args), memory_(args.buffers * args.buffer_bytes) {
    for (std::size_t i = 0; i < args.buffers; ++i) addresses_.push_back(memory_.data() + i * args.buffer_bytes);
  }
  ~WeightSink() override {
    cudaStreamSynchronize(args_.stream);  // after an error copies may still run
    for (const cudaEvent_t event : copied_) cudaEventDestroy(event);
    if (pinned_) cudaHostUnregister(memory_.data());
  }
  WeightSink(const WeightSink&) = delete;
  WeightSink& operator=(const WeightSink&) = delete;

  [[nodiscard]] Status Open() {
    for (std::size_t i = 0; i < args_.buffers; ++i) {
      cudaEvent_t event = nullptr;
      const cudaError_t code = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
      if (code != cudaSuccess) return Err(DeviceError(code, "preparing to load weights"));
      copied_.push_back(event);
    }
    // Pages of the process's own, which any file system reads into; the driver need not let us pin them.
    pinned_ = cudaHostRegister(memory_.data(), memory_.size(), cudaHostRegisterDefault) == cudaSuccess;
    if (!pinned_) {
      cudaGetLastError();
      log::Info("the driver pins no memory for loading, so weights are copied once more on their way");
    }
    return {};
  }

  [[nodiscard]] std::span<std::byte* const> buffers() const override { return addresses_; }
  [[nodiscard]] Status Take(std::size_t buffer, std::span<const io::ReadPart> parts) override {
    for (const io::ReadPart& part : parts) {
      const WeightPlace& place = args_.places[part.index];
      std::byte* to = place.to + part.offset;
      if (place.on_host) {
        std::memcpy(to, addresses_[buffer] + part.at, part.bytes);
        continue;
      }
      const bool arrange = place.arrangement.kind != Arrangement::Kind::kNone;
      const cudaError_t code = cudaMemcpyAsync(arrange ? args_.staging : to, addresses_[buffer] + part.at, part.bytes,
                                               cudaMemcpyDefault, args_.stream);
      if (code != cudaSuccess) return Err(DeviceError(code, "copying weights"));
      if (arrange) Arrange(place.arrangement, args_.staging, part.bytes, to, args_.stream);
    }
    cudaError_t code = cudaGetLastError();
    if (code == cudaSuccess) code = cudaEventRecord(copied_[buffer], args_.stream);
    if (code != cudaSuccess) return Err(DeviceError(code, "placing weights"));
    return {};
  }
  [[nodiscard]] Status Release(std::size_t buffer) override {
    const cudaError_t code = cudaEventSynchronize(copied_[buffer]);
    if (code != cudaSuccess) return Err(DeviceError(code, "placing weights"));
    return {};
  }

 private:
  const WeightSinkArgs args_;
  AlignedBytes memory_;
  std::vector<std::byte*> addresses_;
  std::vector<cudaEvent_t> copied_;  // the last work on a buffer
  bool pinned_ = false;
};

}  // namespace

Result<std::unique_ptr<io::WeightSink>> MakeWeightSink(const WeightSinkArgs& args) {
  auto sink = std::make_unique<WeightSink>(args);
  RETURN_IF_ERROR(sink->Open());
  return std::unique_ptr<io::WeightSink>(std::move(sink));
}

}  // namespace galley::backend::cuda
