// SPDX-License-Identifier: Apache-2.0
// The weight formats as a product sees them: how a chunk of 128 columns leaves memory, what it is multiplied with and
// how its partial sum is scaled. Each is a struct of constants and functions that product.cc is compiled for. Included
// by kernel sources only.
#pragma once

#include "galley/backend/cpu/kernels.h"
#include "galley/backend/cpu/kernels/decode.h"
#include "galley/backend/cpu/kernels/simd.h"

// Products of MXFP4 weights run on exact integers where bytes can be looked up and multiplied.
#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#define GALLEY_DIGITS 1
#else
#define GALLEY_DIGITS 0
#endif

namespace galley::backend::cpu::GALLEY_ISA {

inline constexpr int kScaleVectors = 2;  // of a chunk, at most

// kWeights vectors of a decoded chunk, kInputs vectors of packed activations for it.
struct Bf16 {
  static constexpr std::size_t kChunkBytes = 256;
  static constexpr int kWeights = 4, kInputs = 4;
  static constexpr bool kRowScales = false, kBlockScales = false;
  GALLEY_SIMD void Load(const std::uint8_t* codes, U32 w[kWeights]) {
    for (int i = 0; i < kWeights; ++i) w[i] = LoadAs<U32>(codes + 64 * i);
  }
  GALLEY_SIMD F32 Add(F32 total, const U32 w[kWeights], const U32 x[kInputs], const F32*) {
    const F32 partial = DotPairs(DotPairs(F32{}, w[0], x[0]), w[1], x[1]);
    return total + DotPairs(DotPairs(partial, w[2], x[2]), w[3], x[3]);
  }
};

struct Fp8 {
  static constexpr std::size_t kChunkBytes = 128;
  static constexpr int kWeights = 4, kInputs = 4;
  static constexpr bool kRowScales = false, kBlockScales = true;
  GALLEY_SIMD void Load(const std::uint8_t* codes, U32 w[kWeights]) {
    for (int i = 0; i < 2; ++i) {
      const U16 words = LoadAs<U16>(codes + 64 * i);
      w[2 * i] = DecodeE4M3Words(words << 8);
      w[2 * i + 1] = DecodeE4M3Words(words);
    }
  }
  GALLEY_SIMD F32 Add(F32 total, const U32 w[kWeights], const U32 x[kInputs], const F32 s[kScaleVectors]) {
    total = Fma(DotPairs(DotPairs(F32{}, w[0], x[0]), w[1], x[1]), s[0], total);
    return Fma(DotPairs(DotPairs(F32{}, w[2], x[2]), w[3], x[3]), s[1], total);
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
#else
  F32 s{};
  for (int i = 0; i < 16; ++i) s[i] = ScaleOf(static_cast<std::uint8_t>(four >> (8 * (i / 4))));
  return s;
#endif
}

#if GALLEY_DIGITS
// Both sides as integers: u = 2 w + 12 from 0 to 24, and x in units of 2^-9 of its group's scale, which fits 19 bits,
// as three signed bytes. Sums of eight products of a lane are exact; what 12 adds to them is subtracted again. The
// inputs of a chunk are digits 2, 1 and 0 of its even and of its odd columns, -12 times the sum of each lane's eight
// values, and each lane's scale times 2^-10.
struct Mxfp4 {
  static constexpr std::size_t kChunkBytes = 64;
  static constexpr int kWeights = 2, kInputs = 8;
  static constexpr bool kRowScales = true, kBlockScales = false;
  GALLEY_SIMD void Load(const std::uint8_t* codes, U32 w[kWeights]) {
    // A look-up takes six bits of an index, and the upper two are not part of the code: the table is there four times.
    alignas(16) static constexpr std::uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    const __m512i table = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kTable)));
    const auto bytes = LoadAs<U16>(codes);
    w[0] = (U32)_mm512_permutexvar_epi8((__m512i)bytes, table);
    w[1] = (U32)_mm512_permutexvar_epi8((__m512i)(bytes >> 4), table);
  }
  GALLEY_SIMD F32 Lanes(const std::uint8_t* bytes) { return Mxfp4Lanes(bytes); }
  GALLEY_SIMD __m512i Sum(__m512i sum, const U32 w[kWeights], const U32* x) {
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, (__m512i)w[0], (__m512i)x[0]), (__m512i)w[1], (__m512i)x[1]);
  }
  GALLEY_SIMD F32 Add(F32 total, const U32 w[kWeights], const U32 x[kInputs], const F32 s[kScaleVectors]) {
    auto sum = (__m512i)((U32)Sum(_mm512_setzero_si512(), w, x) << 8);
    sum = (__m512i)((U32)Sum(sum, w, x + 2) << 8);
    const I32 exact = (I32)Sum(sum, w, x + 4) + (I32)x[6];
    return Fma(__builtin_convertvector(exact, F32), s[0] * (F32)x[7], total);
  }
};
#else
struct Mxfp4 {
  static constexpr std::size_t kChunkBytes = 64;
  static constexpr int kWeights = 4, kInputs = 4;
  static constexpr bool kRowScales = true, kBlockScales = false;
  GALLEY_SIMD void Load(const std::uint8_t* codes, U32 w[kWeights]) {
    const U16 words = LoadAs<U16>(codes);
    for (int i = 0; i < kWeights; ++i) w[i] = DecodeE2M1Words(words >> (4 * i));
  }
  GALLEY_SIMD F32 Lanes(const std::uint8_t* bytes) { return Mxfp4Lanes(bytes); }
  GALLEY_SIMD F32 Add(F32 total, const U32 w[kWeights], const U32 x[kInputs], const F32 s[kScaleVectors]) {
    const F32 partial = DotPairs(DotPairs(F32{}, w[0], x[0]), w[1], x[1]);
    return Fma(DotPairs(DotPairs(partial, w[2], x[2]), w[3], x[3]), s[0], total);
  }
};
#endif

}  // namespace galley::backend::cpu::GALLEY_ISA
