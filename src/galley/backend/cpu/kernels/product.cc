// SPDX-License-Identifier: Apache-2.0
// Matrix products: every output is one dot product along K, in an order that depends on K and the format alone. Each
// chunk of 128 columns gives one partial sum in sixteen lanes, started from zero; partial sums are multiplied by the
// weight's scale (a power of two a lane) and added to sixteen running sums in ascending order; these are folded at the
// end. One activation row decodes weights in registers; several share panels of decoded weights. Both take the same
// steps.
#include "galley/backend/cpu/kernels.h"
#include "galley/backend/cpu/kernels/formats.h"
#include "galley/backend/cpu/kernels/functions.h"
#include "galley/backend/cpu/kernels/simd.h"

namespace galley::backend::cpu::GALLEY_ISA {
namespace {

constexpr std::size_t kBlock = 48;  // activation rows that stay in the second cache

// What several activation rows are multiplied with, in the scratch: kLanes weight rows, decoded, kNear chunks of each
// after the other.  A matrix's rows by themselves would fall on the same sets of a cache.
struct Panel {
  F32* totals;   // [kGroup][kLanes]
  F32* lanes;    // block scales of all chunks: [chunks][kScaleVectors]
  F32* scales;   // [parts][kLanes][kNear]
  U32* weights;  // [parts][kLanes][kNear][kWeights of the format]
};

GALLEY_SIMD const std::byte* RowOf(const ProductArgs& a, int t) {
  return a.x + static_cast<std::size_t>(a.x_rows == nullptr ? t : a.x_rows[t]) * a.x_stride;
}

GALLEY_SIMD void Emit(const ProductArgs& a, int t, std::int64_t r, F32 total) {
  const float value = SumLanes(total);
  if (a.out != nullptr) {
    a.out[t * a.out_stride + r] = value;
  } else {
    a.out_bf16[t * a.out_stride + r] = RoundOne(value);
  }
}

// Results of the `count` weight rows from `r` on, sixteen at most, from the sums of each. Not inline: the folding is
// long, and every format would have its own.
[[gnu::noinline]] void EmitSome(const ProductArgs& a, int t, std::int64_t r, const F32 totals[kLanes],
                                std::size_t count) {
  if (count < kLanes) {
    for (std::size_t i = 0; i < count; ++i) Emit(a, t, r + static_cast<std::int64_t>(i), totals[i]);
    return;
  }
  const F32 values = SumEach(totals);
  if (a.out != nullptr) {
    Store(a.out + t * a.out_stride + r, values);
  } else {
    StoreBf16(a.out_bf16 + t * a.out_stride + r, values);
  }
}

// One weight row, its last chunk completed with zeros in a buffer of its own.
template <class Format>
struct WeightRow {
  const std::uint8_t* codes;
  const std::uint8_t* scales;  // MXFP4 only
  std::size_t whole;           // chunks that lie entirely in the row
  alignas(64) std::uint8_t tail[256];
  std::uint8_t tail_scales[4];

