// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cuda/cuda_backend.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

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

namespace galley::backend {
namespace {

using cuda::DeviceError;
using cuda::ScratchUse;

constexpr std::size_t kScoreBytesMax = std::size_t{512} << 20;  // index scores kept at once
constexpr int kExpertsMax = 1023, kChoicesMax = 32, kNgramMax = 16, kEngramLayersMax = 8;
constexpr int kHeadDim = 512, kRopeMax = 128, kMhcDimMax = 20480;
// Queries of up to so many rows are rotated where they leave their product; of more a launch of its own is faster.
constexpr int kRotatedByProductRowsMax = 16;
// Products of so many rows that need no quantiser go to the narrow kernel.
constexpr int kNarrowRowsMax = 8;

std::size_t Bytes(std::int64_t count, std::size_t each) {
  return static_cast<std::size_t>(count) * each;
}

class CudaBackend final : public Backend {
 public:
  // `arrivals`: cuda::kArrivals counters.
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
    return cuda::AllocateDevice(bytes, purpose, stream_);
  }
  [[nodiscard]] std::uint64_t free_device_bytes() const override {
    std::size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
  }
  [[nodiscard]] std::uint64_t allocated_bytes() const override { return allocated_; }
  [[nodiscard]] std::int64_t allocations() const override { return allocations_; }

  [[nodiscard]] Result<const void*> Upload(const TensorView& weight) override { return Place(weight, {}); }
  [[nodiscard]] Result<const void*> UploadMatrix(const TensorView& weight, MatrixUse use) override {
    if (OnDisk(use)) return static_cast<const void*>(weight.data);
    WeightFormat format = WeightFormat::kF32;
    if (weight.dtype == DType::kI8) format = WeightFormat::kMxfp4;
    if (weight.dtype == DType::kF8E4M3) format = WeightFormat::kFp8Block32;
    if (weight.dtype == DType::kBF16) format = WeightFormat::kBF16;
    if (format == WeightFormat::kF32) return Place(weight, {}, use);
    return Place(weight, cuda::ArrangementOfCodes(format, RowsOf(weight), ColsOf(weight)), use);
  }
  [[nodiscard]] Result<const void*> UploadTable(const TensorView& table) override {
    if (options_.engram_at == WeightPlace::kDevice) return Upload(table);
    if (options_.engram_at == WeightPlace::kDisk) return static_cast<const void*>(table.data);
    ASSIGN_OR_RETURN(Buffer buffer, cuda::AllocateHost(table.bytes(), cuda::kHostEngram, host_table_bytes_));
    host_table_bytes_ += table.bytes();
    std::byte* const to = host_tables_.emplace_back(std::move(buffer)).data();
    if (wanted_.Add(table.data, table.bytes(), 1)) {
      places_.push_back({.to = to, .arrangement = {}, .on_host = true});
    } else {
      std::memcpy(to, table.data, table.bytes());
    }
    return static_cast<const void*>(to);
  }
  [[nodiscard]] Result<const void*> UploadScales(const TensorView& scales, const TensorView& matrix,
                                                 MatrixUse use) override {
    if (OnDisk(use)) return static_cast<const void*>(scales.data);
    const auto format = matrix.dtype == DType::kI8 ? WeightFormat::kMxfp4 : WeightFormat::kFp8Block32;
    return Place(scales, cuda::ArrangementOfScales(format, RowsOf(matrix), ColsOf(matrix)), use);
  }
  void UseFiles(std::span<const io::WeightFile> files, const io::Progress& progress) override {
    wanted_.UseFiles(files, progress);
    if (experts_.slots() != nullptr) experts_.slots()->ReadFrom(files);
  }
  void ExpectExperts(std::span<const ExpertWeights> routed) override {
    if (experts_.slots() != nullptr) experts_.slots()->Expect(routed);
  }
  [[nodiscard]] Status FinishUploads() override {
    if (experts_.slots() != nullptr) RETURN_IF_ERROR(experts_.slots()->Open(stream_));
    const std::vector<cuda::WeightPlace> places = std::exchange(places_, {});
    constexpr io::LoadShape kShape;
    static_assert((kShape.buffers + 1) * kShape.buffer_bytes == kCudaLoadBytes);
    return wanted_.Load(kShape, [&](std::size_t buffers, std::size_t bytes) -> Result<std::unique_ptr<io::WeightSink>> {
      ASSIGN_OR_RETURN(std::byte * staging, scratch_.Get(ScratchUse::kUpload, bytes, stream_));
      return cuda::MakeWeightSink({places, staging, buffers, bytes, stream_});
    });
  }

