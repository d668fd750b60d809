// SPDX-License-Identifier: Apache-2.0
// The CUDA backend's class. Weights, copies and recorded steps are in cuda_backend.cc, products of rows with weights in
// cuda_products.cc, the other ops in cuda_ops.cc. One thread at a time.
#pragma once

#include <fmt/core.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "galley/backend/cuda/cuda_backend.h"
#include "galley/backend/cuda/device_memory.h"
#include "galley/backend/cuda/draw_staging.h"
#include "galley/backend/cuda/engram_reader.h"
#include "galley/backend/cuda/expert_tables.h"
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/packed_rows.h"
#include "galley/backend/cuda/step_graphs.h"
#include "galley/backend/cuda/weight_sink.h"
#include "galley/base/check.h"
#include "galley/io/weight_loader.h"

namespace galley::backend::cuda {

constexpr int kHeadDim = 512;

class CudaBackend final : public Backend {
 public:
  // `arrivals`: kArrivals counters.
  CudaBackend(cudaStream_t stream, bool warpgroup_products, const CudaOptions& options, Buffer arrivals)
      : stream_(stream),
        wide_allowed_(warpgroup_products),
        options_(options),
        experts_(MakeSlots(options)),
        arrivals_(std::move(arrivals)),
        graphs_(options.graphs && !CopiesChosenExperts(options)) {}
  ~CudaBackend() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  [[nodiscard]] std::string_view name() const override { return "cuda"; }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  [[nodiscard]] CudaGraphCounts graph_counts() const { return graphs_.counts(); }

  [[nodiscard]] Result<Buffer> Allocate(std::size_t bytes, std::string_view purpose) override {
    allocated_ += bytes;
    ++allocations_;
    return AllocateDevice(bytes, purpose, stream_);
  }
  [[nodiscard]] std::uint64_t free_device_bytes() const override {
    std::size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
  }
  [[nodiscard]] std::uint64_t allocated_bytes() const override { return allocated_; }
  [[nodiscard]] std::int64_t allocations() const override { return allocations_; }

  [[nodiscard]] Result<const void*> Upload(const TensorView& weight) override { return Place(weight, {}); }
  [[nodiscard]] Result<const void*> UploadMatrix(const TensorView& weight, MatrixUse use) override;
  [[nodiscard]] Result<const void*> UploadTable(const TensorView& table) override;
  [[nodiscard]] Result<const void*> UploadScales(const TensorView& scales, const TensorView& matrix,
                                                 MatrixUse use) override;
  void UseFiles(std::span<const io::WeightFile> files, const io::Progress& progress) override;
  void ExpectExperts(std::span<const ExpertWeights> routed) override {
    if (experts_.slots() != nullptr) experts_.slots()->Expect(routed);
  }
  [[nodiscard]] Status FinishUploads() override;

