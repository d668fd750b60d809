// SPDX-License-Identifier: Apache-2.0
// Attention of one row over its list of keys, in parts of 80 places. A block of threads takes up to 64 heads of a row
// and one part: it reads the part's records once, straight into bf16 rows of shared memory, has all scores at hand
// before the first probability, and so needs no running maximum. The blocks of a row's parts are one cluster and add
// their sums in ascending order from each other's shared memory, each block some heads. Where a part begins and what
// adds up in which order depends on the row alone: the same bits at every number of rows.
#include "galley/backend/cuda/attention_parts.h"

#include <bit>

#include "galley/backend/cuda/attention_keys.cuh"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/cluster.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32, kHeads = 64;
constexpr int kKeysPerWarp = kPartKeys / kWarps, kTiles = kPartKeys / 8;  // keys that a warp reads; tiles of 8 keys
constexpr int kScoreStride = kPartKeys + 4;                               // fp32 values
constexpr int kProbStride = kPartKeys + 8;                                // bf16 values
constexpr int kSumStride = kDim + 8;                                      // fp32 values; the pad keeps banks apart
constexpr int kWarpColumns = kDim / kWarps;                               // values of a head that a warp adds up

struct Shared {
  // Queries and keys; once both have been used, the sums.
  alignas(16) BFloat16 q[kHeads * kRowStride];
  alignas(16) BFloat16 keys[kPartKeys * kRowStride];
  float scores[kHeads * kScoreStride];
  alignas(16) BFloat16 probabilities[kHeads * kProbStride];
  float largest[kHeads], total[kHeads];  // of this part: the largest score, and the sum of probabilities
  float all_largest[kPartsMax][kHeads], all_total[kPartsMax][kHeads];
  float2 angle[64];
  int kind[kPartKeys];
  __device__ float* sums() { return reinterpret_cast<float*>(q); }
};
static_assert(kHeads * kSumStride * sizeof(float) <= (kHeads + kPartKeys) * kRowStride * sizeof(BFloat16));

// Every warp reads five keys; a lane 16 values of each. All are on their way before the first is decoded. Places
// without a key become zeros.
__device__ void ReadKeys(const AttentionTask& task, const SequenceEntry& sequence, const Places& places, int t,
                         int first, Shared& s) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  KeyPlace key[kKeysPerWarp];
  uint4 codes[kKeysPerWarp];
  std::uint32_t scale[kKeysPerWarp];
#pragma unroll
  for (int j = 0; j < kKeysPerWarp; ++j) key[j] = KeyAt(task, sequence, places, t, first + warp * kKeysPerWarp + j);
#pragma unroll
  for (int j = 0; j < kKeysPerWarp; ++j) {
    codes[j] = {0, 0, 0, 0};
    scale[j] = 0;
    if (key[j].kind == KeyKind::kWindow) {
      codes[j] = *reinterpret_cast<const uint4*>(key[j].codes + lane * 16);
      scale[j] = key[j].codes[key[j].scales + lane / 2];
    } else if (key[j].kind == KeyKind::kEntry) {
      const uint2 half = *reinterpret_cast<const uint2*>(key[j].codes + lane * 8);
      codes[j].x = half.x, codes[j].y = half.y;
      scale[j] = key[j].codes[key[j].scales + lane];
    }
  }
#pragma unroll
  for (int j = 0; j < kKeysPerWarp; ++j) {
    uint4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
    if (key[j].kind == KeyKind::kWindow) {
      low = DecodeWindow({codes[j].x, codes[j].y}, scale[j]);
      high = DecodeWindow({codes[j].z, codes[j].w}, scale[j]);
    } else if (key[j].kind == KeyKind::kEntry) {
      low = DecodeEntry(codes[j].x, scale[j]);
      high = DecodeEntry(codes[j].y, scale[j]);
    }
    // Every second four lanes store their upper half first: eight lanes at once meet all banks.
    const int turn = lane / 4 % 2;
    BFloat16* to = s.keys + (warp * kKeysPerWarp + j) * kRowStride + lane * 16;
    *reinterpret_cast<uint4*>(to + turn * 8) = turn != 0 ? high : low;
    *reinterpret_cast<uint4*>(to + 8 - turn * 8) = turn != 0 ? low : high;
    if (lane == 0) s.kind[warp * kKeysPerWarp + j] = static_cast<int>(key[j].kind);
  }
}

__device__ void CopyQueries(const AttentionTask& task, int t, int head0, Shared& s) {
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * kDim / 8; i += kThreads) {
    const int head = i / (kDim / 8), piece = i % (kDim / 8);
    const bool valid = head0 + head < task.heads;
    const BFloat16* from = task.q + (static_cast<std::int64_t>(t) * task.heads + head0 + (valid ? head : 0)) * kDim;
    ptx::CopyAsync16(s.q + head * kRowStride + piece * 8, from + piece * 8, valid);
  }
  ptx::CommitCopies();
}

