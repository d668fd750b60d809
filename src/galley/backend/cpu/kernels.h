// SPDX-License-Identifier: Apache-2.0
// The inner loops of the cpu backend as a table of functions, one table per instruction set. A kernel works on what one
// task of a parallel loop handles; it allocates nothing, knows no threads, and its result for a row does not depend on
// how many rows it was given.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "galley/backend/ops.h"
#include "galley/tensor/numeric.h"

namespace galley::backend::cpu {

// Columns of a matrix are handled in chunks of 128; packed rows are padded with zeros to whole chunks.
inline constexpr std::size_t kChunk = 128;
// Decoded entries that are kept from one row of a task to the next.
inline constexpr std::size_t kEntriesKept = 128;
// Places of an attention list between two updates of the running maximum.
inline constexpr std::size_t kListBlock = 64;

// The order of values in a packed activation row: the one in which a weight format's codes leave the registers that
// decode them, so that weights are read as they lie in the checkpoint. Decoded weights are pairs of bf16 in lanes of 32
// bits; activations are fp32, for each 32 of them what meets the upper halves and then what meets the lower ones.
enum class Packing {
  kNatural,  // for bf16 weights
  kEvenOdd,  // per 64 columns the even ones, then the odd ones: FP8 weights
  kMxfp4,    // per 128 columns 0, 4, 8 …, then 1, 5 …; or integers (kernels/formats.h)
  kFloat,    // natural order without pairs, for fp32 weights
};

[[nodiscard]] constexpr std::size_t PaddedColumns(std::int64_t cols) {
  return (static_cast<std::size_t>(cols) + kChunk - 1) / kChunk * kChunk;
}
[[nodiscard]] constexpr std::size_t PackedBytes(std::int64_t cols) {
  return PaddedColumns(cols) * 4;
}
[[nodiscard]] constexpr Packing PackingOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return Packing::kFloat;
    case WeightFormat::kBF16:
      return Packing::kNatural;
    case WeightFormat::kFp8Block32:
      return Packing::kEvenOdd;
    case WeightFormat::kMxfp4:
      return Packing::kMxfp4;
  }
  return Packing::kNatural;
}

// One row of bf16 activations, packed. `quantise`: through the FP8 activation quantiser first (groups of 32; cols is a
// multiple of 32 then). Rows for MXFP4 weights always are.
struct PackArgs {
  const BFloat16* x = nullptr;
  std::int64_t cols = 0;
  bool quantise = false;
  Packing packing = Packing::kNatural;
  void* out = nullptr;  // PackedBytes
};

// Up to sixteen packed rows side by side: of each pair of columns the pairs of all rows, [PaddedColumns / 2][columns]
// pairs of bf16. Rows behind `rows` are zero.
struct GatherArgs {
  const std::byte* x = nullptr;  // packed rows
  std::size_t x_stride = 0;      // bytes
  const std::int32_t* x_rows = nullptr;
  int rows = 0, columns = 0;  // rows <= columns <= kGathered
  std::int64_t cols = 0;
  void* out = nullptr;
};
inline constexpr int kGathered = 16;

// out[t][r] = weight[r] . x[t] for r in [row_begin, row_end). Exactly one of out and out_bf16 is given.
struct ProductArgs {
  Weight weight;
  std::int64_t row_begin = 0, row_end = 0;
  // Packed rows. Kernels that gather take more than one row as groups of sixteen (the last one filled up when there are
  // several), x_stride from group to group, and no x_rows; but fp32 weights as others do.
  const std::byte* x = nullptr;
  std::size_t x_stride = 0;  // bytes
  // Row numbers of x, in order; null: 0, 1, 2 …
  const std::int32_t* x_rows = nullptr;
  int rows = 0;
  float* out = nullptr;
  BFloat16* out_bf16 = nullptr;
  std::int64_t out_stride = 0;   // elements between rows t
  std::byte* scratch = nullptr;  // ProductScratchBytes, 64-byte aligned
};
// Decoded weights and sums of products on tiles.
inline constexpr std::size_t kTileScratchBytes = std::size_t{80} << 10;
// Bytes from one packed row to the next. Parts of rows that lie 4 KiB apart would fall on the same sets of a cache.
[[nodiscard]] constexpr std::size_t PackedStride(std::int64_t cols) {
  constexpr std::size_t kPage = 4096, kApart = 1024 + 64;
  const std::size_t bytes = PackedBytes(cols);
  return bytes < kPage ? bytes + 64 : (bytes + kPage - 1) / kPage * kPage + kApart;
}
// Sums, scales of blocks, and a panel of 16 rows: at most eight vectors of weights and one of scales for each chunk.
[[nodiscard]] constexpr std::size_t ProductScratchBytes(std::int64_t cols) {
  const std::size_t vectors = 12 * 16 + (PaddedColumns(cols) / kChunk + 7) * (2 + 16 * 9);
  return std::max(vectors * 64, kTileScratchBytes);
}

