// SPDX-License-Identifier: Apache-2.0
// One draw by the rule of backend/sampling.h, by a block of kDrawThreads threads, in double precision as on the host.
// Sums over the vocabulary are trees, so a token at the very border of top-p may fall on the other side.
#pragma once

#include <cfloat>

#include "galley/backend/cuda/numbers.cuh"
#include "galley/backend/sampling.h"
#include "galley/base/rng.h"

namespace galley::backend::cuda {

constexpr int kDrawThreads = 1024;

// Exponential noise of a token, as SampleNoise.
__device__ double NoiseOf(std::uint64_t seed, std::int64_t position, std::uint32_t token) {
  const auto words = Philox4x32({token / 4, static_cast<std::uint32_t>(position),
                                 static_cast<std::uint32_t>(static_cast<std::uint64_t>(position) >> 32), 0},
                                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const double uniform = (static_cast<double>(words[token % 4]) + 0.5) * 0x1p-32;
  return -log1p(-uniform);
}

struct Best {
  double value;
  int token;
};
// The larger value; equal ones by lower token. A token of -1 is nothing.
__device__ Best Better(Best a, Best b) {
  if (a.token < 0) return b;
  if (b.token < 0) return a;
  return b.value > a.value || (b.value == a.value && b.token < a.token) ? b : a;
}
__device__ Best BlockBest(Best mine, Best* shared) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    mine = Better(mine, {__shfl_xor_sync(kFullWarp, mine.value, step), __shfl_xor_sync(kFullWarp, mine.token, step)});
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  Best best = shared[0];
  for (int w = 1; w < kDrawThreads / 32; ++w) best = Better(best, shared[w]);
  __syncthreads();
  return best;
}
__device__ double BlockTotal(double x, double* shared) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(kFullWarp, x, step);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < kDrawThreads / 32; ++w) sum += shared[w];
  __syncthreads();
  return sum;
}

__device__ __forceinline__ std::uint32_t OrderOf(float x) {
  const std::uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct DrawShared {
  Best best[kDrawThreads / 32];
  double total[kDrawThreads / 32];
};

// The token drawn from logits [vocab], -1 when no logit is a number above minus infinity. Every thread of the block.
__device__ __forceinline__ int DrawRow(const float* logits, int vocab, const SampleParams& params, DrawShared& shared) {
  const int tid = static_cast<int>(threadIdx.x);
  Best best{-INFINITY, -1};
  for (int v = tid; v < vocab; v += kDrawThreads) {
    const float logit = logits[v];
    if (logit > -INFINITY) best = Better(best, {static_cast<double>(logit), v});
  }
  best = BlockBest(best, shared.best);
  int drawn = best.token;
  if (best.token >= 0 && params.temperature > 0.0f && !isinf(best.value)) {
    const double largest = best.value, temperature = static_cast<double>(params.temperature);
    const auto weight_of = [&](int v) {
      const double weight = exp((static_cast<double>(logits[v]) - largest) / temperature);
      return weight > 0 && weight >= static_cast<double>(params.min_p) ? weight : 0.0;
    };
    // Count or mass of the tokens that come before the border (key, id): larger logits, and equal ones of lower id.
    const auto measure = [&](std::uint32_t key, int id, bool mass) {
      double sum = 0;
      for (int v = tid; v < vocab; v += kDrawThreads) {
        const double weight = weight_of(v);
        if (weight == 0) continue;
        const std::uint32_t mine = OrderOf(logits[v]);
        if (mine > key || (mine == key && v < id)) sum += mass ? weight : 1.0;
      }
      return BlockTotal(sum, shared.total);
    };
    // The largest prefix whose measure before its last token is below `limit`: the token that crosses it stays.
    const auto cut = [&](bool mass, double limit, std::uint32_t& key, int& id) {
      std::uint32_t low = 0, high = 0xFFFFFFFFu;  // smallest key for which what lies above it is below the limit
      while (low < high) {
        const std::uint32_t middle = low + (high - low) / 2;
        if (measure(middle, 0, mass) < limit) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      int id_low = 0, id_high = vocab;  // largest count of ids among equals: the last one still begins below it
      while (id_low < id_high) {
        const int middle = id_low + (id_high - id_low + 1) / 2;
        if (measure(low, middle - 1, mass) < limit) {
          id_low = middle;
        } else {
          id_high = middle - 1;
        }
      }
      key = low, id = id_low;
    };
    std::uint32_t key = 0;
    int id = vocab;
    if (params.top_k > 0 && params.top_k < vocab) cut(false, static_cast<double>(params.top_k), key, id);
    if (params.top_p < 1.0f) {
      const double total = measure(key, id, true);
      std::uint32_t p_key = 0;
      int p_id = vocab;
      cut(true, fmax(static_cast<double>(params.top_p) * total, DBL_MIN), p_key, p_id);
      if (p_key > key || (p_key == key && p_id < id)) key = p_key, id = p_id;
    }
    Best winner{-1, -1};
    for (int v = tid; v < vocab; v += kDrawThreads) {
      const double weight = weight_of(v);
      const std::uint32_t mine = OrderOf(logits[v]);
      if (weight == 0 || mine < key || (mine == key && v >= id)) continue;
      winner = Better(winner, {weight / NoiseOf(params.seed, params.position, static_cast<std::uint32_t>(v)), v});
    }
    winner = BlockBest(winner, shared.best);
    if (winner.token >= 0) drawn = winner.token;
  }
  return drawn;
}

}  // namespace galley::backend::cuda
