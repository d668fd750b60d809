// SPDX-License-Identifier: Apache-2.0
// The warpgroup of attention_heads.cu that makes probabilities: it multiplies queries with this half of the keys,
// trades sums with the other block of the cluster, so that each has whole scores of half the heads, and hands what it
// makes of them to the values of both blocks. Products are two blocks of keys ahead, so that nobody waits for the way
// of a sum or a probability to the other block.
#pragma once

#include "galley/backend/cuda/attention_heads.cuh"

namespace galley::backend::cuda::heads {

// The running maximum of a head, the same in the four threads that share it, and this thread's part of the denominator.
struct Softened {
  float running = -1e30f, denominator = 0;
};

// `score[2 j + b]` is that of key 8 j + 2 (lane % 4) + b; scores and maxima are counted in units of 1 / scale, scale
// going to base 2. Turns them into probabilities; returns how much earlier sums shrink.
__device__ __forceinline__ float Softmax(float (&score)[16], float scale, Softened& row) {
  float most[4] = {score[0], score[1], score[2], score[3]};  // four chains: a step of one takes as long as four
#pragma unroll
  for (int i = 4; i < 16; ++i) most[i % 4] = fmaxf(most[i % 4], score[i]);
  float top = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
  top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 1));
  top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 2));
  const float largest = fmaxf(row.running, top), offset = -largest * scale;
  const float factor = ptx::Exp2((row.running - largest) * scale);
  float sum[4];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    score[i] = ptx::Exp2(__fmaf_rn(score[i], scale, offset));
    sum[i % 4] = i < 4 ? score[i] : sum[i % 4] + score[i];
  }
  row.denominator = row.denominator * factor + ((sum[0] + sum[1]) + (sum[2] + sum[3]));
  row.running = largest;
  return factor;
}

// One over the denominator with the sink, of a head that this thread shares; brings the result back to size.
__device__ __forceinline__ float InverseDenominator(const AttentionTask& task, int head, float scale,
                                                    const Softened& row) {
  float sum = row.denominator;
  sum += __shfl_xor_sync(kFullWarp, sum, 1);
  sum += __shfl_xor_sync(kFullWarp, sum, 2);
  constexpr float kLog2E = 1.44269504f;
  const float sink = head < task.heads ? task.sink[head] : 0;
  return static_cast<float>(1 << kKeyShift) / (sum + ptx::Exp2(sink * kLog2E - row.running * scale));
}

// This thread's end of the way to the other block and to the values. Of the fragments' two rows a thread keeps that of
// its half, and the other block's thread gets the other.
template <int Half>
struct Trade {
  const Part& part;
  Shared& s;
  std::uint32_t own, peer;  // addresses of `s` here and there
  Cursor<kScoreSlots> outgoing, incoming;
  Cursor<kProbabilitySlots> sent;  // messages to the values

  __device__ __forceinline__ Trade(const Part& p, Shared& shared)
      : part(p), s(shared), own(At(shared)), peer(ptx::AddressInBlock(own, 1 - Half)) {}
  __device__ __forceinline__ std::uint32_t InPeer(std::uint32_t address) const { return peer + (address - own); }

  __device__ __forceinline__ void SendScores(const float (&sum)[32]) {
    // The other block must have read what was sent in this slot, three blocks ago. That was for the last message but
    // one, or for one before it; when the other block has published its part of the last but one, it has read it.
    static_assert(kScoreSlots == 3 && kProbabilitySlots == 2);
    ptx::WaitPhase(At(s.probability_full[sent.slot]), sent.parity ^ 1);
    const std::uint32_t to = InPeer(At(s.scores[outgoing.slot][0][part.local])),
                        full = InPeer(At(s.score_full[outgoing.slot]));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float* pair = sum + 4 * i + 2 * (1 - Half);
      ptx::SendTwo(to + static_cast<std::uint32_t>(i * kGroup * 8),
                   {__float_as_uint(pair[0]), __float_as_uint(pair[1])}, full);
    }
    outgoing.Advance();
  }
  // `kept` with the other block's part.
  __device__ __forceinline__ void AddScores(const float (&kept)[16], float (&score)[16]) {
    const std::uint32_t full = At(s.score_full[incoming.slot]);
    if (part.local == 0) ptx::ArriveAndExpect(full, kScoreBytes);
    ptx::WaitPhase(full, incoming.parity);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint2 theirs = s.scores[incoming.slot][i][part.local];
      score[2 * i] = kept[2 * i] + __uint_as_float(theirs.x);
      score[2 * i + 1] = kept[2 * i + 1] + __uint_as_float(theirs.y);
    }
    incoming.Advance();
  }
  // A message to the values of both blocks; the last of a row has no probabilities.
  template <bool Last>
  __device__ __forceinline__ void Publish(const float (&p)[16], float factor) {
    ptx::WaitPhase(At(s.probability_empty[sent.slot]), sent.parity ^ 1);
    Probabilities& to = s.probabilities[sent.slot];
    const std::uint32_t full = At(s.probability_full[sent.slot]), peer_full = InPeer(full);
    sent.Advance();
    if constexpr (!Last) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 pairs = {Pack(p[8 * i], p[8 * i + 1]), Pack(p[8 * i + 2], p[8 * i + 3]),
                             Pack(p[8 * i + 4], p[8 * i + 5]), Pack(p[8 * i + 6], p[8 * i + 7])};
        uint4& at = to.pairs[Half][i][part.local];
        at = pairs;
        ptx::SendFour(InPeer(At(at)), pairs, peer_full);
      }
    }
    float& at = to.factor[Half][part.local];
    at = factor;
    ptx::SendOne(InPeer(At(at)), factor, peer_full);
    __syncwarp();
    // Each warp announces the bytes of its counterpart.
    if (part.lane == 0) ptx::ArriveAndExpect(full, (kFactorBytes + (Last ? 0 : kPairBytes)) / (kGroup / 32));
  }
};