// What one row of queries attends to: FP8 window records, unused places up to `window_places`, then FP4 records.
struct AttendRow {
  std::size_t window_first = 0, window_rows = 0;  // of AttendArgs::window
  std::size_t window_places = 0;
  std::size_t entries = 0;
  const std::uint8_t* const* codes = nullptr;   // [entries]
  const std::uint8_t* const* scales = nullptr;  // [entries]
  const std::int32_t* ids = nullptr;            // [entries], not negative: equal ones are the same entry
};
// Attention of some heads of rows whose windows overlap (section 2.4).
struct AttendArgs {
  const BFloat16* q = nullptr;  // [heads][head_dim] of each row
  int rows = 0;
  const AttendRow* row = nullptr;  // [rows]
  std::size_t row_stride = 0;      // elements between rows of q and of out
  int heads = 0;
  int head_dim = 0;  // a multiple of 32
  float scale = 0;
  const float* sink = nullptr;                  // [heads]
  const std::uint8_t* const* window = nullptr;  // [window_records]
  std::size_t window_records = 0;
  BFloat16* out = nullptr;       // as q, before the inverse rotation
  std::byte* scratch = nullptr;  // AttendScratchBytes, 64-byte aligned
};
[[nodiscard]] constexpr std::size_t AttendScratchBytes(int heads, int head_dim, std::size_t window_records) {
  const auto h = static_cast<std::size_t>(heads), d = static_cast<std::size_t>(head_dim);
  return (window_records + kEntriesKept + kListBlock) * d * 4 + kEntriesKept * 8 + h * (d * 8 + kListBlock * 4 + 8) +
         kListBlock * 8 + 1024;
}

// Scores of `count` index keys that lie one after the other (section 2.8).
// Queries of a row as index_scores takes them.
struct IndexQueryArgs {
  const BFloat16* q = nullptr;  // [heads][dim], on the e2m1 grid of a scale for every 32 of a head (round_fp4_index)
  int heads = 0, dim = 0;       // dim: a multiple of 32
  float* out = nullptr;         // dim * (heads rounded up to 16) values
};
struct IndexArgs {
  const float* q = nullptr;        // as pack_index_queries leaves them
  const float* weights = nullptr;  // [head_groups * 16], zero for heads that do not exist
  int head_groups = 0;
  int dim = 0;                           // a multiple of 32
  const std::uint8_t* keys = nullptr;    // e2m1 [count][dim / 2]
  const std::uint8_t* scales = nullptr;  // UE8M0 [count][dim / 32]
  std::size_t count = 0;
  float* out = nullptr;  // [count]; NaN becomes minus infinity
};

struct Kernels {
  void (*pack)(const PackArgs&) = nullptr;
  void (*gather)(const GatherArgs&) = nullptr;  // null: products take packed rows as they are
  void (*product)(const ProductArgs&) = nullptr;
  void (*attend)(const AttendArgs&) = nullptr;
  void (*pack_index_queries)(const IndexQueryArgs&) = nullptr;
  void (*index_scores)(const IndexArgs&) = nullptr;
  // For benchmarks: reads every byte (whole lines of 64), and runs `count` (a multiple of 4) times 16 independent steps
  // of what products consist of: 16 fp32 multiply-adds each, or all that a chunk of 128 MXFP4 weights takes once it is
  // decoded, six byte products and as many other instructions. Where MXFP4 is multiplied as fp32, run_fp4 is null.
  std::uint32_t (*read_lines)(const std::byte* data, std::size_t bytes) = nullptr;
  float (*run_floats)(std::int64_t count) = nullptr;
  float (*run_fp4)(std::int64_t count) = nullptr;

