// SPDX-License-Identifier: Apache-2.0
// The cpu backend: the op vocabulary on the processor's vector units. Weights are read where the checkpoint has them,
// in their own order; activations are packed to suit. Threads run over outputs, rows, heads or entries and no sum is
// split between them, so a row's bits depend neither on their number nor on the other rows of a step. They do depend on
// the instruction set. docs/numerics.md states every order. Owned by a rank and used by its thread only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "galley/backend/backend.h"
#include "galley/backend/cpu/isa.h"
#include "galley/backend/cpu/kernels.h"
#include "galley/backend/cpu/scratch.h"
#include "galley/backend/cpu/team.h"
#include "galley/backend/expert_store.h"
#include "galley/backend/ref/ref_backend.h"

namespace galley::backend::cpu {

struct CpuOptions {
  int threads = 1;                // the calling thread included
  std::string_view isa = "auto";  // a name of IsaTable
  std::size_t expert_memory = 0;  // > 0: routed experts stay on disk, and so many bytes of them in memory
  bool engram_on_disk = false;    // rows of its tables are asked for ahead and nothing else is
  std::vector<Core> processors;   // where workers are pinned; empty: nowhere
};

class CpuBackend final : public Backend {
 public:
  // An instruction set whose self-test fails gives way to the automatic choice, with a warning. Errors: kUnsupported
  // (an instruction set that this processor has not).
  [[nodiscard]] static Result<std::unique_ptr<Backend>> Create(const CpuOptions& options);
  CpuBackend(const CpuOptions& options, const IsaEntry& isa);

  [[nodiscard]] std::string_view name() const override { return "cpu"; }
  [[nodiscard]] std::string_view isa() const { return isa_.name; }
  // Null when experts are in memory.
  [[nodiscard]] const ExpertStore* expert_store() const { return store_.get(); }
  [[nodiscard]] std::uint64_t allocated_bytes() const override { return plain_.allocated_bytes(); }
  [[nodiscard]] std::int64_t allocations() const override { return plain_.allocations(); }
  [[nodiscard]] Result<Buffer> Allocate(std::size_t bytes, std::string_view purpose) override;
  [[nodiscard]] Result<const void*> Upload(const TensorView& weight) override;
  [[nodiscard]] Status CopyToDevice(void* device, const void* host, std::size_t bytes) override;
  [[nodiscard]] Status CopyToHost(void* host, const void* device, std::size_t bytes) override;
  void CopyOnDevice(void* to, const void* from, std::size_t bytes) override;
  void UseFiles(std::span<const io::WeightFile> files, const io::Progress& progress) override;
  // Errors: those of reading experts (ExpertStore::TakeError).
  [[nodiscard]] Status Synchronize() override;

  void Embed(const EmbedArgs& args) override;
  void EngramRows(const EngramRowsArgs& args) override;
  void EngramAhead(const EngramGatherArgs& args) override;
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
  void ForeseeMoe(const ForeseeArgs& args) override;
  void Moe(const MoeArgs& args) override;
  void Head(const HeadArgs& args) override;
  void DraftWindow(const DraftWindowArgs& args) override;
  void DraftAttention(const DraftAttentionArgs& args) override;
  void DraftChain(const DraftChainArgs& args) override;
  void GatherRows(const GatherRowsArgs& args) override;

 private:
  struct PackedRows {
    const std::byte* data = nullptr;
    std::size_t stride = 0;  // bytes
  };
  // Cosine and sine of a step's positions, kept from one layer to the next.
  struct RopeTable {
    std::vector<float> frequencies;  // [dims / 2], by value: another model may have its own at the same address
    std::vector<std::int32_t> positions;
    std::vector<float> values;  // [rows][dims]: cosines, then sines
  };
  struct ExpertBatch;

  // Packs `rows` rows for weights of that format, each x_stride elements after the one before; `quantise` as the model
  // does for quantised weights.
  PackedRows PackFor(WeightFormat format, bool quantise, const BFloat16* x, std::int64_t x_stride, int rows,
                     std::int64_t cols);
  // The activations of a quantised or plain layer: FP8 and MXFP4 weights meet quantised activations.
  PackedRows PackForLayer(const Weight& weight, const BFloat16* x, int rows);
  // Products that do not depend on each other, in one loop.
  void RunProducts(std::span<const ProductArgs> products);
  // The same products with their rows gathered, for kernels that want that.
  std::span<const ProductArgs> Gathered(std::span<const ProductArgs> products);
  ProductArgs ProductOf(const Weight& weight, const PackedRows& x, int rows) const;

  const float* RopeValues(const Rope& rope, const StepView& step);
  void NormRow(BFloat16* x, const BFloat16* weight, float eps, std::size_t n) const;
  struct AttentionTasks;
  struct PlaceList;
  // Attention of every row of the tasks; `places(task, list)` lists the places of one (defined with the ops).
  template <typename Args, typename Places>
  void RunAttention(const Args& args, const AttentionTasks& tasks, const Places& places);
  // Turns the last `dims` values of x by the angles of a row of a RopeTable (sign -1: back), rounding to bf16.
  void RotateTail(BFloat16* x, std::size_t n, const float* cos_sin, int dims, float sign) const {
    kernels_.rotate(x + n - static_cast<std::size_t>(dims), cos_sin, static_cast<std::size_t>(dims) / 2, sign);
  }
  void WriteEntry(const CompressArgs& args, const SequenceEntry& sequence, std::int64_t entry, const float* pooled,
                  int worker);
  // In memory_.
  std::span<ExpertBatch> GatherExperts(const MoeArgs& args);
  // Fills the results of these batches, rows from batch.first on.
  void RunExperts(const MoeArgs& args, std::span<ExpertBatch> batches, BFloat16* results);
  // The same for experts that the store reads, each as soon as it is there.
  void RunAsTheyCome(const MoeArgs& args, std::span<ExpertBatch> batches, BFloat16* results);
  // The same for experts that may have to be read first, as many at a time as the store holds.
  void RunStoredExperts(const MoeArgs& args, std::span<ExpertBatch> batches, BFloat16* results);

  RefBackend plain_;  // memory, and ops that only move rows
  const IsaEntry& isa_;
  const Kernels& kernels_;
  Team team_;
  OpMemory memory_;
  WorkerMemory worker_memory_;
  std::array<RopeTable, 3> ropes_;
  std::size_t next_rope_ = 0;
  const bool engram_on_disk_;
  std::unique_ptr<ExpertStore> store_;
  // What the Moe behind the next one was guessed to need, what was guessed for the next one, and how often such guesses
  // come true.
  std::vector<const ExpertWeights*> foreseen_, expected_;
  double early_right_ = 1;
  std::vector<std::vector<TokenChance>> sample_scratch_;  // of each worker
};

[[nodiscard]] constexpr bool IsQuantised(WeightFormat format) {
  return format != WeightFormat::kF32 && format != WeightFormat::kBF16;
}

}  // namespace galley::backend::cpu