  [[nodiscard]] Status CopyToDevice(void* device, const void* host, std::size_t bytes) override {
    if (bytes == 0) return {};
    return Checked(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "a copy to the device");
  }
  [[nodiscard]] Status CopyToHost(void* host, const void* device, std::size_t bytes) override {
    if (bytes == 0) return {};
    RETURN_IF_ERROR(
        Checked(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_), "a copy to the host"));
    return Synchronize();
  }
  void CopyOnDevice(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) Note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "a copy on the device");
  }
  [[nodiscard]] Status Synchronize() override {
    Note(cudaStreamSynchronize(stream_), "a step");
    if (error_) return Err(*error_);
    if (std::optional<Error> unread = experts_.TakeUnread()) return Err(std::move(*unread));
    return {};
  }
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
    return use == MatrixUse::kChosen && options_.experts_at == WeightPlace::kDisk;
  }
  static std::unique_ptr<cuda::ExpertSlots> MakeSlots(const CudaOptions& options) {
    if (!CopiesChosenExperts(options)) return nullptr;
    return std::make_unique<cuda::ExpertSlots>(options.expert_cache,
                                               options.experts_at == WeightPlace::kDisk ? options.expert_memory : 0);
  }
  [[nodiscard]] Result<const void*> Place(const TensorView& weight, const cuda::Arrangement& arrangement,
                                          MatrixUse use = MatrixUse::kEveryStep) {
    const bool on_host = use == MatrixUse::kChosen && options_.experts_at == WeightPlace::kHost;
    ASSIGN_OR_RETURN(std::byte * to, (on_host ? host_experts_ : weights_).Take(weight.bytes(), stream_));
    if (wanted_.Add(weight.data, weight.bytes(), arrangement.grain)) {
      places_.push_back({.to = to, .arrangement = arrangement, .on_host = false});
      return static_cast<const void*>(to);
    }
    uploaded_ = true;
    const bool arrange = arrangement.kind != cuda::Arrangement::Kind::kNone;
    std::byte* copy = to;
    if (arrange) {
      ASSIGN_OR_RETURN(copy, scratch_.Get(ScratchUse::kUpload, weight.bytes(), stream_));
    }
    RETURN_IF_ERROR(Checked(cudaMemcpyAsync(copy, weight.data, weight.bytes(), cudaMemcpyDefault, stream_), "a copy"));
    if (arrange) cuda::Arrange(arrangement, copy, weight.bytes(), to, stream_);
    Note(cudaGetLastError(), "arranging weights");
    return static_cast<const void*>(to);
  }

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
  template <typename T>
  T* Take(ScratchUse use, std::int64_t count) {
    const Result<std::byte*> data = scratch_.Get(use, Bytes(count, sizeof(T)), stream_);
    if (data) return reinterpret_cast<T*>(*data);
    if (!error_) error_ = data.error();
    return nullptr;
  }

  // x as the product wants it.
  struct Input {
    const BFloat16* x;
    cuda::RowOrder order;
    bool split = false;
    int tile_rows = 0;      // of packed rows
    bool quantize = false;  // by the product

    [[nodiscard]] bool bulk() const { return order == cuda::RowOrder::kPacked || order == cuda::RowOrder::kUnpacked; }
  };
  [[nodiscard]] bool Splits(const Weight& weight, int rows, std::int64_t group_rows) const {
    if (!wide_allowed_ || options_.linears == ProductForm::kStream || rows > cuda::kSplitRowsMax) return false;
    if (options_.linears == ProductForm::kAuto && !cuda::SplitPays(weight, rows)) return false;
    return cuda::TakesSplitProduct(weight, group_rows);
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
  cuda::WeightArena weights_;
  cuda::WeightArena host_experts_{cuda::kHostExperts};
  std::vector<Buffer> host_tables_;
  std::size_t host_table_bytes_ = 0;
  cuda::ExpertTables experts_;
  cuda::EngramReader engram_;
  io::WantedWeights wanted_;  // until FinishUploads, and where each of them goes
  std::vector<cuda::WeightPlace> places_;
  cuda::Scratch scratch_;
  Buffer arrivals_;  // counters of ops, zero between them
  cuda::StepGraphs graphs_;
  cuda::DrawStaging draws_;
};

