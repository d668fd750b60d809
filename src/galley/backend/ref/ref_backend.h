// SPDX-License-Identifier: Apache-2.0
// The reference backend: the model specification in plain C++, on the host. It is the oracle that every faster backend
// is measured against, so it follows the official order of arithmetic and does nothing clever. Threads run over rows,
// heads or outputs; no sum is ever split between them, so results do not depend on their number.
#pragma once

#include <cstdint>
#include <vector>

#include "galley/backend/backend.h"
#include "galley/base/thread_pool.h"

namespace galley::backend {

class RefBackend final : public Backend {
 public:
  // `threads` >= 1, the calling thread included.
  explicit RefBackend(int threads) : pool_(threads) {}

  [[nodiscard]] std::string_view name() const override { return "ref"; }
  [[nodiscard]] Result<Buffer> Allocate(std::size_t bytes, std::string_view purpose) override;
  [[nodiscard]] std::uint64_t allocated_bytes() const override { return allocated_; }
  [[nodiscard]] std::int64_t allocations() const override { return allocations_; }
  // Where it is: a checkpoint's tensors are aligned.
  [[nodiscard]] Result<const void*> Upload(const TensorView& weight) override { return weight.data; }
  [[nodiscard]] Status CopyToDevice(void* device, const void* host, std::size_t bytes) override;
  [[nodiscard]] Status CopyToHost(void* host, const void* device, std::size_t bytes) override;
  void CopyOnDevice(void* to, const void* from, std::size_t bytes) override;
  [[nodiscard]] Status Synchronize() override { return {}; }

  void Embed(const EmbedArgs& args) override;
  void EngramRows(const EngramRowsArgs& args) override;
  void EngramGather(const EngramGatherArgs& args) override;
  void EngramMix(const EngramMixArgs& args) override;
  void MhcBoundary(const MhcBoundaryArgs& args) override;
  void MeanCopies(const MeanCopiesArgs& args) override;
  void Linear(const LinearArgs& args) override;
  void AttnIn(const AttnInArgs& args) override;
  void Compress(const CompressArgs& args) override;
  void IndexSelect(const IndexSelectArgs& args) override;
  void Attention(const AttentionArgs& args) override;
  void WindowWrite(const WindowWriteArgs& args) override;
  void AttnOut(const AttnOutArgs& args) override;
  void Route(const RouteArgs& args) override;
  void Moe(const MoeArgs& args) override;
  void Head(const HeadArgs& args) override;
  void DraftWindow(const DraftWindowArgs& args) override;
  void DraftAttention(const DraftAttentionArgs& args) override;
  void DraftChain(const DraftChainArgs& args) override;
  void GatherRows(const GatherRowsArgs& args) override;

 private:
  ThreadPool pool_;
  std::uint64_t allocated_ = 0;  // bytes handed out in all; plans are made once, so what is freed is not counted
  std::int64_t allocations_ = 0;
  std::vector<std::int64_t> engram_ids_;  // scratch of EngramRows, which the cpu backend uses too
};

}  // namespace galley::backend