  [[nodiscard]] Status CopyToDevice(void* device, const void* host, std::size_t bytes) override {
    if (bytes == 0) return {};
    return Checked(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "a copy to the device");
  }
  [[nodiscard]] Status CopyToHost(void* host, const void* device, std::size_t bytes) override;
  void CopyOnDevice(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) Note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "a copy on the device");
  }
  [[nodiscard]] Status Synchronize() override;
  [[nodiscard]] bool repeats_steps() const override { return graphs_.on(); }
  void RunRepeated(const StepKey& key, const std::function<void()>& issue) override;

  void Embed(const EmbedArgs& args) override {
    Run("Embed", [&] { cuda::Embed(args, stream_); });
  }
  void MeanCopies(const MeanCopiesArgs& args) override {
    Run("MeanCopies", [&] { cuda::MeanCopies(args, stream_); });
  }
  void WindowWrite(const WindowWriteArgs& args) override {
    Run("WindowWrite", [&] { cuda::WindowWrite(args, stream_); });
  }
  void GatherRows(const GatherRowsArgs& args) override;
  void EngramRows(const EngramRowsArgs& args) override;
  void EngramAhead(const EngramGatherArgs& args) override;
  void EngramGather(const EngramGatherArgs& args) override;
  void EngramMix(const EngramMixArgs& args) override {
    Run("EngramMix", [&] { cuda::EngramMix(args, stream_); });
  }
  void MhcBoundary(const MhcBoundaryArgs& args) override;
  void Linear(const LinearArgs& args) override;
  void AttnIn(const AttnInArgs& args) override;
  void Compress(const CompressArgs& args) override;
  void IndexSelect(const IndexSelectArgs& args) override;
  void Attention(const AttentionArgs& args) override;
  void AttnOut(const AttnOutArgs& args) override;
  void Route(const RouteArgs& args) override;
  void Moe(const MoeArgs& args) override;
  void Head(const HeadArgs& args) override;
  void DraftWindow(const DraftWindowArgs& args) override;
  void DraftAttention(const DraftAttentionArgs& args) override;
  void DraftChain(const DraftChainArgs& args) override;
  [[nodiscard]] bool draws() const override { return options_.device_draws; }
  [[nodiscard]] Status Draw(const DrawArgs& args) override;

 private:
  [[nodiscard]] static Status Checked(cudaError_t code, std::string_view doing) {
    if (code == cudaSuccess) return {};
    return Err(DeviceError(code, doing));
  }
  // Keeps the first error; Synchronize reports it.
  void Note(cudaError_t code, std::string_view doing) {
    if (code != cudaSuccess && !error_) error_ = DeviceError(code, doing);
  }
  void Refuse(std::string message) {
    if (!error_) error_ = Error{.code = ErrorCode::kUnsupported, .message = std::move(message), .where = {}};
  }
  // False when what the op needs is not so; the reason becomes the error of the step.
  [[nodiscard]] bool Require(bool holds, std::string_view what, std::int64_t value) {
    if (!holds) Refuse(fmt::format("the cuda backend has no kernel for {} ({}); use --backend cpu", what, value));
    return holds;
  }

  [[nodiscard]] std::int64_t moves() const { return scratch_.moves() + engram_.moves(); }
  static int RowsOf(const TensorView& matrix) { return static_cast<int>(matrix.dim(0)); }
  static int ColsOf(const TensorView& matrix) {
    return static_cast<int>(matrix.dim(1)) * (matrix.dtype == DType::kI8 ? 2 : 1);
  }
  [[nodiscard]] bool OnDisk(MatrixUse use) const {
    return use == MatrixUse::kChosen && options_.experts_at == backend::WeightPlace::kDisk;
  }
  static std::unique_ptr<ExpertSlots> MakeSlots(const CudaOptions& options) {
    if (!CopiesChosenExperts(options)) return nullptr;
    return std::make_unique<ExpertSlots>(options.expert_cache,
                                         options.experts_at == backend::WeightPlace::kDisk ? options.expert_memory : 0);
  }
  [[nodiscard]] Result<const void*> Place(const TensorView& weight, const Arrangement& arrangement,
                                          MatrixUse use = MatrixUse::kEveryStep);

  // After an error nothing more is issued: the step has failed.
  template <typename F>
  void Run(std::string_view op, F&& launch) {
    if (error_) return;
    CHECK(wanted_.empty()) << "FinishUploads comes before ops";
    // Products read weights before they wait for earlier kernels, so weights must be complete before any of them.
    if (std::exchange(uploaded_, false)) Note(cudaStreamSynchronize(stream_), "placing weights");
    launch();
    Note(cudaGetLastError(), op);
  }
  // Whether it holds a value; its error becomes the step's.
  template <typename T>
  [[nodiscard]] bool Good(const Result<T>& result) {
    if (!result && !error_) error_ = result.error();
    return result.has_value();
  }
  template <typename T>
  T* Take(ScratchUse use, std::int64_t count) {
    const Result<std::byte*> data = scratch_.Get(use, static_cast<std::size_t>(count) * sizeof(T), stream_);
    return Good(data) ? reinterpret_cast<T*>(*data) : nullptr;
  }

  // x as the product wants it.
  struct Input {
    const BFloat16* x;
    RowOrder order;
    bool split = false;
    int tile_rows = 0;      // of packed rows
    bool quantize = false;  // by the product

    [[nodiscard]] bool bulk() const { return order == RowOrder::kPacked || order == RowOrder::kUnpacked; }
  };
  [[nodiscard]] bool Splits(const Weight& weight, int rows, std::int64_t group_rows) const {
    if (!wide_allowed_ || options_.linears == ProductForm::kStream || rows > kSplitRowsMax) return false;
    if (options_.linears == ProductForm::kAuto && !SplitPays(weight, rows)) return false;
    return TakesSplitProduct(weight, group_rows);
  }
  [[nodiscard]] bool TakesWarpgroups() const { return wide_allowed_ && options_.linears != ProductForm::kStream; }
  // The order of x, which is not there yet; `group_rows` as in ProductArgs.
  [[nodiscard]] Input Planned(const Weight& weight, int rows, std::int64_t group_rows, bool quantize) const;
  // After the quantiser, when the weight asks for it.
  Input Prepared(const Weight& weight, const BFloat16* x, int rows, std::int64_t cols, std::int64_t group_rows = 0,
                 bool quantize = true);
  void Multiply(const Weight& weight, const Input& input, int rows, void* out, bool float_out);
  void MultiplyPlain(const Weight& weight, const BFloat16* x, int rows, void* out, bool float_out) {
    Multiply(weight, Prepared(weight, x, rows, weight.cols), rows, out, float_out);
  }
  void MultiplyInputs(const AttnInArgs& args, BFloat16* low, BFloat16* kv);
  const std::int32_t* RowList(const std::int32_t* host, int count);
  std::int64_t PositionEnd(const StepView& step);

  cudaStream_t stream_;
  bool wide_allowed_;
  CudaOptions options_;
  std::uint64_t allocated_ = 0;
  std::int64_t allocations_ = 0;
  std::optional<Error> error_;
  bool uploaded_ = false;  // weights have been placed since the last op
  WeightArena weights_;
  WeightArena host_experts_{kHostExperts};
  std::vector<Buffer> host_tables_;
  std::size_t host_table_bytes_ = 0;
  ExpertTables experts_;
  EngramReader engram_;
  io::WantedWeights wanted_;  // until FinishUploads, and where each of them goes
  std::vector<WeightPlace> places_;
  Scratch scratch_;
  Buffer arrivals_;  // counters of ops, zero between them
  StepGraphs graphs_;
  DrawStaging draws_;
};

}  // namespace galley::backend::cuda