void CudaBackend::RunRepeated(const StepKey& key, const std::function<void()>& issue) {
  using Turn = cuda::StepGraphs::Turn;
  const Turn turn = error_ ? Turn::kIssue : graphs_.Next(key, moves());
  if (turn == Turn::kIssue) return issue();
  if (turn == Turn::kReplay) return Note(graphs_.Replay(key, stream_), "a recorded step");
  if (std::exchange(uploaded_, false)) Note(cudaStreamSynchronize(stream_), "placing weights");
  cudaError_t code = graphs_.BeginRecording(stream_);
  if (code == cudaSuccess) {
    issue();
    // Scratch that grew was freed under the launches recorded before; the step is recorded another time.
    const bool good = !error_ && graphs_.Unmoved(moves());
    code = graphs_.EndRecording(key, good, stream_);
    if (code == cudaSuccess && good) return Note(graphs_.Replay(key, stream_), "a recorded step");
    error_.reset();  // of the recording; what is wrong with the step itself shows below
  }
  if (code != cudaSuccess) graphs_.GiveUp(code);
  issue();
}

CudaBackend::Input CudaBackend::Planned(const Weight& weight, int rows, std::int64_t group_rows, bool quantize) const {
  const bool codes = weight.format == WeightFormat::kFp8Block32 || weight.format == WeightFormat::kMxfp4;
  const bool products = TakesWarpgroups(), split = Splits(weight, rows, group_rows);
  using cuda::RowOrder;
  // x as it is and few rows: the narrow kernel, which needs no other block of threads for its sums.
  const bool narrow = codes && !quantize && rows <= kNarrowRowsMax && options_.linears == ProductForm::kAuto;
  if (narrow) return {nullptr, RowOrder::kNatural};
  if (products && cuda::TakesBulkProduct(weight, group_rows)) {
    return {nullptr, RowOrder::kPacked, split, cuda::BulkTileRows(weight, rows, split)};
  }
  if (split || (products && cuda::UsesWideProduct(weight, rows, group_rows))) return {nullptr, RowOrder::kSlots, split};
  return {nullptr, quantize && codes ? RowOrder::kPaired : RowOrder::kNatural, split};
}

CudaBackend::Input CudaBackend::Prepared(const Weight& weight, const BFloat16* x, int rows, std::int64_t cols,
                                         std::int64_t group_rows, bool quantize) {
  Input input = Planned(weight, rows, group_rows, quantize);
  input.x = x;
  quantize = quantize && weight.format != WeightFormat::kBF16 && weight.format != WeightFormat::kF32;
  if (input.order == cuda::RowOrder::kNatural) return input;
  if (input.order == cuda::RowOrder::kPacked && input.split && cuda::TakesUnpacked(weight, rows)) {
    input.order = cuda::RowOrder::kUnpacked, input.quantize = quantize;
    return input;
  }
  const bool packed = input.order == cuda::RowOrder::kPacked;
  auto* out = Take<BFloat16>(ScratchUse::kQuantized, (packed ? cuda::PackedRowCount(rows) : rows) * cols);
  input.x = out;
  if (out == nullptr) return input;
  if (packed) {
    cuda::PackRows({.x = x,
                    .rows = rows,
                    .cols = static_cast<int>(cols),
                    .quantize = quantize,
                    .format = weight.format,
                    .tile_rows = input.tile_rows,
                    .out = out},
                   stream_);
    return input;
  }
  cuda::Reorder({.x = x,
                 .rows = rows,
                 .cols = static_cast<int>(cols),
                 .quantize = quantize,
                 .order = input.order,
                 .format = weight.format,
                 .out = out},
                stream_);
  return input;
}

void CudaBackend::Multiply(const Weight& weight, const Input& input, int rows, void* out, bool float_out) {
  if (input.x == nullptr || out == nullptr) return;
  cuda::Product({.weight = weight,
                 .rows = rows,
                 .x = input.x,
                 .x_stride = weight.cols,
                 .order = input.order,
                 .tile_rows = input.tile_rows,
                 .split = input.split,
                 .quantize = input.quantize,
                 .out = out,
                 .float_out = float_out,
                 .out_stride = weight.rows},
                stream_);
}

const std::int32_t* CudaBackend::RowList(const std::int32_t* host, int count) {
  auto* rows = Take<std::int32_t>(ScratchUse::kHostRows, count);
  if (rows != nullptr) {
    Note(cudaMemcpyAsync(rows, host, Bytes(count, sizeof(std::int32_t)), cudaMemcpyHostToDevice, stream_),
         "a row list");
  }
  return rows;
}

