// SPDX-License-Identifier: Apache-2.0
// One draw by the rule of backend/sampling.h, by a cluster of kDrawBlocks blocks of threads. Each block holds a slice
// of the row in shared memory, so memory is read once whatever the filters. What is compared or added across threads is
// independent of their order: keys, and masses as whole numbers. So a draw depends on its row alone.
#pragma once

#include <cfloat>

#include "galley/backend/cuda/numbers.cuh"
#include "galley/backend/cuda/ptx/cluster.cuh"
#include "galley/backend/cuda/ptx/math.cuh"
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
// The places of tokens above minus infinity begin here.
__device__ __forceinline__ std::uint64_t FirstLikely() {
  return PlaceOf(-INFINITY, -1);
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
  std::uint32_t next[kDrawWarps];
  std::uint64_t best, changed_best, score;
  std::uint32_t next_score;
  std::uint64_t winner_score, winner_token;
  std::uint64_t sum;                    // the bits of a double
  std::uint64_t top[kAlternativesMax];  // of this block
  std::uint32_t top_count;
  std::uint64_t segment;
  std::uint64_t chosen_above, chosen;  // the bin; its count in the high half
  std::uint64_t last[3];               // of the alternatives, of top-k, of top-p
};

// The tokens of this block of threads: ids `begin` and on, `groups` of four, minus infinity behind the end of the row
// and for tokens that cannot be drawn. Every thread has the same groups in every pass.
struct Slice {
  float* logits;
  int begin, groups;
  int rank;  // of the block in its cluster

  // Calls visit(id of the first, four logits) for this thread's groups, ids ascending.
  template <typename Visit>
  __device__ __forceinline__ void ForGroups(Visit&& visit) const {
#pragma unroll 1
    for (int g = static_cast<int>(threadIdx.x); g < groups; g += kDrawThreads) {
      const float4 group = *reinterpret_cast<const float4*>(logits + g * 4);
      const float four[4] = {group.x, group.y, group.z, group.w};
      visit(begin + g * 4, four);
    }
  }
};

__device__ __forceinline__ std::uint64_t WarpMax(std::uint64_t x) {
  const auto high = static_cast<std::uint32_t>(x >> 32);
  const std::uint32_t most = __reduce_max_sync(kFullWarp, high);
  const std::uint32_t low = __reduce_max_sync(kFullWarp, high == most ? static_cast<std::uint32_t>(x) : 0u);
  return static_cast<std::uint64_t>(most) << 32 | low;
}
// Every thread of the block; `warps` holds a word for each warp.
__device__ __forceinline__ std::uint64_t BlockMax(std::uint64_t x, std::uint64_t* warps) {
  x = WarpMax(x);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = WarpMax(warps[threadIdx.x % kDrawWarps]);
  __syncthreads();
  return x;
}
// The largest over the cluster; `word` is the same member of DrawShared in every block.
template <int Blocks = kDrawBlocks>
__device__ __forceinline__ std::uint64_t ClusterMax(std::uint64_t x, DrawShared& shared, std::uint64_t& word) {
  x = BlockMax(x, shared.warps);
  if (threadIdx.x == 0) word = x;
  ptx::SyncCluster();
  return WarpMax(ptx::LoadOfBlock(&word, static_cast<int>(threadIdx.x) % Blocks));
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

// Whether a token is at place `logit`, `id` or before it; NaN never is.
struct Border {
  float logit = -INFINITY;
  int id = -1;  // no token of minus infinity
  __device__ __forceinline__ explicit Border(std::uint64_t place) : logit(LogitOf(place)), id(IdOf(place)) {}
  [[nodiscard]] __device__ __forceinline__ bool Holds(float x, int token) const {
    return x > logit || (x == logit && token <= id);
  }
};

// ln(2)^n / n!, n falling. Constant memory is an operand of a product; a constant in the code is loaded each time.
__constant__ double kPowerTerms[12] = {4.4455382718708116e-10, 7.0549116208011233e-09, 1.0178086009239699e-07,
                                       1.3215486790144310e-06, 1.5252733804059841e-05, 1.5403530393381608e-04,
                                       1.3333558146428443e-03, 9.6181291076284772e-03, 5.5504108664821580e-02,
                                       2.4022650695910071e-01, 6.9314718055994531e-01, 1.0};
// 2^x for -1000 < x <= 0, to 1e-14 of it, without branches.
__device__ __forceinline__ double PowerOfTwo(double x) {
  constexpr double kRound = 0x1.8p52;
  const double shifted = x + kRound;
  const double rest = x - (shifted - kRound);
  double power = kPowerTerms[0];
#pragma unroll
  for (int i = 1; i < 12; ++i) power = fma(power, rest, kPowerTerms[i]);
  return __hiloint2double(__double2hiint(power) + (__double2loint(shifted) << 20), __double2loint(power));
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
// Their negative binary logarithms to about 2^-11; between -4.6 and 33. Bits that become a float are cheaper than a
// conversion, and good enough but for the 2^-10 at either end.
__device__ __forceinline__ void NoiseBits(const std::array<std::uint32_t, 4>& words, float (&bits)[4]) {
  constexpr std::uint32_t kEnd = 1u << 22;
  constexpr float kLn2 = 0.69314718f;
  bool ends = false;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    bits[j] = -kLn2 * ptx::Log2Approx(2.0f - __uint_as_float(0x3F800000u | words[j] >> 9));
    ends = ends || words[j] + kEnd < 2 * kEnd;
  }
  if (ends) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float uniform = (__uint2float_rn(words[j]) + 0.5f) * 0x1p-32f;
      const float rest = (__uint2float_rn(~words[j]) + 0.5f) * 0x1p-32f;  // 1 - uniform
      if (words[j] < kEnd) bits[j] = uniform * (1.0f + 0.5f * uniform);
      if (~words[j] < kEnd) bits[j] = -kLn2 * ptx::Log2Approx(rest);
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) bits[j] = -ptx::Log2Approx(bits[j]);
}

