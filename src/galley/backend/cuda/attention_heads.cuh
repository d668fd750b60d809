// SPDX-License-Identifier: Apache-2.0
// What the warpgroups of attention_heads.cu share: shared memory and its barriers.
#pragma once

#include "galley/backend/cuda/attention_keys.cuh"
#include "galley/backend/cuda/ptx/bulk_copy.cuh"
#include "galley/backend/cuda/ptx/cluster.cuh"
#include "galley/backend/cuda/ptx/math.cuh"
#include "galley/backend/cuda/ptx/wgmma.cuh"

namespace galley::backend::cuda::heads {

constexpr int kHeads = 64, kBlock = 64, kHalf = kDim / 2, kThreads = 512, kGroup = 128;
// A block of keys lies in lines of 64 dimensions, 128 bytes of each key; their pieces of 16 bytes are swizzled, so that
// products read them fast both along the dimensions and along the keys.
constexpr int kCore = 8 * 128, kLine = kBlock / 8 * kCore, kKeyBytes = kHalf / 64 * kLine;
constexpr int kRowBytes = kHalf * 2;    // of a head's queries or result
constexpr int kRawStride = kHalf + 16;  // bytes of a raw record: codes, then scales; an odd multiple of 16
// Scores run up to two blocks ahead of values, so that three blocks of keys are in use while the next is decoded.
constexpr int kKeyBuffers = 4, kRawStages = 2, kScoreSlots = 3, kProbabilitySlots = 2, kRows = 2;
static_assert(kKeyBuffers >= 3);  // or values would wait for scores that wait for keys
constexpr int kRecordWarps = kBlock / 8;
constexpr int kTurnedPairsMax = 64;  // of a head
static_assert(kHeads * kRowBytes == kKeyBytes);

// Keys are kept 2^16 times smaller than they are, so that the scale of an entry and what the bits of its codes are
// short of make one factor; scores and the result are brought back.
constexpr int kKeyShift = 16;
// The dimensions of keys lie in an order of their own in each piece of eight, d0 d4 d1 d5 d2 d6 d3 d7, which is what
// the codes of an entry give without shuffling. Queries are brought into it when they have come, and the result is put
// in order.

// Probabilities of a block of keys as operands of the values' products: of heads l/4 (+ 8) for lane l, from block 0 (1)
// of the cluster. `factor`: how much earlier sums shrink; in the last message of a row, the inverse of the denominator.
struct Probabilities {
  uint4 pairs[2][2][kGroup];
  float factor[2][kGroup];
};
constexpr int kScoreBytes = kGroup * 64, kFactorBytes = kGroup * 4, kPairBytes = kGroup * 32;

struct Shared {
  // A row's queries (heads behind each other, their pieces of 16 bytes swizzled), then its blocks of keys, in cores;
  // the buffer of the last one serves the result on its way out.
  alignas(kCore) std::uint8_t keys[kKeyBuffers][kKeyBytes];
  alignas(128) uint2 scores[kScoreSlots][8][kGroup];  // of the other block
  Probabilities probabilities[kProbabilitySlots];
  alignas(16) std::uint8_t raw[kRecordWarps][kRawStages][8 * kRawStride];
  // Of the eight keys of each warp, which are keys at all.
  alignas(8) std::uint8_t used[kKeyBuffers][kRecordWarps];
  std::uint64_t key_full[kKeyBuffers], key_empty[kKeyBuffers];
  std::uint64_t score_full[kScoreSlots];
  std::uint64_t probability_full[kProbabilitySlots], probability_empty[kProbabilitySlots];
  // Of rows: how many blocks of keys, and the angles of its rotation.
  std::uint64_t row_full[kRows], row_empty[kRows];
  int blocks[kRows];
  float2 angle[kRows][kTurnedPairsMax];
  KeyPlace places[1];  // kRows lists: every place of the visited blocks; on beyond this struct
};

// Where a thread is in a ring of N, and the parity of the ring's turn.
template <int N>
struct Cursor {
  int slot = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++slot == N) slot = 0, parity ^= 1;
  }
};

template <typename T>
__device__ __forceinline__ std::uint32_t At(const T& shared) {
  return ptx::SharedAddress(&shared);
}

__device__ __forceinline__ void InitBarriers(Shared& s) {
  constexpr int kGroupWarps = kGroup / 32;
  for (int i = 0; i < kKeyBuffers; ++i) {
    ptx::InitBarrier(At(s.key_full[i]), kRecordWarps);
    ptx::InitBarrier(At(s.key_empty[i]), kGroupWarps);
  }
  for (std::uint64_t& barrier : s.score_full) ptx::InitBarrier(At(barrier), 1);
  for (int i = 0; i < kProbabilitySlots; ++i) {
    ptx::InitBarrier(At(s.probability_full[i]), kGroupWarps);
    ptx::InitBarrier(At(s.probability_empty[i]), 2 * kGroupWarps);  // of both blocks
  }
  for (int i = 0; i < kRows; ++i) {
    ptx::InitBarrier(At(s.row_full[i]), 1);
    ptx::InitBarrier(At(s.row_empty[i]), 2 * kGroupWarps);  // of scores and values
  }
  ptx::FenceBarriers();
}

// A thread's part in the cluster's work: which half of the dimensions, and its place in its warpgroup.
struct Part {
  int half, lane, warp, local;
};

// What a cluster works on, one after the other: 64 heads of a row. Number i is the cluster's own from blockIdx.x in
// steps of gridDim.x.
struct Item {
  int t, head0;
};
__device__ __forceinline__ int Groups(const AttentionTask& task) {
  return (task.heads + kHeads - 1) / kHeads;
}
__device__ __forceinline__ Item ItemAt(const AttentionTask& task, int i) {
  const int groups = Groups(task);
  if (groups == 1) return {.t = i, .head0 = 0};  // no division
  return {.t = i / groups, .head0 = i % groups * kHeads};
}
__device__ __forceinline__ int Items(const AttentionTask& task) {
  return task.step.rows * Groups(task);
}

// Blocks of keys of a row, for scores and values.
__device__ __forceinline__ int BlocksOf(const Shared& s, const Cursor<kRows>& row) {
  ptx::WaitPhase(At(s.row_full[row.slot]), row.parity);
  return __shfl_sync(kFullWarp, s.blocks[row.slot], 0);  // the same in a warp, as the compiler can see
}

}  // namespace galley::backend::cuda::heads