std::int64_t CudaBackend::PositionEnd(const StepView& step) {
  if (step.position_end > 0) return step.position_end;
  std::vector<std::int32_t> positions(static_cast<std::size_t>(step.rows));
  const Status copied = CopyToHost(positions.data(), step.positions, positions.size() * sizeof(std::int32_t));
  if (!copied || positions.empty()) return 1;
  return *std::max_element(positions.begin(), positions.end()) + std::int64_t{1};
}

void CudaBackend::GatherRows(const GatherRowsArgs& args) {
  Run("GatherRows", [&] {
    if (args.count == 0) return;
    const std::int32_t* rows = RowList(args.row_list, args.count);
    if (rows != nullptr) cuda::GatherRows(args, rows, stream_);
  });
}

void CudaBackend::EngramRows(const EngramRowsArgs& args) {
  if (!Require(args.layers <= kEngramLayersMax, "so many Engram layers", args.layers)) return;
  if (!Require(args.max_ngram <= kNgramMax, "n-grams so long", args.max_ngram)) return;
  Run("EngramRows", [&] { cuda::EngramRows(args, stream_); });
}

void CudaBackend::EngramAhead(const EngramGatherArgs& args) {
  if (options_.engram_at != WeightPlace::kDisk) return;
  Run("EngramAhead", [&] {
    if (const Status begun = engram_.Ahead(args, stream_); !begun) error_ = begun.error();
  });
}

void CudaBackend::EngramGather(const EngramGatherArgs& args) {
  Run("EngramGather", [&] {
    if (options_.engram_at != WeightPlace::kDisk) return cuda::EngramGather(args, stream_);
    const Result<EngramGatherArgs> rows = engram_.Rows(args, stream_);
    if (rows) return cuda::EngramGather(*rows, stream_);
    error_ = rows.error();
  });
}

void CudaBackend::MhcBoundary(const MhcBoundaryArgs& args) {
  if (!Require(args.copies == cuda::kCopies, "this number of residual copies", args.copies)) return;
  if (!Require(args.dim % 32 == 0 && args.dim <= kMhcDimMax, "so many hidden values", args.dim)) return;
  Run("MhcBoundary", [&] {
    auto* sums =
        Take<std::byte>(ScratchUse::kPartials, static_cast<std::int64_t>(cuda::MhcScratchBytes(args.rows, args.dim)));
    if (error_) return;
    const cuda::MhcForm form = !TakesWarpgroups()                        ? cuda::MhcForm::kChunks
                               : options_.linears == ProductForm::kSplit ? cuda::MhcForm::kClusters
                                                                         : cuda::MhcForm::kAuto;
    cuda::MhcBoundary(args, {reinterpret_cast<float*>(sums), arrivals_.as<std::uint32_t>()}, form, stream_);
  });
}

void CudaBackend::Linear(const LinearArgs& args) {
  Run("Linear", [&] { MultiplyPlain(args.weight, args.x, args.rows, args.out, false); });
}