  // Of rows that end in whole vectors Bf16 needs no copy.
  GALLEY_SIMD bool EndsInVectors(const ProductArgs& a) {
    if constexpr (!Format::kRowScales && !Format::kBlockScales) return a.weight.cols % 32 == 0;
    return false;
  }
  GALLEY_SIMD void Open(WeightRow& row, const ProductArgs& a, std::int64_t r, bool ends_in_vectors = false) {
    const auto cols = static_cast<std::size_t>(a.weight.cols);
    const std::size_t bytes = cols * Format::kChunkBytes / kChunk;
    row.codes = static_cast<const std::uint8_t*>(a.weight.data) + static_cast<std::size_t>(r) * bytes;
    if constexpr (Format::kRowScales) row.scales = a.weight.scales + static_cast<std::size_t>(r) * (cols / 32);
    row.whole = cols / kChunk;
    if (cols % kChunk == 0 || ends_in_vectors) return;
    const std::size_t done = row.whole * Format::kChunkBytes;
    for (std::size_t i = 0; i < Format::kChunkBytes; i += 64) StoreAs(row.tail + i, U32{});
    std::size_t i = done;
    for (; i + 16 <= bytes; i += 16) StoreAs(row.tail + (i - done), LoadAs<U8x16>(row.codes + i));
    for (; i < bytes; ++i) row.tail[i - done] = row.codes[i];
    if constexpr (Format::kRowScales) {
      for (std::size_t g = 0; g < 4; ++g)
        row.tail_scales[g] = row.whole * 4 + g < cols / 32 ? row.scales[row.whole * 4 + g] : 0;
    }
  }
  GALLEY_SIMD const std::uint8_t* Codes(const WeightRow& row, std::size_t c) {
    return c < row.whole ? row.codes + c * Format::kChunkBytes : row.tail;
  }
  GALLEY_SIMD const std::uint8_t* Scales(const WeightRow& row, std::size_t c) {
    return c < row.whole ? row.scales + c * 4 : row.tail_scales;
  }
};

// Scale lanes of the block of 32 rows that FP8 row `r` belongs to: [chunks][2].
void Fp8Lanes(const ProductArgs& a, std::int64_t r, std::size_t chunks, F32* out) {
  const std::size_t blocks = (static_cast<std::size_t>(a.weight.cols) + 31) / 32;
  const std::uint8_t* scales = a.weight.scales + static_cast<std::size_t>(r / 32) * blocks;
  for (std::size_t i = 0; i < chunks * 2; ++i) {
    const float low = 2 * i < blocks ? ScaleOf(scales[2 * i]) / kE4M3Unit : 0.0f;
    const float high = 2 * i + 1 < blocks ? ScaleOf(scales[2 * i + 1]) / kE4M3Unit : 0.0f;
    out[i] = BroadcastHalves(low, high);
  }
}

template <class Format>
GALLEY_SIMD void ChunkScales(const WeightRow<Format>& row, std::size_t c, const F32* lanes, F32 s[kScaleVectors]) {
  if constexpr (Format::kBlockScales) {
    s[0] = lanes[2 * c];
    s[1] = lanes[2 * c + 1];
  } else if constexpr (Format::kRowScales) {
    s[0] = Format::Lanes(WeightRow<Format>::Scales(row, c));
  }
}

// Sum of weight row `r` with one activation row, decoded as it goes.
template <class Format>
GALLEY_SIMD F32 DirectRow(const ProductArgs& a, std::int64_t r, std::size_t chunks, const F32* lanes,
                          const std::byte* x) {
  WeightRow<Format> row;
  const bool ends_in_vectors = WeightRow<Format>::EndsInVectors(a);
  WeightRow<Format>::Open(row, a, r, ends_in_vectors);
  F32 total{};
  const auto step = [&](const std::uint8_t* codes, std::size_t c) __attribute__((always_inline)) {
    U32 w[Format::kWeights];
    F32 s[kScaleVectors] = {};
    Format::Load(codes, w);
    ChunkScales<Format>(row, c, lanes, s);
    Format::template Add<1>(&total, w, &x, c * Format::kInputBytes, s);
  };
  for (std::size_t c = 0; c < row.whole; ++c) {
    const std::uint8_t* codes = row.codes + c * Format::kChunkBytes;
    for (std::size_t line = 0; line < Format::kChunkBytes; line += 64) AskAhead(codes + line);
    step(codes, c);
  }
  if (row.whole == chunks) return total;
  const std::size_t c = row.whole;
  if constexpr (!Format::kRowScales && !Format::kBlockScales) {
    if (ends_in_vectors) {
      const auto vectors = static_cast<std::size_t>(a.weight.cols) % kChunk / 32;
      Format::template AddPart<1>(&total, row.codes + c * Format::kChunkBytes, vectors, &x, c * Format::kInputBytes);
      return total;
    }
  }
  step(row.tail, c);
  return total;
}

// One row decodes weights in registers.
template <class Format>
void Direct(const ProductArgs& a, std::size_t chunks) {
  auto* lanes = reinterpret_cast<F32*>(a.scratch);
  const std::byte* x = RowOf(a, 0);
  for (std::int64_t begin = a.row_begin; begin < a.row_end; begin += static_cast<std::int64_t>(kLanes)) {
    F32 totals[kLanes];
    const auto count = Least(static_cast<std::size_t>(a.row_end - begin), kLanes);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t r = begin + static_cast<std::int64_t>(i);
      if constexpr (Format::kBlockScales) {
        if (r == a.row_begin || r % 32 == 0) Fp8Lanes(a, r, chunks, lanes);
      }
      totals[i] = DirectRow<Format>(a, r, chunks, lanes, x);
    }
    EmitSome(a, 0, begin, totals, count);
  }
}

// Decodes chunks [begin, end), which are the panel's part number `part`, of `count` weight rows; those that complete
// the last tile are zeros.
template <class Format>
GALLEY_SIMD void FillPart(const Panel& panel, std::size_t part, const WeightRow<Format>* rows, std::size_t count,
                          std::size_t begin, std::size_t end) {
  constexpr std::size_t kAhead = 2 * Format::kNear;
  const std::size_t to_next = (kLanes - 1) * rows[0].whole * Format::kChunkBytes;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t c = begin; c < end; ++c) {
      const std::size_t at = (part * kLanes + i) * Format::kNear + (c - begin);
      const std::uint8_t* codes = WeightRow<Format>::Codes(rows[i], c);
      // Behind its end a row goes on as the one kLanes further down.
      const std::size_t ahead = kAhead * Format::kChunkBytes + (c + kAhead < rows[i].whole ? 0 : to_next);
      for (std::size_t line = 0; line < Format::kChunkBytes; line += 64) __builtin_prefetch(codes + ahead + line);
      Format::Load(codes, panel.weights + at * Format::kWeights);
      if constexpr (Format::kRowScales) panel.scales[at] = Format::Lanes(WeightRow<Format>::Scales(rows[i], c));
    }
  }
  for (std::size_t i = count; i % kBlockWeights != 0; ++i) {
    for (std::size_t c = 0; c < Format::kNear; ++c) {
      const std::size_t at = (part * kLanes + i) * Format::kNear + c;
      panel.scales[at] = F32{};
      for (std::size_t v = 0; v < Format::kWeights; ++v) panel.weights[at * Format::kWeights + v] = U32{};
    }
  }
}

