// SPDX-License-Identifier: Apache-2.0
// The weight formats as a product sees them: how a chunk of 128 columns leaves memory, what it is multiplied with and
// how its partial sum is scaled. Each is a struct of constants and functions that product.cc is compiled for. Included
// by kernel sources only.
#pragma once

#include "galley/backend/cpu/kernels.h"
#include "galley/backend/cpu/kernels/decode.h"
#include "galley/backend/cpu/kernels/simd.h"

// Products of MXFP4 weights run on exact integers where bytes can be looked up and multiplied, unless a tile unit takes
// pairs of bf16.
#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__) && !defined(GALLEY_TILE_BASE)
#define GALLEY_DIGITS 1
#else
#define GALLEY_DIGITS 0
#endif

namespace galley::backend::cpu::GALLEY_ISA {

inline constexpr int kScaleVectors = 2;  // of a chunk, at most

// partial[t] += w . x[t] for 32 products a row: w holds pairs of bf16, the 128 bytes at x[t] + at what its upper and
// then what its lower halves are multiplied with, as fp32. Two steps of sixteen in fp32 take half the time of one
// instruction for bf16 pairs, and unpacking weights is shared by all rows.
template <std::size_t kT>
GALLEY_SIMD void AddPairs(F32 partial[kT], U32 w, const std::byte* const x[kT], std::size_t at) {
  const F32 upper = (F32)(w & 0xFFFF0000u), lower = (F32)(w << 16);
  for (std::size_t t = 0; t < kT; ++t) partial[t] = Fma(upper, LoadAs<F32>(x[t] + at), partial[t]);
  for (std::size_t t = 0; t < kT; ++t) partial[t] = Fma(lower, LoadAs<F32>(x[t] + at + 64), partial[t]);
}
// The partial sums of kVectors vectors.
template <std::size_t kT, std::size_t kVectors>
GALLEY_SIMD void SumPairs(F32 partial[kT], const U32* w, const std::byte* const x[kT], std::size_t at) {
  for (std::size_t t = 0; t < kT; ++t) partial[t] = F32{};
  for (std::size_t i = 0; i < kVectors; ++i) AddPairs<kT>(partial, w[i], x, at + i * 128);
}

// A tile of results: kW weight rows by kT activation rows, in registers.
#if defined(__AVX512F__)
inline constexpr std::size_t kBlockWeights = 2, kBlockRows = 6;
#else
inline constexpr std::size_t kBlockWeights = 1, kBlockRows = 4;
#endif

// Partial sums of a tile over kVectors vectors of pairs in the order of SumPairs; weight row i's are at w + i * w_step.
// They start from their first product instead of from zero: a zero's sign is lost when the partial sum is added to a
// total, which is never -0.
template <std::size_t kW, std::size_t kT, std::size_t kVectors>
GALLEY_SIMD void SumTile(F32 partial[kW][kT], const U32* w, std::size_t w_step, const std::byte* const x[kT],
                         std::size_t at) {
  // Left to itself GCC keeps some of these loops, and with them sums in memory.
#pragma GCC unroll 8
  for (std::size_t j = 0; j < 2 * kVectors; ++j) {
    F32 v[kW];
    for (std::size_t i = 0; i < kW; ++i) {
      const U32 pairs = w[i * w_step + j / 2];
      v[i] = j % 2 == 0 ? (F32)(pairs & 0xFFFF0000u) : (F32)(pairs << 16);
    }
    for (std::size_t t = 0; t < kT; ++t) {
      const F32 in = Keep(LoadAs<F32>(x[t] + at + j * 64));
      for (std::size_t i = 0; i < kW; ++i) partial[i][t] = j == 0 ? v[i] * in : Fma(v[i], in, partial[i][t]);
    }
  }
}

// A decoded chunk is kWeights vectors, and packed activations for it are kInputBytes; Add takes those that lie at
// x[t] + at. AddTile does the same for a tile: weight row i's chunk is at w + i * w_step, its scales at s + i * s_step.
// kNear chunks of kGroup activation rows stay in the nearest cache beside as many chunks of sixteen weight rows.
struct Bf16 {
  static constexpr std::size_t kChunkBytes = 256, kInputBytes = 512;
  static constexpr std::size_t kNear = 2, kGroup = 2 * kBlockRows;
  static constexpr std::size_t kWeights = 4;
  static constexpr bool kRowScales = false, kBlockScales = false;
  GALLEY_SIMD void Load(const std::uint8_t* codes, U32 w[kWeights]) {
    for (std::size_t i = 0; i < kWeights; ++i) w[i] = LoadAs<U32>(codes + 64 * i);
  }
  template <std::size_t kT>
  GALLEY_SIMD void Add(F32 total[kT], const U32 w[kWeights], const std::byte* const x[kT], std::size_t at, const F32*) {
    F32 partial[kT];
    SumPairs<kT, 4>(partial, w, x, at);
    for (std::size_t t = 0; t < kT; ++t) total[t] = total[t] + partial[t];
  }
  template <std::size_t kW, std::size_t kT>
  GALLEY_SIMD void AddTile(F32 total[kW][kT], const U32* w, std::size_t w_step, const F32*, std::size_t,
                           const std::byte* const x[kT], std::size_t at) {
    F32 partial[kW][kT];
    SumTile<kW, kT, 4>(partial, w, w_step, x, at);
    for (std::size_t i = 0; i < kW; ++i) {
      for (std::size_t t = 0; t < kT; ++t) total[i][t] = total[i][t] + partial[i][t];
    }
  }
  // The first `vectors` of a chunk, of 32 columns each, where zeros would follow.
  template <std::size_t kT>
  GALLEY_SIMD void AddPart(F32 total[kT], const std::uint8_t* codes, std::size_t vectors, const std::byte* const x[kT],
                           std::size_t at) {
    F32 partial[kT];
    for (std::size_t t = 0; t < kT; ++t) partial[t] = F32{};
    for (std::size_t i = 0; i < vectors; ++i) AddPairs<kT>(partial, LoadAs<U32>(codes + 64 * i), x, at + i * 128);
    for (std::size_t t = 0; t < kT; ++t) total[t] = total[t] + partial[t];
  }
};

struct Fp8 {
  static constexpr std::size_t kChunkBytes = 128, kInputBytes = 512;
  static constexpr std::size_t kNear = 2, kGroup = 2 * kBlockRows;
  static constexpr std::size_t kWeights = 4;
  static constexpr bool kRowScales = false, kBlockScales = true;
  GALLEY_SIMD void Load(const std::uint8_t* codes, U32 w[kWeights]) { DecodeE4M3Chunk(codes, w); }
  template <std::size_t kT>
  GALLEY_SIMD void Add(F32 total[kT], const U32 w[kWeights], const std::byte* const x[kT], std::size_t at,
                       const F32 s[kScaleVectors]) {
    for (std::size_t half = 0; half < 2; ++half) {
      F32 partial[kT];
      SumPairs<kT, 2>(partial, w + 2 * half, x, at + half * 256);
      for (std::size_t t = 0; t < kT; ++t) total[t] = Fma(partial[t], s[half], total[t]);
    }
  }
  template <std::size_t kW, std::size_t kT>
  GALLEY_SIMD void AddTile(F32 total[kW][kT], const U32* w, std::size_t w_step, const F32* s, std::size_t s_step,
                           const std::byte* const x[kT], std::size_t at) {
    for (std::size_t half = 0; half < 2; ++half) {
      F32 partial[kW][kT];
      SumTile<kW, kT, 2>(partial, w + half * 2, w_step, x, at + half * 256);
      for (std::size_t i = 0; i < kW; ++i) {
        for (std::size_t t = 0; t < kT; ++t) total[i][t] = Fma(partial[i][t], s[i * s_step + half], total[i][t]);
      }
    }
  }
};

// Scales of a chunk's lanes: a lane holds eight columns in a row, so lane l belongs to the group of 32 with number l
// / 4.
GALLEY_SIMD F32 Mxfp4Lanes(const std::uint8_t* bytes) {
  std::uint32_t four;
  __builtin_memcpy(&four, bytes, sizeof(four));
#if defined(__AVX512BW__)
  const __m512i pick = _mm512_set_epi32(0x03808080, 0x03808080, 0x03808080, 0x03808080, 0x02808080, 0x02808080,
                                        0x02808080, 0x02808080, 0x01808080, 0x01808080, 0x01808080, 0x01808080,
                                        static_cast<int>(0x00808080), 0x00808080, 0x00808080, 0x00808080);
  return (F32)((U32)_mm512_shuffle_epi8((__m512i)BroadcastBits(four), pick) >> 1);
#elif defined(__AVX2__)
  const __m128i scales = _mm_slli_epi32(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(static_cast<int>(four))), 23);
  const __m256 both = _mm256_castps128_ps256(_mm_castsi128_ps(scales));
  F32 s;
  s.part[0] = (F32::Part)_mm256_permutevar8x32_ps(both, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
  s.part[1] = (F32::Part)_mm256_permutevar8x32_ps(both, _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3));
  return s;
#else
  F32 s;
  for (int i = 0; i < 4; ++i) s.part[i] = F32(ScaleOf(static_cast<std::uint8_t>(four >> (8 * i)))).part[i];
  return s;
#endif
}