void CudaBackend::AttnIn(const AttnInArgs& args) {
  if (!Require(args.head_dim == kHeadDim, "heads of this size", args.head_dim)) return;
  if (!Require(args.rope.dims <= kRopeMax, "so many rotated dimensions", args.rope.dims)) return;
  if (!Require(args.wq_a.rows <= cuda::kQueryRankMax, "queries of this rank", args.wq_a.rows)) return;
  Run("AttnIn", [&] {
    const int rows = args.step.rows;
    const std::int64_t rank = args.wq_a.rows;
    auto* low = Take<BFloat16>(ScratchUse::kProduct, rows * rank);
    auto* kv = Take<BFloat16>(ScratchUse::kProduct2, rows * args.wkv.rows);
    if (low == nullptr || kv == nullptr) return;
    MultiplyInputs(args, low, kv);
    const Input planned = Planned(args.wq_b, rows, 0, true);
    const bool quantizes = args.wq_b.format == WeightFormat::kFp8Block32;
    const bool turns = quantizes && planned.bulk() && args.rope.dims % 8 == 0 && rows <= kRotatedByProductRowsMax;
    cuda::QueryRowArgs between{.window = {.step = args.step,
                                          .kv = kv,
                                          .norm = args.kv_norm,
                                          .head_dim = args.head_dim,
                                          .eps = args.eps,
                                          .rope = args.rope,
                                          .out = args.window},
                               .low = low,
                               .norm = args.q_norm,
                               .rank = static_cast<int>(rank),
                               .qr = args.qr,
                               .order = planned.order,
                               .tile_rows = planned.tile_rows};
    if (quantizes) between.quantized = Take<BFloat16>(ScratchUse::kProduct3, cuda::PackedRowCount(rows) * rank);
    between.angles = Take<float2>(ScratchUse::kSmall, std::int64_t{rows} * args.rope.dims / 2);
    if (error_) return;
    cuda::QueryRows(between, stream_);
    const Input qr = quantizes ? Input{between.quantized, planned.order, planned.split, planned.tile_rows}
                               : Prepared(args.wq_b, args.qr, rows, rank);
    if (qr.x == nullptr) return;
    cuda::Product({.weight = args.wq_b,
                   .rows = rows,
                   .x = qr.x,
                   .x_stride = rank,
                   .order = qr.order,
                   .tile_rows = qr.tile_rows,
                   .split = qr.split,
                   .quantize = qr.quantize,
                   .out = args.q,
                   .out_stride = args.wq_b.rows,
                   .angles = turns ? between.angles : nullptr,
                   .head_dim = args.head_dim,
                   .rotated = args.rope.dims},
                  stream_);
    if (turns) return;
    cuda::RotateHeads(between.angles, args.q, rows, args.heads, args.head_dim, args.rope.dims, stream_);
  });
}

void CudaBackend::MultiplyInputs(const AttnInArgs& args, BFloat16* low, BFloat16* kv) {
  const int rows = args.step.rows;
  Weight both = args.wq_a;
  const bool together = TakesWarpgroups() && cuda::TakesBulkProduct(args.wq_a, 0) &&
                        cuda::TakesBulkProduct(args.wkv, 0) && args.wq_a.format == args.wkv.format;
  if (together) both.rows += args.wkv.rows;
  const Input x = Prepared(both, args.x, rows, both.cols);
  if (x.x == nullptr) return;
  if (!together) {
    Multiply(args.wq_a, x, rows, low, false);
    return Multiply(args.wkv, x.bulk() ? Prepared(args.wkv, args.x, rows, both.cols) : x, rows, kv, false);
  }
  cuda::Product({.weight = args.wq_a,
                 .rows = rows,
                 .x = x.x,
                 .x_stride = both.cols,
                 .order = x.order,
                 .tile_rows = x.tile_rows,
                 .split = x.split,
                 .quantize = x.quantize,
                 .out = low,
                 .out_stride = args.wq_a.rows,
                 .also = args.wkv,
                 .also_out = kv},
                stream_);
}

void CudaBackend::Compress(const CompressArgs& args) {
  if (!Require(args.slab.ratio == 1 || args.slab.ratio == 2, "this compression ratio", args.slab.ratio)) return;
  if (!Require(args.slab.latent_dim <= 1024 && args.slab.latent_dim % 32 == 0, "latents of this size",
               args.slab.latent_dim)) {
    return;
  }
  Run("Compress", [&] {
    const int rows = args.step.rows;
    const std::int64_t dim = args.slab.latent_dim;
    auto* content = Take<float>(ScratchUse::kProduct, 2 * rows * dim);
    auto* latent = Take<BFloat16>(ScratchUse::kProduct2, rows * dim);
    auto* key = Take<BFloat16>(ScratchUse::kProduct3, std::int64_t{rows} * args.slab.index_dim);
    if (content == nullptr || latent == nullptr || key == nullptr) return;
    const cuda::CompressScratch scratch{.content = content, .gate = content + rows * dim, .latent = latent, .key = key};
    MultiplyPlain(args.wkv, args.x, rows, content, true);
    if (args.slab.ratio > 1) MultiplyPlain(args.wgate, args.x, rows, content + rows * dim, true);
    cuda::CompressLatents(args, scratch, stream_);
    MultiplyPlain(args.index_wk, latent, rows, key, false);
    cuda::CompressKeys(args, scratch, stream_);
  });
}

