// SPDX-License-Identifier: Apache-2.0
// The indexer (2.8): queries, scores of the visible entries or of those inside the candidate blocks, lists. Scores come
// from tensor cores over the stored FP4 keys, 8 keys a warp at a time; the sum over heads is a fixed tree.
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/mma.cuh"
#include "galley/backend/cuda/step.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kKeysPerWarp = 8;

// A warp a head: rotation, FP4 in groups of 32 and back, paired order; and the weight of the head.
__global__ void __launch_bounds__(128) QueryKernel(IndexSelectArgs args, IndexScratch scratch, float scale) {
  ptx::BeginKernel();
  const std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) * 4 + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (unit >= static_cast<std::int64_t>(args.step.rows) * args.heads) return;
  const std::int64_t t = unit / args.heads;
  BFloat16* q = scratch.query + unit * kIndexDim;
  // Lane l holds values 4l … 4l + 3, so a group of 32 is 8 lanes and both parts of a rotated pair are in one lane.
  const uint2 loaded = reinterpret_cast<const uint2*>(q)[lane];
  float x[4] = {LowHalf(loaded.x), HighHalf(loaded.x), LowHalf(loaded.y), HighHalf(loaded.y)};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int from = lane * 4 + 2 * i - (kIndexDim - args.rope.dims);
    if (from < 0) continue;
    const float2 turned = Turn(x[2 * i], x[2 * i + 1], RopeAngle(args.rope, args.step.positions[t], from / 2));
    x[2 * i] = turned.x, x[2 * i + 1] = turned.y;
  }
  float amax = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
#pragma unroll
  for (int step = 1; step < 8; step <<= 1) amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, step));
  const float group_scale = Fp4IndexScale(amax);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const BFloat16 value = ToBFloat16(DecodeE2M1(EncodeFp4(x[i], group_scale)) * group_scale);
    if (args.query_copy != nullptr) args.query_copy[unit * kIndexDim + lane * 4 + i] = value;
    q[PlaceForNaturalFp4(lane * 4 + i)] = value;
  }
  if (lane != 0) return;
  const float w = RoundToBFloat16(ToFloat(scratch.raw_weight[unit]) * scale);
  scratch.weight[unit] = w;
  if (args.weight_copy != nullptr) args.weight_copy[unit] = w;
}

struct Row {
  std::int64_t t;
  std::int64_t visible;
  int count;  // scores of the row
};

// Entries that a row scores: all visible ones, or those in its candidate blocks; only the last block can be cut.
__device__ Row RowOf(const IndexSelectArgs& args, std::int64_t t, int block_count) {
  const std::int64_t visible = (args.step.positions[t] + std::int64_t{1}) / args.slab.ratio;
  if (args.role != CandidateRole::kUser) return {t, visible, static_cast<int>(visible)};
  if (block_count == 0) return {t, visible, 0};
  const std::int64_t last = args.candidates[t * args.candidate_blocks + block_count - 1];
  const std::int64_t in_last =
      min(visible - last * args.candidate_block_size, static_cast<std::int64_t>(args.candidate_block_size));
  return {t, visible, (block_count - 1) * args.candidate_block_size + static_cast<int>(max(in_last, std::int64_t{0}))};
}

// Number of scores of every row, for TopK; and of blocks of the source.
__global__ void CountKernel(IndexSelectArgs args, int first, std::int32_t* counts, std::int32_t* block_counts) {
  ptx::BeginKernel();
  const std::int64_t t = first + static_cast<std::int64_t>(blockIdx.x);
  int blocks = 0;
  if (args.role == CandidateRole::kUser) {
    for (int i = 0; i < args.candidate_blocks; i += static_cast<int>(blockDim.x)) {
      const int at = i + static_cast<int>(threadIdx.x);
      blocks += __syncthreads_count(at < args.candidate_blocks && args.candidates[t * args.candidate_blocks + at] >= 0);
    }
  }
  if (threadIdx.x != 0) return;
  const Row row = RowOf(args, t, blocks);
  counts[blockIdx.x] = row.count;
  block_counts[blockIdx.x] = (row.count + args.candidate_block_size - 1) / max(args.candidate_block_size, 1);
}

