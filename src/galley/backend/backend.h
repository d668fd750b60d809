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
#include <string_view>
#include <utility>

#include "galley/backend/ops.h"
#include "galley/base/error.h"
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

class Backend {
 public:
  virtual ~Backend() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;

  // Errors: kResourceExhausted with the purpose, what was asked for and what there is.
  [[nodiscard]] virtual Result<Buffer> Allocate(std::size_t bytes, std::string_view purpose) = 0;
  // Bytes handed out by Allocate so far, and how often; what was freed is not taken off. 0: not counted.
  [[nodiscard]] virtual std::uint64_t allocated_bytes() const { return 0; }
  [[nodiscard]] virtual std::int64_t allocations() const { return 0; }
  // Device address of a weight's bytes, valid as long as both the backend and the view's owner live. A backend that can
  // read host memory returns the view's own address.
  [[nodiscard]] virtual Result<const void*> Upload(const TensorView& weight) = 0;
  // The same for Weight::data: a backend may keep a matrix in an order of its own, which only its products read.
  [[nodiscard]] virtual Result<const void*> UploadMatrix(const TensorView& weight) { return Upload(weight); }
  [[nodiscard]] virtual Status CopyToDevice(void* device, const void* host, std::size_t bytes) = 0;
  [[nodiscard]] virtual Status CopyToHost(void* host, const void* device, std::size_t bytes) = 0;
  // From device memory to device memory; ranges do not overlap.
  virtual void CopyOnDevice(void* to, const void* from, std::size_t bytes) = 0;
  [[nodiscard]] virtual Status Synchronize() = 0;

  virtual void Embed(const EmbedArgs& args) = 0;
  virtual void EngramRows(const EngramRowsArgs& args) = 0;
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
  // A guess at what the next layer's Moe will need, from this layer's x, given before this layer's Moe. It may start
  // reading experts that are not in memory, and changes no result.
  virtual void ForeseeMoe(const ForeseeArgs&) {}
  virtual void Moe(const MoeArgs& args) = 0;
  virtual void Head(const HeadArgs& args) = 0;
  virtual void DraftWindow(const DraftWindowArgs& args) = 0;
  virtual void DraftAttention(const DraftAttentionArgs& args) = 0;
  virtual void DraftChain(const DraftChainArgs& args) = 0;
  virtual void GatherRows(const GatherRowsArgs& args) = 0;
};

}  // namespace galley::backend
