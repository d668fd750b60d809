// SPDX-License-Identifier: Apache-2.0
// Launchers of the CUDA kernels, one group per source file. All of them issue work on a stream and return; every
// pointer is a device address unless its name says host. Rows are numbered 0 … rows - 1. What each computes is stated
// in the specification's words at its kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "galley/backend/ops.h"

namespace galley::backend::cuda {

// matmul.cu, wide_matmul.cu, bulk_matmul.cu and bulk_split.cu

// Orders in which the kernels want the values of a row of x.
enum class RowOrder {
  kNatural,
  kPaired,    // numbers.cuh; narrow products of quantised weights
  kSlots,     // wide_dot.cuh; wide products, by weight format
  kPacked,    // packed_rows.h; weights that TakesBulkProduct
  kUnpacked,  // natural, for split products that pack their part of x themselves (TakesUnpacked)
};

// out[t][r] = sum over k of w[r][k] x[t][k] in fp32, then rounded to bf16 or kept.
struct ProductArgs {
  Weight weight;
  int rows = 0;
  const BFloat16* x = nullptr;
  std::int64_t x_stride = 0;  // elements from row to row
  RowOrder order = RowOrder::kNatural;
  int tile_rows = 0;      // kPacked and kUnpacked: BulkTileRows
  bool split = false;     // the order is kSlots, kPacked or kUnpacked
  bool quantize = false;  // kUnpacked: FP8 fake quantisation in groups of 32 comes before the product
  // Weight rows in groups of this many read x from `group_stride` elements further on; 0: one group.
  std::int64_t group_rows = 0, group_stride = 0;
  void* out = nullptr;
  bool float_out = false;
  std::int64_t out_stride = 0;  // elements

  // Not 0: out is the x of a product of FP8 weights with as many columns as `weight` has rows, a multiple of 64,
  // quantised and packed in such tiles. Of quantised weights and all orders but kSlots.
  int out_tile_rows = 0;

  // What follows only products of kPacked or kUnpacked rows with FP8 weights can do.