// Chunks [begin, end), which are that part of the panel, of kT activation rows with kBlockWeights weight rows from `i`
// on.
template <class Format, std::size_t kT>
GALLEY_SIMD void OneTile(const Panel& panel, std::size_t part, std::size_t i, std::size_t begin, std::size_t end,
                         const std::byte* const* x, F32* totals) {
  F32 total[kBlockWeights][kT];
  for (std::size_t t = 0; t < kT; ++t) {
    for (std::size_t u = 0; u < kBlockWeights; ++u) total[u][t] = totals[t * kLanes + i + u];
  }
  const std::size_t place = (part * kLanes + i) * Format::kNear;
  const U32* w = panel.weights + place * Format::kWeights;
  const F32* s = Format::kBlockScales ? panel.lanes + begin * kScaleVectors : panel.scales + place;
  for (std::size_t c = begin; c < end; ++c) {
    Format::template AddTile<kBlockWeights, kT>(total, w, Format::kNear * Format::kWeights, s,
                                                Format::kBlockScales ? 0 : Format::kNear, x, c * Format::kInputBytes);
    w += Format::kWeights;
    s += Format::kBlockScales ? kScaleVectors : 1;
  }
  for (std::size_t t = 0; t < kT; ++t) {
    for (std::size_t u = 0; u < kBlockWeights; ++u) totals[t * kLanes + i + u] = total[u][t];
  }
}

// The same for all rows of the panel and `rows` activation rows, in tiles of `even` and one of the rest.
template <class Format, std::size_t kT = kBlockRows>
void AddTiles(const Panel& panel, std::size_t part, std::size_t count, std::size_t begin, std::size_t end,
              const std::byte* const* x, std::size_t rows, std::size_t even) {
  if constexpr (kT > 1) {
    if (even < kT) return AddTiles<Format, kT - 1>(panel, part, count, begin, end, x, rows, even);
  }
  for (std::size_t i = 0; i < count; i += kBlockWeights) {
    std::size_t t = 0;
    for (; t + kT <= rows; t += kT) OneTile<Format, kT>(panel, part, i, begin, end, x + t, panel.totals + t * kLanes);
    // Tiles are as even as can be: what is left is one row less.
    if constexpr (kT > 1) {
      if (t < rows) OneTile<Format, kT - 1>(panel, part, i, begin, end, x + t, panel.totals + t * kLanes);
    }
  }
}

