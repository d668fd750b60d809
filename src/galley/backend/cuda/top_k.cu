// SPDX-License-Identifier: Apache-2.0
// Exact top-k of a row of scores, a block of threads a row: the k-th largest value by radix selection over its order
// bits, 11 + 11 + 10 at a time, then the indices above it and the first of those equal to it, in ascending order.
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/numbers.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32, kBins = 2048;

// Unsigned key with the order of the float; both zeros are one value.
__device__ __forceinline__ std::uint32_t OrderOf(float x) {
  const std::uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Shared {
  int bins[kBins];
  int warp_sums[kWarps];
  int warp_equal[kWarps];
  int chosen, above;
};

// Bin in which the `rank`-th largest (0-based) falls, and how many lie in higher bins. All threads.
__device__ void ChooseBin(Shared& s, int rank) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  // Thread i owns bins from the top: kBins - 1 - 2i and the one below.
  const int high = s.bins[kBins - 1 - 2 * tid], low = s.bins[kBins - 2 - 2 * tid];
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

__global__ void __launch_bounds__(kThreads) TopKKernel(TopKArgs args) {
  __shared__ Shared s;
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
    for (int i = tid; i < kBins; i += kThreads) s.bins[i] = 0;
    __syncthreads();
    for (int i = tid; i < count; i += kThreads) {
      const std::uint32_t key = OrderOf(scores[i]);
      if ((key & known) == threshold) atomicAdd(&s.bins[key >> shift & mask], 1);
    }
    __syncthreads();
    ChooseBin(s, rank);
    threshold |= static_cast<std::uint32_t>(s.chosen) << shift;
    rank -= s.above;
    above_total += s.above;
    __syncthreads();
  }
  // `above_total` scores are larger than the threshold; of the equal ones the first `wanted` are kept. Every warp counts
  // its stretch, then writes it in order.
  const int wanted = kept - above_total, stretch = (count + kThreads - 1) / kThreads * 32;
  const int begin = warp * stretch, end = min(count, begin + stretch);
  int above = 0, equal = 0;
  for (int i = begin; i < end; i += 32) {
    const std::uint32_t key = i + lane < end ? OrderOf(scores[i + lane]) : 0u;
    const bool inside = i + lane < end;
    above += __popc(__ballot_sync(kFullWarp, inside && key > threshold));
    equal += __popc(__ballot_sync(kFullWarp, inside && key == threshold));
  }
  if (lane == 0) s.warp_sums[warp] = above, s.warp_equal[warp] = equal;
  __syncthreads();
  int at = 0, equals_before = 0;
  for (int w = 0; w < warp; ++w) at += s.warp_sums[w], equals_before += s.warp_equal[w];
  for (int i = begin; i < end; i += 32) {
    const bool inside = i + lane < end;
    const std::uint32_t key = inside ? OrderOf(scores[i + lane]) : 0u;
    const unsigned above_mask = __ballot_sync(kFullWarp, inside && key > threshold);
    const unsigned equal_mask = __ballot_sync(kFullWarp, inside && key == threshold);
    const unsigned lower = (1u << lane) - 1;
    const int above_here = at + __popc(above_mask & lower), equal_here = equals_before + __popc(equal_mask & lower);
    if (inside && (key > threshold || (key == threshold && equal_here < wanted))) {
      out[above_here + min(equal_here, wanted)] = entry_of(i + lane);
    }
    at += __popc(above_mask);
    equals_before += __popc(equal_mask);
  }
}

}  // namespace

void TopK(const TopKArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  TopKKernel<<<static_cast<unsigned>(args.rows), kThreads, 0, stream>>>(args);
}

}  // namespace galley::backend::cuda
