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

template <int kKeys>
GALLEY_SIMD void ScoreKeys(const IndexArgs& a, std::size_t first) {
  const auto dim = static_cast<std::size_t>(a.dim), groups = static_cast<std::size_t>(a.head_groups);
  F32 score[kKeys] = {};
  for (std::size_t g = 0; g < groups; ++g) {
    F32 total[kKeys] = {};
    for (std::size_t block = 0; block < dim / 32; ++block) {
      float values[kKeys][32];  // without scale
      for (std::size_t k = 0; k < kKeys; ++k) {
        const std::uint8_t* codes = a.keys + (first + k) * (dim / 2) + block * 16;
        Store(values[k], DecodeE2M1(codes));
        Store(values[k] + kLanes, DecodeE2M1(codes + kLanes / 2));
      }
      F32 partial[kKeys] = {};
      for (std::size_t i = 0; i < 32; ++i) {
        const F32 q = Load(a.q + ((block * 32 + i) * groups + g) * kLanes);
        for (std::size_t k = 0; k < kKeys; ++k) partial[k] = Fma(q, Broadcast(values[k][i]), partial[k]);
      }
      for (std::size_t k = 0; k < kKeys; ++k) {
        total[k] = Fma(partial[k], Broadcast(ScaleOf(a.scales[(first + k) * (dim / 32) + block])), total[k]);
      }
    }
    for (std::size_t k = 0; k < kKeys; ++k) {
      // A NaN must survive: it makes the whole score rank last.
      const F32 positive = Select(total[k] < 0.0f, F32{}, total[k]);
      score[k] = Fma(positive, Load(a.weights + g * kLanes), score[k]);
    }
  }
  for (std::size_t k = 0; k < kKeys; ++k) {
    const float sum = SumLanes(score[k]);
    a.out[first + k] = sum != sum ? -__builtin_inff() : sum;
  }
}

}  // namespace

void IndexScores(const IndexArgs& a) {
  std::size_t i = 0;
  for (; i + 8 <= a.count; i += 8) ScoreKeys<8>(a, i);
  for (; i < a.count; ++i) ScoreKeys<1>(a, i);
}

}  // namespace galley::backend::cpu::GALLEY_ISA
