// SPDX-License-Identifier: Apache-2.0
// Attention of models with many heads, by warpgroup products (sm_90a). A cluster of two blocks of threads takes 64
// heads of a row at a time. Each block has half of the dimensions of every key, so nothing is decoded or multiplied
// twice. Its warpgroups work off the list in blocks of 64 places, and row after row, each as far ahead of the next as
// buffers allow:
// * records (two warpgroups, attention_records.cuh): fetch and decode this block's half of a block of keys;
// * scores (attention_scores.cuh): products of queries and keys, softmax;
// * values (here): products of probabilities and keys, the result.
// A row's bits depend on nothing but the row.
#include <algorithm>

#include "galley/backend/cuda/attention_records.cuh"
#include "galley/backend/cuda/attention_scores.cuh"
#include "galley/backend/cuda/launch.h"

namespace galley::backend::cuda {
namespace heads {
namespace {

__device__ __forceinline__ std::uint32_t TurnBack(std::uint32_t pair, float2 angle) {
  const float re = LowHalf(pair), im = HighHalf(pair);
  return Pack(re * angle.x + im * angle.y, im * angle.x - re * angle.y);
}

// The warp's 16 heads of this half of the result, by way of shared memory: as they are, where a copy of that is wanted,
// and with the last dimensions turned back by the row's angles.
__device__ __forceinline__ void StoreResult(const AttentionTask& task, const Part& part, const Item& item,
                                            const float2* angle, const float (&acc)[2][kHalf / 4],
                                            const float (&inverse)[2], std::uint8_t* staging) {
  std::uint8_t* rows = staging + part.warp * 16 * kRowBytes;
  const int lane = part.lane;
#pragma unroll
  for (int n = 0; n < kHalf / 8; n += 2) {
    const float* sum = acc[n / (kHalf / 16)] + 4 * (n % (kHalf / 16));
    std::uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = Pack(sum[2 * i] * inverse[i % 2], sum[2 * i + 1] * inverse[i % 2]);
    }
    ptx::StoreMatrix4(
        ptx::SharedAddress(rows + lane % 16 * kRowBytes + (n / 8 * 8 + ((n % 8 + lane / 16) ^ lane % 8)) * 16), pairs);
  }
  __syncwarp();
  const int d = part.half * kHalf + lane * 8, turned = (d - (kDim - task.rope.dims)) / 2;
  const int heads = min(task.heads - item.head0 - part.warp * 16, 16);
  std::int64_t at = (static_cast<std::int64_t>(item.t) * task.heads + item.head0 + part.warp * 16) * kDim + d;
#pragma unroll 2
  for (int row = 0; row < heads; ++row, at += kDim) {
    const uint4 p = *reinterpret_cast<const uint4*>(rows + row * kRowBytes + (lane ^ row % 8) * 16);
    uint4 value = {__byte_perm(p.x, p.y, 0x5410), __byte_perm(p.z, p.w, 0x5410), __byte_perm(p.x, p.y, 0x7632),
                   __byte_perm(p.z, p.w, 0x7632)};
    if (task.unrotated_copy != nullptr) *reinterpret_cast<uint4*>(task.unrotated_copy + at) = value;
    if (turned >= 0) {
      value = {TurnBack(value.x, angle[turned]), TurnBack(value.y, angle[turned + 1]),
               TurnBack(value.z, angle[turned + 2]), TurnBack(value.w, angle[turned + 3])};
    }
    *reinterpret_cast<uint4*>(task.out + at) = value;
  }
}

// This warp has read a message.
__device__ __forceinline__ void Consumed(const Part& part, Shared& s, Cursor<kProbabilitySlots>& ready) {
  __syncwarp();
  if (part.lane == 0) {
    const std::uint32_t empty = At(s.probability_empty[ready.slot]);
    ptx::Arrive(empty);
    ptx::ArriveInBlock(ptx::AddressInBlock(empty, 1 - part.half));
  }
  ready.Advance();
}

__device__ __forceinline__ void AddValues(const AttentionTask& task, const Part& part, Shared& s) {
  Cursor<kKeyBuffers> buffer;
  Cursor<kProbabilitySlots> ready;
  Cursor<kRows> row;
  for (int i = static_cast<int>(blockIdx.x); i < Items(task); i += static_cast<int>(gridDim.x)) {
    const int blocks = BlocksOf(s, row);
    buffer.Advance();              // queries
    float acc[2][kHalf / 4] = {};  // of each half of the dimensions
    for (int b = 0; b < blocks; ++b) {
      ptx::WaitPhase(At(s.probability_full[ready.slot]), ready.parity);
      const Probabilities& p = s.probabilities[ready.slot];
      std::uint32_t a[4][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 top = p.pairs[0][i][part.local], bottom = p.pairs[1][i][part.local];
        a[2 * i][0] = top.x, a[2 * i][1] = bottom.x, a[2 * i][2] = top.y, a[2 * i][3] = bottom.y;
        a[2 * i + 1][0] = top.z, a[2 * i + 1][1] = bottom.z, a[2 * i + 1][2] = top.w, a[2 * i + 1][3] = bottom.w;
      }
      const float top = p.factor[0][part.local], bottom = p.factor[1][part.local];
      Consumed(part, s, ready);

      ptx::WaitPhase(At(s.key_full[buffer.slot]), buffer.parity);
      const std::uint64_t values = ptx::SwizzledDescriptor(At(s.keys[buffer.slot]), kCore, kLine);
#pragma unroll
      for (int i = 0; i < kHalf / 2; ++i) acc[i / (kHalf / 4)][i % (kHalf / 4)] *= i / 2 % 2 == 0 ? top : bottom;
      for (float(&sums)[kHalf / 4] : acc) ptx::HoldSums(sums);
      ptx::WarpgroupFence();
#pragma unroll
      for (int step = 0; step < kBlock / 16; ++step) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          ptx::AddTransposed128(acc[side], a[step], ptx::MovedBy(values, 2 * step * kCore + side * 2 * kLine));
        }
      }
      ptx::WarpgroupCommit();
      // Before anything is loaded: the products read `a` as they go.
      ptx::WarpgroupWait<0>();
      for (float(&sums)[kHalf / 4] : acc) ptx::HoldSums(sums);
      if (b + 1 == blocks) break;  // the last buffer is kept for the result
      if (part.lane == 0) ptx::Arrive(At(s.key_empty[buffer.slot]));
      buffer.Advance();
    }
    ptx::WaitPhase(At(s.probability_full[ready.slot]), ready.parity);
    float inverse[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) inverse[k] = s.probabilities[ready.slot].factor[k][part.local];
    Consumed(part, s, ready);
    ptx::SyncThreads(1, kGroup);  // all warps are done with the keys
    StoreResult(task, part, ItemAt(task, i), s.angle[row.slot], acc, inverse, s.keys[buffer.slot]);
    __syncwarp();
    if (part.lane == 0) {
      ptx::Arrive(At(s.key_empty[buffer.slot]));
      ptx::Arrive(At(s.row_empty[row.slot]));
    }
    buffer.Advance();
    row.Advance();
  }
}

