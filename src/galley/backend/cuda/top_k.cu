// SPDX-License-Identifier: Apache-2.0
// Exact top-k of a row of scores, a block of threads a row: the k-th largest value by radix selection over its order
// bits, 11 + 11 + 10 at a time, then the indices above it and the first of those equal to it, in ascending order.
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/numbers.cuh"
#include "galley/backend/cuda/ptx/async_copy.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32, kBins = 2048;
constexpr int kCopies =
    8;  // of the histogram, by lane: scores fall into few bins, and equal addresses wait for each other

// Unsigned key with the order of the float; both zeros are one value.
__device__ __forceinline__ std::uint32_t OrderOf(float x) {
  const std::uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Shared {
  int bins[kCopies][kBins];
  int warp_sums[kWarps];
  int warp_equal[kWarps];
  int chosen, above;
};

// Bin in which the `rank`-th largest (0-based) falls, and how many lie in higher bins. All threads.
__device__ void ChooseBin(Shared& s, int rank) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  // Thread i owns bins from the top: kBins - 1 - 2i and the one below.
  int high = 0, low = 0;
#pragma unroll
  for (int c = 0; c < kCopies; ++c) high += s.bins[c][kBins - 1 - 2 * tid], low += s.bins[c][kBins - 2 - 2 * tid];
  int sum = high + low;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const int other = __shfl_up_sync(kFullWarp, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) s.warp_sums[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    int total = s.warp_sums[lane];
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
      const int other = __shfl_up_sync(kFullWarp, total, step);
      if (lane >= step) total += other;
    }
    s.warp_sums[lane] = total;
  }
  __syncthreads();
  const int before = sum - high - low + (warp > 0 ? s.warp_sums[warp - 1] : 0);
  if (rank >= before && rank < before + high) s.chosen = kBins - 1 - 2 * tid, s.above = before;
  if (rank >= before + high && rank < before + high + low) s.chosen = kBins - 2 - 2 * tid, s.above = before + high;
  __syncthreads();
}

// Calls visit(first index, four scores) for this thread's quads of `scores` from `begin` to `end`, `step` quads apart,
// four loads ahead of their use. Scores behind `end` read as minus infinity; `begin` is a multiple of four.
template <typename Visit>
__device__ __forceinline__ void ForQuads(const float* scores, int begin, int end, int thread, int step, Visit&& visit) {
  constexpr int kAhead = 4;
  for (int base = begin + thread * 4; base < end; base += step * 4 * kAhead) {
    float4 quad[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int i = base + j * step * 4;
      quad[j] = i < end ? *reinterpret_cast<const float4*>(scores + i) : float4{};
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int i = base + j * step * 4;
      if (i < end) visit(i, quad[j]);
    }
  }
}
__device__ __forceinline__ std::uint32_t KeyOf(const float4& quad, int j) {
  return OrderOf(j == 0 ? quad.x : j == 1 ? quad.y : j == 2 ? quad.z : quad.w);
}

