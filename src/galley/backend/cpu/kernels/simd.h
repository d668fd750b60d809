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

#include "galley/tensor/numeric.h"

#define GALLEY_SIMD [[maybe_unused]] static inline __attribute__((always_inline))

namespace galley::backend::cpu::GALLEY_ISA {

using F32 = float __attribute__((vector_size(64)));
using I32 = std::int32_t __attribute__((vector_size(64)));
using U32 = std::uint32_t __attribute__((vector_size(64)));
using U16 = std::uint16_t __attribute__((vector_size(64)));
using I16 = std::int16_t __attribute__((vector_size(64)));
using U64 = std::uint64_t __attribute__((vector_size(64)));
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
  __builtin_memcpy(&v, p, sizeof(V));
  return v;
}
template <typename V>
GALLEY_SIMD void StoreAs(void* p, V v) {
  __builtin_memcpy(p, &v, sizeof(V));
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
  return F32{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#endif
}
GALLEY_SIMD U32 BroadcastBits(std::uint32_t x) {
#if defined(__AVX512F__)
  return (U32)_mm512_set1_epi32(static_cast<int>(x));
#else
  return U32{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#endif
}

// Integers of one width as those of another, lane by lane. Left to itself GCC takes some of these byte by byte. The
// masks are full: the forms without one make GCC 12 warn of values that its own headers leave undefined.
GALLEY_SIMD U32 Widen(U8x16 x) {
#if defined(__AVX512F__)
  return (U32)_mm512_maskz_cvtepu8_epi32(0xFFFF, (__m128i)x);
#elif defined(__AVX2__)
  const U32x8 low = (U32x8)_mm256_cvtepu8_epi32((__m128i)x);
  const U32x8 high = (U32x8)_mm256_cvtepu8_epi32(_mm_srli_si128((__m128i)x, 8));
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#else
  return __builtin_convertvector(x, U32);
#endif
}
GALLEY_SIMD U32 Widen(U16x16 x) {
#if defined(__AVX512F__)
  return (U32)_mm512_maskz_cvtepu16_epi32(0xFFFF, (__m256i)x);
#elif defined(__AVX2__)
  const U32x8 low = (U32x8)_mm256_cvtepu16_epi32(_mm256_castsi256_si128((__m256i)x));
  const U32x8 high = (U32x8)_mm256_cvtepu16_epi32(_mm256_extracti128_si256((__m256i)x, 1));
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#else
  return __builtin_convertvector(x, U32);
#endif
}
// The low bits of each lane.
GALLEY_SIMD U8x16 NarrowTo8(U32 x) {
#if defined(__AVX512F__)
  return (U8x16)_mm512_maskz_cvtepi32_epi8(0xFFFF, (__m512i)x);
#else
  return __builtin_convertvector(x, U8x16);
#endif
}
GALLEY_SIMD U16x16 NarrowTo16(U32 x) {
#if defined(__AVX512F__)
  return (U16x16)_mm512_maskz_cvtepi32_epi16(0xFFFF, (__m512i)x);
#else
  return __builtin_convertvector(x, U16x16);
#endif
}
GALLEY_SIMD U8x8 NarrowTo8(U64 x) {
#if defined(__AVX512F__)
  const std::int64_t bytes = _mm_cvtsi128_si64(_mm512_maskz_cvtepi64_epi8(0xFF, (__m512i)x));
  return LoadAs<U8x8>(&bytes);
#else
  return __builtin_convertvector(x, U8x8);
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
  const F32x8 low = (F32x8)_mm256_fmadd_ps((__m256)__builtin_shufflevector(a, a, 0, 1, 2, 3, 4, 5, 6, 7),
                                           (__m256)__builtin_shufflevector(b, b, 0, 1, 2, 3, 4, 5, 6, 7),
                                           (__m256)__builtin_shufflevector(c, c, 0, 1, 2, 3, 4, 5, 6, 7));
  const F32x8 high = (F32x8)_mm256_fmadd_ps((__m256)__builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15),
                                            (__m256)__builtin_shufflevector(b, b, 8, 9, 10, 11, 12, 13, 14, 15),
                                            (__m256)__builtin_shufflevector(c, c, 8, 9, 10, 11, 12, 13, 14, 15));
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#else
  return a * b + c;
#endif
}

GALLEY_SIMD F32 Max(F32 a, F32 b) {
#if defined(__AVX512F__)
  return (F32)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return Select(a > b, a, b);
#endif
}
GALLEY_SIMD F32 Min(F32 a, F32 b) {
#if defined(__AVX512F__)
  return (F32)_mm512_min_ps((__m512)a, (__m512)b);
#else
  return Select(a < b, a, b);
#endif
}

// Sum of the lanes: halves are folded, 16 to 8 to 4 to 2 to 1.
GALLEY_SIMD float SumLanes(F32 v) {
  const F32x8 a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                  __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  const F32x4 b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
  const F32x4 c = b + __builtin_shufflevector(b, b, 2, 3, 2, 3);
  return c[0] + c[1];
}
// out[i] = SumLanes(v[i]), added in the same order: vectors are folded in pairs, so that sixteen take as many steps as
// one does by itself.
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
GALLEY_SIMD float MaxLanes(F32 v) {
  F32 m = Max(__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7), v);
  m = Max(__builtin_shufflevector(m, m, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11), m);
  m = Max(__builtin_shufflevector(m, m, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13), m);
  return Max(__builtin_shufflevector(m, m, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14), m)[0];
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