__global__ void __launch_bounds__(kThreads, 1) HeadsAttentionKernel(AttentionTask task, float scale) {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  ptx::LetNextKernelStart();
  if (threadIdx.x == 0) InitBarriers(s);
  __syncthreads();
  ptx::ArriveCluster();
  ptx::WaitForPreviousKernel();
  const int tid = static_cast<int>(threadIdx.x);
  const Part part{
      .half = static_cast<int>(blockIdx.z), .lane = tid % 32, .warp = tid % kGroup / 32, .local = tid % kGroup};
  const int role = __shfl_sync(kFullWarp, tid / kGroup, 0);
  if (role == 0) {
    ptx::RaiseRegisters<160>();
    if (part.half == 0) {
      MakeProbabilities<0>(task, scale, part, s);
    } else {
      MakeProbabilities<1>(task, scale, part, s);
    }
  } else if (role == 1) {
    ptx::RaiseRegisters<176>();
    AddValues(task, part, s);
    ptx::WaitCluster();
  } else {
    ptx::ReduceRegisters<88>();
    DecodeRows(task, part, s);
    ptx::WaitCluster();
  }
  // The other block may still write here.
  ptx::ArriveCluster();
  ptx::WaitCluster();
}

}  // namespace
}  // namespace heads

void HeadsAttention(const AttentionTask& task, cudaStream_t stream) {
  using namespace heads;
  const std::size_t shared = sizeof(Shared) + kRows * PlacesMax(task, kBlock) * sizeof(KeyPlace);
  cudaFuncSetAttribute(HeadsAttentionKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  const int items = task.step.rows * ((task.heads + kHeads - 1) / kHeads);
  constexpr double kLog2E = 1.4426950408889634;
  LaunchClusters(HeadsAttentionKernel, dim3(static_cast<unsigned>(std::min(items, MultiprocessorCount() / 2)), 1, 2),
                 kThreads, shared, stream, task, static_cast<float>(ScoreScale() * kLog2E * (1 << kKeyShift)));
}

}  // namespace galley::backend::cuda