  // Vectors of n values; every one of these takes any n.
  // Sum of squares of bf16 values; sums of x[i] * w[r][i] with `rows` rows of fp32 weights, in an order that does not
  // depend on their number.
  float (*sum_squares)(const BFloat16* x, std::size_t n) = nullptr;
  void (*dots_f32)(const float* w, std::size_t rows, const BFloat16* x, std::size_t n, float* out) = nullptr;
  // sum of q[i] * k[i] * (a[i] * b[i]), all bf16.
  float (*dot4)(const BFloat16* q, const BFloat16* k, const BFloat16* a, const BFloat16* b, std::size_t n) = nullptr;
  // x = bf(weight * (x * r)); `out` may be x.
  void (*norm)(const BFloat16* x, const BFloat16* weight, float r, BFloat16* out, std::size_t n) = nullptr;
  // h[k] = bf(post[k] * y + sum over j of comb[j][k] * h[j]) over n columns; h [copies][dim].
  void (*expand)(BFloat16* h, std::size_t dim, int copies, const BFloat16* y, const float* post, const float* comb,
                 std::size_t n) = nullptr;
  // out = bf(sum over k of pre[k] * h[k]).
  void (*collapse)(const BFloat16* h, std::size_t dim, int copies, const float* pre, BFloat16* out,
                   std::size_t n) = nullptr;
  // Divides matrices [copies][copies] of positive values by their column sums, then by row and column sums in turn,
  // each sum plus eps; columns `iterations` times.
  void (*balance)(float* matrices, std::size_t count, int copies, int iterations, float eps) = nullptr;
  // Turns `pairs` neighbours of x by angles whose cosines and then sines are given (sign -1: back), rounding to bf16.
  void (*rotate)(BFloat16* x, const float* cos_sin, std::size_t pairs, float sign) = nullptr;
  // h += gate * value.
  void (*add_scaled)(BFloat16* h, const BFloat16* value, float gate, std::size_t n) = nullptr;
  // out = bf(weight * silu(min(bf(gate), limit)) * clamp(bf(up), -limit, limit)).
  void (*swiglu)(const float* gate, const float* up, float limit, float weight, BFloat16* out, std::size_t n) = nullptr;
  // sum += x, both fp32 sums of bf16 values.
  void (*accumulate)(float* sum, const BFloat16* x, std::size_t n) = nullptr;
  // sum += x in fp32.
  void (*add)(float* sum, const float* x, std::size_t n) = nullptr;
  // out = bf(sum).
  void (*to_bf16)(const float* sum, BFloat16* out, std::size_t n) = nullptr;
  // The FP8 activation quantiser (groups of 32, n a multiple of it), and back.
  void (*encode_fp8)(const BFloat16* x, std::uint8_t* codes, std::uint8_t* scales, std::size_t n) = nullptr;
  // e4m3 codes and UE8M0 scales to bf16; n is a multiple of 32.
  void (*decode_fp8)(const std::uint8_t* codes, const std::uint8_t* scales, BFloat16* out, std::size_t n) = nullptr;
  // The FP4 quantisers of history: index queries in place, index keys (groups of 32), latents (groups of 16).
  void (*round_fp4_index)(BFloat16* x, std::size_t n) = nullptr;
  void (*encode_fp4_index)(const BFloat16* x, std::uint8_t* packed, std::uint8_t* scales, std::size_t n) = nullptr;
  void (*encode_fp4_kv)(const BFloat16* x, std::uint8_t* packed, std::uint8_t* scales, std::size_t n) = nullptr;
};

}  // namespace galley::backend::cpu
