// SPDX-License-Identifier: Apache-2.0
// Ops but those of cuda_products.cc.
#include <algorithm>

#include "galley/backend/cuda/cuda_class.h"

namespace galley::backend::cuda {
namespace {

constexpr std::size_t kScoreBytesMax = std::size_t{512} << 20;  // index scores kept at once
constexpr int kExpertsMax = 1023, kChoicesMax = 32, kNgramMax = 16, kEngramLayersMax = 8;
constexpr int kMhcDimMax = 20480;

std::size_t Bytes(std::int64_t count, std::size_t each) {
  return static_cast<std::size_t>(count) * each;
}

}  // namespace

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
  if (options_.engram_at != backend::WeightPlace::kDisk) return;
  Run("EngramAhead", [&] { (void)Good(engram_.Ahead(args, stream_)); });
}

void CudaBackend::EngramGather(const EngramGatherArgs& args) {
  Run("EngramGather", [&] {
    if (options_.engram_at != backend::WeightPlace::kDisk) return cuda::EngramGather(args, stream_);
    const Result<EngramGatherArgs> rows = engram_.Rows(args, stream_);
    if (Good(rows)) cuda::EngramGather(*rows, stream_);
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
                               : options_.linears == ProductForm::kSplit ? cuda::MhcForm::kWide
                                                                         : cuda::MhcForm::kAuto;
    cuda::MhcBoundary(args, {reinterpret_cast<float*>(sums), arrivals_.as<std::uint32_t>()}, form, stream_);
  });
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

void CudaBackend::Route(const RouteArgs& args) {
  if (!Require(args.topk <= kChoicesMax, "so many experts a row", args.topk)) return;
  if (!Require(args.gate.rows <= kExpertsMax, "so many experts", args.gate.rows)) return;
  Run("Route", [&] {
    auto* logits =
        Take<float>(ScratchUse::kProduct, std::max(args.step.rows * args.gate.rows, cuda::WideGateFloats(args)));
    if (logits == nullptr) return;
    auto* arrivals = arrivals_.as<std::uint32_t>();
    if (cuda::TakesGate(args)) return cuda::GateAndSelect(args, logits, arrivals, stream_);
    if (cuda::TakesWideGate(args)) return cuda::WideGateAndSelect(args, logits, arrivals, stream_);
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
    scratch.arrivals = arrivals_.as<std::uint32_t>();
    const Result<const cuda::ExpertPointers*> table = experts_.Of(args, stream_);
    if (!Good(table)) return;
    scratch.experts = *table;
    scratch.work = Take<std::byte>(ScratchUse::kExperts, static_cast<std::int64_t>(cuda::MoeWorkBytes(shape)));
    if (shape.form == cuda::MoeForm::kStream) {
      scratch.quantized = Take<BFloat16>(ScratchUse::kQuantized, std::int64_t{args.rows} * dim);
    }
    if (error_) return;
    cuda::Moe(args, shape, scratch, stream_);
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
  Run("Draw", [&] { (void)Good(draws_.Issue(args, stream_)); });
  RETURN_IF_ERROR(Synchronize());
  draws_.Deliver(args);
  return {};
}

}  // namespace galley::backend::cuda