void CudaBackend::IndexSelect(const IndexSelectArgs& args) {
  if (!Require(args.slab.index_dim == cuda::kIndexDim, "index keys of this size", args.slab.index_dim)) return;
  if (!Require(args.heads <= 64, "so many index heads", args.heads)) return;
  if (!Require(args.rope.dims <= cuda::kIndexDim, "so many rotated dimensions", args.rope.dims)) return;
  const bool in_groups = args.role == CandidateRole::kNone || args.candidate_block_size == cuda::kScoreGroup;
  if (!Require(in_groups, "candidate blocks of this size", args.candidate_block_size)) return;
  Run("IndexSelect", [&] {
    const int rows = args.step.rows;
    const std::int64_t entries = std::max<std::int64_t>(PositionEnd(args.step) / args.slab.ratio, 1);
    const std::int64_t padded = cuda::PaddedIndexHeads(args.heads);
    cuda::IndexScratch scratch;
    scratch.score_stride =
        args.role == CandidateRole::kUser ? std::int64_t{args.candidate_blocks} * args.candidate_block_size : entries;
    // Both strides in whole groups of scores.
    constexpr std::int64_t kGroup = cuda::kScoreGroup;
    scratch.score_stride = (std::min(scratch.score_stride, entries) + kGroup - 1) / kGroup * kGroup;
    scratch.best_stride = (scratch.score_stride / kGroup + kGroup - 1) / kGroup * kGroup;
    const std::int64_t row_floats = scratch.score_stride + scratch.best_stride;
    const int rows_at_once = std::clamp(static_cast<int>(kScoreBytesMax / Bytes(row_floats, sizeof(float))), 1, rows);
    auto* raw_query = Take<BFloat16>(ScratchUse::kProduct, std::int64_t{rows} * args.heads * cuda::kIndexDim);
    auto* raw_weight = Take<BFloat16>(ScratchUse::kProduct2, std::int64_t{rows} * args.heads);
    scratch.query = Take<BFloat16>(ScratchUse::kProduct3, rows * padded * cuda::kIndexDim);
    scratch.weight = Take<float>(ScratchUse::kSmall, rows * padded);
    scratch.scores = Take<float>(ScratchUse::kScores, rows_at_once * row_floats);
    scratch.counts = Take<std::int32_t>(ScratchUse::kCounts, rows);
    if (error_) return;
    scratch.raw_query = raw_query;
    scratch.raw_weight = raw_weight;
    scratch.best = scratch.scores + rows_at_once * scratch.score_stride;
    MultiplyPlain(args.wq_b, args.qr, rows, raw_query, false);
    MultiplyPlain(args.weights_proj, args.x, rows, raw_weight, false);
    cuda::IndexQueries(args, scratch, stream_);
    for (int first = 0; first < rows; first += rows_at_once) {
      cuda::IndexRows(args, scratch, first, std::min(rows_at_once, rows - first), stream_);
    }
  });
}

void CudaBackend::Attention(const AttentionArgs& args) {
  if (!Require(args.head_dim == kHeadDim, "heads of this size", args.head_dim)) return;
  Run("Attention", [&] { cuda::Attention(args, wide_allowed_, stream_); });
}

void CudaBackend::DraftAttention(const DraftAttentionArgs& args) {
  if (!Require(args.head_dim == kHeadDim, "heads of this size", args.head_dim)) return;
  Run("DraftAttention", [&] { cuda::DraftAttention(args, wide_allowed_, stream_); });
}

void CudaBackend::AttnOut(const AttnOutArgs& args) {
  Run("AttnOut", [&] {
    const std::int64_t group_rows = args.wo_a.rows / args.groups, width = args.groups * args.wo_a.cols;
    auto* low = Take<BFloat16>(ScratchUse::kProduct, cuda::PackedRowCount(args.rows) * args.wo_a.rows);
    if (low == nullptr) return;
    const Input o = Prepared(args.wo_a, args.o, args.rows, width, group_rows, /*quantize=*/false);
    if (o.x == nullptr) return;
    Input x = Planned(args.wo_b, args.rows, 0, true);
    const bool packs = args.wo_a.format == WeightFormat::kFp8Block32 && o.order != cuda::RowOrder::kSlots &&
                       args.wo_b.format == WeightFormat::kFp8Block32 && x.order == cuda::RowOrder::kPacked;
    cuda::Product({.weight = args.wo_a,
                   .rows = args.rows,
                   .x = o.x,
                   .x_stride = width,
                   .order = o.order,
                   .tile_rows = o.tile_rows,
                   .split = o.split,
                   .group_rows = group_rows,
                   .group_stride = args.wo_a.cols,
                   .out = low,
                   .out_stride = args.wo_a.rows,
                   .out_tile_rows = packs ? x.tile_rows : 0},
                  stream_);
    if (!packs) return MultiplyPlain(args.wo_b, low, args.rows, args.y, false);
    x.x = low;
    Multiply(args.wo_b, x, args.rows, args.y, false);
  });
}

