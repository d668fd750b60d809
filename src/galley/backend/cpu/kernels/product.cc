// SPDX-License-Identifier: Apache-2.0
// Matrix products: every output is one dot product along K, in an order that depends on K and the format alone. Each
// chunk of 128 columns gives one partial sum in sixteen lanes, started from zero; partial sums are multiplied by the
// weight's scale (a power of two a lane) and added to sixteen running sums in ascending order; these are folded at the
// end. One activation row decodes weights in registers; many share a panel of decoded weights. Both take the same
// steps.
#include "galley/backend/cpu/kernels.h"
#include "galley/backend/cpu/kernels/decode.h"
#include "galley/backend/cpu/kernels/functions.h"
#include "galley/backend/cpu/kernels/simd.h"

namespace galley::backend::cpu::GALLEY_ISA {
namespace {

constexpr int kVectors = 4;           // of 32 bf16 values in a chunk
constexpr int kLanePairs = 2;         // scale vectors of a chunk, at most
constexpr int kDirectRows = 4;        // up to here weights are decoded in registers
constexpr std::size_t kAhead = 3072;  // bytes that are asked for in advance, beyond what the hardware does by itself

#if defined(__AVX512VBMI__)
// Where the two bytes of each word begin, in bits, within their 64.
alignas(64) constexpr std::uint8_t kShifts[64] = {0, 8, 16, 24, 32, 40, 48, 56, 0, 8, 16, 24, 32, 40, 48, 56,
                                                  0, 8, 16, 24, 32, 40, 48, 56, 0, 8, 16, 24, 32, 40, 48, 56,
                                                  0, 8, 16, 24, 32, 40, 48, 56, 0, 8, 16, 24, 32, 40, 48, 56,
                                                  0, 8, 16, 24, 32, 40, 48, 56, 0, 8, 16, 24, 32, 40, 48, 56};
#endif

struct Panel {
  const U32* weights;  // [rows][chunks][kVectors]
  const F32* scales;   // [rows][chunks][kLanePairs]
};

// What the formats differ in. Load takes one chunk's codes; Lanes the scale of every lane of its partial sums.
struct Mxfp4 {
  static constexpr std::size_t kChunkBytes = 64;
  static constexpr int kPartials = 1;
  static constexpr bool kScaled = true;
  GALLEY_SIMD void Load(const std::uint8_t* codes, U32 w[kVectors]) {
    const U16 words = LoadAs<U16>(codes);
    w[0] = DecodeE2M1Words(words);
#if defined(__AVX512VBMI__)
    // Bits 4i and up of every word. Shifts would do, but they run on the port that the products need.
    const U64 from = LoadAs<U64>(kShifts);
    for (int i = 1; i < kVectors; ++i) {
      const U64 at = from + std::uint64_t{0x0101010101010101} * static_cast<unsigned>(4 * i);
      w[i] = DecodeE2M1Words((U16)_mm512_multishift_epi64_epi8((__m512i)at, (__m512i)words));
    }
#else
    for (int i = 1; i < kVectors; ++i) w[i] = DecodeE2M1Words(words >> (4 * i));
#endif
  }
  // Columns of lane l: words 2l and 2l + 1, so 8l … 8l + 7, which lie in the group of 32 with number l / 4.
  GALLEY_SIMD void Lanes(const std::uint8_t* bytes, F32 s[kLanePairs]) {
    std::uint32_t four;
    __builtin_memcpy(&four, bytes, sizeof(four));
#if defined(__AVX512BW__)
    const __m512i pick = _mm512_set_epi32(0x03808080, 0x03808080, 0x03808080, 0x03808080, 0x02808080, 0x02808080,
                                          0x02808080, 0x02808080, 0x01808080, 0x01808080, 0x01808080, 0x01808080,
                                          static_cast<int>(0x00808080), 0x00808080, 0x00808080, 0x00808080);
    s[0] = (F32)_mm512_srli_epi32(_mm512_shuffle_epi8(_mm512_set1_epi32(static_cast<int>(four)), pick), 1);
#else
    for (int i = 0; i < 16; ++i) s[0][i] = ScaleOf(static_cast<std::uint8_t>(four >> (8 * (i / 4))));
#endif
  }
};

struct Fp8 {
  static constexpr std::size_t kChunkBytes = 128;
  static constexpr int kPartials = 2;
  static constexpr bool kScaled = true;
  GALLEY_SIMD void Load(const std::uint8_t* codes, U32 w[kVectors]) {
    for (int i = 0; i < 2; ++i) {
      const U16 words = LoadAs<U16>(codes + 64 * i);
      w[2 * i] = DecodeE4M3Words(words << 8);
      w[2 * i + 1] = DecodeE4M3Words(words);
    }
  }
};

struct Bf16 {
  static constexpr std::size_t kChunkBytes = 256;
  static constexpr int kPartials = 1;
  static constexpr bool kScaled = false;
  GALLEY_SIMD void Load(const std::uint8_t* codes, U32 w[kVectors]) {
    for (int i = 0; i < kVectors; ++i) w[i] = LoadAs<U32>(codes + 64 * i);
  }
};

// total += the products of one chunk.
template <class Format>
GALLEY_SIMD F32 AddChunk(F32 total, const U32 w[kVectors], const U32 x[kVectors], const F32 s[kLanePairs]) {
  if constexpr (Format::kPartials == 2) {
    total = Fma(DotPairs(DotPairs(F32{}, w[0], x[0]), w[1], x[1]), s[0], total);
    return Fma(DotPairs(DotPairs(F32{}, w[2], x[2]), w[3], x[3]), s[1], total);
  } else {
    F32 partial = DotPairs(DotPairs(F32{}, w[0], x[0]), w[1], x[1]);
    partial = DotPairs(DotPairs(partial, w[2], x[2]), w[3], x[3]);
    if constexpr (Format::kScaled) return Fma(partial, s[0], total);
    return total + partial;
  }
}

GALLEY_SIMD void LoadX(const std::byte* x, std::size_t chunk, U32 out[kVectors]) {
  for (std::size_t i = 0; i < kVectors; ++i) out[i] = LoadAs<U32>(x + chunk * 256 + i * 64);
}

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

// One weight row, its last chunk completed with zeros in a buffer of its own.
template <class Format>
struct WeightRow {
  const std::uint8_t* codes;
  const std::uint8_t* scales;  // MXFP4 only
  std::size_t whole;           // chunks that lie entirely in the row
  alignas(64) std::uint8_t tail[256];
  std::uint8_t tail_scales[4];

