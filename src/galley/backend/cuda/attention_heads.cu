// SPDX-License-Identifier: Apache-2.0
// The attention of attention.cu by warpgroup products: a block of threads takes 64 heads of a row, so keys are decoded
// once for all of them. One warpgroup multiplies the even steps of K, the other the odd ones; each then has half of the
// rows of scores to itself, and half of the values' columns. Steps, blocks of 48 places and the order of every sum are
// those of attention.cu: the same bits.
#include "galley/backend/cuda/attention_keys.cuh"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/wgmma.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kHeads = 64, kBlock = 48, kThreads = 256;
constexpr int kCore = 128;  // bytes: 8 rows of 16
// Cores of q and of probabilities: [K / 8][head / 8]; of keys: [value / 8][key / 8].
constexpr int kHeadCores = kHeads / 8 * kCore, kKeyCores = kBlock / 8 * kCore;
constexpr int kPerThread = kBlock / 4;  // scores of a thread, of one row

struct Shared {
  alignas(128) std::uint8_t q[kDim / 8 * kHeadCores];
  alignas(128) std::uint8_t keys[kDim / 8 * kKeyCores];
  alignas(128) std::uint8_t probabilities[kBlock / 8 * kHeadCores];
  alignas(16) std::uint8_t raw[kBlock * kRawStride];
  float exchange[2][kPerThread][kThreads / 2];
  float rescale[kHeads], denominator[kHeads];
  float2 angle[64];
  KeyPlace places[1];  // of every place of the list, and on beyond this struct
};

__device__ __forceinline__ void LoadQueries(const AttentionTask& task, int t, int head0, Shared& s) {
  // Eight lanes write the rows of a core.
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * kDim / 8; i += kThreads) {
    const int head = i % 8 + i / (8 * kDim / 8) * 8, piece = i / 8 % (kDim / 8);
    uint4 value = {0, 0, 0, 0};
    if (head0 + head < task.heads) {
      value = reinterpret_cast<const uint4*>(task.q +
                                             (static_cast<std::int64_t>(t) * task.heads + head0 + head) * kDim)[piece];
    }
    *reinterpret_cast<uint4*>(s.q + piece * kHeadCores + head / 8 * kCore + head % 8 * 16) = value;
  }
}

// Raw records to cores of bf16; keys that are none become zero. Eight lanes write the rows of a core; four pieces of
// eight values are read before the first is decoded, or a thread would wait for shared memory after every piece.
__device__ __forceinline__ void DecodeKeys(const KeyPlace* keys, Shared& s) {
  constexpr int kAtOnce = 4, kWarps = kThreads / 32, kUnits = kBlock / 8 * (kDim / 32);
  static_assert(kUnits % (kAtOnce * kWarps) == 0);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int first = warp; first < kUnits; first += kAtOnce * kWarps) {
    uint2 codes[kAtOnce] = {};
    std::uint32_t scales[kAtOnce] = {};
    KeyKind kind[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int unit = first + j * kWarps, key = unit % (kBlock / 8) * 8 + lane % 8,
                piece = unit / (kBlock / 8) * 4 + lane / 8;
      const std::uint8_t* raw = s.raw + key * kRawStride;
      kind[j] = keys[key].kind;
      if (kind[j] == KeyKind::kWindow) {
        codes[j] = *reinterpret_cast<const uint2*>(raw + piece * 8);
        scales[j] = raw[kDim + piece / 4];
      } else if (kind[j] == KeyKind::kEntry) {
        codes[j].x = *reinterpret_cast<const std::uint32_t*>(raw + piece * 4);
        scales[j] = raw[kDim - 16 + piece / 2];
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int unit = first + j * kWarps, piece = unit / (kBlock / 8) * 4 + lane / 8;
      uint4 natural = {0, 0, 0, 0};
      if (kind[j] == KeyKind::kWindow) natural = DecodeWindow(codes[j], scales[j]);
      if (kind[j] == KeyKind::kEntry) natural = DecodeEntry(codes[j].x, scales[j]);
      *reinterpret_cast<uint4*>(s.keys + piece * kKeyCores + unit % (kBlock / 8) * kCore + lane % 8 * 16) = natural;
    }
  }
}