template <int MT>
__global__ void __launch_bounds__(256)
    ScoreKernel(IndexSelectArgs args, IndexScratch scratch, int first, const std::int32_t* counts, int keys_per_block) {
  ptx::BeginKernel();
  const int local = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32, count = counts[local];
  const int begin = static_cast<int>(blockIdx.x) * keys_per_block;
  if (begin >= count) return;
  const std::int64_t t = first + local;
  const SequenceEntry sequence = args.step.sequence_of(static_cast<int>(t));
  const std::int32_t* blocks = args.step.blocks + sequence.block_offset;

  std::uint32_t q[MT][2][16];
  float w[MT][2];
#pragma unroll
  for (int m = 0; m < MT; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = m * 16 + half * 8 + lane / 4;
      const bool used = head < args.heads;
      w[m][half] = used ? scratch.weight[t * args.heads + head] : 0.0f;
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        uint4 value = {0, 0, 0, 0};
        if (used)
          value = reinterpret_cast<const uint4*>(scratch.query + (t * args.heads + head) * kIndexDim)[lane % 4 * 4 + g];
        q[m][half][4 * g] = value.x, q[m][half][4 * g + 1] = value.y;
        q[m][half][4 * g + 2] = value.z, q[m][half][4 * g + 3] = value.w;
      }
    }
  }
  // 32-bit arithmetic: a sequence has fewer than 2^31 positions. Entries of a block are a power of two.
  const auto size = static_cast<unsigned>(args.candidate_block_size),
             entries = static_cast<unsigned>(args.slab.entries());
  const unsigned entry_shift = static_cast<unsigned>(31 - __clz(static_cast<int>(entries)));
  const std::size_t block_bytes = args.slab.block_bytes();
  const std::uint8_t* keys_base = reinterpret_cast<const std::uint8_t*>(args.slab.base) +
                                  entries * (args.slab.latent_bytes() + args.slab.latent_scales());
  const auto entry_of = [&](unsigned i) {
    if (args.role != CandidateRole::kUser) return i;
    return static_cast<unsigned>(args.candidates[t * args.candidate_blocks + i / size]) * size + i % size;
  };
  float* out = scratch.scores + local * scratch.score_stride;
  const int end = min(count, begin + keys_per_block);
  // Keys of several turns are fetched before the first is used.
  constexpr int kAhead = 4, kTurn = 8 * kKeysPerWarp;
  for (int group = begin + warp * kKeysPerWarp; group < end; group += kAhead * kTurn) {
    uint4 fetched[kAhead];
    std::uint32_t fetched_scale[kAhead];
#pragma unroll
    for (int turn = 0; turn < kAhead; ++turn) {
      const int i = group + turn * kTurn + lane / 4;
      fetched[turn] = {0, 0, 0, 0};
      fetched_scale[turn] = 0;
      if (i >= end) continue;
      const unsigned j = entry_of(static_cast<unsigned>(i)), in_block = j & (entries - 1);
      const std::uint8_t* keys = keys_base + static_cast<std::size_t>(blocks[j >> entry_shift]) * block_bytes;
      fetched[turn] = reinterpret_cast<const uint4*>(keys + in_block * (kIndexDim / 2))[lane % 4];
      fetched_scale[turn] = keys[entries * (kIndexDim / 2) + in_block * (kIndexDim / 32) + lane % 4];
    }
#pragma unroll
    for (int turn = 0; turn < kAhead; ++turn) {
      const int i0 = group + turn * kTurn;
      if (i0 >= end) break;
      const uint4 codes = fetched[turn];
      const std::uint32_t scale = fetched_scale[turn];
      const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
      const std::uint32_t scales = ScalePair<kFp4Shift>(scale);
      float acc[MT][4] = {};
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        std::uint32_t pairs[4];
        DecodeFp4x8(words[g], scales, pairs);
#pragma unroll
        for (int m = 0; m < MT; ++m) {
#pragma unroll
          for (int step = 0; step < 2; ++step) {
            const int at = 4 * g + 2 * step;
            const std::uint32_t a[4] = {q[m][0][at], q[m][1][at], q[m][0][at + 1], q[m][1][at + 1]};
            ptx::Mma16x8x16(acc[m], a, pairs[2 * step], pairs[2 * step + 1]);
          }
        }
      }
      float s0 = 0, s1 = 0;
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        // As fmax, but NaN stays NaN.
        const auto relu = [](float x) { return x < 0.0f ? 0.0f : x; };
        s0 += relu(acc[m][0]) * w[m][0] + relu(acc[m][2]) * w[m][1];
        s1 += relu(acc[m][1]) * w[m][0] + relu(acc[m][3]) * w[m][1];
      }