// No token wins that is further than this below the largest, in bits, whatever its noise. The score of those that do
// not run. Scores of single precision that are closer than the margin do not decide.
constexpr float kRaceReach = 40.0f, kNoScore = -1e30f, kRaceMargin = 0x1p-8f;

// What a thread knows of its tokens behind the first pass of a race.
struct Racer {
  float best = kNoScore, second = kNoScore;
  int at = -1;  // the best

  __device__ __forceinline__ void Enter(int id, float score) {
    second = fmaxf(second, fminf(best, score));
    at = score > best ? id : at;
    best = fmaxf(best, score);
  }
};

// The winner by the host's numbers among tokens from `border` on whose scores are `least` or more. Rarely needed.
template <int Blocks>
__device__ __noinline__ int RaceExactly(Slice slice, SampleParams params, float largest, std::uint64_t border,
                                        Racer racer, float least, DrawShared& shared) {
  // Scores are positive, so their bits have their order.
  std::uint64_t score = 0, token = 0;
  const auto enter = [&](int id, float logit) {
    const double x =
        (static_cast<double>(logit) - static_cast<double>(largest)) / static_cast<double>(params.temperature);
    const double noise = NoiseOf(NoiseWords(params, id & ~3)[id % 4]);
    const auto exact = static_cast<std::uint64_t>(__double_as_longlong(exp(x) / noise));
    if (exact > score) score = exact, token = ~static_cast<std::uint32_t>(id);  // ids ascend
  };
  if (racer.second >= least) {
    const Border last(border);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) * 4; i < slice.groups * 4; i += i % 4 == 3 ? kDrawThreads * 4 - 3 : 1) {
      if (last.Holds(slice.logits[i], slice.begin + i)) enter(slice.begin + i, slice.logits[i]);
    }
  } else if (racer.best >= least) {
    enter(racer.at, slice.logits[racer.at - slice.begin]);
  }
  const std::uint64_t winner = ClusterMax<Blocks>(score, shared, shared.winner_score);
  return IdOf(ClusterMax<Blocks>(score == winner ? token : 0, shared, shared.winner_token));
}

// The winner among tokens from `border` on, of the racers of all threads; `largest` is the row's. `exactly`: scores of
// single precision say nothing.
template <int Blocks>
__device__ __forceinline__ int Winner(const Slice& slice, const SampleParams& params, float largest,
                                      std::uint64_t border, Racer racer, bool exactly, DrawShared& shared) {
  // The best of all and the score of the next, over lanes, warps and blocks.
  const auto join = [](std::uint64_t& first, std::uint32_t& next) {
    const std::uint64_t most = WarpMax(first);
    next = __reduce_max_sync(kFullWarp, first == most ? next : static_cast<std::uint32_t>(first >> 32));
    first = most;
  };
  std::uint64_t first = PlaceOf(racer.best, racer.at);
  std::uint32_t next = OrderOf(racer.second);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  join(first, next);
  if (lane == 0) shared.warps[threadIdx.x / 32] = first, shared.next[threadIdx.x / 32] = next;
  __syncthreads();
  first = shared.warps[lane % kDrawWarps], next = shared.next[lane % kDrawWarps];
  join(first, next);
  if (threadIdx.x == 0) shared.score = first, shared.next_score = next;
  ptx::SyncCluster();
  first = ptx::LoadOfBlock(&shared.score, lane % Blocks);
  next = ptx::LoadOfBlock(&shared.next_score, lane % Blocks);
  join(first, next);
  const float least = LogitOf(first) - kRaceMargin;
  if (!exactly && OfOrder(next) < least) return IdOf(first);
  if (exactly) racer.second = least;  // so that all of them enter
  return RaceExactly<Blocks>(slice, params, largest, border, racer, least, shared);
}

// The winner of the race among tokens of the row from `border` on; `largest` is the row's, finite. Scores of single
// precision decide when no two are close.
__device__ __forceinline__ int Race(const Slice& slice, const SampleParams& params, float largest, std::uint64_t border,
                                    DrawShared& shared) {
  const float bits = 1.44269504f / params.temperature;
  const Border last(border);
  Racer racer;
  slice.ForGroups([&](int id, const float(&logits)[4]) {
    float scores[4];
    bool any = false;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float score = (logits[j] - largest) * bits;
      const bool runs = score >= -kRaceReach && last.Holds(logits[j], id + j);
      scores[j] = runs ? score : kNoScore;
      any = any || runs;
    }
    if (!any) return;
    float noise[4];
    NoiseBits(NoiseWords(params, id), noise);
#pragma unroll
    for (int j = 0; j < 4; ++j) racer.Enter(id + j, scores[j] + noise[j]);
  });
  return Winner<kDrawBlocks>(slice, params, largest, border, racer, false, shared);
}

}  // namespace galley::backend::cuda