void CudaBackend::Route(const RouteArgs& args) {
  if (!Require(args.topk <= kChoicesMax, "so many experts a row", args.topk)) return;
  if (!Require(args.gate.rows <= kExpertsMax, "so many experts", args.gate.rows)) return;
  Run("Route", [&] {
    auto* logits = Take<float>(ScratchUse::kProduct, args.step.rows * args.gate.rows);
    if (logits == nullptr) return;
    if (cuda::TakesGate(args)) return cuda::GateAndSelect(args, logits, arrivals_.as<std::uint32_t>(), stream_);
    MultiplyPlain(args.gate, args.x, args.step.rows, logits, true);
    cuda::RouteSelect(args, logits, stream_);
  });
}

void CudaBackend::Moe(const MoeArgs& args) {
  if (!Require(args.topk <= kChoicesMax, "so many experts a row", args.topk)) return;
  if (!Require(args.expert_count <= kExpertsMax, "so many experts", args.expert_count)) return;
  const bool formats = args.shared.w1.format == WeightFormat::kFp8Block32 &&
                       (args.expert_count == 0 || args.routed[0].w1.format == WeightFormat::kMxfp4);
  if (!Require(formats, "expert weights of this format", static_cast<int>(args.shared.w1.format))) return;
  Run("Moe", [&] {
    const int dim = static_cast<int>(args.shared.w1.cols);
    cuda::MoeShape shape{.rows = args.rows,
                         .topk = args.topk,
                         .experts = args.expert_count,
                         .dim = dim,
                         .inter = static_cast<int>(args.shared.w1.rows),
                         .form = cuda::MoeForm::kStream};
    const bool slim = options_.experts == ProductForm::kSplit ||
                      (options_.experts == ProductForm::kAuto && args.rows >= cuda::kSlimExpertRowsMin);
    if (wide_allowed_ && options_.experts != ProductForm::kStream) shape.form = cuda::ChooseMoeForm(shape, slim);
    cuda::MoeScratch scratch;
    const Result<const cuda::ExpertPointers*> table = experts_.Of(args, stream_);
    if (!table) {
      error_ = table.error();
      return;
    }
    scratch.experts = *table;
    scratch.work = Take<std::byte>(ScratchUse::kExperts, static_cast<std::int64_t>(cuda::MoeWorkBytes(shape)));
    if (shape.form == cuda::MoeForm::kStream) {
      scratch.quantized = Take<BFloat16>(ScratchUse::kQuantized, std::int64_t{args.rows} * dim);
    }
    if (error_) return;
    cuda::Moe(args, shape, scratch, stream_);
  });
}

void CudaBackend::Head(const HeadArgs& args) {
  Run("Head", [&] {
    if (args.count == 0) return;
    auto* normed = Take<BFloat16>(ScratchUse::kProduct, std::int64_t{args.count} * args.dim);
    const std::int32_t* rows = args.row_list == nullptr ? nullptr : RowList(args.row_list, args.count);
    if (normed == nullptr || error_) return;
    cuda::NormRows(args.x, rows, args.count, args.dim, args.norm, args.eps, normed, stream_);
    MultiplyPlain(args.head, normed, args.count, args.logits, true);
  });
}

void CudaBackend::DraftWindow(const DraftWindowArgs& args) {
  if (!Require(args.head_dim == kHeadDim, "heads of this size", args.head_dim)) return;
  Run("DraftWindow", [&] {
    const int rows = args.step.rows, dim = static_cast<int>(args.main_proj.rows);
    auto* projected = Take<BFloat16>(ScratchUse::kProduct, std::int64_t{rows} * dim);
    auto* main_x = Take<BFloat16>(ScratchUse::kProduct2, std::int64_t{rows} * dim);
    auto* kv = Take<BFloat16>(ScratchUse::kProduct3, std::int64_t{rows} * args.head_dim);
    if (projected == nullptr || main_x == nullptr || kv == nullptr) return;
    MultiplyPlain(args.main_proj, args.main_hidden, rows, projected, false);
    cuda::NormRows(projected, nullptr, rows, dim, args.main_norm, args.eps, main_x, stream_);
    for (int s = 0; s < args.stages; ++s) {
      const DraftStageKv& stage = args.stage[s];
      MultiplyPlain(stage.wkv, main_x, rows, kv, false);
      cuda::WindowRecords({.step = args.step,
                           .kv = kv,
                           .norm = stage.kv_norm,
                           .head_dim = args.head_dim,
                           .eps = args.eps,
                           .rope = args.rope,
                           .ring = &stage.ring},
                          stream_);
    }
  });
}