// `count` weight rows from `r` on, with the same block scales, by `rows` activation rows from `t` on.
template <class Format>
void PanelProduct(const ProductArgs& a, const Panel& panel, std::int64_t r, std::size_t count, int t, std::size_t rows,
                  std::size_t chunks, bool whole) {
  WeightRow<Format> weights[kLanes];
  for (std::size_t i = 0; i < count; ++i) WeightRow<Format>::Open(weights[i], a, r + static_cast<std::int64_t>(i));
  for (std::size_t begin = 0; whole && begin < chunks; begin += Format::kNear)
    FillPart<Format>(panel, begin / Format::kNear, weights, count, begin, Least(begin + Format::kNear, chunks));
  const std::size_t groups = (rows + Format::kGroup - 1) / Format::kGroup;
  for (std::size_t g = 0; g < groups; ++g) {
    const std::size_t first = rows * g / groups, own = rows * (g + 1) / groups - first;
    const std::byte* x[Format::kGroup];
    for (std::size_t u = 0; u < own; ++u) x[u] = RowOf(a, t + static_cast<int>(first + u));
    for (std::size_t i = 0; i < own * kLanes; ++i) panel.totals[i] = F32{};
    for (std::size_t begin = 0; begin < chunks; begin += Format::kNear) {
      const std::size_t end = Least(begin + Format::kNear, chunks);
      if (!whole) FillPart<Format>(panel, 0, weights, count, begin, end);
      const std::size_t even = own > kBlockRows ? (own + 1) / 2 : own;
      AddTiles<Format>(panel, whole ? begin / Format::kNear : 0, count, begin, end, x, own, even);
    }
    for (std::size_t u = 0; u < own; ++u)
      EmitSome(a, t + static_cast<int>(first + u), r, panel.totals + u * kLanes, count);
  }
}

// Several rows share panels of decoded weights; few decode a part at a time, many keep all columns.
template <class Format>
void Panels(const ProductArgs& a, std::size_t chunks) {
  const bool whole = static_cast<std::size_t>(a.rows) > Format::kGroup;
  Panel panel{};
  panel.totals = reinterpret_cast<F32*>(a.scratch);
  panel.lanes = panel.totals + Format::kGroup * kLanes;
  panel.scales = panel.lanes + chunks * kScaleVectors;
  panel.weights =
      reinterpret_cast<U32*>(panel.scales + (chunks + Format::kNear - 1) / Format::kNear * Format::kNear * kLanes);
  constexpr auto kWeightRows = static_cast<std::int64_t>(kLanes);
  for (int t = 0; t < a.rows; t += static_cast<int>(kBlock)) {
    for (std::int64_t begin = a.row_begin; begin < a.row_end;) {
      // Panels end where a block of scales does.
      std::int64_t end = (begin / kWeightRows + 1) * kWeightRows;
      if (end > a.row_end) end = a.row_end;
      if constexpr (Format::kBlockScales) {
        if (begin == a.row_begin || begin % 32 == 0) Fp8Lanes(a, begin, chunks, panel.lanes);
      }
      PanelProduct<Format>(a, panel, begin, static_cast<std::size_t>(end - begin), t,
                           Least(static_cast<std::size_t>(a.rows - t), kBlock), chunks, whole);
      begin = end;
    }
  }
}

template <class Format>
void Product(const ProductArgs& a) {
  const std::size_t chunks = PaddedColumns(a.weight.cols) / kChunk;
  if (a.rows == 1) return Direct<Format>(a, chunks);
  return Panels<Format>(a, chunks);
}

// fp32 weights are few and small: the router's and the draft head's.
void ProductF32(const ProductArgs& a) {
  const auto cols = static_cast<std::size_t>(a.weight.cols);
  for (std::int64_t r = a.row_begin; r < a.row_end; ++r) {
    const float* w = static_cast<const float*>(a.weight.data) + static_cast<std::size_t>(r) * cols;
    for (int t = 0; t < a.rows; ++t) {
      const auto* x = reinterpret_cast<const float*>(RowOf(a, t));
      F32 total{};
      std::size_t i = 0;
      for (; i + kLanes <= cols; i += kLanes) total = Fma(Load(w + i), Load(x + i), total);
      if (i < cols) {
        float rest[kLanes] = {};
        for (std::size_t l = 0; i + l < cols; ++l) rest[l] = w[i + l];
        total = Fma(Load(rest), Load(x + i), total);
      }
      Emit(a, t, r, total);
    }
  }
}

}  // namespace

void MatrixProduct(const ProductArgs& a) {
  switch (a.weight.format) {
    case WeightFormat::kF32:
      return ProductF32(a);
    case WeightFormat::kBF16:
      return Product<Bf16>(a);
    case WeightFormat::kFp8Block32:
      return Product<Fp8>(a);
    case WeightFormat::kMxfp4:
      return Product<Mxfp4>(a);
  }
}

}  // namespace galley::backend::cpu::GALLEY_ISA
