// SPDX-License-Identifier: Apache-2.0
// Sixteen fp32 lanes, whatever the processor. Included by kernel sources only; they are compiled once per instruction
// set into the namespace GALLEY_ISA, so a vector here becomes one register, two or four. Everything is a static inline
// function of that namespace: an inline function shared with other files could be merged by the linker with a copy
// that older processors cannot run. For the same reason kernel sources use nothing of the standard library that is a
// template or an inline function.
#pragma once

#include <cstddef>
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "galley/backend/cpu/kernels/wide.h"
#include "galley/tensor/numeric.h"

#define GALLEY_SIMD [[maybe_unused]] static inline __attribute__((always_inline))

namespace galley::backend::cpu::GALLEY_ISA {

#if defined(__AVX512F__)
using F32 = float __attribute__((vector_size(64)));
using I32 = std::int32_t __attribute__((vector_size(64)));
using U32 = std::uint32_t __attribute__((vector_size(64)));
using U16 = std::uint16_t __attribute__((vector_size(64)));
using I16 = std::int16_t __attribute__((vector_size(64)));
using U64 = std::uint64_t __attribute__((vector_size(64)));
#else
using F32 = Wide<float>;
using I32 = Wide<std::int32_t>;
using U32 = Wide<std::uint32_t>;
using U16 = Wide<std::uint16_t>;
using I16 = Wide<std::int16_t>;
using U64 = Wide<std::uint64_t>;
#endif
using U8x16 = std::uint8_t __attribute__((vector_size(16)));
using I8x16 = std::int8_t __attribute__((vector_size(16)));
using U8x8 = std::uint8_t __attribute__((vector_size(8)));
using U8x64 = std::uint8_t __attribute__((vector_size(64)));
using U16x8 = std::uint16_t __attribute__((vector_size(16)));
using U16x16 = std::uint16_t __attribute__((vector_size(32)));
using U32x8 = std::uint32_t __attribute__((vector_size(32)));
using F32x8 = float __attribute__((vector_size(32)));
using F32x4 = float __attribute__((vector_size(16)));

inline constexpr std::size_t kLanes = 16;

GALLEY_SIMD std::size_t Least(std::size_t a, std::size_t b) {
  return a < b ? a : b;
}

template <typename V>
GALLEY_SIMD V LoadAs(const void* p) {
  V v;
  if constexpr (requires { v.part; }) {
    // Register by register: GCC copies a whole one by halves of them, through memory.
    for (std::size_t i = 0; i < V::kParts; ++i)
      __builtin_memcpy(&v.part[i], static_cast<const std::byte*>(p) + i * kRegisterBytes, kRegisterBytes);
  } else {
    __builtin_memcpy(&v, p, sizeof(V));
  }
  return v;
}
template <typename V>
GALLEY_SIMD void StoreAs(void* p, V v) {
  if constexpr (requires { v.part; }) {
    for (std::size_t i = 0; i < V::kParts; ++i)
      __builtin_memcpy(static_cast<std::byte*>(p) + i * kRegisterBytes, &v.part[i], kRegisterBytes);
  } else {
    __builtin_memcpy(p, &v, sizeof(V));
  }
}
GALLEY_SIMD F32 Load(const float* p) {
  return LoadAs<F32>(p);
}
GALLEY_SIMD void Store(float* p, F32 v) {
  StoreAs(p, v);
}

// The value in a register: compilers load it again for every use, and loads are what tiles have least of.
GALLEY_SIMD F32 Keep(F32 v) {
#if defined(__AVX512F__)
  __asm__("" : "+v"(v));
#endif
  return v;
}

// Asks for the line that a stream of bytes will need: from memory into the second cache early, from there into the
// nearest one late. The nearest has too few lines in flight to wait for memory by itself.
GALLEY_SIMD void AskAhead(const void* p) {
  constexpr std::size_t kNearAhead = 1024, kFarAhead = 8192;
  __builtin_prefetch(static_cast<const char*>(p) + kNearAhead, 0, 3);
  __builtin_prefetch(static_cast<const char*>(p) + kFarAhead, 0, 2);
}

GALLEY_SIMD F32 Broadcast(float x) {
#if defined(__AVX512F__)
  return (F32)_mm512_set1_ps(x);
#else
  return x;
#endif
}
// `low` in the first eight lanes, `high` in the others.
GALLEY_SIMD F32 BroadcastHalves(float low, float high) {
#if defined(__AVX512F__)
  return F32{low, low, low, low, low, low, low, low, high, high, high, high, high, high, high, high};
#else
  F32 out = low;
  const F32 upper = high;
  for (std::size_t i = F32::kParts / 2; i < F32::kParts; ++i) out.part[i] = upper.part[i];
  return out;
#endif
}
GALLEY_SIMD U32 BroadcastBits(std::uint32_t x) {
#if defined(__AVX512F__)
  return (U32)_mm512_set1_epi32(static_cast<int>(x));
#else
  return x;
#endif
}

// Whole numbers as fp32 and back (towards zero).
template <typename To, typename From>
GALLEY_SIMD To Convert(From x) {
#if defined(__AVX512F__)
  return __builtin_convertvector(x, To);
#else
  To out;
  for (std::size_t i = 0; i < To::kParts; ++i) out.part[i] = __builtin_convertvector(x.part[i], typename To::Part);
  return out;
#endif
}

// Integers of one width as those of another, lane by lane. Left to itself GCC takes some of these byte by byte. The
// masks are full: the forms without one make GCC 12 warn of values that its own headers leave undefined.
GALLEY_SIMD U32 Widen(U8x16 x) {
#if defined(__AVX512F__)
  return (U32)_mm512_maskz_cvtepu8_epi32(0xFFFF, (__m128i)x);
#elif defined(__AVX2__)
  U32 out;
  out.part[0] = (U32::Part)_mm256_cvtepu8_epi32((__m128i)x);
  out.part[1] = (U32::Part)_mm256_cvtepu8_epi32(_mm_srli_si128((__m128i)x, 8));
  return out;
#else
  U32 out;
  for (std::size_t i = 0; i < kLanes; ++i) out[i] = x[i];
  return out;
#endif
}
GALLEY_SIMD U32 Widen(U16x16 x) {
#if defined(__AVX512F__)
  return (U32)_mm512_maskz_cvtepu16_epi32(0xFFFF, (__m256i)x);
#elif defined(__AVX2__)
  U32 out;
  out.part[0] = (U32::Part)_mm256_cvtepu16_epi32(_mm256_castsi256_si128((__m256i)x));
  out.part[1] = (U32::Part)_mm256_cvtepu16_epi32(_mm256_extracti128_si256((__m256i)x, 1));
  return out;
#else
  U16x8 half[2];
  __builtin_memcpy(half, &x, sizeof(half));
  U32 out;
  for (std::size_t i = 0; i < 2; ++i) {
    out.part[2 * i] = (U32::Part)__builtin_shufflevector(half[i], U16x8{}, 0, 8, 1, 9, 2, 10, 3, 11);
    out.part[2 * i + 1] = (U32::Part)__builtin_shufflevector(half[i], U16x8{}, 4, 12, 5, 13, 6, 14, 7, 15);
  }
  return out;
#endif
}
// The low bits of each lane.
GALLEY_SIMD U16x16 NarrowTo16(U32 x) {
#if defined(__AVX512F__)
  return (U16x16)_mm512_maskz_cvtepi32_epi16(0xFFFF, (__m512i)x);
#elif defined(__AVX2__)
  const U32 low = x & 0xFFFFu;
  // Packs the lower halves of both, then the upper ones.
  return (U16x16)_mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)low.part[0], (__m256i)low.part[1]), 0xD8);