// The row that is worked on: its queries, and how many of its blocks of keys products have not begun with.
struct Queries {
  std::uint32_t q[kHalf / 16][4];
  int blocks = 0;
  Cursor<kRows> row;
  Cursor<kKeyBuffers> buffer;
};

// Starts the products of queries with the next block of keys of their row.
__device__ __forceinline__ void StartScores(const Shared& s, Queries& row, float (&sum)[32]) {
  --row.blocks;
  ptx::WaitPhase(At(s.key_full[row.buffer.slot]), row.buffer.parity);
  const std::uint64_t keys = ptx::SwizzledDescriptor(At(s.keys[row.buffer.slot]), kCore);
  row.buffer.Advance();
#pragma unroll
  for (float& value : sum) value = 0;
  ptx::HoldSums(sum);
  ptx::WarpgroupFence();
#pragma unroll
  for (int step = 0; step < kHalf / 16; ++step) {
    ptx::Wgmma<64>::Add(sum, row.q[step], ptx::MovedBy(keys, step / 4 * kLine + step % 4 * 32));
  }
  ptx::WarpgroupCommit();
}

// Loads the next row's queries once its list is there.
__device__ __forceinline__ void LoadQueries(const Part& part, Shared& s, Queries& row) {
  row.blocks = BlocksOf(s, row.row);
  ptx::WaitPhase(At(s.key_full[row.buffer.slot]), row.buffer.parity);
  const std::uint8_t* head = s.keys[row.buffer.slot] + (part.warp * 16 + part.lane % 16) * kRowBytes;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint8_t* piece = head + ((2 * i + part.lane / 16) ^ part.lane % 8) * 16;
#pragma unroll
    for (int line = 0; line < kHalf / 64; ++line) ptx::LoadMatrix4(row.q[4 * line + i], piece + line * 128);
  }
  __syncwarp();
  if (part.lane == 0) ptx::Arrive(At(s.key_empty[row.buffer.slot]));
  row.buffer.Advance();
}

// Scores of places without a key are made -infinity. `used` has a bit for each place.
__device__ __forceinline__ void MaskScores(uint2 used, int lane, float (&score)[16]) {
  if ((used.x & used.y) == 0xFFFFFFFFu) return;
  const int own = lane % 4 * 2;
  const std::uint32_t bits[2] = {used.x >> own, used.y >> own};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if ((bits[i / 8] & 1u << (i / 2 % 4 * 8 + i % 2)) == 0) score[i] = -INFINITY;
  }
}

template <int Half>
__device__ __forceinline__ void MakeProbabilities(const AttentionTask& task, float scale, const Part& part, Shared& s) {
  Trade<Half> trade(part, s);
  Queries row;
  Cursor<kKeyBuffers> masks;
  Softened soft;
  float sum[32], kept[16] = {}, score[16] = {};
  const auto publish = [&] {
    MaskScores(*reinterpret_cast<const uint2*>(s.used[masks.slot]), part.lane, score);
    masks.Advance();
    trade.template Publish<false>(score, Softmax(score, scale, soft));
  };
  ptx::WaitCluster();  // the other block is there
  for (int item = static_cast<int>(blockIdx.x); item < Items(task); item += static_cast<int>(gridDim.x)) {
    LoadQueries(part, s, row);
    masks.Advance();
    soft = {};
    StartScores(s, row, sum);
    bool more = true;
    while (more) {
      ptx::WarpgroupWait<0>();
      ptx::HoldSums(sum);
      trade.SendScores(sum);
#pragma unroll
      for (int i = 0; i < 16; ++i) kept[i] = sum[i / 2 * 4 + 2 * Half + i % 2];
      ptx::HoldSums(kept);
      more = row.blocks > 0;
      if (more) StartScores(s, row, sum);
      trade.AddScores(kept, score);
      publish();
    }
    ptx::WarpgroupWait<0>();  // none is left, which the compiler cannot see
    const int head = ItemAt(task, item).head0 + part.warp * 16 + Half * 8 + part.lane / 4;
    trade.template Publish<true>({}, InverseDenominator(task, head, scale, soft));
    if (part.lane == 0) ptx::Arrive(At(s.row_empty[row.row.slot]));
    row.row.Advance();
  }
}

}  // namespace galley::backend::cuda::heads