// A warp takes 16 heads against every fourth tile of 8 keys. Even and odd steps of K have sums of their own.
__device__ void Scores(float scale, Shared& s) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kOwn = (kTiles + 3) / 4;
  const int heads = warp % 4 * 16, tile0 = warp / 4;
  float even[kOwn][4] = {}, odd[kOwn][4] = {};
  const BFloat16* q = s.q + (heads + lane % 16) * kRowStride + lane / 16 * 8;
  const BFloat16* k = s.keys + (tile0 * 8 + lane % 8) * kRowStride + lane / 8 * 8;
#pragma unroll 4
  for (int step = 0; step < kDim / 32; ++step) {
    std::uint32_t a0[4], a1[4];
    ptx::LoadMatrix4(a0, q + step * 32);
    ptx::LoadMatrix4(a1, q + step * 32 + 16);
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      if (tile0 + n * 4 >= kTiles) continue;  // the same for the whole warp
      std::uint32_t b[4];
      ptx::LoadMatrix4(b, k + n * 32 * kRowStride + step * 32);
      ptx::Mma16x8x16(even[n], a0, b[0], b[1]);
      ptx::Mma16x8x16(odd[n], a1, b[2], b[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < kOwn; ++n) {
    if (tile0 + n * 4 >= kTiles) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = (tile0 + n * 4) * 8 + lane % 4 * 2 + i % 2;
      const bool used = s.kind[key] != static_cast<int>(KeyKind::kNone);
      s.scores[(heads + lane / 4 + i / 2 * 8) * kScoreStride + key] =
          used ? (even[n][i] + odd[n][i]) * scale : -INFINITY;
    }
  }
}

// Four heads a warp.
__device__ void Softmax(Shared& s) {
  constexpr int kPerWarp = kHeads / kWarps, kPerLane = (kPartKeys + 31) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kPerWarp; ++j) {
    const int head = warp * kPerWarp + j;
    float score[kPerLane], largest = -1e30f, sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int key = i * 32 + lane;
      score[i] = key < kPartKeys ? s.scores[head * kScoreStride + key] : -INFINITY;
      largest = fmaxf(largest, score[i]);
    }
    largest = WarpMax(largest);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int key = i * 32 + lane;
      const float p = expf(score[i] - largest);
      sum += p;
      if (key < kPartKeys) s.probabilities[head * kProbStride + key] = ToBFloat16(p);
    }
    sum = WarpSum(sum);
    if (lane == 0) s.largest[head] = largest, s.total[head] = sum;
  }
}

