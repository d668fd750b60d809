// SPDX-License-Identifier: Apache-2.0
// Index scores: sum over heads of w[h] * relu(q[h] . key). Heads are the lanes, so a key needs one fold at its end.
// Order: per group of 32 dimensions one partial sum in pairs, scaled and added; then heads in groups of sixteen, the
// sixteen lanes folded last.
#include "galley/backend/cpu/kernels.h"
#include "galley/backend/cpu/kernels/decode.h"
#include "galley/backend/cpu/kernels/functions.h"
#include "galley/backend/cpu/kernels/simd.h"

namespace galley::backend::cpu::GALLEY_ISA {
namespace {

// The sixteen pairs of bf16 codes, without scale, of 32 dimensions of a key.
GALLEY_SIMD void DecodePairs(const std::uint8_t* codes, std::uint32_t* pairs) {
  // Byte i holds dimensions 2i and 2i + 1: spread over the two halves of a lane.
  const U32 bytes = __builtin_convertvector(LoadAs<U8x16>(codes), U32);
  StoreAs(pairs, DecodeE2M1Words((U16)(bytes | (bytes << 12))));
}

template <int kKeys>
GALLEY_SIMD void ScoreKeys(const IndexArgs& a, std::size_t first) {
  const auto dim = static_cast<std::size_t>(a.dim), groups = static_cast<std::size_t>(a.head_groups);
  F32 score[kKeys] = {};
  for (std::size_t g = 0; g < groups; ++g) {
    F32 total[kKeys] = {};
    for (std::size_t block = 0; block < dim / 32; ++block) {
      std::uint32_t pairs[kKeys][16];
      for (std::size_t k = 0; k < kKeys; ++k) DecodePairs(a.keys + (first + k) * (dim / 2) + block * 16, pairs[k]);
      F32 partial[kKeys] = {};
      for (std::size_t i = 0; i < 16; ++i) {
        const U32 q = LoadAs<U32>(a.q + ((block * 16 + i) * groups + g) * kLanes);
        for (std::size_t k = 0; k < kKeys; ++k) partial[k] = DotPairs(partial[k], q, BroadcastBits(pairs[k][i]));
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
