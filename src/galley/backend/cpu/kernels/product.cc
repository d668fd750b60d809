// SPDX-License-Identifier: Apache-2.0
// Matrix products: every output is one dot product along K, in an order that depends on K and the format alone. Each
// chunk of 128 columns gives one partial sum in sixteen lanes, started from zero; partial sums are multiplied by the
// weight's scale (a power of two a lane) and added to sixteen running sums in ascending order; these are folded at the
// end. Few activation rows decode weights in registers; many share a panel of decoded weights. Both take the same
// steps.
#include "galley/backend/cpu/kernels.h"
#include "galley/backend/cpu/kernels/formats.h"
#include "galley/backend/cpu/kernels/functions.h"
#include "galley/backend/cpu/kernels/simd.h"

namespace galley::backend::cpu::GALLEY_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kDirectRows = 8;  // up to here weights are decoded in registers
#else
constexpr int kDirectRows = 4;
#endif
constexpr std::size_t kTogether = 4;  // activation rows that share a load of decoded weights
constexpr std::size_t kNear = 8;      // chunks of so many rows stay in the nearest cache
constexpr std::size_t kAhead = 3072;  // bytes that are asked for in advance, beyond what the hardware does by itself

struct Panel {
  const U32* weights;  // [rows][chunks][kWeights of the format]
  const F32* scales;   // [rows, or 1 where all have the same][chunks][kScaleVectors]
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

// Results of the sixteen weight rows from `r` on, from the sums of each. Not inline: the folding is long, and every
// number of rows would have its own.
[[gnu::noinline]] void EmitEach(const ProductArgs& a, int t, std::int64_t r, const F32 totals[kLanes]) {
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
    out[i] = F32{low, low, low, low, low, low, low, low, high, high, high, high, high, high, high, high};
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

// Sums of weight row `r` with kRows activation rows, decoded as it goes, to totals[t * kLanes].
template <class Format, int kRows>
GALLEY_SIMD void DirectRow(const ProductArgs& a, std::int64_t r, std::size_t chunks, const F32* lanes,
                           const std::byte* const x[kRows], F32* totals) {
  WeightRow<Format> row;
  const bool ends_in_vectors = WeightRow<Format>::EndsInVectors(a);
  WeightRow<Format>::Open(row, a, r, ends_in_vectors);
  F32 total[kRows];
  for (int t = 0; t < kRows; ++t) total[t] = F32{};
  const auto step = [&](const std::uint8_t* codes, std::size_t c) {
    U32 w[Format::kWeights];
    F32 s[kScaleVectors] = {};
    Format::Load(codes, w);
    ChunkScales<Format>(row, c, lanes, s);
    Format::template Add<kRows>(total, w, x, c * Format::kInputBytes, s);
  };
  for (std::size_t c = 0; c < row.whole; ++c) {
    const std::uint8_t* codes = row.codes + c * Format::kChunkBytes;
    for (std::size_t line = 0; line < Format::kChunkBytes; line += 64) __builtin_prefetch(codes + kAhead + line);
    step(codes, c);
  }
  if (row.whole < chunks) {
    const std::size_t c = row.whole;
    if constexpr (!Format::kRowScales && !Format::kBlockScales) {
      if (ends_in_vectors) {
        const auto vectors = static_cast<std::size_t>(a.weight.cols) % kChunk / 32;
        Format::template AddPart<kRows>(total, row.codes + c * Format::kChunkBytes, vectors, x,
                                        c * Format::kInputBytes);
      } else {
        step(row.tail, c);
      }
    } else {
      step(row.tail, c);
    }
  }
  for (std::size_t t = 0; t < kRows; ++t) totals[t * kLanes] = total[t];
}

template <class Format, int kRows>
void Direct(const ProductArgs& a, std::size_t chunks) {
  auto* lanes = reinterpret_cast<F32*>(a.scratch);
  const std::byte* x[kRows];
  for (int t = 0; t < kRows; ++t) x[t] = RowOf(a, t);
  F32 totals[kRows * kLanes];
  const auto fill = [&](std::int64_t r, std::size_t place) {
    if constexpr (Format::kBlockScales) {
      if (r == a.row_begin || r % 32 == 0) Fp8Lanes(a, r, chunks, lanes);
    }
    DirectRow<Format, kRows>(a, r, chunks, lanes, x, totals + place);
  };
  std::int64_t r = a.row_begin;
  constexpr auto kGroup = static_cast<std::int64_t>(kLanes);
  for (; r + kGroup <= a.row_end; r += kGroup) {
    for (std::int64_t i = 0; i < kGroup; ++i) fill(r + i, static_cast<std::size_t>(i));
    for (int t = 0; t < kRows; ++t) EmitEach(a, t, r, totals + static_cast<std::size_t>(t) * kLanes);
  }
  for (; r < a.row_end; ++r) {
    fill(r, 0);
    for (int t = 0; t < kRows; ++t) Emit(a, t, r, totals[static_cast<std::size_t>(t) * kLanes]);
  }
}

// Decodes weight rows [begin, end) into the scratch; block scales are those of one block.
template <class Format>
Panel MakePanel(const ProductArgs& a, std::int64_t begin, std::int64_t end, std::size_t chunks) {
  auto* weights = reinterpret_cast<U32*>(a.scratch);
  auto* scales = reinterpret_cast<F32*>(weights + static_cast<std::size_t>(kPanelRows) * chunks * Format::kWeights);
  if constexpr (Format::kBlockScales) Fp8Lanes(a, begin, chunks, scales);
  for (std::int64_t r = begin; r < end; ++r) {
    const auto i = static_cast<std::size_t>(r - begin);
    WeightRow<Format> row;
    WeightRow<Format>::Open(row, a, r);
    for (std::size_t c = 0; c < chunks; ++c) {
      Format::Load(WeightRow<Format>::Codes(row, c), weights + (i * chunks + c) * Format::kWeights);
      if constexpr (Format::kRowScales)
        scales[(i * chunks + c) * kScaleVectors] = Format::Lanes(WeightRow<Format>::Scales(row, c));
    }
  }
  return {weights, scales};
}

// Adds chunks [begin, end) of the panel's row `i` with kT activation rows to totals[u * kLanes].
template <class Format, std::size_t kT>
GALLEY_SIMD void PanelRow(const Panel& panel, std::size_t i, std::size_t chunks, std::size_t begin, std::size_t end,
                          const std::byte* const x[kT], F32* totals) {
  F32 total[kT];
  for (std::size_t u = 0; u < kT; ++u) total[u] = totals[u * kLanes];
  const U32* weights = panel.weights + i * chunks * Format::kWeights;
  const F32* scales = panel.scales + (Format::kBlockScales ? 0 : i * chunks * kScaleVectors);
  for (std::size_t c = begin; c < end; ++c) {
    Format::template Add<kT>(total, weights + c * Format::kWeights, x, c * Format::kInputBytes,
                             scales + c * kScaleVectors);
  }
  for (std::size_t u = 0; u < kT; ++u) totals[u * kLanes] = total[u];
}

// `rows` weight rows of the panel, from row `first` of the matrix on, against kT activation rows from `t` on.
template <class Format, std::size_t kT>
void PanelRows(const ProductArgs& a, const Panel& panel, int t, std::int64_t first, std::size_t rows,
               std::size_t chunks) {
  F32 totals[2][kT * kLanes];  // of the panel's rows, sixteen at a time
  static_assert(kPanelRows == 2 * kLanes);
  for (F32(&half)[kT * kLanes] : totals) {
    for (F32& total : half) total = F32{};
  }
  const std::byte* x[kT];
  for (std::size_t u = 0; u < kT; ++u) x[u] = RowOf(a, t + static_cast<int>(u));
  for (std::size_t begin = 0; begin < chunks; begin += kNear) {
    const std::size_t end = Least(begin + kNear, chunks);
    for (std::size_t i = 0; i < rows; ++i)
      PanelRow<Format, kT>(panel, i, chunks, begin, end, x, totals[i / kLanes] + i % kLanes);
  }
  for (std::size_t i = 0; i < rows; i += kLanes) {
    const std::int64_t r = first + static_cast<std::int64_t>(i);
    for (std::size_t u = 0; u < kT; ++u) {
      const F32* sums = totals[i / kLanes] + u * kLanes;
      if (i + kLanes <= rows) {
        EmitEach(a, t + static_cast<int>(u), r, sums);
        continue;
      }
      for (std::size_t v = 0; i + v < rows; ++v)
        Emit(a, t + static_cast<int>(u), r + static_cast<std::int64_t>(v), sums[v]);
    }
  }
}

template <class Format>
void Panels(const ProductArgs& a, std::size_t chunks) {
  for (std::int64_t begin = a.row_begin; begin < a.row_end;) {
    // Panels end where a block of scales ends.
    std::int64_t end = (begin / kPanelRows + 1) * kPanelRows;
    if (end > a.row_end) end = a.row_end;
    const Panel panel = MakePanel<Format>(a, begin, end, chunks);
    const auto rows = static_cast<std::size_t>(end - begin);
    constexpr auto kStep = static_cast<int>(kTogether);
    int t = 0;
    for (; t + kStep <= a.rows; t += kStep) PanelRows<Format, kTogether>(a, panel, t, begin, rows, chunks);
    switch (a.rows - t) {
      case 1:
        PanelRows<Format, 1>(a, panel, t, begin, rows, chunks);
        break;
      case 2:
        PanelRows<Format, 2>(a, panel, t, begin, rows, chunks);
        break;
      case 3:
        PanelRows<Format, 3>(a, panel, t, begin, rows, chunks);
        break;
      default:
        break;
    }
    begin = end;
  }
}

template <class Format, int kRows = kDirectRows>
void Product(const ProductArgs& a) {
  const std::size_t chunks = PaddedColumns(a.weight.cols) / kChunk;
  if (a.rows > kDirectRows) return Panels<Format>(a, chunks);
  if (a.rows == kRows) return Direct<Format, kRows>(a, chunks);
  if constexpr (kRows > 1) return Product<Format, kRows - 1>(a);
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