#pragma unroll
      for (int step = 4; step < 32; step <<= 1) {
        s0 += __shfl_xor_sync(kFullWarp, s0, step);
        s1 += __shfl_xor_sync(kFullWarp, s1, step);
      }
      const int key = i0 + lane % 4 * 2;
      if (lane < 4) {
        if (key < end) out[key] = isnan(s0) ? -INFINITY : s0;
        if (key + 1 < end) out[key + 1] = isnan(s1) ? -INFINITY : s1;
      }
    }
  }
}

// Worth of every candidate block: its best entry; the newest one is always chosen.
__global__ void BlockScoreKernel(IndexSelectArgs args, IndexScratch scratch, const std::int32_t* counts) {
  ptx::BeginKernel();
  const int local = static_cast<int>(blockIdx.y), block = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int count = counts[local], size = args.candidate_block_size, blocks = (count + size - 1) / size;
  if (block >= blocks) return;
  const float* scores = scratch.scores + local * scratch.score_stride;
  float best = scores[block * size];
  for (int i = block * size + 1; i < min(count, (block + 1) * size); ++i) best = fmaxf(best, scores[i]);
  scratch.block_scores[local * scratch.block_stride + block] = block == blocks - 1 ? INFINITY : best;
}

template <int MT>
void LaunchScores(const IndexSelectArgs& args, const IndexScratch& scratch, int first, int count,
                  const std::int32_t* counts, cudaStream_t stream) {
  // Keys of a block of threads: fewer when there are few rows, so that they still fill the device.
  const std::int64_t keys = scratch.score_stride;
  int per_block = 64;
  while (per_block < 2048 && keys / per_block * count > 1056) per_block *= 2;
  LaunchKernel(ScoreKernel<MT>,
               dim3(static_cast<unsigned>((keys + per_block - 1) / per_block), static_cast<unsigned>(count)), 256, 0,
               stream, args, scratch, first, counts, per_block);
}

}  // namespace

void IndexQueries(const IndexSelectArgs& args, const IndexScratch& scratch, cudaStream_t stream) {
  const auto scale =
      static_cast<float>(1.0 / sqrt(static_cast<double>(kIndexDim)) / sqrt(static_cast<double>(args.heads)));
  const std::int64_t units = static_cast<std::int64_t>(args.step.rows) * args.heads;
  LaunchKernel(QueryKernel, static_cast<unsigned>((units + 3) / 4), 128, 0, stream, args, scratch, scale);
}

void IndexRows(const IndexSelectArgs& args, const IndexScratch& scratch, int first, int count, cudaStream_t stream) {
  auto* counts = scratch.counts;
  std::int32_t* block_counts = counts + scratch.rows_at_once;
  LaunchKernel(CountKernel, static_cast<unsigned>(count), 256, 0, stream, args, first, counts, block_counts);
  if (args.heads <= 16) {
    LaunchScores<1>(args, scratch, first, count, counts, stream);
  } else if (args.heads <= 32) {
    LaunchScores<2>(args, scratch, first, count, counts, stream);
  } else {
    LaunchScores<4>(args, scratch, first, count, counts, stream);
  }
  const bool user = args.role == CandidateRole::kUser;
  if (args.role == CandidateRole::kSource) {
    LaunchKernel(BlockScoreKernel,
                 dim3(static_cast<unsigned>((scratch.block_stride + 255) / 256), static_cast<unsigned>(count)), 256, 0,
                 stream, args, scratch, counts);
    TopK({.rows = count,
          .scores = scratch.block_scores,
          .stride = scratch.block_stride,
          .counts = block_counts,
          .k = args.candidate_blocks,
          .out = args.candidates + static_cast<std::int64_t>(first) * args.candidate_blocks},
         stream);
  }
  TopK({.rows = count,
        .scores = scratch.scores,
        .stride = scratch.score_stride,
        .counts = counts,
        .k = args.topk,
        .out = args.list + static_cast<std::int64_t>(first) * args.topk,
        .blocks = user ? args.candidates + static_cast<std::int64_t>(first) * args.candidate_blocks : nullptr,
        .blocks_per_row = args.candidate_blocks,
        .block_size = user ? args.candidate_block_size : 1},
       stream);
}

}  // namespace galley::backend::cuda
