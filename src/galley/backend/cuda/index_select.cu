// SPDX-License-Identifier: Apache-2.0
// The indexer (2.8): queries, then scores of the visible entries or of those inside the candidate blocks
// (index_scores.cu), then lists (top_k.cu).
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/async_copy.cuh"
#include "galley/backend/cuda/step.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kHeadsMax = 64;

// Entries that a row scores: all visible ones, or those in its candidate blocks; only the last block can be cut.
// All threads of the block.
__device__ int CountOf(const IndexSelectArgs& args, std::int64_t t) {
  const std::int64_t visible = (args.step.positions[t] + std::int64_t{1}) / args.slab.ratio;
  if (args.role != CandidateRole::kUser) return static_cast<int>(visible);
  const std::int32_t* candidates = args.candidates + t * args.candidate_blocks;
  int blocks = 0;
  for (int i = 0; i < args.candidate_blocks; i += kThreads) {
    const int at = i + static_cast<int>(threadIdx.x);
    blocks += __syncthreads_count(at < args.candidate_blocks && candidates[at] >= 0);
  }
  if (blocks == 0) return 0;
  const std::int64_t size = args.candidate_block_size, in_last = visible - candidates[blocks - 1] * size;
  return static_cast<int>((blocks - 1) * size + min(max(in_last, std::int64_t{0}), size));
}

// A block of threads a row, a warp a head at a time: rotation, FP4 in groups of 32 and back, in the order that
// index_scores.cu multiplies; the weight of every head; and the number of the row's scores.
__global__ void __launch_bounds__(kThreads) QueryKernel(IndexSelectArgs args, IndexScratch scratch, float scale) {
  ptx::BeginKernel();
  __shared__ alignas(16) BFloat16 packed[kHeadsMax * kIndexDim];
  const std::int64_t t = blockIdx.x;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, padded = PaddedIndexHeads(args.heads);
  // Lane l holds values 4l … 4l + 3, so a group of 32 is 8 lanes and both parts of a rotated pair are in one lane.
  const int rotated = lane * 4 - (kIndexDim - args.rope.dims);
  float2 angle[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (rotated + 2 * i >= 0) angle[i] = RopeAngle(args.rope, args.step.positions[t], rotated / 2 + i);
  }
  for (int head = tid / 32; head < padded; head += kWarps) {
    const std::int64_t unit = t * args.heads + head;
    uint2 loaded = {0, 0};
    if (head < args.heads) loaded = reinterpret_cast<const uint2*>(scratch.raw_query + unit * kIndexDim)[lane];
    float x[4] = {LowHalf(loaded.x), HighHalf(loaded.x), LowHalf(loaded.y), HighHalf(loaded.y)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (rotated + 2 * i < 0) continue;
      const float2 turned = Turn(x[2 * i], x[2 * i + 1], angle[i]);
      x[2 * i] = turned.x, x[2 * i + 1] = turned.y;
    }
    float amax = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
#pragma unroll
    for (int step = 1; step < 8; step <<= 1) amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, step));
    const float group_scale = Fp4IndexScale(amax);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const BFloat16 value = ToBFloat16(DecodeE2M1(EncodeFp4(x[i], group_scale)) * group_scale);
      if (args.query_copy != nullptr && head < args.heads) args.query_copy[unit * kIndexDim + lane * 4 + i] = value;
      // Value r of group g is in unit r / 8 * 4 + r % 4 of the head, in pair g as the first or, from r % 8 = 4 on,
      // second one: decoding a word of codes gives the pairs (k0, k4), (k1, k5), ….
      const int r = lane % 8 * 4 + i, piece = r / 8 * 4 + r % 4;
      packed[(piece * padded + head) * 8 + lane / 8 * 2 + r / 4 % 2] = value;
    }
  }
  if (tid < padded) {
    float w = 0;
    if (tid < args.heads) {
      w = RoundToBFloat16(ToFloat(scratch.raw_weight[t * args.heads + tid]) * scale);
      if (args.weight_copy != nullptr) args.weight_copy[t * args.heads + tid] = w;
    }
    scratch.weight[t * padded + tid] = w;
  }
  const int count = CountOf(args, t);
  if (tid == 0) scratch.counts[t] = count;
  __syncthreads();
  auto* out = reinterpret_cast<uint4*>(scratch.query + t * padded * kIndexDim);
  for (int i = tid; i < padded * kIndexDim / 8; i += kThreads) out[i] = reinterpret_cast<const uint4*>(packed)[i];
}

}  // namespace

void IndexQueries(const IndexSelectArgs& args, const IndexScratch& scratch, cudaStream_t stream) {
  const auto scale =
      static_cast<float>(1.0 / sqrt(static_cast<double>(kIndexDim)) / sqrt(static_cast<double>(args.heads)));
  LaunchKernel(QueryKernel, static_cast<unsigned>(args.step.rows), kThreads, 0, stream, args, scratch, scale);
}

void IndexRows(const IndexSelectArgs& args, const IndexScratch& scratch, int first, int rows, cudaStream_t stream) {
  IndexScores(args, scratch, first, rows, stream);
  const bool user = args.role == CandidateRole::kUser, source = args.role == CandidateRole::kSource;
  std::int32_t* candidates =
      args.candidates == nullptr ? nullptr : args.candidates + static_cast<std::int64_t>(first) * args.candidate_blocks;
  TopK({.rows = rows,
        .scores = scratch.scores,
        .stride = scratch.score_stride,
        .best = scratch.best,
        .best_stride = scratch.best_stride,
        .counts = scratch.counts + first,
        .k = args.topk,
        .out = args.list + static_cast<std::int64_t>(first) * args.topk,
        .groups = user ? candidates : nullptr,
        .groups_per_row = args.candidate_blocks,
        .group_out = source ? candidates : nullptr},
       stream);
}

}  // namespace galley::backend::cuda
