// SPDX-License-Identifier: Apache-2.0
// Codes of the small formats to bf16, 32 values a register, exactly and without their scales. Included by kernel
// sources only.
#pragma once

#include "galley/backend/cpu/kernels/simd.h"

namespace galley::backend::cpu::GALLEY_ISA {

// bf16 values of the e2m1 codes in the lowest four bits of each of 32 words; the other bits do not matter.
GALLEY_SIMD U32 DecodeE2M1Words(U16 words) {
#if defined(__AVX512BW__)
  // The table is there twice: a look-up uses five bits, and the fifth is not part of the code.
  alignas(64) static constexpr std::uint16_t kTable[32] = {
      0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80,
      0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0, 0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040,
      0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0};
  return (U32)_mm512_permutexvar_epi16((__m512i)words, _mm512_load_si512(kTable));
#elif defined(__AVX2__)
  // Bytes are looked up: the lower ones of values, and the upper ones with the code in the upper byte of its word.
  const __m256i low = _mm256_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128,
                                       -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64);
  const __m256i high = _mm256_setr_epi8(0, 63, 63, 63, 64, 64, 64, 64, -128, -65, -65, -65, -64, -64, -64, -64, 0, 63,
                                        63, 63, 64, 64, 64, 64, -128, -65, -65, -65, -64, -64, -64, -64);
  U32 out;
  for (std::size_t i = 0; i < U32::kParts; ++i) {
    const __m256i code = _mm256_and_si256((__m256i)words.part[i], _mm256_set1_epi16(15));
    out.part[i] = (U32::Part)_mm256_or_si256(_mm256_shuffle_epi8(low, code),
                                             _mm256_shuffle_epi8(high, _mm256_slli_epi16(code, 8)));
  }
  return out;
#else
  const U16 magnitude = words & 7;
  U16 bits = (magnitude << 6) + 0x3F00;
  bits = ((U16)(magnitude != 1) & bits) | ((U16)(magnitude == 1) & 0x3F00);
  bits &= (U16)(magnitude != 0);
  return (U32)(bits | ((words & 8) << 12));
#endif
}

// Values of e4m3 codes as products take them: times this, which the scales make good.
#if defined(__AVX512BW__)
inline constexpr float kE4M3Unit = 0x1p-8f;
#else
inline constexpr float kE4M3Unit = 1.0f;
#endif

// bf16 values, in kE4M3Unit, of e4m3 codes in the upper byte of each of 32 words; the lower byte does not matter. The
// two NaN codes become +-480, which no checkpoint and no quantiser contains.
#if defined(__AVX512BW__)
// Arithmetic shift: the sign stays on top and the magnitude lands on exponent and mantissa. In this unit the bits
// between them are the same for every normal code, so one instruction sets them and clears the rest.
GALLEY_SIMD U32 DecodeNormalE4M3Words(U16 words) {
  const auto shifted = (__m512i)((I16)words >> 4);
  constexpr int kAndOr = 0xEA;  // (a & b) | c
  return (U32)_mm512_ternarylogic_epi32(shifted, _mm512_set1_epi16(static_cast<short>(0x87F0)),
                                        _mm512_set1_epi16(0x3800), kAndOr);
}
GALLEY_SIMD U32 DecodeE4M3Words(U16 words) {
  // Magnitudes below 8 are subnormal: multiples of 2^-9.
  alignas(64) static constexpr std::uint16_t kSubnormal[32] = {
      0x0000, 0x3700, 0x3780, 0x37C0, 0x3800, 0x3820, 0x3840, 0x3860, 0x8000, 0xB700, 0xB780,
      0xB7C0, 0xB800, 0xB820, 0xB840, 0xB860, 0x0000, 0x3700, 0x3780, 0x37C0, 0x3800, 0x3820,
      0x3840, 0x3860, 0x8000, 0xB700, 0xB780, 0xB7C0, 0xB800, 0xB820, 0xB840, 0xB860};
  const __mmask32 small = _mm512_testn_epi16_mask((__m512i)words, _mm512_set1_epi16(0x7800));
  // Word >> 8 has the code's low bits where a look-up takes them; the sign moves to bit 3.
  const U16 index = ((words >> 8) & 7) | ((words >> 12) & 8);
  return (U32)_mm512_mask_permutexvar_epi16((__m512i)DecodeNormalE4M3Words(words), small, (__m512i)index,
                                            _mm512_load_si512(kSubnormal));
}
#else
GALLEY_SIMD U32 DecodeNormalE4M3Words(U16 words) {
  return (U32)(((U16)((I16)words >> 4) & 0x87F0) + 0x3C00);
}
GALLEY_SIMD U32 DecodeE4M3Words(U16 words) {
  const auto normal = (U16)DecodeNormalE4M3Words(words);
  const U16 sign = words & 0x8000, m = (words >> 8) & 0x7F;
  U16 low = (m << 5) + 0x3B80;                                         // 4 … 7: quarters of 2^-7
  low = ((U16)(m >= 4) & low) | ((U16)(m < 4) & ((m << 6) + 0x3B00));  // 2, 3: halves of 2^-8
  low = ((U16)(m != 1) & low) | ((U16)(m == 1) & 0x3B00);
  low &= (U16)(m != 0);
  return (U32)(((U16)(m >= 8) & normal) | ((U16)(m < 8) & (low | sign)));
}
#endif

