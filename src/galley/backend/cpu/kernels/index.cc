// SPDX-License-Identifier: Apache-2.0
// Index scores: sum over heads of w[h] * relu(q[h] . key). Heads are the lanes, so a key needs one fold at its end.
// Order: per group of 32 dimensions one partial sum, which is exact, scaled and added in fp32; then heads in groups of
// sixteen, the sixteen lanes folded last.
#include "galley/backend/cpu/kernels.h"
#include "galley/backend/cpu/kernels/decode.h"
#include "galley/backend/cpu/kernels/formats.h"
#include "galley/backend/cpu/kernels/functions.h"
#include "galley/backend/cpu/kernels/simd.h"

namespace galley::backend::cpu::GALLEY_ISA {
namespace {

GALLEY_SIMD float ValueOf(BFloat16 x) {
  const std::uint32_t bits = static_cast<std::uint32_t>(x.bits) << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

#if GALLEY_DIGITS
// Sums over 32 dimensions are sums of products of whole numbers: twice a key's value plus 12, a byte from 0 to 24,
// times twice a query's value in units of its group's scale, a byte from -12 to 12. They are what the fp32 sums below
// are, which are exact too. Of a group of 32 dimensions and 16 heads: dimensions 0, 2, 4, 6, then 8, 10 … 30, then the
// odd ones alike, a word for each head.
struct QueryBlock {
  std::int8_t values[8][kLanes][4];
  std::int32_t begin[kLanes];  // -12 times the sum of the head's values
  float scale[kLanes];         // of a sum
};
static_assert(sizeof(QueryBlock) <= 32 * kLanes * sizeof(float));

const QueryBlock& BlockOf(const IndexArgs& a, std::size_t block, std::size_t group) {
  return reinterpret_cast<const QueryBlock*>(a.q)[block * static_cast<std::size_t>(a.head_groups) + group];
}

// One head's 32 values. Any power of two will do that makes all of them whole, 12 at most: a fourth of the one of the
// largest. Infinity and NaN make the scale, and so the score, NaN.
void PackHead(const BFloat16* q, QueryBlock& out, std::size_t lane) {
  float largest = 0;
  bool numbers = true;
  for (std::size_t i = 0; i < 32; ++i) {
    const float magnitude = __builtin_fabsf(ValueOf(q[i]));
    numbers = numbers && magnitude < __builtin_inff();
    largest = magnitude > largest ? magnitude : largest;
  }
  const int exponent = numbers && largest > 0 ? __builtin_ilogbf(largest) - 2 : 0;
  const double factor = __builtin_ldexp(1.0, 1 - exponent);  // fp32 has no 2^150
  std::int32_t sum = 0;
  for (std::size_t i = 0; i < 32; ++i) {
    const int value = numbers ? static_cast<int>(static_cast<double>(ValueOf(q[i])) * factor) : 0;
    out.values[i % 2 * 4 + i / 8][lane][i / 2 % 4] = static_cast<std::int8_t>(value);
    sum += value;
  }
  out.begin[lane] = -12 * sum;
  out.scale[lane] = numbers ? __builtin_ldexpf(0.25f, exponent) : __builtin_nanf("");
}

// 32 codes in the order of QueryBlock::values.
GALLEY_SIMD void LoadKey(const std::uint8_t* codes, std::uint8_t values[32]) {
  alignas(16) static constexpr std::uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(kTable)), nibble = _mm_set1_epi8(15);
  const auto bytes = LoadAs<__m128i>(codes);
  StoreAs(values, _mm_shuffle_epi8(table, _mm_and_si128(bytes, nibble)));
  StoreAs(values + 16, _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble)));
}

