// SPDX-License-Identifier: Apache-2.0
// A place where a model runs: memory, and an implementation of every op. A model is written once over this interface.
// Owned by a rank and used by its thread only. Ops are ordered as they are issued and may run later than the call;
// results are there after Synchronize. Arguments have been checked by the model, so an op cannot fail for its input; a
// device that fails reports it at Synchronize.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "galley/backend/ops.h"
#include "galley/base/error.h"
#include "galley/io/weight_file.h"
#include "galley/tensor/tensor_view.h"

namespace galley::backend {

// Device memory, zero-filled when made, freed when it goes.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::byte* data, std::size_t bytes, std::function<void(std::byte*)> release)
      : data_(data, std::move(release)), bytes_(bytes) {}

  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  template <typename T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  std::unique_ptr<std::byte, std::function<void(std::byte*)>> data_;
  std::size_t bytes_ = 0;
};

// Whether every step needs a matrix, or those that chose the routed expert that it belongs to.
enum class MatrixUse { kEveryStep, kChosen };

// What makes two steps the same sequence of ops with the same arguments: only what their memory holds differs.
struct StepKey {
  const void* model = nullptr;  // whose buffers the ops use
  const void* state = nullptr;
  std::int32_t rows = 0;
  std::int32_t position_end = 0;

  friend constexpr bool operator==(const StepKey&, const StepKey&) = default;
};

class Backend {
 public:
  virtual ~Backend() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;

  // Errors: kResourceExhausted with the purpose, what was asked for and what there is.
  [[nodiscard]] virtual Result<Buffer> Allocate(std::size_t bytes, std::string_view purpose) = 0;
  // Bytes of a device's own memory that are free; 0: Allocate takes the process's.
  [[nodiscard]] virtual std::uint64_t free_device_bytes() const { return 0; }
  // Bytes handed out by Allocate so far, and how often; what was freed is not taken off. 0: not counted.
  [[nodiscard]] virtual std::uint64_t allocated_bytes() const { return 0; }
  [[nodiscard]] virtual std::int64_t allocations() const { return 0; }
  // Device address of a weight's bytes, valid as long as both the backend and the view's owner live. A backend that can
  // read host memory returns the view's own address. Bytes of files that UseFiles has named may come no sooner than
  // with FinishUploads; others are there at once.
  [[nodiscard]] virtual Result<const void*> Upload(const TensorView& weight) = 0;
  // The same for Weight::data: a backend may keep a matrix in an order of its own, which only its products read.
  [[nodiscard]] virtual Result<const void*> UploadMatrix(const TensorView& weight, MatrixUse) { return Upload(weight); }
  // And for Weight::scales, those of `matrix`.
  [[nodiscard]] virtual Result<const void*> UploadScales(const TensorView& scales, const TensorView&, MatrixUse) {
    return Upload(scales);
  }
  // And for tables of which a step gathers few rows (EngramGatherArgs), which may lie where reading is slow.
  [[nodiscard]] virtual Result<const void*> UploadTable(const TensorView& table) { return Upload(table); }
  // Where the weights that Upload will be given lie on disk, valid as long as they are; FinishUploads tells `progress`.
  virtual void UseFiles(std::span<const io::WeightFile>, const io::Progress&) {}
  // Experts that a Moe will choose from, all uploaded: a backend that has none of them on the device makes room with
  // FinishUploads.
  virtual void ExpectExperts(std::span<const ExpertWeights>) {}
  // Reads what uploads have left to be read, all at once and in the files' order. No op may run before. Errors: those
  // of io::ReadWeights, kDevice, kResourceExhausted.
  [[nodiscard]] virtual Status FinishUploads() { return {}; }
  [[nodiscard]] virtual Status CopyToDevice(void* device, const void* host, std::size_t bytes) = 0;
  [[nodiscard]] virtual Status CopyToHost(void* host, const void* device, std::size_t bytes) = 0;
  // From device memory to device memory; ranges do not overlap.
  virtual void CopyOnDevice(void* to, const void* from, std::size_t bytes) = 0;
  [[nodiscard]] virtual Status Synchronize() = 0;
  // Whether RunRepeated gains anything, so that a model makes its steps alike.
  [[nodiscard]] virtual bool repeats_steps() const { return false; }
  // Runs the ops that `issue` issues, or those that an earlier call with an equal key issued: `issue` may not be
  // called.
  virtual void RunRepeated([[maybe_unused]] const StepKey& key, const std::function<void()>& issue) { issue(); }

  virtual void Embed(const EmbedArgs& args) = 0;
  virtual void EngramRows(const EngramRowsArgs& args) = 0;
  // Rows that a gather of this step will want: a hint for tables on disk.
  virtual void EngramAhead(const EngramGatherArgs&) {}
  virtual void EngramGather(const EngramGatherArgs& args) = 0;
  virtual void EngramMix(const EngramMixArgs& args) = 0;
  virtual void MhcBoundary(const MhcBoundaryArgs& args) = 0;
  virtual void MeanCopies(const MeanCopiesArgs& args) = 0;
  virtual void Linear(const LinearArgs& args) = 0;
  virtual void AttnIn(const AttnInArgs& args) = 0;
  virtual void Compress(const CompressArgs& args) = 0;
  virtual void IndexSelect(const IndexSelectArgs& args) = 0;
  virtual void Attention(const AttentionArgs& args) = 0;
  virtual void WindowWrite(const WindowWriteArgs& args) = 0;
  virtual void AttnOut(const AttnOutArgs& args) = 0;
  virtual void Route(const RouteArgs& args) = 0;
  // A guess at what a later Moe will need, from the x that is at hand now. It may start reading experts that are not in
  // memory, and changes no result.
  virtual void ForeseeMoe(const ForeseeArgs&) {}
  virtual void Moe(const MoeArgs& args) = 0;
  virtual void Head(const HeadArgs& args) = 0;
  virtual void DraftWindow(const DraftWindowArgs& args) = 0;
  virtual void DraftAttention(const DraftAttentionArgs& args) = 0;
  virtual void DraftChain(const DraftChainArgs& args) = 0;
  virtual void GatherRows(const GatherRowsArgs& args) = 0;

  // Whether Draw is better than reading the logits and drawing on the host.
  [[nodiscard]] virtual bool draws() const { return false; }
  // Waits for the device. Errors: kDevice.
  [[nodiscard]] virtual Status Draw(const DrawArgs& args);
};

}  // namespace galley::backend