__global__ void __launch_bounds__(kThreads) TopKKernel(TopKArgs args) {
  ptx::BeginKernel();
  extern __shared__ __align__(16) std::uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const int count = args.counts[row];
  const float* scores = args.scores + row * args.stride;
  std::int32_t* out = args.out + row * args.k;
  const std::int32_t* blocks = args.blocks == nullptr ? nullptr : args.blocks + row * args.blocks_per_row;
  const auto entry_of = [&](int i) {
    return blocks == nullptr ? i : blocks[i / args.block_size] * args.block_size + i % args.block_size;
  };
  const int kept = min(count, args.k);
  for (int i = kept + tid; i < args.k; i += kThreads) out[i] = -1;
  if (count <= args.k) {
    for (int i = tid; i < count; i += kThreads) out[i] = entry_of(i);
    return;
  }
  std::uint32_t threshold = 0;
  int rank = kept - 1, above_total = 0;
  constexpr int kShift[3] = {21, 10, 0};
#pragma unroll
  for (int pass = 0; pass < 3; ++pass) {
    const int shift = kShift[pass];
    const std::uint32_t mask = pass == 2 ? 0x3FFu : 0x7FFu;
    const std::uint32_t known = pass == 0 ? 0u : ~0u << kShift[pass - 1];
    for (int i = tid; i < kCopies * kBins; i += kThreads) s.bins[0][i] = 0;
    __syncthreads();
    ForQuads(scores, 0, count, tid, kThreads, [&](int i, const float4& quad) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const std::uint32_t key = KeyOf(quad, j);
        if (i + j < count && (key & known) == threshold) atomicAdd(&s.bins[lane % kCopies][key >> shift & mask], 1);
      }
    });
    __syncthreads();
    ChooseBin(s, rank);
    threshold |= static_cast<std::uint32_t>(s.chosen) << shift;
    rank -= s.above;
    above_total += s.above;
    __syncthreads();
  }
  // `above_total` scores are larger than the threshold; of the equal ones the first `wanted` are kept. Every warp
  // counts its stretch, then writes it in order.
  const int wanted = kept - above_total, stretch = (count + kThreads * 4 - 1) / (kThreads * 4) * 128;
  const int begin = min(count, warp * stretch), end = min(count, begin + stretch);
  int above = 0, equal = 0;
  ForQuads(scores, begin / 4 * 4, end, lane, 32, [&](int i, const float4& quad) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t key = KeyOf(quad, j);
      const bool inside = i + j >= begin && i + j < end;
      above += inside && key > threshold;
      equal += inside && key == threshold;
    }
  });
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    above += __shfl_xor_sync(kFullWarp, above, step);
    equal += __shfl_xor_sync(kFullWarp, equal, step);
  }
  if (lane == 0) s.warp_sums[warp] = above, s.warp_equal[warp] = equal;
  __syncthreads();
  int at = 0, equals_before = 0;
  for (int w = 0; w < warp; ++w) at += s.warp_sums[w], equals_before += s.warp_equal[w];
  float4 quad{};
  if (begin + lane * 4 < end) quad = *reinterpret_cast<const float4*>(scores + begin + lane * 4);
  for (int base = begin; base < end; base += 128) {
    const int i = base + lane * 4;
    float4 next{};
    if (i + 128 < end) next = *reinterpret_cast<const float4*>(scores + i + 128);
    // Counts of this lane's four, above in the low half and equal in the high one, summed over the lanes before.
    std::uint32_t mine = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t key = KeyOf(quad, j);
      if (i + j < end) mine += (key > threshold ? 1u : 0u) + (key == threshold ? 0x10000u : 0u);
    }
    std::uint32_t sum = mine;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
      const std::uint32_t other = __shfl_up_sync(kFullWarp, sum, step);
      if (lane >= step) sum += other;
    }
    int above_here = at + static_cast<int>((sum - mine) & 0xFFFF),
        equal_here = equals_before + static_cast<int>((sum - mine) >> 16);
    if (mine != 0) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const std::uint32_t key = KeyOf(quad, j);
        if (i + j >= end) break;
        if (key > threshold || (key == threshold && equal_here < wanted)) {
          out[above_here + min(equal_here, wanted)] = entry_of(i + j);
        }
        above_here += key > threshold;
        equal_here += key == threshold;
      }
    }
    const std::uint32_t total = __shfl_sync(kFullWarp, sum, 31);
    at += static_cast<int>(total & 0xFFFF);
    equals_before += static_cast<int>(total >> 16);
    quad = next;
  }
}

}  // namespace

void TopK(const TopKArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  cudaFuncSetAttribute(TopKKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  LaunchKernel(TopKKernel, static_cast<unsigned>(args.rows), kThreads, sizeof(Shared), stream, args);
}

}  // namespace galley::backend::cuda