// Sums of this warpgroup's steps of K, 64 heads by 48 keys.
__device__ __forceinline__ void Scores(const Shared& s, int group, float (&sum)[2 * kPerThread]) {
  const std::uint32_t q = ptx::SharedAddress(s.q) + static_cast<std::uint32_t>(group * 2 * kHeadCores),
                      keys = ptx::SharedAddress(s.keys) + static_cast<std::uint32_t>(group * 2 * kKeyCores);
#pragma unroll
  for (float& value : sum) value = 0;
  ptx::WarpgroupFence();
#pragma unroll
  for (int step = 0; step < kDim / 16; step += 2) {
    ptx::AddKeys48(sum, ptx::CoreDescriptor(q + static_cast<std::uint32_t>(2 * step * kHeadCores), kHeadCores, kCore),
                   ptx::CoreDescriptor(keys + static_cast<std::uint32_t>(2 * step * kKeyCores), kKeyCores, kCore));
  }
  ptx::WarpgroupCommit();
  ptx::WarpgroupWait<0>();
}

// A row's running maximum and denominator, the same in the four threads that share the row.
struct Row {
  float running = -1e30f, denominator = 0;
};

// `score[2 j + b]` is the row's with key 8 j + 2 (lane % 4) + b. Turns them into probabilities; returns how much
// earlier sums shrink. The sum's tree is that of 32 lanes that hold keys l and l + 32.
__device__ __forceinline__ float Softmax(float (&score)[kPerThread], Row& row) {
  float most = score[0];
#pragma unroll
  for (int i = 1; i < kPerThread; ++i) most = fmaxf(most, score[i]);
  most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, 1));
  most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, 2));
  const float before = row.running, largest = fmaxf(before, most);
#pragma unroll
  for (float& value : score) value = expf(value - largest);
  float sum[2];
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    const float low = (score[b] + score[8 + b]) + score[4 + b], high = (score[2 + b] + score[10 + b]) + score[6 + b];
    sum[b] = low + high;
    sum[b] += __shfl_xor_sync(kFullWarp, sum[b], 2);
    sum[b] += __shfl_xor_sync(kFullWarp, sum[b], 1);
  }
  const float rescale = expf(before - largest);
  row.denominator = row.denominator * rescale + (sum[0] + sum[1]);
  row.running = largest;
  return rescale;
}

// acc[64 heads][256 values of this warpgroup] = acc * rescale + probabilities times values.
__device__ __forceinline__ void AddValues(const Shared& s, int group, float (&acc)[kDim / 4]) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4, lane = static_cast<int>(threadIdx.x) % 32;
  const float top = s.rescale[warp * 16 + lane / 4], bottom = s.rescale[warp * 16 + lane / 4 + 8];
#pragma unroll
  for (int i = 0; i < kDim / 4; ++i) acc[i] *= i / 2 % 2 == 0 ? top : bottom;
  const std::uint32_t p = ptx::SharedAddress(s.probabilities),
                      values = ptx::SharedAddress(s.keys) + static_cast<std::uint32_t>(group * (kDim / 16) * kKeyCores);
  ptx::WarpgroupFence();
#pragma unroll
  for (int step = 0; step < kBlock / 16; ++step) {
    ptx::AddTransposed256(acc,
                          ptx::CoreDescriptor(p + static_cast<std::uint32_t>(2 * step * kHeadCores), kHeadCores, kCore),
                          ptx::CoreDescriptor(values + static_cast<std::uint32_t>(2 * step * kCore), kCore, kKeyCores));
  }
  ptx::WarpgroupCommit();
  ptx::WarpgroupWait<0>();
}