// Sums of some keys with kGroups groups of heads from `g` on.
template <std::size_t kKeys, std::size_t kGroups>
GALLEY_SIMD void SumKeys(const IndexArgs& a, std::size_t first, std::size_t g, F32 total[kGroups][kKeys]) {
  const auto dim = static_cast<std::size_t>(a.dim);
  for (std::size_t block = 0; block < dim / 32; ++block) {
    alignas(16) std::uint8_t values[kKeys][32];
    for (std::size_t k = 0; k < kKeys; ++k) LoadKey(a.keys + (first + k) * (dim / 2) + block * 16, values[k]);
    // Words are spread over a register by their load, for nothing; from a register it costs what a product costs.
    __asm__("" : "+m"(values));
    __m512i sum[kGroups][kKeys];
    for (std::size_t u = 0; u < kGroups; ++u) {
      for (std::size_t k = 0; k < kKeys; ++k) sum[u][k] = LoadAs<__m512i>(BlockOf(a, block, g + u).begin);
    }
#pragma GCC unroll 8
    for (std::size_t i = 0; i < 8; ++i) {
      __m512i q[kGroups];
      for (std::size_t u = 0; u < kGroups; ++u) q[u] = LoadAs<__m512i>(BlockOf(a, block, g + u).values[i]);
      for (std::size_t k = 0; k < kKeys; ++k) {
        std::int32_t four;
        __builtin_memcpy(&four, values[k] + 4 * i, sizeof(four));
        const __m512i key = _mm512_set1_epi32(four);
        for (std::size_t u = 0; u < kGroups; ++u) sum[u][k] = _mm512_dpbusd_epi32(sum[u][k], key, q[u]);
      }
    }
    for (std::size_t k = 0; k < kKeys; ++k) {
      const F32 scale = Broadcast(ScaleOf(a.scales[(first + k) * (dim / 32) + block]));
      for (std::size_t u = 0; u < kGroups; ++u) {
        const F32 partial = Convert<F32>((I32)sum[u][k]) * Load(BlockOf(a, block, g + u).scale);
        total[u][k] = Fma(partial, scale, total[u][k]);
      }
    }
  }
}
#else
// Sums of some keys with kGroups groups of heads from `g` on. Keys leave their codes once for all of them.
template <std::size_t kKeys, std::size_t kGroups>
GALLEY_SIMD void SumKeys(const IndexArgs& a, std::size_t first, std::size_t g, F32 total[kGroups][kKeys]) {
  const auto dim = static_cast<std::size_t>(a.dim), groups = static_cast<std::size_t>(a.head_groups);
  for (std::size_t block = 0; block < dim / 32; ++block) {
    float values[kKeys][32];  // without scale
    for (std::size_t k = 0; k < kKeys; ++k) {
      const std::uint8_t* codes = a.keys + (first + k) * (dim / 2) + block * 16;
      Store(values[k], DecodeE2M1(codes));
      Store(values[k] + kLanes, DecodeE2M1(codes + kLanes / 2));
    }
    F32 partial[kGroups][kKeys] = {};
    for (std::size_t i = 0; i < 32; ++i) {
      F32 q[kGroups];
      for (std::size_t u = 0; u < kGroups; ++u) q[u] = Load(a.q + ((block * 32 + i) * groups + g + u) * kLanes);
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kKeys; ++k) {
        const F32 value = Keep(Broadcast(values[k][i]));
        for (std::size_t u = 0; u < kGroups; ++u) partial[u][k] = Fma(q[u], value, partial[u][k]);
      }
    }
    for (std::size_t k = 0; k < kKeys; ++k) {
      const F32 scale = Broadcast(ScaleOf(a.scales[(first + k) * (dim / 32) + block]));
      for (std::size_t u = 0; u < kGroups; ++u) total[u][k] = Fma(partial[u][k], scale, total[u][k]);
    }
  }
}
#endif

// Adds the scores by kGroups groups of heads from `g` on of some keys.
template <std::size_t kKeys, std::size_t kGroups>
GALLEY_SIMD void AddScores(const IndexArgs& a, std::size_t first, std::size_t g, F32 score[kKeys]) {
  F32 total[kGroups][kKeys] = {};
  SumKeys<kKeys, kGroups>(a, first, g, total);
  for (std::size_t u = 0; u < kGroups; ++u) {
    for (std::size_t k = 0; k < kKeys; ++k) {
      // A NaN must survive: it makes the whole score rank last.
      const F32 positive = Select(total[u][k] < 0.0f, F32{}, total[u][k]);
      score[k] = Fma(positive, Load(a.weights + (g + u) * kLanes), score[k]);
    }
  }
}

template <std::size_t kKeys>
GALLEY_SIMD void ScoreKeys(const IndexArgs& a, std::size_t first) {
  const auto groups = static_cast<std::size_t>(a.head_groups);
  F32 score[kKeys] = {};
  std::size_t g = 0;
#if GALLEY_DIGITS
  for (; g + 4 <= groups; g += 4) AddScores<kKeys, 4>(a, first, g, score);
#endif
  for (; g + 2 <= groups; g += 2) AddScores<kKeys, 2>(a, first, g, score);
  if (g < groups) AddScores<kKeys, 1>(a, first, g, score);
  for (std::size_t k = 0; k < kKeys; ++k) {
    const float sum = SumLanes(score[k]);
    a.out[first + k] = sum != sum ? -__builtin_inff() : sum;
  }
}

}  // namespace

void PackIndexQueries(const IndexQueryArgs& a) {
  const auto heads = static_cast<std::size_t>(a.heads), dim = static_cast<std::size_t>(a.dim);
  const std::size_t groups = (heads + kLanes - 1) / kLanes;
  for (std::size_t i = 0; heads % kLanes != 0 && i < dim * groups * kLanes; ++i) a.out[i] = 0;
#if GALLEY_DIGITS
  auto* blocks = reinterpret_cast<QueryBlock*>(a.out);
  for (std::size_t h = 0; h < heads; ++h) {
    for (std::size_t block = 0; block < dim / 32; ++block)
      PackHead(a.q + h * dim + block * 32, blocks[block * groups + h / kLanes], h % kLanes);
  }
#else
  // [dim][groups * 16]: heads side by side.
  for (std::size_t h = 0; h < heads; ++h) {
    for (std::size_t d = 0; d < dim; ++d) a.out[d * groups * kLanes + h] = ValueOf(a.q[h * dim + d]);
  }
#endif
}

void IndexScores(const IndexArgs& a) {
  std::size_t i = 0;
#if GALLEY_DIGITS
  constexpr std::size_t kKeys = 5;  // sums of four groups of heads are all in registers
#elif defined(__AVX512F__)
  constexpr std::size_t kKeys = 6;  // sums of two
#else
  constexpr std::size_t kKeys = 2;
#endif
  for (; i + kKeys <= a.count; i += kKeys) ScoreKeys<kKeys>(a, i);
  for (; i < a.count; ++i) ScoreKeys<1>(a, i);
}

}  // namespace galley::backend::cpu::GALLEY_ISA
