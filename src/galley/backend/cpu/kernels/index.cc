// SPDX-License-Identifier: Apache-2.0
// Index scores: sum over heads of w[h] * relu(q[h] . key). Heads are the lanes, so a key needs one fold at its end.
// Order: per group of 32 dimensions one partial sum in fp32, scaled and added; then heads in groups of sixteen, the
// sixteen lanes folded last.
#include "galley/backend/cpu/kernels.h"
#include "galley/backend/cpu/kernels/decode.h"
#include "galley/backend/cpu/kernels/functions.h"
#include "galley/backend/cpu/kernels/simd.h"

namespace galley::backend::cpu::GALLEY_ISA {
namespace {

// Adds the scores by kGroups groups of heads from `g` on of some keys. Keys leave their codes once for all of them.
template <std::size_t kKeys, std::size_t kGroups>
GALLEY_SIMD void AddScores(const IndexArgs& a, std::size_t first, std::size_t g, F32 score[kKeys]) {
  const auto dim = static_cast<std::size_t>(a.dim), groups = static_cast<std::size_t>(a.head_groups);
  F32 total[kGroups][kKeys] = {};
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
  for (; g + 2 <= groups; g += 2) AddScores<kKeys, 2>(a, first, g, score);
  if (g < groups) AddScores<kKeys, 1>(a, first, g, score);
  for (std::size_t k = 0; k < kKeys; ++k) {
    const float sum = SumLanes(score[k]);
    a.out[first + k] = sum != sum ? -__builtin_inff() : sum;
  }
}

}  // namespace

void IndexScores(const IndexArgs& a) {
  std::size_t i = 0;
#if defined(__AVX512F__)
  constexpr std::size_t kKeys = 6;  // sums of two groups of heads are all in registers
#else
  constexpr std::size_t kKeys = 2;
#endif
  for (; i + kKeys <= a.count; i += kKeys) ScoreKeys<kKeys>(a, i);
  for (; i < a.count; ++i) ScoreKeys<1>(a, i);
}

}  // namespace galley::backend::cpu::GALLEY_ISA