#else
  U16x8 half[2];
  for (std::size_t i = 0; i < 2; ++i)
    half[i] = __builtin_shufflevector((U16x8)x.part[2 * i], (U16x8)x.part[2 * i + 1], 0, 2, 4, 6, 8, 10, 12, 14);
  return LoadAs<U16x16>(half);
#endif
}
GALLEY_SIMD U8x16 NarrowTo8(U32 x) {
#if defined(__AVX512F__)
  return (U8x16)_mm512_maskz_cvtepi32_epi8(0xFFFF, (__m512i)x);
#elif defined(__AVX2__)
  const auto words = (__m256i)NarrowTo16(x & 0xFFu);
  return (U8x16)_mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
#else
  U8x16 out;
  for (std::size_t i = 0; i < kLanes; ++i) out[i] = static_cast<std::uint8_t>(x[i]);
  return out;
#endif
}
GALLEY_SIMD U8x8 NarrowTo8(U64 x) {
#if defined(__AVX512F__)
  const std::int64_t bytes = _mm_cvtsi128_si64(_mm512_maskz_cvtepi64_epi8(0xFF, (__m512i)x));
  return LoadAs<U8x8>(&bytes);
#else
  U8x8 out;
  for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<std::uint8_t>(x[i]);
  return out;
#endif
}
GALLEY_SIMD U16x8 NarrowTo16(U64 x) {
#if defined(__AVX512F__)
  return __builtin_convertvector(x, U16x8);
#else
  U16x8 out;
  for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<std::uint16_t>(x[i]);
  return out;
#endif
}