  GALLEY_SIMD void Open(WeightRow& row, const ProductArgs& a, std::int64_t r) {
    const auto cols = static_cast<std::size_t>(a.weight.cols);
    const std::size_t bytes = cols * Format::kChunkBytes / kChunk;
    row.codes = static_cast<const std::uint8_t*>(a.weight.data) + static_cast<std::size_t>(r) * bytes;
    if constexpr (Format::kPartials == 1 && Format::kScaled)
      row.scales = a.weight.scales + static_cast<std::size_t>(r) * (cols / 32);
    row.whole = cols / kChunk;
    if (cols % kChunk == 0) return;
    const std::size_t done = row.whole * Format::kChunkBytes;
    for (std::size_t i = 0; i < Format::kChunkBytes; ++i) row.tail[i] = done + i < bytes ? row.codes[done + i] : 0;
    if constexpr (Format::kPartials == 1 && Format::kScaled) {
      for (std::size_t i = 0; i < 4; ++i)
        row.tail_scales[i] = row.whole * 4 + i < cols / 32 ? row.scales[row.whole * 4 + i] : 0;
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
    const float low = 2 * i < blocks ? ScaleOf(scales[2 * i]) : 0.0f;
    const float high = 2 * i + 1 < blocks ? ScaleOf(scales[2 * i + 1]) : 0.0f;
    out[i] = F32{low, low, low, low, low, low, low, low, high, high, high, high, high, high, high, high};
  }
}

template <class Format>
GALLEY_SIMD void ChunkScales(const WeightRow<Format>& row, std::size_t c, const F32* lanes, F32 s[kLanePairs]) {
  if constexpr (Format::kPartials == 2) {
    s[0] = lanes[2 * c];
    s[1] = lanes[2 * c + 1];
  } else if constexpr (Format::kScaled) {
    Format::Lanes(WeightRow<Format>::Scales(row, c), s);
  }
}

// Weight row `r` against kRows activation rows, decoded as it goes.
template <class Format, int kRows>
GALLEY_SIMD void DirectRow(const ProductArgs& a, std::int64_t r, std::size_t chunks, const F32* lanes,
                           const std::byte* const x[kRows]) {
  WeightRow<Format> row;
  WeightRow<Format>::Open(row, a, r);
  F32 total[kRows] = {};
  const auto step = [&](const std::uint8_t* codes, std::size_t c) {
    U32 w[kVectors], xv[kVectors];
    F32 s[kLanePairs] = {};
    Format::Load(codes, w);
    ChunkScales<Format>(row, c, lanes, s);
    for (int t = 0; t < kRows; ++t) {
      LoadX(x[t], c, xv);
      total[t] = AddChunk<Format>(total[t], w, xv, s);
    }
  };
  for (std::size_t c = 0; c < row.whole; ++c) {
    const std::uint8_t* codes = row.codes + c * Format::kChunkBytes;
    for (std::size_t line = 0; line < Format::kChunkBytes; line += 64) __builtin_prefetch(codes + kAhead + line);
    step(codes, c);
  }
  if (row.whole < chunks) step(row.tail, row.whole);
  for (int t = 0; t < kRows; ++t) Emit(a, t, r, total[t]);
}

template <class Format, int kRows>
void Direct(const ProductArgs& a, std::size_t chunks) {
  auto* lanes = reinterpret_cast<F32*>(a.scratch);
  const std::byte* x[kRows];
  for (int t = 0; t < kRows; ++t) x[t] = RowOf(a, t);
  for (std::int64_t r = a.row_begin; r < a.row_end; ++r) {
    if constexpr (Format::kPartials == 2) {
      if (r == a.row_begin || r % 32 == 0) Fp8Lanes(a, r, chunks, lanes);
    }
    DirectRow<Format, kRows>(a, r, chunks, lanes, x);
  }
}

// Decodes weight rows [begin, end) into the scratch.
template <class Format>
Panel MakePanel(const ProductArgs& a, std::int64_t begin, std::int64_t end, std::size_t chunks) {
  auto* weights = reinterpret_cast<U32*>(a.scratch);
  auto* scales = reinterpret_cast<F32*>(weights + static_cast<std::size_t>(kPanelRows) * chunks * kVectors);
  for (std::int64_t r = begin; r < end; ++r) {
    const auto i = static_cast<std::size_t>(r - begin);
    WeightRow<Format> row;
    WeightRow<Format>::Open(row, a, r);
    F32* lanes = scales + i * chunks * kLanePairs;
    if constexpr (Format::kPartials == 2) {
      if (r == begin || r % 32 == 0) {
        Fp8Lanes(a, r, chunks, lanes);
      } else {
        __builtin_memcpy(lanes, lanes - chunks * kLanePairs, chunks * kLanePairs * sizeof(F32));
      }
    }
    for (std::size_t c = 0; c < chunks; ++c) {
      Format::Load(WeightRow<Format>::Codes(row, c), weights + (i * chunks + c) * kVectors);
      if constexpr (Format::kPartials == 1 && Format::kScaled)
        Format::Lanes(WeightRow<Format>::Scales(row, c), lanes + c * kLanePairs);
    }
  }
  return {weights, scales};
}

// kR weight rows of the panel from `i` on against kT activation rows from `t` on.
template <class Format, int kR, int kT>
GALLEY_SIMD void Tile(const ProductArgs& a, const Panel& panel, std::int64_t i, int t, std::int64_t first,
                      std::size_t chunks) {
  F32 total[kR][kT] = {};
  const std::byte* x[kT];
  for (int u = 0; u < kT; ++u) x[u] = RowOf(a, t + u);
  const auto row = static_cast<std::size_t>(i);
  for (std::size_t c = 0; c < chunks; ++c) {
    for (std::size_t v = 0; v < kR; ++v) {
      const U32* w = panel.weights + ((row + v) * chunks + c) * kVectors;
      const F32* s = panel.scales + ((row + v) * chunks + c) * kLanePairs;
      for (int u = 0; u < kT; ++u) {
        U32 xv[kVectors];
        LoadX(x[u], c, xv);
        total[v][u] = AddChunk<Format>(total[v][u], w, xv, s);
      }
    }
  }
  for (int v = 0; v < kR; ++v) {
    for (int u = 0; u < kT; ++u) Emit(a, t + u, first + i + v, total[v][u]);
  }
}

template <class Format, int kT>
void TileRows(const ProductArgs& a, const Panel& panel, int t, std::int64_t first, std::int64_t rows,
              std::size_t chunks) {
  std::int64_t i = 0;
  for (; i + 4 <= rows; i += 4) Tile<Format, 4, kT>(a, panel, i, t, first, chunks);
  for (; i < rows; ++i) Tile<Format, 1, kT>(a, panel, i, t, first, chunks);
}

template <class Format>
void Panels(const ProductArgs& a, std::size_t chunks) {
  for (std::int64_t begin = a.row_begin; begin < a.row_end;) {
    // Panels end where a block of scales ends.
    std::int64_t end = (begin / kPanelRows + 1) * kPanelRows;
    if (end > a.row_end) end = a.row_end;
    const Panel panel = MakePanel<Format>(a, begin, end, chunks);
    int t = 0;
    for (; t + 4 <= a.rows; t += 4) TileRows<Format, 4>(a, panel, t, begin, end - begin, chunks);
    for (; t < a.rows; ++t) TileRows<Format, 1>(a, panel, t, begin, end - begin, chunks);
    begin = end;
  }
}

template <class Format>
void Product(const ProductArgs& a) {
  const std::size_t chunks = PaddedColumns(a.weight.cols) / kChunk;
  switch (a.rows) {
    case 0:
      return;
    case 1:
      return Direct<Format, 1>(a, chunks);
    case 2:
      return Direct<Format, 2>(a, chunks);
    case 3:
      return Direct<Format, 3>(a, chunks);
    case kDirectRows:
      return Direct<Format, 4>(a, chunks);
    default:
      return Panels<Format>(a, chunks);
  }
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

// Sixteen lanes of a row of `cols` values from column `at` on, zero behind its end.
GALLEY_SIMD F32 LoadRow(const BFloat16* x, std::size_t at, std::size_t cols) {
  if (at + kLanes <= cols) return LoadBf16(x + at);
  F32 out{};
  for (std::size_t l = 0; at + l < cols; ++l) out[l] = OneFloat(x[at + l]);
  return out;
}

// Both halves of a group of 32, through the activation quantiser and back.
GALLEY_SIMD void QuantiseGroup(F32& a, F32& b) {
  const float scale = Fp8GroupScale(a, b);
  const F32 up = Broadcast(scale), down = Broadcast(1.0f / scale), top = Broadcast(448.0f), bottom = Broadcast(-448.0f);
  a = RoundE4M3(Max(Min(a * down, top), bottom)) * up;
  b = RoundE4M3(Max(Min(b * down, top), bottom)) * up;
}

GALLEY_SIMD void PackEvenOdd(const U16* natural, std::byte* out) {
  for (std::size_t half = 0; half < 2; ++half) {
    for (std::size_t i = 0; i < 2; ++i) {
      const U32 pair = (U32)natural[2 * half + i];
      StoreAs(out + half * 128 + i * 32, __builtin_convertvector(pair & 0xFFFFu, U16x16));
      StoreAs(out + half * 128 + 64 + i * 32, __builtin_convertvector(pair >> 16, U16x16));
    }
  }
}

GALLEY_SIMD void PackStride4(const U16* natural, std::byte* out) {
  for (std::size_t s = 0; s < 4; ++s) {
    for (std::size_t i = 0; i < 4; ++i) {
      const U64 quad = ((U64)natural[i] >> (16 * s)) & 0xFFFFull;
      StoreAs(out + s * 64 + i * 16, __builtin_convertvector(quad, U16x8));
    }
  }
}

}  // namespace

void Pack(const PackArgs& a) {
  const auto cols = static_cast<std::size_t>(a.cols);
  auto* out = static_cast<std::byte*>(a.out);
  for (std::size_t begin = 0; begin < cols; begin += kChunk) {
    F32 values[8];
    for (std::size_t i = 0; i < 8; ++i) values[i] = LoadRow(a.x, begin + i * kLanes, cols);
    if (a.quantise) {
      for (std::size_t i = 0; i < 8; i += 2) QuantiseGroup(values[i], values[i + 1]);
    }
    if (a.packing == Packing::kFloat) {
      for (std::size_t i = 0; i < 8; ++i) StoreAs(out + (begin + i * kLanes) * 4, values[i]);
      continue;
    }
    U16 natural[4];
    for (std::size_t i = 0; i < 8; ++i) {
      StoreBf16(reinterpret_cast<BFloat16*>(natural) + i * kLanes, values[i]);
    }
    std::byte* to = out + begin * 2;
    if (a.packing == Packing::kNatural) {
      for (std::size_t i = 0; i < 4; ++i) StoreAs(to + i * 64, natural[i]);
    } else if (a.packing == Packing::kEvenOdd) {
      PackEvenOdd(natural, to);
    } else {
      PackStride4(natural, to);
    }
  }
}

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