// 128 codes: of each 64 the even ones, then the odd ones.
GALLEY_SIMD void DecodeE4M3Chunk(const std::uint8_t* codes, U32 w[4]) {
  const U16 words[2] = {LoadAs<U16>(codes), LoadAs<U16>(codes + 64)};
#if defined(__AVX512BW__)
  // Few chunks have a subnormal code, so one question for all of it.
  const __m512i exponent = _mm512_set1_epi8(0x78);
  const __mmask64 first = _mm512_testn_epi8_mask((__m512i)words[0], exponent);
  const __mmask64 second = _mm512_testn_epi8_mask((__m512i)words[1], exponent);
  if (__builtin_expect(_kortestz_mask64_u8(first, second), 1)) {
    for (int i = 0; i < 2; ++i) {
      w[2 * i] = DecodeNormalE4M3Words(words[i] << 8);
      w[2 * i + 1] = DecodeNormalE4M3Words(words[i]);
    }
    return;
  }
#elif defined(__AVX2__)
  __m256i small = _mm256_setzero_si256();
  for (const U16& some : words) {
    for (const U16::Part& part : some.part) {
      const __m256i exponents = _mm256_and_si256((__m256i)part, _mm256_set1_epi8(0x78));
      small = _mm256_or_si256(small, _mm256_cmpeq_epi8(exponents, _mm256_setzero_si256()));
    }
  }
  if (__builtin_expect(_mm256_testz_si256(small, small), 1)) {
    for (int i = 0; i < 2; ++i) {
      w[2 * i] = DecodeNormalE4M3Words(words[i] << 8);
      w[2 * i + 1] = DecodeNormalE4M3Words(words[i]);
    }
    return;
  }
#endif
  for (int i = 0; i < 2; ++i) {
    w[2 * i] = DecodeE4M3Words(words[i] << 8);
    w[2 * i + 1] = DecodeE4M3Words(words[i]);
  }
}

// Sixteen e4m3 codes as fp32, in order; the NaN codes as above.
GALLEY_SIMD F32 DecodeE4M3(const std::uint8_t* codes) {
#if defined(__AVX512F__)
  // Moved to where fp16 has sign, exponent and mantissa a code is its value times 2^-8, subnormals included.
  const __m256i words = _mm256_slli_epi16(_mm256_cvtepu8_epi16(LoadAs<__m128i>(codes)), 8);
  const __m256i halves = _mm256_and_si256(_mm256_srai_epi16(words, 1), _mm256_set1_epi16(static_cast<short>(0xBF80)));
  return (F32)_mm512_maskz_cvtph_ps(0xFFFF, halves) * 256.0f;
#else
  const U32 wide = Widen(LoadAs<U8x16>(codes));
  const U32 sign = (wide & 0x80u) << 24, magnitude = wide & 0x7Fu;
  const F32 normal = (F32)((magnitude << 20) + (120u << 23));
  const F32 small = Convert<F32>((I32)magnitude) * 0x1p-9f;
  const I32 is_small = (I32)((I32)magnitude < 8);
  return (F32)((U32)Select(is_small, small, normal) | sign);
#endif
}

// Sixteen e2m1 codes, packed two a byte with the low nibble first, as fp32 in order.
GALLEY_SIMD F32 DecodeE2M1(const std::uint8_t* packed) {
  std::uint64_t bits;
  __builtin_memcpy(&bits, packed, sizeof(bits));
#if defined(__AVX512F__)
  alignas(64) static constexpr float kTable[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                   -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  const __m512i low = _mm512_set1_epi32(static_cast<int>(bits)), high = _mm512_set1_epi32(static_cast<int>(bits >> 32));
  const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  const __m512i codes = _mm512_srlv_epi32(_mm512_mask_blend_epi32(0xFF00, low, high), shifts);
  return (F32)_mm512_permutexvar_ps(codes, _mm512_load_ps(kTable));
#elif defined(__AVX2__)
  const __m256 grid = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
  F32 out;
  for (std::size_t i = 0; i < F32::kParts; ++i, bits >>= 32) {
    const __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(bits)), shifts);
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(8)), 28);
    const __m256 magnitude = _mm256_permutevar8x32_ps(grid, codes);  // takes three bits of a code
    out.part[i] = (F32::Part)_mm256_or_ps(magnitude, _mm256_castsi256_ps(sign));
  }
  return out;
#else
  constexpr float kGrid[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  F32 out{};
  for (std::size_t i = 0; i < kLanes; ++i) out[i] = kGrid[(bits >> (4 * i)) & 15];
  return out;
#endif
}

}  // namespace galley::backend::cpu::GALLEY_ISA
