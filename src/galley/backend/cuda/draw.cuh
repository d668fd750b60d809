// SPDX-License-Identifier: Apache-2.0
// One draw by the rule of backend/sampling.h, by a cluster of kDrawBlocks blocks of threads. Each block holds a slice
// of the row in shared memory, so memory is read once whatever the filters. What is compared or added across threads is
// independent of their order: keys, and masses as whole numbers. So a draw depends on its row alone.
#pragma once

#include <cfloat>

#include "galley/backend/cuda/numbers.cuh"
#include "galley/backend/cuda/ptx/cluster.cuh"
#include "galley/backend/sampling.h"
#include "galley/base/rng.h"

namespace galley::backend::cuda {

constexpr int kDrawThreads = 512, kDrawWarps = kDrawThreads / 32, kDrawBlocks = 8;

// Unsigned key with the order of the float; both zeros are one value.
__device__ __forceinline__ std::uint32_t OrderOf(float x) {
  const std::uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float OfOrder(std::uint32_t order) {
  return __uint_as_float(order & 0x80000000u ? order & 0x7FFFFFFFu : ~order);
}
// A token's place among all: the larger logit first, equal ones by lower id. 0 is below every token.
__device__ __forceinline__ std::uint64_t PlaceOf(float logit, int id) {
  return static_cast<std::uint64_t>(OrderOf(logit)) << 32 | ~static_cast<std::uint32_t>(id);
}
__device__ __forceinline__ int IdOf(std::uint64_t place) {
  return static_cast<int>(~static_cast<std::uint32_t>(place));
}
__device__ __forceinline__ float LogitOf(std::uint64_t place) {
  return OfOrder(static_cast<std::uint32_t>(place >> 32));
}

// What the blocks of a cluster tell each other. A word is written once a draw, so that nobody waits for its readers.
struct DrawShared {
  std::uint64_t warps[kDrawWarps];
  std::uint64_t best, changed_best, score, border;
  std::uint64_t winner_score, winner_token;
  std::uint64_t sum;                    // the bits of a double
  std::uint64_t top[kAlternativesMax];  // of this block, largest first
  std::uint64_t segment;
  std::uint64_t chosen_above, chosen_digit, chosen_count;
  std::uint64_t single;  // the last token that top-p keeps; `border`: that top-k does
};

// The tokens of this block of threads: ids `begin` and on, `groups` of four, minus infinity behind the end of the row
// and for tokens that cannot be drawn. Every thread has the same groups in every pass.
struct Slice {
  float* logits;
  int begin, groups;
  int rank;  // of the block in its cluster

  template <typename Visit>
  __device__ __forceinline__ void ForGroups(Visit&& visit) const {
    for (int g = static_cast<int>(threadIdx.x); g < groups; g += kDrawThreads) {
      visit(begin + g * 4, *reinterpret_cast<float4*>(logits + g * 4));
    }
  }
  template <typename Visit>
  __device__ __forceinline__ void ForTokens(Visit&& visit) const {
    ForGroups([&](int id, const float4& group) {
      visit(id, group.x);
      visit(id + 1, group.y);
      visit(id + 2, group.z);
      visit(id + 3, group.w);
    });
  }
};

__device__ __forceinline__ std::uint64_t WarpMax(std::uint64_t x) {
  const auto high = static_cast<std::uint32_t>(x >> 32);
  const std::uint32_t most = __reduce_max_sync(kFullWarp, high);
  const std::uint32_t low = __reduce_max_sync(kFullWarp, high == most ? static_cast<std::uint32_t>(x) : 0u);
  return static_cast<std::uint64_t>(most) << 32 | low;
}
__device__ __forceinline__ std::uint64_t BlockMax(std::uint64_t x, std::uint64_t* warps) {
  x = WarpMax(x);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  std::uint64_t most = warps[0];
#pragma unroll
  for (int w = 1; w < kDrawWarps; ++w) most = max(most, warps[w]);
  __syncthreads();
  return most;
}
// The largest over the cluster; `word` is the same member of DrawShared in every block.
__device__ __forceinline__ std::uint64_t ClusterMax(std::uint64_t x, DrawShared& shared, std::uint64_t& word) {
  x = BlockMax(x, shared.warps);
  if (threadIdx.x == 0) word = x;
  ptx::SyncCluster();
  return WarpMax(ptx::LoadOfBlock(&word, static_cast<int>(threadIdx.x) % kDrawBlocks));
}
// The sum as a fixed tree over lanes, then warps in order, then blocks in order.
__device__ __forceinline__ double ClusterSum(double x, DrawShared& shared) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(kFullWarp, x, step);
  if (threadIdx.x % 32 == 0) shared.warps[threadIdx.x / 32] = static_cast<std::uint64_t>(__double_as_longlong(x));
  __syncthreads();
  if (threadIdx.x == 0) {
    double sum = 0;
    for (int w = 0; w < kDrawWarps; ++w) sum += __longlong_as_double(static_cast<long long>(shared.warps[w]));
    shared.sum = static_cast<std::uint64_t>(__double_as_longlong(sum));
  }
  ptx::SyncCluster();
  double sum = 0;
  for (int r = 0; r < kDrawBlocks; ++r) {
    sum += __longlong_as_double(static_cast<long long>(ptx::LoadOfBlock(&shared.sum, r)));
  }
  return sum;
}

// Random words of the tokens `id` to `id` + 3, `id` being a multiple of four; as SampleNoise's.
__device__ __forceinline__ std::array<std::uint32_t, 4> NoiseWords(const SampleParams& params, int id) {
  return Philox4x32({static_cast<std::uint32_t>(id) / 4, static_cast<std::uint32_t>(params.position),
                     static_cast<std::uint32_t>(static_cast<std::uint64_t>(params.position) >> 32), 0},
                    {static_cast<std::uint32_t>(params.seed), static_cast<std::uint32_t>(params.seed >> 32)});
}
// The exponential noise of a word, as on the host.
__device__ __forceinline__ double NoiseOf(std::uint32_t word) {
  return -log1p(-(static_cast<double>(word) + 0.5) * 0x1p-32);
}
// Its negative binary logarithm to about 2^-16; between -4.6 and 33.
__device__ __forceinline__ float NoiseBits(std::uint32_t word) {
  const float uniform = (__uint2float_rn(word) + 0.5f) * 0x1p-32f;
  const float rest = (__uint2float_rn(~word) + 0.5f) * 0x1p-32f;  // 1 - uniform
  const float series = uniform * (1.0f + uniform * (0.5f + uniform * (1.0f / 3)));
  return -__log2f(word < 1u << 26 ? series : -0.69314718f * __log2f(rest));
}

// The winner of the race among tokens of the slice whose place is at least `border`; `largest` is the row's, finite. A
// first pass with scores of single precision leaves the few tokens that can win to be scored as the host does.
__device__ __forceinline__ int Race(const Slice& slice, const SampleParams& params, float largest, std::uint64_t border,
                                    DrawShared& shared) {
  // No token wins that is further than this below the largest, whatever its noise.
  constexpr float kReach = 40.0f, kMargin = 0x1p-6f, kNone = -1e30f;
  const float bits = 1.44269504f / params.temperature;
  const auto scores_of = [&](int id, const float4& group, auto&& visit) {
    const float logits[4] = {group.x, group.y, group.z, group.w};
    float scores[4];
    bool any = false;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      scores[j] = (logits[j] - largest) * bits;
      if (!(scores[j] >= -kReach) || PlaceOf(logits[j], id + j) < border) scores[j] = kNone;
      any = any || scores[j] > kNone;
    }
    if (!any) return;
    const auto words = NoiseWords(params, id);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (scores[j] > kNone) visit(id + j, logits[j], words[j], scores[j] + NoiseBits(words[j]));
    }
  };
  float most = kNone;
  slice.ForGroups([&](int id, const float4& group) {
    scores_of(id, group, [&](int, float, std::uint32_t, float score) { most = fmaxf(most, score); });
  });
  const float least = OfOrder(static_cast<std::uint32_t>(ClusterMax(OrderOf(most), shared, shared.score))) - kMargin;
  // Scores are positive, so their bits have their order.
  std::uint64_t score = 0, token = 0;
  if (most >= least) {
    slice.ForGroups([&](int id, const float4& group) {
      scores_of(id, group, [&](int v, float logit, std::uint32_t word, float about) {
        if (about < least) return;
        const double x =
            (static_cast<double>(logit) - static_cast<double>(largest)) / static_cast<double>(params.temperature);
        const auto exact = static_cast<std::uint64_t>(__double_as_longlong(exp(x) / NoiseOf(word)));
        if (exact > score) score = exact, token = ~static_cast<std::uint32_t>(v);  // ids ascend
      });
    });
  }
  const std::uint64_t winner = ClusterMax(score, shared, shared.winner_score);
  return IdOf(ClusterMax(score == winner ? token : 0, shared, shared.winner_token));
}

}  // namespace galley::backend::cuda