// 32 values of all heads a warp: sum[16 heads][8 values] += probabilities times values.
__device__ void AddValues(const Shared& s, float (&sum)[kHeads / 16][kWarpColumns / 8][4]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 0; step < kPartKeys / 16; ++step) {
    std::uint32_t a[kHeads / 16][4];
#pragma unroll
    for (int m = 0; m < kHeads / 16; ++m) {
      ptx::LoadMatrix4(a[m], s.probabilities + (m * 16 + lane % 16) * kProbStride + step * 16 + lane / 16 * 8);
    }
#pragma unroll
    for (int n = 0; n < kWarpColumns / 16; ++n) {
      std::uint32_t b[4];
      ptx::LoadMatrix4Transposed(
          b, s.keys + (step * 16 + lane % 16) * kRowStride + warp * kWarpColumns + n * 16 + lane / 16 * 8);
#pragma unroll
      for (int m = 0; m < kHeads / 16; ++m) {
        ptx::Mma16x8x16(sum[m][2 * n], a[m], b[0], b[1]);
        ptx::Mma16x8x16(sum[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

__device__ void StoreSums(const float (&sum)[kHeads / 16][kWarpColumns / 8][4], Shared& s) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < kHeads / 16; ++m) {
#pragma unroll
    for (int n = 0; n < kWarpColumns / 8; ++n) {
      float* to = s.sums() + (m * 16 + lane / 4) * kSumStride + warp * kWarpColumns + n * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(to) = {sum[m][n][0], sum[m][n][1]};
      *reinterpret_cast<float2*>(to + 8 * kSumStride) = {sum[m][n][2], sum[m][n][3]};
    }
  }
}

// Two neighbours of a head's values, as they go out.
__device__ __forceinline__ std::uint32_t TurnedBack(const AttentionTask& task, std::uint32_t pair, int d,
                                                    const Shared& s) {
  const int turned_from = kDim - task.rope.dims;
  if (d < turned_from) return pair;
  const float2 angle = s.angle[(d - turned_from) / 2];
  const float2 back = Turn(LowHalf(pair), HighHalf(pair), {angle.x, -angle.y});
  return Pack(back.x, back.y);
}

// Every block of the cluster adds the parts of its share of the heads, four values a thread.
__device__ void Merge(const AttentionTask& task, int t, int head0, int part, int parts, Shared& s) {
  const int last = min(kHeads, task.heads - head0);
  for (int i = part * kThreads + static_cast<int>(threadIdx.x); i < last * (kDim / 4); i += parts * kThreads) {
    const int head = i / (kDim / 4), d = i % (kDim / 4) * 4;
    float largest = -1e30f, total = 0;
    for (int p = 0; p < parts; ++p) largest = fmaxf(largest, s.all_largest[p][head]);
    float4 sum = {0, 0, 0, 0};
    for (int p = 0; p < parts; ++p) {
      const float weight = expf(s.all_largest[p][head] - largest);
      if (s.all_total[p][head] == 0) continue;  // a part without keys, which has stored no sums
      const float4 add = ptx::LoadFourOfBlock(s.sums() + head * kSumStride + d, p);
      total = __fmaf_rn(s.all_total[p][head], weight, total);
      sum.x = __fmaf_rn(add.x, weight, sum.x), sum.y = __fmaf_rn(add.y, weight, sum.y);
      sum.z = __fmaf_rn(add.z, weight, sum.z), sum.w = __fmaf_rn(add.w, weight, sum.w);
    }
    const float denominator = total + expf(task.sink[head0 + head] - largest);
    const std::uint32_t low = Pack(sum.x / denominator, sum.y / denominator);
    const std::uint32_t high = Pack(sum.z / denominator, sum.w / denominator);
    const std::int64_t at = ((static_cast<std::int64_t>(t) * task.heads + head0 + head) * kDim + d) / 4;
    if (task.unrotated_copy != nullptr) reinterpret_cast<uint2*>(task.unrotated_copy)[at] = {low, high};
    reinterpret_cast<uint2*>(task.out)[at] = {TurnedBack(task, low, d, s), TurnedBack(task, high, d + 2, s)};
  }
}

__global__ void __launch_bounds__(kThreads, 1) PartKernel(AttentionTask task, float scale) {
  ptx::BeginKernel();
  extern __shared__ __align__(16) std::uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int t = static_cast<int>(blockIdx.y), head0 = static_cast<int>(blockIdx.x) * kHeads;
  const int tid = static_cast<int>(threadIdx.x);
  const int part = static_cast<int>(blockIdx.z), parts = static_cast<int>(gridDim.z);
  CopyQueries(task, t, head0, s);
  const SequenceEntry sequence = task.step.sequence_of(t);
  int entries = 0;
  for (int i = 0; task.list != nullptr && i < task.topk; i += kThreads) {
    const bool used = i + tid < task.topk && task.list[static_cast<std::int64_t>(t) * task.topk + i + tid] >= 0;
    entries += __syncthreads_count(used);
  }
  const Places places = PlacesOf(task, sequence, t, entries);
  const int first = part * kPartKeys;
  const bool window = first < places.window_rows;
  const bool history = entries > 0 && first + kPartKeys > places.window_places && first < places.end();
  if (window || history) {  // the same for the whole block
    ReadKeys(task, sequence, places, t, first, s);
    ptx::WaitCopies<0>();
    __syncthreads();
    Scores(scale, s);
    __syncthreads();
    Softmax(s);
    __syncthreads();
    float sum[kHeads / 16][kWarpColumns / 8][4] = {};
    AddValues(s, sum);
    __syncthreads();
    StoreSums(sum, s);
  } else {
    ptx::WaitCopies<0>();
    if (tid < kHeads) s.largest[tid] = -1e30f, s.total[tid] = 0;
  }
  if (tid < task.rope.dims / 2) s.angle[tid] = RopeAngle(task.rope, task.step.positions[t], tid);
  ptx::SyncCluster();
  for (int i = tid; i < parts * kHeads; i += kThreads) {
    s.all_largest[i / kHeads][i % kHeads] = ptx::LoadOfBlock(&s.largest[i % kHeads], i / kHeads);
    s.all_total[i / kHeads][i % kHeads] = ptx::LoadOfBlock(&s.total[i % kHeads], i / kHeads);
  }
  __syncthreads();
  Merge(task, t, head0, part, parts, s);
  ptx::SyncCluster();  // no block ends while another reads its sums
}

void LaunchParts(const AttentionTask& task, int places, cudaStream_t stream) {
  if (task.step.rows == 0) return;
  // Clusters are powers of two; parts beyond the list are empty. Grids are at most 65,535 rows high, more than a step
  // has.
  const dim3 grid(static_cast<unsigned>((task.heads + kHeads - 1) / kHeads), static_cast<unsigned>(task.step.rows),
                  std::bit_ceil(static_cast<unsigned>((places + kPartKeys - 1) / kPartKeys)));
  cudaFuncSetAttribute(PartKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(Shared)));
  const float scale = static_cast<float>(1.0 / sqrt(static_cast<double>(kDim)));
  LaunchClusters(PartKernel, grid, kThreads, sizeof(Shared), stream, task, scale);
}

}  // namespace

void PartAttention(const AttentionArgs& args, cudaStream_t stream) {
  LaunchParts(TaskOf(args), args.window_size + args.topk, stream);
}

void PartDraftAttention(const DraftAttentionArgs& args, cudaStream_t stream) {
  LaunchParts(TaskOf(args), args.window_size + kDraftRowsMax, stream);
}

}  // namespace galley::backend::cuda
