// SPDX-License-Identifier: Apache-2.0
// Exact top-k of a row of scores, a block of threads a row. The k largest scores lie in the k groups whose best scores
// are largest (equal ones by index, in both), so groups are chosen first, then scores among those of the chosen groups.
// A choice finds the k-th largest value by radix selection over its order bits, 8 at a time, then the indices above it
// and the first of those equal to it, in ascending order.
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/numbers.cuh"
#include "galley/backend/cuda/ptx/async_copy.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32, kBins = 256;
constexpr int kDirectMax = 4096;  // scores that are chosen from at once

// Unsigned key with the order of the float; both zeros are one value.
__device__ __forceinline__ std::uint32_t OrderOf(float x) {
  const std::uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Shared {
  alignas(16) int bins[2][kBins];  // of this digit and, cleared, of the next one
  int warp_above[kWarps], warp_equal[kWarps];
  int digit, above;
};

// What is chosen from. An entry at `forced` counts as the largest of all.
struct Scores {
  const float* data;
  int count, forced;
};

// Sum over the lanes up to this one.
template <typename T>
__device__ __forceinline__ T SumUpTo(T x) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned step = 1; step < 32; step <<= 1) {
    const T other = __shfl_up_sync(kFullWarp, x, step);
    if (lane >= step) x += other;
  }
  return x;
}

// Calls visit(first index, keys of four scores) for this thread's quads of `scores` from `begin` to `end`, `step` quads
// apart, four loads ahead of their use. `begin` is a multiple of four; keys behind the last score are any value.
template <typename Visit>
__device__ __forceinline__ void ForQuads(const Scores& scores, int begin, int end, int thread, int step,
                                         Visit&& visit) {
  constexpr int kAhead = 4;
  for (int base = begin + thread * 4; base < end; base += step * 4 * kAhead) {
    float4 quad[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int i = base + j * step * 4;
      quad[j] = i < min(end, scores.count) ? *reinterpret_cast<const float4*>(scores.data + i) : float4{};
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int i = base + j * step * 4;
      if (i >= end) break;
      std::uint32_t keys[4] = {OrderOf(quad[j].x), OrderOf(quad[j].y), OrderOf(quad[j].z), OrderOf(quad[j].w)};
#pragma unroll
      for (int l = 0; l < 4; ++l) keys[l] = i + l == scores.forced ? ~0u : keys[l];
      visit(i, keys);
    }
  }
}

// The 8 bits of the k-th largest key from `shift` on: the bits above are those of `threshold`. `rank` is counted among
// keys that have those (0: the largest), and then among those that have the new ones too. `bins` are cleared, and
// `next_bins` afterwards. All threads.
__device__ __forceinline__ void ChooseDigit(Shared& s, int* bins, int* next_bins, const Scores& scores, int shift,
                                            std::uint32_t& threshold, int& rank) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32;
  const std::uint32_t known = shift == 24 ? 0 : ~0u << (shift + 8);
  ForQuads(scores, 0, scores.count, tid, kThreads, [&](int i, const std::uint32_t(&keys)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j < scores.count && (keys[j] & known) == threshold) atomicAdd(&bins[keys[j] >> shift & 255], 1);
    }
  });
  __syncthreads();
  if (tid < 32) {
    // Lane i owns eight bins from the top.
    const int* own = bins + kBins - 8 - 8 * lane;
    const int4 low = reinterpret_cast<const int4*>(own)[0], high = reinterpret_cast<const int4*>(own)[1];
    const int counts[8] = {high.w, high.z, high.y, high.x, low.w, low.z, low.y, low.x};
    int sum = 0;
#pragma unroll
    for (const int count : counts) sum += count;
    int before = SumUpTo(sum) - sum;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (rank >= before && rank < before + counts[i]) s.digit = kBins - 1 - 8 * lane - i, s.above = before;
      before += counts[i];
    }
  } else if (tid < 32 + kBins) {
    next_bins[tid - 32] = 0;
  }
  __syncthreads();
  threshold |= static_cast<std::uint32_t>(s.digit) << shift;
  rank -= s.above;
}

// Calls emit(place, index) for the k largest of more than k scores; places ascend with the index. All threads; the last
// calls are not behind a barrier.
template <typename Emit>
__device__ __forceinline__ void Choose(Shared& s, const Scores& scores, int k, Emit&& emit) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  std::uint32_t threshold = 0;
  int rank = k - 1;
  if (threadIdx.x < kBins) s.bins[0][threadIdx.x] = 0;
  __syncthreads();