GALLEY_SIMD I32 IsNan(F32 x) {
  return x != x;  // NOLINT(misc-redundant-expression)
}
// a where the mask is all ones, b where it is zero.
GALLEY_SIMD F32 Select(I32 mask, F32 a, F32 b) {
  return (F32)((mask & (I32)a) | (~mask & (I32)b));
}

// a * b + c, rounded once where the processor can.
GALLEY_SIMD F32 Fma(F32 a, F32 b, F32 c) {
#if defined(__AVX512F__)
  return (F32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  for (std::size_t i = 0; i < F32::kParts; ++i)
    c.part[i] = (F32::Part)_mm256_fmadd_ps((__m256)a.part[i], (__m256)b.part[i], (__m256)c.part[i]);
  return c;
#else
  return a * b + c;
#endif
}

GALLEY_SIMD F32 Max(F32 a, F32 b) {
#if defined(__AVX512F__)
  return (F32)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  for (std::size_t i = 0; i < F32::kParts; ++i)
    a.part[i] = (F32::Part)_mm256_max_ps((__m256)a.part[i], (__m256)b.part[i]);
  return a;
#else
  return Select(a > b, a, b);
#endif
}
GALLEY_SIMD F32 Min(F32 a, F32 b) {
#if defined(__AVX512F__)
  return (F32)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  for (std::size_t i = 0; i < F32::kParts; ++i)
    a.part[i] = (F32::Part)_mm256_min_ps((__m256)a.part[i], (__m256)b.part[i]);
  return a;
#else
  return Select(a < b, a, b);
#endif
}

// Sum of the lanes: halves are folded, 16 to 8 to 4 to 2 to 1.
GALLEY_SIMD float SumLanes(F32 v) {
#if defined(__AVX512F__)
  const F32x8 a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                  __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  const F32x4 b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
#elif defined(__AVX2__)
  const F32x8 a = v.part[0] + v.part[1];
  const F32x4 b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
#else
  const F32x4 b = (v.part[0] + v.part[2]) + (v.part[1] + v.part[3]);
#endif
  const F32x4 c = b + __builtin_shufflevector(b, b, 2, 3, 2, 3);
  return c[0] + c[1];
}
// out[i] = SumLanes(v[i]), added in the same order: vectors are folded in pairs, so that sixteen take as many steps as
// one does by itself.
#if defined(__AVX512F__)
GALLEY_SIMD F32 FoldHalves(F32 a, F32 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
         __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}
GALLEY_SIMD F32 FoldQuarters(F32 a, F32 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
         __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}
GALLEY_SIMD F32 FoldPairs(F32 a, F32 b) {
  return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
         __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
GALLEY_SIMD F32 FoldOnes(F32 a, F32 b) {
  return __builtin_shufflevector(a, b, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30) +
         __builtin_shufflevector(a, b, 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31);
}
GALLEY_SIMD F32 SumEach(const F32 v[kLanes]) {
  // A quarter of the result is v[4q] to v[4q + 3].
  const F32 first = FoldQuarters(FoldHalves(v[0], v[4]), FoldHalves(v[8], v[12]));
  const F32 second = FoldQuarters(FoldHalves(v[1], v[5]), FoldHalves(v[9], v[13]));
  const F32 third = FoldQuarters(FoldHalves(v[2], v[6]), FoldHalves(v[10], v[14]));
  const F32 fourth = FoldQuarters(FoldHalves(v[3], v[7]), FoldHalves(v[11], v[15]));
  return FoldOnes(FoldPairs(first, second), FoldPairs(third, fourth));
}
#elif defined(__AVX2__)
// Eight lanes: the four of a folded, then the four of b.
GALLEY_SIMD F32x8 FoldTwo(F32 a, F32 b) {
  const auto x = (__m256)(a.part[0] + a.part[1]), y = (__m256)(b.part[0] + b.part[1]);
  return (F32x8)_mm256_permute2f128_ps(x, y, 0x20) + (F32x8)_mm256_permute2f128_ps(x, y, 0x31);
}
// Each half: two lanes of a's and two of b's.
GALLEY_SIMD F32x8 FoldPairs(F32x8 a, F32x8 b) {
  return (F32x8)_mm256_shuffle_ps((__m256)a, (__m256)b, 0x44) + (F32x8)_mm256_shuffle_ps((__m256)a, (__m256)b, 0xEE);
}
GALLEY_SIMD F32x8 FoldOnes(F32x8 a, F32x8 b) {
  return (F32x8)_mm256_shuffle_ps((__m256)a, (__m256)b, 0x88) + (F32x8)_mm256_shuffle_ps((__m256)a, (__m256)b, 0xDD);
}
GALLEY_SIMD F32 SumEach(const F32 v[kLanes]) {
  F32 out;
  for (std::size_t i = 0; i < 2; ++i, v += 8) {
    out.part[i] = FoldOnes(FoldPairs(FoldTwo(v[0], v[4]), FoldTwo(v[1], v[5])),
                           FoldPairs(FoldTwo(v[2], v[6]), FoldTwo(v[3], v[7])));
  }
  return out;
}
#else
GALLEY_SIMD F32 SumEach(const F32 v[kLanes]) {
  F32 out;
  for (std::size_t i = 0; i < kLanes; ++i) out[i] = SumLanes(v[i]);
  return out;
}
#endif
GALLEY_SIMD float MaxLanes(F32 v) {
#if defined(__AVX512F__)
  F32 m = Max(__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7), v);
  m = Max(__builtin_shufflevector(m, m, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11), m);
  m = Max(__builtin_shufflevector(m, m, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13), m);
  return Max(__builtin_shufflevector(m, m, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14), m)[0];
#else
  float lanes[kLanes];
  StoreAs(lanes, v);
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] = lanes[i + half] > lanes[i] ? lanes[i + half] : lanes[i];
  }
  return lanes[0];
