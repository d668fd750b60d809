// SPDX-License-Identifier: Apache-2.0
// Matrix products on a tile unit. Weights are the left side: decoded to bf16 with their scales, which are powers of two
// and only move exponents, a weight row is a row of a tile as it lies in the checkpoint, so one activation row needs no
// other path than many and has the same bits. Activations are exact in bf16. A segment of columns of 32 weight rows is
// decoded into the nearest cache and meets every activation row there; sums wait in memory between segments.
#include "galley/backend/cpu/kernels.h"
#include "galley/backend/cpu/kernels/formats.h"
#include "galley/backend/cpu/kernels/functions.h"
#include "galley/backend/cpu/kernels/simd.h"
#include "galley/backend/cpu/kernels/tiles.h"

namespace galley::backend::cpu {

// Whose products of fp32 weights these are.
namespace GALLEY_TILE_BASE {
void MatrixProduct(const ProductArgs& a);
}

namespace GALLEY_ISA {
namespace {

constexpr std::size_t kSegment = 2;  // chunks that are decoded at a time
constexpr std::size_t kChunkSteps = kChunk / kStep;
constexpr std::size_t kPanel = 32;        // weight rows
constexpr std::size_t kTilesAtOnce = 32;  // of activations: so many have room for their sums
constexpr std::size_t kDecoded = kSegment * kChunkSteps * kPanel * kLine;
static_assert(kDecoded + kTilesAtOnce * kPanel * kTileRows * sizeof(float) <= kTileScratchBytes);
static_assert(kPanel == 2 * kTileRows);

// Row and column of sixteen lanes of sixteen vectors change places: each round moves one bit of a lane's number to the
// vector's.
GALLEY_SIMD void Transpose(U32 v[kLanes]) {
#if defined(__AVX512F__)
  for (int round = 0; round < 4; ++round) {
    U32 next[kLanes];
    for (std::size_t i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = __builtin_shufflevector(v[i], v[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      next[2 * i + 1] =
          __builtin_shufflevector(v[i], v[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    for (std::size_t i = 0; i < kLanes; ++i) v[i] = next[i];
  }
#else
  std::uint32_t rows[kLanes][kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) StoreAs(rows[i], v[i]);
  for (std::size_t i = 0; i < kLanes; ++i) {
    for (std::size_t j = 0; j < kLanes; ++j) v[i][j] = rows[j][i];
  }
#endif
}

// What 64 or 128 weights of a row are multiplied with, by lanes. Where no exponent can leave its range, which is so in
// every sound checkpoint, it is added to the exponents of the bf16 values.
struct TileScale {
  F32 factors;
  U16 exponents;
  bool ordinary;
};
// Scale bytes from 64 to 191, all of them.
GALLEY_SIMD bool Ordinary(std::uint32_t four) {
  return ((four ^ (four << 1)) & 0x80808080u) == 0x80808080u;
}
// `unit`: two to minus this is what decoded values are in.
GALLEY_SIMD TileScale MakeTileScale(F32 factors, int unit, bool ordinary) {
  const U32 bits = (U32)factors;
  const auto offset = static_cast<std::uint32_t>(127 - unit) << 7;
  U16 exponents = (U16)(bits | (bits >> 16));
  exponents -= (U16)BroadcastBits(offset | offset << 16);
  return {factors * ScaleOf(static_cast<std::uint8_t>(127 + unit)), exponents, ordinary};
}
GALLEY_SIMD U32 Scaled(U32 w, const TileScale& s) {
  if (__builtin_expect(s.ordinary, 1)) {
#if defined(__AVX512BW__)
    const __mmask32 some = _mm512_test_epi16_mask((__m512i)w, _mm512_set1_epi16(0x7FFF));
    return (U32)_mm512_mask_add_epi16((__m512i)w, some, (__m512i)w, (__m512i)s.exponents);
#else
    const U16 words = (U16)w;
    return (U32)(words + (s.exponents & (U16)((words & 0x7FFF) != 0)));
#endif
  }
  const F32 upper = (F32)(w & 0xFFFF0000u) * s.factors, lower = (F32)(w << 16) * s.factors;
  return ((U32)upper & 0xFFFF0000u) | ((U32)lower >> 16);
}

// The four scale bytes of a chunk of columns; what is missing behind the last one counts as 1.
GALLEY_SIMD std::uint32_t ScaleBytes(const std::uint8_t* row, std::size_t c, std::size_t groups) {
  std::uint32_t four = 0x7F7F7F7Fu;
  if (4 * c + 4 <= groups) {
    __builtin_memcpy(&four, row + 4 * c, 4);
  } else {
    for (std::size_t g = 4 * c; g < groups; ++g) {
      const auto shift = static_cast<unsigned>(g % 4 * 8);
      four = (four & ~(0xFFu << shift)) | static_cast<std::uint32_t>(row[g]) << shift;
    }
  }
  return four;
}

constexpr int kFp8Unit = kE4M3Unit == 1.0f ? 0 : 8;
static_assert(kE4M3Unit == 1.0f || kE4M3Unit == 0x1p-8f);

// Scales of the block of 32 rows that FP8 row `r` belongs to, two a chunk of [begin, end).
void BlockScales(const ProductArgs& a, std::size_t r, std::size_t begin, std::size_t end, TileScale* out) {
  const std::size_t blocks = (static_cast<std::size_t>(a.weight.cols) + 31) / 32;
  const std::uint8_t* row = a.weight.scales + r / 32 * blocks;
  for (std::size_t c = begin; c < end; ++c) {
    std::uint32_t four = ScaleBytes(row, c, blocks);
    const bool ordinary = Ordinary(four);
    for (int half = 0; half < 2; ++half, four >>= 16) {
      const float low = ScaleOf(static_cast<std::uint8_t>(four)), high = ScaleOf(static_cast<std::uint8_t>(four >> 8));
      *out++ = MakeTileScale(BroadcastHalves(low, high), kFp8Unit, ordinary);
    }
  }
}

// Chunks [begin, end) of weight row `r` as lines of tiles, `stride` bytes from step to step.
template <class Format>
void DecodeRow(const ProductArgs& a, std::size_t r, std::size_t begin, std::size_t end, const TileScale* block,
               std::byte* out, std::size_t stride) {
  const auto cols = static_cast<std::size_t>(a.weight.cols);
  const std::size_t bytes = cols * Format::kChunkBytes / kChunk;
  const std::uint8_t* row = static_cast<const std::uint8_t*>(a.weight.data) + r * bytes;
  for (std::size_t c = begin; c < end; ++c) {
    alignas(64) std::uint8_t tail[256];
    const std::uint8_t* codes = row + c * Format::kChunkBytes;
    // What comes next of these columns: further on in the row, or at the start of the panel after this one.
    constexpr std::size_t kNext = 4 * kSegment;
    const std::uint8_t* next = codes + kNext * Format::kChunkBytes;
    if ((c + kNext) * kChunk >= cols) next += (kPanel - 1) * bytes;
    for (std::size_t line = 0; line < Format::kChunkBytes; line += 64) __builtin_prefetch(next + line);
    if ((c + 1) * kChunk > cols) {
      const std::size_t rest = bytes - c * Format::kChunkBytes;
      for (std::size_t i = 0; i < Format::kChunkBytes; ++i) tail[i] = i < rest ? codes[i] : 0;
      codes = tail;
    }
    U32 w[4];
    Format::Load(codes, w);
    if constexpr (Format::kBlockScales) {
      for (std::size_t i = 0; i < 4; ++i) w[i] = Scaled(w[i], block[2 * (c - begin) + i / 2]);
    } else if constexpr (Format::kRowScales) {
      const std::uint32_t four = ScaleBytes(a.weight.scales + r * (cols / 32), c, cols / 32);
      std::uint8_t each[4];
      __builtin_memcpy(each, &four, 4);
      const TileScale scale = MakeTileScale(Format::Lanes(each), 0, Ordinary(four));
      for (U32& vector : w) vector = Scaled(vector, scale);
    }
    for (const U32& vector : w) {
      StoreAs(out, vector);
      out += stride;
    }
  }
}

// Chunks [begin, end) of weight rows [first, first + rows) as `tiles` tiles a step; rows behind the last one are zero.
template <class Format>
void DecodePanel(const ProductArgs& a, std::size_t first, std::size_t rows, std::size_t tiles, std::size_t begin,
                 std::size_t end, std::byte* out) {
  static_assert(Format::kWeights == kChunkSteps);
  TileScale block[2 * kSegment];
  if constexpr (Format::kBlockScales) BlockScales(a, first, begin, end, block);
  for (std::size_t i = 0; i < tiles * kTileRows; ++i) {
    std::byte* line = out + i * kLine;
    if (i < rows) {
      DecodeRow<Format>(a, first + i, begin, end, block, line, tiles * kTile);
      continue;
    }
    for (std::size_t s = 0; s < (end - begin) * kChunkSteps; ++s) StoreAs(line + s * tiles * kTile, U32{});
  }
}

// Results of one tile: weight rows from `first` on, activation rows from `t` on.
void EmitTile(const ProductArgs& a, const float* sums, std::size_t columns, std::size_t first, std::size_t rows,
              std::size_t t, std::size_t count) {
  const auto stride = static_cast<std::size_t>(a.out_stride);
  if (columns == kLanes && rows == kTileRows) {
    U32 v[kLanes];
    for (std::size_t i = 0; i < kLanes; ++i) v[i] = LoadAs<U32>(sums + i * kLanes);
    Transpose(v);
    for (std::size_t n = 0; n < count; ++n) {
      const std::size_t at = (t + n) * stride + first;
      if (a.out != nullptr) {
        Store(a.out + at, (F32)v[n]);
      } else {
        StoreBf16(a.out_bf16 + at, (F32)v[n]);
      }
    }
    return;
  }
  for (std::size_t n = 0; n < count; ++n) {
    for (std::size_t m = 0; m < rows; ++m) {
      const std::size_t at = (t + n) * stride + first + m;
      const float value = sums[m * columns + n];
      if (a.out != nullptr) {
        a.out[at] = value;
      } else {
        a.out_bf16[at] = RoundOne(value);
      }
    }
  }
}

// Weight rows [first, first + rows) with activation rows [t, t + count), t a multiple of sixteen.
template <class Format>
void PanelProduct(const ProductArgs& a, std::size_t columns, std::size_t first, std::size_t rows, std::size_t t,
                  std::size_t count) {
  const std::size_t chunks = PaddedColumns(a.weight.cols) / kChunk, tiles = rows > kTileRows ? 2 : 1;
  auto* sums = reinterpret_cast<float*>(a.scratch + kDecoded);
  const std::size_t input_tiles = (count + kTileRows - 1) / kTileRows, tile_sums = tiles * kTileRows * columns;
  const std::size_t step_bytes = kStep * 2 * columns;
  for (std::size_t begin = 0; begin < chunks; begin += kSegment) {
    const std::size_t end = Least(begin + kSegment, chunks);
    DecodePanel<Format>(a, first, rows, tiles, begin, end, a.scratch);
    for (std::size_t j = 0; j < input_tiles; j += 2) {
      const std::byte* inputs = a.x + (t / kTileRows + j) * a.x_stride + begin * kChunkSteps * step_bytes;
      MultiplyTiles({.weights = a.scratch,
                     .inputs = {inputs, inputs + a.x_stride},
                     .weight_tiles = static_cast<int>(tiles),
                     .input_tiles = j + 1 < input_tiles ? 2 : 1,
                     .columns = columns,
                     .steps = (end - begin) * kChunkSteps,
                     .sums = sums + j * tile_sums,
                     .first = begin == 0});
    }
  }
  for (std::size_t j = 0; j < input_tiles; ++j) {
    for (std::size_t i = 0; i < tiles; ++i) {
      EmitTile(a, sums + (j * tiles + i) * kTileRows * columns, columns, first + i * kTileRows,
               Least(rows - i * kTileRows, kTileRows), t + j * kTileRows, Least(count - j * kTileRows, kTileRows));
    }
  }
}

template <class Format>
void Product(const ProductArgs& a) {
  const auto rows = static_cast<std::size_t>(a.rows), row_end = static_cast<std::size_t>(a.row_end);
  const std::size_t columns = Least(rows, kTileRows);
  OpenTiles(columns);
  constexpr std::size_t kRowsAtOnce = kTilesAtOnce * kTileRows;
  for (std::size_t t = 0; t < rows; t += kRowsAtOnce) {
    for (auto first = static_cast<std::size_t>(a.row_begin); first < row_end;) {
      // Panels end where a block of scales ends.
      const std::size_t end = Least((first / kPanel + 1) * kPanel, row_end);
      PanelProduct<Format>(a, columns, first, end - first, t, Least(rows - t, kRowsAtOnce));
      first = end;
    }
  }
  CloseTiles();
}

void TileProduct(const ProductArgs& a) {
  switch (a.weight.format) {
    case WeightFormat::kF32:
      return GALLEY_TILE_BASE::MatrixProduct(a);
    case WeightFormat::kBF16:
      return Product<Bf16>(a);
    case WeightFormat::kFp8Block32:
      return Product<Fp8>(a);
    case WeightFormat::kMxfp4:
      return Product<Mxfp4>(a);
  }
}

// Pairs of up to sixteen packed rows side by side.
void GatherTile(const GatherArgs& a) {
  const auto rows = static_cast<std::size_t>(a.rows), columns = static_cast<std::size_t>(a.columns);
  const auto row_of = [&](std::size_t n) {
    return a.x + (a.x_rows == nullptr ? n : static_cast<std::size_t>(a.x_rows[n])) * a.x_stride;
  };
  auto* out = static_cast<std::byte*>(a.out);
  for (std::size_t s = 0; s < PaddedColumns(a.cols) / kStep; ++s, out += kStep * 2 * columns) {
    if (columns < kLanes) {
      for (std::size_t n = 0; n < columns; ++n) {
        const std::byte* from = row_of(n) + s * kLine;
        for (std::size_t k = 0; k < kLanes; ++k) __builtin_memcpy(out + (k * columns + n) * 4, from + k * 4, 4);
      }
      continue;
    }
    U32 v[kLanes];
    for (std::size_t n = 0; n < kLanes; ++n) v[n] = n < rows ? LoadAs<U32>(row_of(n) + s * kLine) : U32{};
    Transpose(v);
    for (std::size_t k = 0; k < kLanes; ++k) StoreAs(out + k * kLine, v[k]);
  }
}

}  // namespace

void UseTiles(Kernels& kernels) {
  kernels.pack = Pack;
  kernels.gather = GatherTile;
  kernels.product = TileProduct;
}

}  // namespace GALLEY_ISA
}  // namespace galley::backend::cpu