__device__ __forceinline__ void Finish(const AttentionTask& task, int t, int head0, int group,
                                       const float (&acc)[kDim / 4], const Shared& s) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4, lane = static_cast<int>(threadIdx.x) % 32;
  const int turned_from = kDim - task.rope.dims;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int local = warp * 16 + lane / 4 + half * 8, head = head0 + local;
    if (head >= task.heads) continue;
    const float denominator = s.denominator[local];
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      const int d = group * (kDim / 2) + n * 8 + lane % 4 * 2;
      const std::uint32_t pair = Pack(acc[4 * n + 2 * half] / denominator, acc[4 * n + 2 * half + 1] / denominator);
      const std::int64_t at = ((static_cast<std::int64_t>(t) * task.heads + head) * kDim + d) / 2;
      StorePair(task, s.angle, turned_from, at, d, pair);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1) HeadsAttentionKernel(AttentionTask task, float scale) {
  ptx::BeginKernel();
  extern __shared__ __align__(128) std::uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int t = static_cast<int>(blockIdx.y), head0 = static_cast<int>(blockIdx.x) * kHeads;
  const int tid = static_cast<int>(threadIdx.x), group = tid / 128, local = tid % 128, lane = tid % 32;
  const SequenceEntry sequence = task.step.sequence_of(t);
  const Places places = PlacesOf(task, sequence, t, CountEntries<kThreads>(task, t));
  FindKeys<kThreads, kBlock>(task, sequence, places, t, s.places);
  LoadQueries(task, t, head0, s);
  if (tid < task.rope.dims / 2) s.angle[tid] = RopeAngle(task.rope, task.step.positions[t], tid);
  __syncthreads();

  // Of the fragments' two rows a thread keeps the first in warpgroup 0, the second in warpgroup 1.
  const int own = local / 32 * 16 + lane / 4 + group * 8;
  Row row;
  float acc[kDim / 4] = {};
  int begin = places.NextBlock<kBlock>(0);
  if (begin < places.end()) FetchKeys<kThreads, kBlock>(s.places + begin, s.raw);
  while (begin < places.end()) {
    const int next = places.NextBlock<kBlock>(begin + kBlock);
    ptx::WaitCopies<0>();
    __syncthreads();
    DecodeKeys(s.places + begin, s);
    ptx::FenceForWarpgroup();
    __syncthreads();
    if (next < places.end()) FetchKeys<kThreads, kBlock>(s.places + next, s.raw);
    float sum[2 * kPerThread];
    Scores(s, group, sum);
    float score[kPerThread];
#pragma unroll
    for (int j = 0; j < kBlock / 8; ++j) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        s.exchange[group][2 * j + b][local] = group == 0 ? sum[4 * j + 2 + b] : sum[4 * j + b];
        score[2 * j + b] = group == 0 ? sum[4 * j + b] : sum[4 * j + 2 + b];
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const float both = score[i] + s.exchange[1 - group][i][local];
      const int key = i / 2 * 8 + lane % 4 * 2 + i % 2;
      score[i] = s.places[begin + key].kind != KeyKind::kNone ? both * scale : -INFINITY;
    }
    const float rescale = Softmax(score, row);
    if (lane % 4 == 0) s.rescale[own] = rescale;
#pragma unroll
    for (int j = 0; j < kBlock / 8; ++j) {
      *reinterpret_cast<std::uint32_t*>(s.probabilities + j * kHeadCores + own / 8 * kCore + own % 8 * 16 +
                                        lane % 4 * 4) = Pack(score[2 * j], score[2 * j + 1]);
    }
    ptx::FenceForWarpgroup();
    __syncthreads();
    AddValues(s, group, acc);
    begin = next;
  }
  if (lane % 4 == 0 && head0 + own < task.heads) {
    s.denominator[own] = row.denominator + expf(task.sink[head0 + own] - row.running);
  }
  __syncthreads();
  Finish(task, t, head0, group, acc, s);
}

}  // namespace

void HeadsAttention(const AttentionTask& task, cudaStream_t stream) {
  if (task.step.rows == 0) return;
  const std::size_t places =
      static_cast<std::size_t>(task.window_size + task.topk + (task.draft ? kDraftRowsMax : 0) + kBlock);
  const std::size_t shared = sizeof(Shared) + places * sizeof(KeyPlace);
  cudaFuncSetAttribute(HeadsAttentionKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  LaunchKernel(HeadsAttentionKernel,
               dim3(static_cast<unsigned>((task.heads + kHeads - 1) / kHeads), static_cast<unsigned>(task.step.rows)),
               kThreads, shared, stream, task, static_cast<float>(1.0 / sqrt(static_cast<double>(kDim))));
}

}  // namespace galley::backend::cuda