#if GALLEY_DIGITS
// Both sides as integers: u = 2 w + 12 from 0 to 24, and x in units of 2^-9 of its group's scale, which fits 19 bits,
// as three signed bytes. Sums of eight products of a lane are exact; what 12 adds to them is subtracted again. The
// inputs of a chunk are digits 2, 1 and 0 of its even and of its odd columns, -12 times the sum of each lane's eight
// values, and each lane's scale times 2^-10.
struct Mxfp4 {
  static constexpr std::size_t kChunkBytes = 64, kInputBytes = 512;
  static constexpr std::size_t kNear = 8, kGroup = kBlockRows;
  static constexpr std::size_t kWeights = 2;
  static constexpr bool kRowScales = true, kBlockScales = false;
  GALLEY_SIMD void Load(const std::uint8_t* codes, U32 w[kWeights]) {
    // A look-up takes six bits of an index, and the upper two are not part of the code: the table is there four times.
    alignas(16) static constexpr std::uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    const __m512i table =
        _mm512_maskz_broadcast_i32x4(0xFFFF, _mm_load_si128(reinterpret_cast<const __m128i*>(kTable)));
    const auto bytes = LoadAs<U16>(codes);
    w[0] = (U32)_mm512_maskz_permutexvar_epi8(~0ull, (__m512i)bytes, table);
    w[1] = (U32)_mm512_maskz_permutexvar_epi8(~0ull, (__m512i)(bytes >> 4), table);
  }
  GALLEY_SIMD F32 Lanes(const std::uint8_t* bytes) { return Mxfp4Lanes(bytes); }
  GALLEY_SIMD __m512i Sum(__m512i sum, const U32 w[kWeights], const U32* x) {
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, (__m512i)w[0], (__m512i)x[0]), (__m512i)w[1], (__m512i)x[1]);
  }
  GALLEY_SIMD F32 AddOne(F32 total, const U32 w[kWeights], const U32 in[8], F32 s) {
    auto sum = (__m512i)((U32)Sum(_mm512_setzero_si512(), w, in) << 8);
    sum = (__m512i)((U32)Sum(sum, w, in + 2) << 8);
    const I32 exact = (I32)Sum(sum, w, in + 4) + (I32)in[6];
    return Fma(Convert<F32>(exact), s * (F32)in[7], total);
  }
  template <std::size_t kT>
  GALLEY_SIMD void Add(F32 total[kT], const U32 w[kWeights], const std::byte* const x[kT], std::size_t at,
                       const F32 s[kScaleVectors]) {
    for (std::size_t t = 0; t < kT; ++t) {
      U32 in[8];
      for (std::size_t i = 0; i < 8; ++i) in[i] = LoadAs<U32>(x[t] + at + i * 64);
      total[t] = AddOne(total[t], w, in, s[0]);
    }
  }
  template <std::size_t kW, std::size_t kT>
  GALLEY_SIMD void AddTile(F32 total[kW][kT], const U32* w, std::size_t w_step, const F32* s, std::size_t s_step,
                           const std::byte* const x[kT], std::size_t at) {
    // Row after row: each step waits for the one before, so the rows take turns.
#pragma GCC unroll 8
    for (std::size_t t = 0; t < kT; ++t) {
      const auto* in = reinterpret_cast<const __m512i*>(x[t] + at);
      __m512i sum[kW];
      for (std::size_t i = 0; i < kW; ++i) sum[i] = _mm512_setzero_si512();
#pragma GCC unroll 3
      for (std::size_t digit = 0; digit < 3; ++digit) {
        for (std::size_t i = 0; digit > 0 && i < kW; ++i) sum[i] = (__m512i)((U32)sum[i] << 8);
        for (std::size_t j = 0; j < kWeights; ++j) {
          for (std::size_t i = 0; i < kW; ++i)
            sum[i] = _mm512_dpbusd_epi32(sum[i], (__m512i)w[i * w_step + j], in[2 * digit + j]);
        }
      }
      for (std::size_t i = 0; i < kW; ++i) {
        const I32 exact = (I32)sum[i] + (I32)in[6];
        total[i][t] = Fma(Convert<F32>(exact), s[i * s_step] * (F32)in[7], total[i][t]);
      }
    }
  }
};
#else
struct Mxfp4 {
  static constexpr std::size_t kChunkBytes = 64, kInputBytes = 512;
  static constexpr std::size_t kNear = 2, kGroup = 2 * kBlockRows;
  static constexpr std::size_t kWeights = 4;
  static constexpr bool kRowScales = true, kBlockScales = false;
  GALLEY_SIMD void Load(const std::uint8_t* codes, U32 w[kWeights]) {
    const U16 words = LoadAs<U16>(codes);
    for (std::size_t i = 0; i < kWeights; ++i) w[i] = DecodeE2M1Words(words >> static_cast<int>(4 * i));
  }
  GALLEY_SIMD F32 Lanes(const std::uint8_t* bytes) { return Mxfp4Lanes(bytes); }
  template <std::size_t kT>
  GALLEY_SIMD void Add(F32 total[kT], const U32 w[kWeights], const std::byte* const x[kT], std::size_t at,
                       const F32 s[kScaleVectors]) {
    F32 partial[kT];
    SumPairs<kT, 4>(partial, w, x, at);
    for (std::size_t t = 0; t < kT; ++t) total[t] = Fma(partial[t], s[0], total[t]);
  }
  template <std::size_t kW, std::size_t kT>
  GALLEY_SIMD void AddTile(F32 total[kW][kT], const U32* w, std::size_t w_step, const F32* s, std::size_t s_step,
                           const std::byte* const x[kT], std::size_t at) {
    F32 partial[kW][kT];
    SumTile<kW, kT, 4>(partial, w, w_step, x, at);
    for (std::size_t i = 0; i < kW; ++i) {
      for (std::size_t t = 0; t < kT; ++t) total[i][t] = Fma(partial[i][t], s[i * s_step], total[i][t]);
    }
  }
};
#endif

}  // namespace galley::backend::cpu::GALLEY_ISA
