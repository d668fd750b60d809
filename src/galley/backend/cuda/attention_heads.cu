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

// Four words of each of four neighbouring threads, transposed: thread i gets word i of each.
__device__ __forceinline__ uint4 TransposeFour(const std::uint32_t (&w)[4], int lane) {
  const bool odd = lane % 2 != 0, high = lane / 2 % 2 != 0;
  const std::uint32_t a = __shfl_xor_sync(kFullWarp, odd ? w[0] : w[1], 1),
                      b = __shfl_xor_sync(kFullWarp, odd ? w[2] : w[3], 1);
  const std::uint32_t x[4] = {odd ? a : w[0], odd ? w[1] : a, odd ? b : w[2], odd ? w[3] : b};
  const std::uint32_t c = __shfl_xor_sync(kFullWarp, high ? x[0] : x[2], 2),
                      d = __shfl_xor_sync(kFullWarp, high ? x[1] : x[3], 2);
  return high ? uint4{c, d, x[2], x[3]} : uint4{x[0], x[1], c, d};
}

__device__ __forceinline__ std::uint32_t TurnBack(std::uint32_t pair, float2 angle) {
  const float re = LowHalf(pair), im = HighHalf(pair);
  return ptx::RoundPair(re * angle.x + im * angle.y, im * angle.x - re * angle.y);
}

// Half of the dimensions of one of the fragments' two rows: as they are, where a copy of that is wanted, and with the
// last dimensions turned back by the row's angles. `sums` are those of `side`, a quarter of the dimensions.
__device__ __forceinline__ void StoreRow(const AttentionTask& task, const Part& part, const Item& item,
                                         const float2* angle, int side, int second, const float (&sums)[kHalf / 4],
                                         float inverse) {
  const int head = item.head0 + part.warp * 16 + second * 8 + part.lane / 4;
  const int first = part.half * kHalf + side * (kHalf / 2);
  const std::int64_t row = (static_cast<std::int64_t>(item.t) * task.heads + head) * kDim;
#pragma unroll
  for (int n = 0; n < kHalf / 16; n += 4) {
    std::uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* sum = sums + 4 * (n + i) + 2 * second;
      pairs[i] = ptx::RoundPair(sum[0] * inverse, sum[1] * inverse);
    }
    const uint4 p = TransposeFour(pairs, part.lane);
    uint4 value = {__byte_perm(p.x, p.y, 0x5410), __byte_perm(p.z, p.w, 0x5410), __byte_perm(p.x, p.y, 0x7632),
                   __byte_perm(p.z, p.w, 0x7632)};
    const int d = first + (n + part.lane % 4) * 8;
    if (head >= task.heads) continue;
    if (task.unrotated_copy != nullptr) *reinterpret_cast<uint4*>(task.unrotated_copy + row + d) = value;
    const int turned = (d - (kDim - task.rope.dims)) / 2;
    if (side == 1 && turned >= 0) {
      value = {TurnBack(value.x, angle[turned]), TurnBack(value.y, angle[turned + 1]),
               TurnBack(value.z, angle[turned + 2]), TurnBack(value.w, angle[turned + 3])};
    }
    *reinterpret_cast<uint4*>(task.out + row + d) = value;
  }
}

__device__ __forceinline__ void AddValues(const AttentionTask& task, const Part& part, Shared& s) {
  Cursor<kKeyBuffers> buffer;
  Cursor<kProbabilitySlots> ready;
  Cursor<kRows> next_row;
  ForItems(task, [&](const Item& item) {
    const int blocks = NextRow(s, next_row);
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
      __syncwarp();
      if (part.lane == 0) {
        const std::uint32_t empty = At(s.probability_empty[ready.slot]);
        ptx::Arrive(empty);
        ptx::ArriveInBlock(ptx::AddressInBlock(empty, 1 - part.half));
      }
      ready.Advance();

      ptx::WaitPhase(At(s.key_full[buffer.slot]), buffer.parity);
      const std::uint64_t values = ptx::CoreDescriptor(At(s.keys[buffer.slot]), kCore, kPieceCores);
#pragma unroll
      for (int i = 0; i < kHalf / 2; ++i) acc[i / (kHalf / 4)][i % (kHalf / 4)] *= i / 2 % 2 == 0 ? top : bottom;
      for (float(&sums)[kHalf / 4] : acc) ptx::HoldSums(sums);
      ptx::WarpgroupFence();
#pragma unroll
      for (int step = 0; step < kBlock / 16; ++step) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          ptx::AddTransposed128(acc[side], a[step],
                                ptx::MovedBy(values, 2 * step * kCore + side * (kHalf / 16) * kPieceCores));
        }
      }
      ptx::WarpgroupCommit();
      // Before anything is loaded: the products read `a` as they go.
      ptx::WarpgroupWait<0>();
      for (float(&sums)[kHalf / 4] : acc) ptx::HoldSums(sums);
      if (part.lane == 0) ptx::Arrive(At(s.key_empty[buffer.slot]));
      buffer.Advance();
    }
    ptx::WaitPhase(At(s.probability_full[ready.slot]), ready.parity);
    float inverse[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) inverse[i] = s.probabilities[ready.slot].factor[i][part.local];
    __syncwarp();
    if (part.lane == 0) {
      const std::uint32_t empty = At(s.probability_empty[ready.slot]);
      ptx::Arrive(empty);
      ptx::ArriveInBlock(ptx::AddressInBlock(empty, 1 - part.half));
    }
    ready.Advance();
#pragma unroll
    for (int side = 0; side < 2; ++side) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        StoreRow(task, part, item, s.angle[next_row.slot], side, second, acc[side], inverse[second]);
      }
    }
    __syncwarp();
    if (part.lane == 0) ptx::Arrive(At(s.row_empty[next_row.slot]));
    next_row.Advance();
  });
}

__global__ void __launch_bounds__(kThreads, 1) HeadsAttentionKernel(AttentionTask task, float scale) {
  extern __shared__ __align__(128) std::uint8_t memory[];
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
    ptx::RaiseRegisters<176>();
    MakeProbabilities(task, scale, part, s);
  } else if (role == 1) {
    ptx::RaiseRegisters<176>();
    AddValues(task, part, s);
    ptx::WaitCluster();
  } else {
    ptx::ReduceRegisters<80>();
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
  const std::size_t shared = sizeof(Shared) + PlacesMax(task, kBlock) * sizeof(KeyPlace);
  cudaFuncSetAttribute(HeadsAttentionKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  const int items = task.step.rows * ((task.heads + kHeads - 1) / kHeads);
  constexpr double kLog2E = 1.4426950408889634;
  LaunchClusters(HeadsAttentionKernel, dim3(static_cast<unsigned>(std::min(items, MultiprocessorCount() / 2)), 1, 2),
                 kThreads, shared, stream, task, static_cast<float>(ScoreScale() * kLog2E * (1 << kKeyShift)));
}

}  // namespace galley::backend::cuda
