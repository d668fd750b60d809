// SPDX-License-Identifier: Apache-2.0
// Ops that multiply rows with weights, and how their rows are laid out for it.
#include "galley/backend/cuda/cuda_class.h"

namespace galley::backend::cuda {
namespace {

// Queries of up to so many rows are rotated where they leave their product; of more a launch of its own is faster.
constexpr int kRotatedByProductRowsMax = 16;
// Products of so many rows that need no quantiser go to the narrow kernel.
constexpr int kNarrowRowsMax = 8;
constexpr int kRopeMax = 128;

}  // namespace

CudaBackend::Input CudaBackend::Planned(const Weight& weight, int rows, std::int64_t group_rows, bool quantize) const {
  const bool codes = weight.format == WeightFormat::kFp8Block32 || weight.format == WeightFormat::kMxfp4;
  const bool products = TakesWarpgroups(), split = Splits(weight, rows, group_rows);
  using cuda::RowOrder;
  // x as it is and few rows: the narrow kernel, which needs no other block of threads for its sums.
  const bool narrow = codes && !quantize && rows <= kNarrowRowsMax && options_.linears == ProductForm::kAuto;
  if (narrow) return {nullptr, RowOrder::kNatural};
  if (products && cuda::TakesBulkProduct(weight, rows, group_rows)) {
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
  const bool together = TakesWarpgroups() && cuda::TakesBulkProduct(args.wq_a, rows, 0) &&
                        cuda::TakesBulkProduct(args.wkv, rows, 0) && args.wq_a.format == args.wkv.format;
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

}  // namespace galley::backend::cuda