#pragma unroll
  for (int digit = 0; digit < 4; ++digit) {
    ChooseDigit(s, s.bins[digit % 2], s.bins[1 - digit % 2], scores, 24 - 8 * digit, threshold, rank);
  }
  // Of scores equal to the threshold the first `wanted` are kept. Every warp counts its stretch, then emits it in
  // order.
  const int wanted = rank + 1, stretch = (scores.count + kThreads * 4 - 1) / (kThreads * 4) * 128;
  const int begin = min(scores.count, warp * stretch), end = min(scores.count, begin + stretch);
  // Above in the low half, equal in the high one: a lane's share of a turn of four.
  const auto count_four = [&](int i, const std::uint32_t(&keys)[4]) {
    std::uint32_t counts = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j < end) counts += (keys[j] > threshold ? 1u : 0u) + (keys[j] == threshold ? 0x10000u : 0u);
    }
    return counts;
  };
  int above = 0, equal = 0;
  ForQuads(scores, begin, end, lane, 32, [&](int i, const std::uint32_t(&keys)[4]) {
    const std::uint32_t counts = count_four(i, keys);
    above += static_cast<int>(counts & 0xFFFF), equal += static_cast<int>(counts >> 16);
  });
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    above += __shfl_xor_sync(kFullWarp, above, step);
    equal += __shfl_xor_sync(kFullWarp, equal, step);
  }
  if (lane == 0) s.warp_above[warp] = above, s.warp_equal[warp] = equal;
  __syncthreads();
  int at = lane < warp ? s.warp_above[lane] : 0, equals_before = lane < warp ? s.warp_equal[lane] : 0;
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    at += __shfl_xor_sync(kFullWarp, at, step);
    equals_before += __shfl_xor_sync(kFullWarp, equals_before, step);
  }
  // Whole turns, so that all lanes are in each; those in which no lane has anything to emit need no sums.
  ForQuads(scores, begin, begin + (end - begin + 127) / 128 * 128, lane, 32, [&](int i, const std::uint32_t(&keys)[4]) {
    const std::uint32_t mine = count_four(i, keys);
    if (__ballot_sync(kFullWarp, mine != 0) == 0) return;
    const std::uint32_t sum = SumUpTo(mine);
    int above_here = at + static_cast<int>((sum - mine) & 0xFFFF),
        equal_here = equals_before + static_cast<int>((sum - mine) >> 16);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j >= end) break;
      if (keys[j] > threshold || (keys[j] == threshold && equal_here < wanted)) {
        emit(above_here + min(equal_here, wanted), i + j);
      }
      above_here += keys[j] > threshold;
      equal_here += keys[j] == threshold;
    }
    const std::uint32_t total = __shfl_sync(kFullWarp, sum, 31);
    at += static_cast<int>(total & 0xFFFF), equals_before += static_cast<int>(total >> 16);
  });
}

// Indices 0 … count - 1 of a row with no more than k of them.
template <typename Emit>
__device__ __forceinline__ void ChooseAll(int count, Emit&& emit) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) emit(i, i);
}

// blockIdx.y = 0: the list; 1: groups.
__global__ void __launch_bounds__(kThreads) TopKKernel(TopKArgs args) {
  ptx::BeginKernel();
  extern __shared__ __align__(16) std::uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int tid = static_cast<int>(threadIdx.x);
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const int count = args.counts[row], groups = (count + kScoreGroup - 1) / kScoreGroup;
  const float* best = args.best + row * args.best_stride;
  if (blockIdx.y == 1) {
    std::int32_t* out = args.group_out + row * args.groups_per_row;
    const auto emit = [&](int place, int group) { out[place] = group; };
    for (int i = groups + tid; i < args.groups_per_row; i += kThreads) out[i] = -1;
    if (groups <= args.groups_per_row) return ChooseAll(groups, emit);
    return Choose(s, {best, groups, groups - 1}, args.groups_per_row, emit);
  }
  const float* scores = args.scores + row * args.stride;
  std::int32_t* out = args.out + row * args.k;
  const std::int32_t* entries = args.groups == nullptr ? nullptr : args.groups + row * args.groups_per_row;
  const auto emit = [&](int place, int i) {
    out[place] = entries == nullptr ? i : entries[i / kScoreGroup] * kScoreGroup + i % kScoreGroup;
  };
  for (int i = count + tid; i < args.k; i += kThreads) out[i] = -1;
  if (count <= args.k) return ChooseAll(count, emit);
  if (count <= kDirectMax || groups <= args.k) return Choose(s, {scores, count, -1}, args.k, emit);

  auto* chosen = reinterpret_cast<std::int32_t*>(memory + sizeof(Shared));
  auto* gathered = reinterpret_cast<float4*>(chosen + (args.k + 3) / 4 * 4);
  Choose(s, {best, groups, -1}, args.k, [&](int place, int group) { chosen[place] = group; });
  __syncthreads();
  for (int i = tid; i < args.k * 2; i += kThreads) {
    gathered[i] = *reinterpret_cast<const float4*>(scores + chosen[i / 2] * kScoreGroup + i % 2 * 4);
  }
  // Only the last of all groups can be cut, and it can only be the last of those chosen.
  const int candidates = args.k * kScoreGroup - (chosen[args.k - 1] == groups - 1 ? groups * kScoreGroup - count : 0);
  Choose(s, {reinterpret_cast<const float*>(gathered), candidates, -1}, args.k,
         [&](int place, int i) { emit(place, chosen[i / kScoreGroup] * kScoreGroup + i % kScoreGroup); });
}

}  // namespace

void TopK(const TopKArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const std::size_t bytes =
      sizeof(Shared) + static_cast<std::size_t>((args.k + 3) / 4 * 4 + args.k * kScoreGroup) * sizeof(float);
  cudaFuncSetAttribute(TopKKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  LaunchKernel(TopKKernel, dim3(static_cast<unsigned>(args.rows), args.group_out != nullptr ? 2 : 1), kThreads, bytes,
               stream, args);
}

}  // namespace galley::backend::cuda