  // A second product of the same x; its matrix has as many columns, `also_out` its own rows as stride.
  Weight also = {};
  void* also_out = nullptr;
  // The last `rotated` (a multiple of 8) outputs of every `head_dim`, rounded to bf16, are turned in pairs by angles
  // [rows][rotated / 2].
  const float2* angles = nullptr;
  int head_dim = 0, rotated = 0;
};
void Product(const ProductArgs& args, cudaStream_t stream);  // wide when the order is kSlots
void WideProduct(const ProductArgs& args, cudaStream_t stream);
// split_matmul.cu: x in slots; compute capability 9.0, and TakesSplitProduct holds.
void SplitProduct(const ProductArgs& args, cudaStream_t stream);
[[nodiscard]] bool TakesSplitProduct(const Weight& weight, std::int64_t group_rows);
// Products of more rows of x are never split.
inline constexpr int kSplitRowsMax = 256;
// x packed, or packed by the product; compute capability 9.0, and TakesBulkProduct holds. bulk_split.cu with `split`
// and FP8 weights: parts of K are blocks of threads. bulk_matmul.cu otherwise.
void BulkProduct(const ProductArgs& args, cudaStream_t stream);
void BulkSplitProduct(const ProductArgs& args, cudaStream_t stream);
[[nodiscard]] bool TakesBulkProduct(const Weight& weight, int rows, std::int64_t group_rows);
// Whether the split form takes x unpacked: few rows, whose part then lies beside the stages.
[[nodiscard]] bool TakesUnpacked(const Weight& weight, int rows);
// Rows of x in a tile: at least a warpgroup product's columns, and as many as registers take where there are many rows,
// because shared memory, through which codes and x go once a tile, is what limits such products. Between, what ends
// sooner on the multiprocessors of an H200.
inline constexpr int kWideTileRowsMin = 1024;
[[nodiscard]] constexpr int BulkTileRows(const Weight& weight, int rows, bool split) {
  if (rows <= 64) return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
  if (split) return 128;
  if (rows > kWideTileRowsMin) return 192;
  constexpr std::int64_t kMultiprocessors = 132;
  const auto time = [&](int tile_rows) {
    const std::int64_t tiles = (weight.rows + 127) / 128 * ((rows + tile_rows - 1) / tile_rows);
    return (tiles + kMultiprocessors - 1) / kMultiprocessors * tile_rows;
  };
  return time(96) < time(128) ? 96 : 128;
}
// Products that are split though rows of x would allow another form, by shape alone; all forms give equal bits.
// bf16: 1 … kSplitAlwaysRows rows always, but for narrow matrices, whose few clusters leave the device idle; more where
// the plain wide grid, 128 rows of weights a block of threads, is smaller than the device. FP8: 1 … kSplitAlwaysRows
// rows, whose products need more warps on a multiprocessor than two warpgroups, and where tiles of all of K are too
// few.
inline constexpr int kSplitAlwaysRows = 16;
inline constexpr std::int64_t kSplitBFloat16RowsMin = 1024, kPlainTilesMin = 128, kWholeTilesMin = 80;
[[nodiscard]] constexpr std::int64_t WholeTiles(const Weight& weight, int rows) {
  return (weight.rows + 127) / 128 * ((rows + 127) / 128);
}
[[nodiscard]] constexpr bool SplitPays(const Weight& weight, int rows) {
  const std::int64_t tiles = (weight.rows + 127) / 128;
  if (weight.format == WeightFormat::kFp8Block32) {
    return rows <= kSplitAlwaysRows || WholeTiles(weight, rows) < kWholeTilesMin;
  }
  if (weight.format == WeightFormat::kBF16 && weight.rows < kSplitBFloat16RowsMin) return false;
  return rows <= kSplitAlwaysRows || tiles < kPlainTilesMin;
}
// Whether this product has enough rows for the wide kernels and a shape that they take. They need compute
// capability 9.0.
[[nodiscard]] bool UsesWideProduct(const Weight& weight, int rows, std::int64_t group_rows);

// A copy of x [rows][cols] in another order, with `quantize` after FP8 fake quantisation in groups of 32 (2.3; cols is
// a multiple of 32 then). kSlots: `format` says of which weights.
struct ReorderArgs {
  const BFloat16* x = nullptr;
  int rows = 0, cols = 0;
  bool quantize = false;
  RowOrder order = RowOrder::kPaired;
  WeightFormat format = WeightFormat::kFp8Block32;
  BFloat16* out = nullptr;
};
void Reorder(const ReorderArgs& args, cudaStream_t stream);

// rows.cu

// The order in which products read quantised weights (stream_dot.cuh, numbers.cuh). The size stays, and parts of whole
// grains are arranged one by one: what begins at a byte of the checkpoint's order begins there in this one too.
struct Arrangement {
  enum class Kind { kNone, kCodes, kScales };  // kNone: the checkpoint's order
  Kind kind = Kind::kNone;
  WeightFormat format = WeightFormat::kMxfp4;
  int cols = 0;           // of the matrix, a multiple of 32
  int panel_rows = 0;     // 0: the order of rows stays
  std::size_t grain = 1;  // bytes
};
// Of the codes of a matrix, MXFP4 or FP8, and of its scales.
[[nodiscard]] Arrangement ArrangementOfCodes(WeightFormat format, int rows, int cols);
[[nodiscard]] Arrangement ArrangementOfScales(WeightFormat format, int rows, int cols);
// A part of whole grains, which lies at a multiple of 16; not kNone.
void Arrange(const Arrangement& arrangement, const void* natural, std::size_t bytes, void* out, cudaStream_t stream);
void Embed(const EmbedArgs& args, cudaStream_t stream);
void MeanCopies(const MeanCopiesArgs& args, cudaStream_t stream);
void WindowWrite(const WindowWriteArgs& args, cudaStream_t stream);
void GatherRows(const GatherRowsArgs& args, const std::int32_t* device_rows, cudaStream_t stream);
// out[i] = RMS(x[rows ? rows[i] : i]) with a bf16 weight.
void NormRows(const BFloat16* x, const std::int32_t* rows, int count, int dim, const BFloat16* weight, float eps,
              BFloat16* out, cudaStream_t stream);

// engram.cu
void EngramRows(const EngramRowsArgs& args, cudaStream_t stream);
// Without row numbers: of the table's first rows, in their order.
void EngramGather(const EngramGatherArgs& args, cudaStream_t stream);
void EngramMix(const EngramMixArgs& args, cudaStream_t stream);

// Counters by which blocks of threads of one launch wait for each other. Zero before a kernel that takes them, and
// behind it.
inline constexpr int kArrivals = 256;

// mhc.cu, mhc_clusters.cu and mhc_wide.cu, for few rows, some hundred and many; the same bits.
inline constexpr int kCopies = 4;
enum class MhcForm { kAuto, kChunks, kClusters, kWide };  // all but kChunks need compute capability 9.0
struct MhcScratch {
  float* sums = nullptr;              // MhcScratchBytes
  std::uint32_t* arrivals = nullptr;  // [kArrivals]
};
[[nodiscard]] std::size_t MhcScratchBytes(int rows, int dim);
// The form's kernel, or the next for fewer rows when it does not take the call.
void MhcBoundary(const MhcBoundaryArgs& args, const MhcScratch& scratch, MhcForm form, cudaStream_t stream);
// False, and nothing is issued, for what the kernel does not take.
[[nodiscard]] bool MhcClusters(const MhcBoundaryArgs& args, cudaStream_t stream);
// The same; `scratch`: MhcWideScratchBytes, for the matrix in bf16.
[[nodiscard]] bool MhcWide(const MhcBoundaryArgs& args, void* scratch, cudaStream_t stream);
[[nodiscard]] std::size_t MhcWideScratchBytes(int dim);

// attention_rows.cu

// kv [T][head_dim] bf16 → window records at `out` (one after the other), or into a ring when `ring` is given.
struct WindowRecordArgs {
  StepView step;
  const BFloat16* kv = nullptr;
  const BFloat16* norm = nullptr;
  int head_dim = 0;
  float eps = 0;
  Rope rope;
  std::uint8_t* out = nullptr;
  const Ring* ring = nullptr;  // host
};
void WindowRecords(const WindowRecordArgs& args, cudaStream_t stream);
// The same beside what lies between the products of queries: qr [T][rank] = RMS(low), and when `quantized` is given qr
// quantised in an order for products of FP8 weights (kPaired, kSlots or kPacked), and in `angles` [T][rope.dims / 2]
// cosine and sine of every row's rotation.
inline constexpr int kQueryRankMax = 2048;
struct QueryRowArgs {
  WindowRecordArgs window;
  const BFloat16* low = nullptr;
  const BFloat16* norm = nullptr;
  int rank = 0;
  BFloat16* qr = nullptr;
  BFloat16* quantized = nullptr;
  RowOrder order = RowOrder::kPacked;
  int tile_rows = 0;  // kPacked
  float2* angles = nullptr;
};
void QueryRows(const QueryRowArgs& args, cudaStream_t stream);
// Turns the last `rotated` values of every head of q [rows][heads][head_dim] in place, by angles [rows][rotated / 2]
// (QueryRows).
void RotateHeads(const float2* angles, BFloat16* q, int rows, int heads, int head_dim, int rotated,
                 cudaStream_t stream);

// attention.cu
// `warpgroups`: whether the device has compute capability 9.0, where models with many heads take attention_heads.cu.
void Attention(const AttentionArgs& args, bool warpgroups, cudaStream_t stream);
void DraftAttention(const DraftAttentionArgs& args, bool warpgroups, cudaStream_t stream);

// compress.cu
struct CompressScratch {
  const float* content = nullptr;  // [T][latent_dim], wkv x
  const float* gate = nullptr;     // [T][latent_dim], wgate x; ratio 2 only
  BFloat16* latent = nullptr;      // [T][latent_dim], normed, before the rotation
  BFloat16* key = nullptr;         // [T][index_dim], index_wk latent
};
void CompressLatents(const CompressArgs& args, const CompressScratch& scratch, cudaStream_t stream);
void CompressKeys(const CompressArgs& args, const CompressScratch& scratch, cudaStream_t stream);

// index_select.cu and index_scores.cu
inline constexpr int kIndexDim = 128;
// Entries whose best score is kept beside the scores: a candidate block.
inline constexpr int kScoreGroup = 8;
// Heads of a packed query, those beyond the model's being zero.
[[nodiscard]] constexpr int PaddedIndexHeads(int heads) {
  return heads <= 32 ? 32 : 64;
}
struct IndexScratch {
  const BFloat16* raw_query = nullptr;   // [T][heads][128] of wq_b
  const BFloat16* raw_weight = nullptr;  // [T][heads] of weights_proj
  BFloat16* query = nullptr;             // [T][16][padded heads][8], in the order of the product
  float* weight = nullptr;               // [T][padded heads]
  std::int32_t* counts = nullptr;        // [T], scores of the row
  float* scores = nullptr;               // [rows at once][score_stride]
  float* best = nullptr;                 // [rows at once][best_stride], of every kScoreGroup scores
  std::int64_t score_stride = 0, best_stride = 0;
};
// Queries, weights and counts of all rows.
void IndexQueries(const IndexSelectArgs& args, const IndexScratch& scratch, cudaStream_t stream);
// Scores and lists of rows [first, first + rows).
void IndexRows(const IndexSelectArgs& args, const IndexScratch& scratch, int first, int rows, cudaStream_t stream);
void IndexScores(const IndexSelectArgs& args, const IndexScratch& scratch, int first, int rows, cudaStream_t stream);

// top_k.cu

// The `k` largest of the first counts[row] scores of every row, equal ones by lower index, as ascending indices padded
// with -1. NaN must not occur. Strides are multiples of kScoreGroup, rows 16-byte aligned.
struct TopKArgs {
  int rows = 0;
  const float* scores = nullptr;
  std::int64_t stride = 0;
  const float* best = nullptr;  // of every group of kScoreGroup scores
  std::int64_t best_stride = 0;
  const std::int32_t* counts = nullptr;
  int k = 0;
  std::int32_t* out = nullptr;  // [rows][k]
  // When given, group g of the scores stands for group groups[row][g] of the entries that are listed.
  const std::int32_t* groups = nullptr;
  int groups_per_row = 0;
  // When given, the groups_per_row best groups of a row, its last one always among them.
  std::int32_t* group_out = nullptr;
};
void TopK(const TopKArgs& args, cudaStream_t stream);

// moe.cu
struct ExpertPointers {
  const std::uint8_t* w1;
  const std::uint8_t* s1;
  const std::uint8_t* w3;
  const std::uint8_t* s3;
  const std::uint8_t* w2;
  const std::uint8_t* s2;
};
enum class MoeForm {
  kStream,  // moe.cu
  kSlim,    // moe_slim.cu, packed x; this and the next need compute capability 9.0
  kWide,    // moe_wide.cu, packed x
};
struct MoeShape {
  int rows = 0, topk = 0, experts = 0, dim = 0, inter = 0;
  MoeForm form = MoeForm::kStream;
};
// Steps from so many rows on take the slim form unless they are wide.
inline constexpr int kSlimExpertRowsMin = 9;
struct MoeScratch {
  const ExpertPointers* experts = nullptr;  // [expert_count + 1], the shared one last
  BFloat16* quantized = nullptr;            // [T][D], kStream
  std::byte* work = nullptr;                // MoeWorkBytes
  std::uint32_t* arrivals = nullptr;        // [kArrivals]
};
// `slim`: whether that form is wanted where the wide one is not.
[[nodiscard]] MoeForm ChooseMoeForm(const MoeShape& shape, bool slim);
[[nodiscard]] std::size_t MoeWorkBytes(const MoeShape& shape);
void Moe(const MoeArgs& args, const MoeShape& shape, const MoeScratch& scratch, cudaStream_t stream);

// route.cu: `logits` [T][experts] fp32, of the gate.
void RouteSelect(const RouteArgs& args, const float* logits, cudaStream_t stream);
// gate.cu: the gate's product, with the bits of Product, and the choice in one launch; writes `logits` and takes
// `arrivals` [kArrivals]. For what TakesGate says.
[[nodiscard]] bool TakesGate(const RouteArgs& args);
void GateAndSelect(const RouteArgs& args, float* logits, std::uint32_t* arrivals, cudaStream_t stream);
// gate_wide.cu: the same for more rows, with its sums of parts of K in `parts`: floats that no step of at
// most so many rows exceeds.
inline constexpr int kWideGateRowsMax = 256;
[[nodiscard]] bool TakesWideGate(const RouteArgs& args);
[[nodiscard]] std::int64_t WideGateFloats(const RouteArgs& args);
void WideGateAndSelect(const RouteArgs& args, float* parts, std::uint32_t* arrivals, cudaStream_t stream);

// draft.cu
// One step of the chain: tokens before row i of every block → embeddings, confidences and the joined rows.
struct DraftStepArgs {
  int sequences = 0, block = 0, dim = 0, rank = 0, vocab = 0, row = 0;
  const std::int32_t* first_tokens = nullptr;
  const BFloat16* x = nullptr;
  const BFloat16* embed = nullptr;
  const BFloat16* confidence = nullptr;
  const SampleParams* params = nullptr;
  BFloat16* embedding = nullptr;  // [sequences][rank]
  const float* bias = nullptr;    // [sequences][vocab]
  float* logits = nullptr;
  std::int32_t* tokens = nullptr;
  float* confidences = nullptr;
};
void DraftEmbed(const DraftStepArgs& args, cudaStream_t stream);
void DraftDraw(const DraftStepArgs& args, cudaStream_t stream);
// A DrawRequest whose arrays are on the device, as places in those of DrawLaunch; -1: none.
struct DrawRow {
  SampleParams params;
  std::int32_t row = 0, given = -1, alternatives = -1;
  std::int32_t allowed = -1, repeated = -1;
  std::int32_t changes = 0, change_count = 0;
  float repetition = 1;
};
struct DrawLaunch {
  int count = 0, vocab = 0;
  bool filters = true;  // whether a row has top-k, top-p or alternatives
  bool plain = false;   // whether every row is drawn with a temperature alone, and can be read by fours
  const float* logits = nullptr;
  const DrawRow* rows = nullptr;
  const std::uint32_t* words = nullptr;
  const LogitChange* changes = nullptr;
  DrawnToken* drawn = nullptr;  // as those of DrawArgs, in memory that the device can write
  RankedToken* ranked = nullptr;
};
void DrawRows(const DrawLaunch& args, cudaStream_t stream);
void DrawPlainRows(const DrawLaunch& args, cudaStream_t stream);  // of those
constexpr int kDrawVocabMax = 1 << 18;

}  // namespace galley::backend::cuda