#endif
}

// bf16 values as fp32 and back (to nearest, ties to even; NaN stays NaN).
GALLEY_SIMD F32 LoadBf16(const BFloat16* p) {
  return (F32)(Widen(LoadAs<U16x16>(p)) << 16);
}
GALLEY_SIMD U32 Bf16Bits(F32 x) {  // in the upper half of each lane
  const U32 bits = (U32)x;
  const U32 rounded = (bits + (0x7FFFu + ((bits >> 16) & 1u))) & 0xFFFF0000u;
  return (U32)Select(IsNan(x), (F32)((bits | 0x400000u) & 0xFFFF0000u), (F32)rounded);
}
GALLEY_SIMD F32 RoundBf16(F32 x) {
  return (F32)Bf16Bits(x);
}
GALLEY_SIMD void StoreBf16(BFloat16* p, F32 x) {
  StoreAs(p, NarrowTo16(Bf16Bits(x) >> 16));
}
GALLEY_SIMD BFloat16 RoundOne(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return BFloat16{static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return BFloat16{static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}
GALLEY_SIMD float OneFloat(BFloat16 x) {
  const std::uint32_t bits = static_cast<std::uint32_t>(x.bits) << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}
// 2^(byte - 127); byte 0 counts as zero and byte 255 as infinity.
GALLEY_SIMD float ScaleOf(std::uint8_t byte) {
  const std::uint32_t bits = static_cast<std::uint32_t>(byte) << 23;
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

// e^x for x <= 88; zero below -87.3. Relative error under 2e-7.
GALLEY_SIMD F32 Exp(F32 x) {
  const F32 clamped = Min(Max(x, Broadcast(-87.33f)), Broadcast(88.0f));
  const F32 magic = Broadcast(12582912.0f);  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const F32 shifted = Fma(clamped, Broadcast(1.44269504f), magic);
  const F32 n = shifted - magic;
  F32 r = Fma(n, Broadcast(-0.693359375f), clamped);
  r = Fma(n, Broadcast(2.12194440e-4f), r);
  F32 p = Broadcast(1.9875691500e-4f);
  p = Fma(p, r, Broadcast(1.3981999507e-3f));
  p = Fma(p, r, Broadcast(8.3334519073e-3f));
  p = Fma(p, r, Broadcast(4.1665795894e-2f));
  p = Fma(p, r, Broadcast(1.6666665459e-1f));
  p = Fma(p, r, Broadcast(5.0000001201e-1f));
  const F32 e = Fma(p, r * r, r) + 1.0f;
  const U32 exponent = ((U32)shifted - 0x4B400000u) << 23;
  const F32 result = (F32)((U32)e + exponent);
  return Select(IsNan(x), x, Select(x < -87.3f, F32{}, result));
}

// Scale of the FP8 activation quantiser for a group of 32: 2^ceil(log2(max(amax, 1e-4) / 448)).
GALLEY_SIMD float Fp8GroupScale(F32 a, F32 b) {
  const U32 magnitude = BroadcastBits(0x7FFFFFFFu);
  float largest = MaxLanes(Max((F32)((U32)a & magnitude), (F32)((U32)b & magnitude)));
  if (!(largest > 1e-4f)) largest = 1e-4f;
  const float ratio = largest * (1.0f / 448.0f);
  std::uint32_t bits;
  __builtin_memcpy(&bits, &ratio, sizeof(bits));
  bits = (bits + 0x7FFFFFu) & 0x7F800000u;
  float scale;
  __builtin_memcpy(&scale, &bits, sizeof(scale));
  return scale;
}

// e4m3 codes of |v| <= 448, one in each lane.
GALLEY_SIMD U32 EncodeE4M3(F32 v) {
  const U32 bits = (U32)v, sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7FFFFFFFu;
  const U32 small = (U32)((F32)magnitude + 16384.0f) & 0xFu;
  const U32 normal = ((magnitude + (0x7FFFFu + ((magnitude >> 20) & 1u))) >> 20) - (120u << 3);
  const I32 is_small = (I32)((I32)magnitude < (I32)BroadcastBits(121u << 23));
  return ((U32)Select(is_small, (F32)small, (F32)normal) & 0x7Fu) | sign;
}

// The value of |v| <= 448 on the e4m3 grid.
GALLEY_SIMD F32 RoundE4M3(F32 v) {
  const U32 bits = (U32)v, sign = bits & 0x80000000u, magnitude = bits & 0x7FFFFFFFu;
  const F32 shift = Broadcast(16384.0f);  // 2^14: its last place is the subnormal step 2^-9
  const F32 small = ((F32)magnitude + shift) - shift;
  const U32 normal = (magnitude + (0x7FFFFu + ((magnitude >> 20) & 1u))) & 0xFFF00000u;
  const I32 is_small = (I32)((I32)magnitude < (I32)BroadcastBits(121u << 23));
  return (F32)((U32)Select(is_small, small, (F32)normal) | sign);
}

}  // namespace galley::backend::cpu::GALLEY_ISA