void CudaBackend::DraftChain(const DraftChainArgs& args) {
  if (!Require(args.head.rows <= cuda::kDrawVocabMax, "a vocabulary of this size", args.head.rows)) return;
  const bool formats = args.embed.format == WeightFormat::kBF16 && args.confidence.format == WeightFormat::kBF16;
  if (!Require(formats, "draft weights of this format", static_cast<int>(args.embed.format))) return;
  Run("DraftChain", [&] {
    const int sequences = args.sequences;
    cuda::DraftStepArgs step;
    step.sequences = sequences, step.block = args.block, step.dim = args.dim;
    step.rank = static_cast<int>(args.embed.cols), step.vocab = static_cast<int>(args.head.rows);
    step.x = args.x;
    step.embed = static_cast<const BFloat16*>(args.embed.data);
    step.confidence = static_cast<const BFloat16*>(args.confidence.data);
    step.embedding = Take<BFloat16>(ScratchUse::kProduct, std::int64_t{sequences} * step.rank);
    auto* bias = Take<float>(ScratchUse::kScores, std::int64_t{sequences} * step.vocab);
    auto* params = Take<SampleParams>(ScratchUse::kSmall, sequences);
    step.first_tokens = RowList(args.first_tokens, sequences);
    step.logits = args.logits, step.tokens = args.tokens, step.confidences = args.confidences;
    if (error_) return;
    Note(cudaMemcpyAsync(params, args.params, Bytes(sequences, sizeof(SampleParams)), cudaMemcpyHostToDevice, stream_),
         "sampling parameters");
    step.params = params, step.bias = bias;
    for (step.row = 0; step.row < args.block; ++step.row) {
      cuda::DraftEmbed(step, stream_);
      MultiplyPlain(args.head, step.embedding, sequences, bias, true);
      cuda::DraftDraw(step, stream_);
    }
  });
}

Status CudaBackend::Draw(const DrawArgs& args) {
  if (args.count == 0) return Synchronize();
  Run("Draw", [&] {
    const Status issued = draws_.Issue(args, stream_);
    if (!issued) error_ = issued.error();
  });
  RETURN_IF_ERROR(Synchronize());
  draws_.Deliver(args);
  return {};
}

}  // namespace

Result<std::unique_ptr<Backend>> MakeCudaBackend(const CudaOptions& options) {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count <= options.device) {
    return Err(
        ErrorCode::kUnsupported,
        fmt::format("device {} asked for, but this machine offers {} CUDA devices{}; use --backend cpu", options.device,
                    count, found == cudaSuccess ? std::string() : fmt::format(" ({})", cudaGetErrorString(found))),
        "backend");
  }
  int major = 0, minor = 0;
  RETURN_IF_ERROR([&]() -> Status {
    cudaError_t code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, options.device);
    if (code == cudaSuccess) {
      code = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, options.device);
    }
    if (code != cudaSuccess) return Err(DeviceError(code, "reading the device"));
    if (major < 9) {
      return Err(
          ErrorCode::kUnsupported,
          fmt::format("the GPU has compute capability {}, this backend needs 9 (Hopper); use --backend cpu", major),
          "backend");
    }
    return {};
  }());
  cudaError_t code = cudaSetDevice(options.device);
  cudaStream_t stream = nullptr;
  if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (code != cudaSuccess) return Err(DeviceError(code, "opening the device"));
  ASSIGN_OR_RETURN(Buffer arrivals,
                   cuda::AllocateDevice(cuda::kArrivals * sizeof(std::uint32_t), "counters of ops", stream));
  return std::unique_ptr<Backend>(
      std::make_unique<CudaBackend>(stream, major == 9 && minor == 0, options, std::move(arrivals)));
}

CudaGraphCounts GraphCountsOf(const Backend& backend) {
  CHECK(backend.name() == "cuda") << backend.name();
  return static_cast<const CudaBackend&>(backend).graph_counts();
}

void* StreamOf(Backend& backend) {
  CHECK(backend.name() == "cuda") << backend.name();
  return static_cast<CudaBackend&>(backend).stream();
}

}  // namespace galley::backend
