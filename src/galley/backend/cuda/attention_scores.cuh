// SPDX-License-Identifier: Apache-2.0
// The warpgroup of attention_heads.cu that makes probabilities: it multiplies queries with this half of the keys,
// trades sums with the other block of the cluster, so that each has whole scores of half the heads, and hands what it
// makes of them to the values of both blocks. Products are two blocks of keys ahead, so that nobody waits for the way
// of a sum or a probability to the other block.
#pragma once

#include "galley/backend/cuda/attention_heads.cuh"

namespace galley::backend::cuda::heads {

// The running maximum of a head, the same in the four threads that share it, and this thread's part of the denominator.
struct Row {
  float running = -1e30f, denominator = 0;
};

// `score[2 j + b]` is that of key 8 j + 2 (lane % 4) + b; scores and maxima are counted in units of 1 / scale, scale
// going to base 2. Turns them into probabilities; returns how much earlier sums shrink.
__device__ __forceinline__ float Softmax(float (&score)[16], float scale, Row& row) {
  float most = score[0];
#pragma unroll
  for (int i = 1; i < 16; ++i) most = fmaxf(most, score[i]);
  most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, 1));
  most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, 2));
  const float largest = fmaxf(row.running, most), offset = -largest * scale;
  const float factor = ptx::Exp2((row.running - largest) * scale);
  float sum[4] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    score[i] = ptx::Exp2(__fmaf_rn(score[i], scale, offset));
    sum[i % 4] += score[i];
  }
  row.denominator = row.denominator * factor + ((sum[0] + sum[1]) + (sum[2] + sum[3]));
  row.running = largest;
  return factor;
}

// One over the denominator with the sink, of a head that this thread shares; brings the result back to size.
__device__ __forceinline__ float InverseDenominator(const AttentionTask& task, int head, float scale, const Row& row) {
  float sum = row.denominator;
  sum += __shfl_xor_sync(kFullWarp, sum, 1);
  sum += __shfl_xor_sync(kFullWarp, sum, 2);
  constexpr float kLog2E = 1.44269504f;
  const float sink = head < task.heads ? task.sink[head] : 0;
  return static_cast<float>(1 << kKeyShift) / (sum + ptx::Exp2(sink * kLog2E - row.running * scale));
}

// This thread's end of the way to the other block and to the values.
struct Trade {
  static_assert(kScoreSlots == 3 && kProbabilitySlots == 2);  // see WaitForSlot
  const Part& part;
  Shared& s;
  std::uint32_t own, peer;  // addresses of `s` here and there
  Cursor<kScoreSlots> outgoing, incoming;
  Cursor<kProbabilitySlots> sent, seen;  // messages to the values
  std::uint32_t ends = 0;                // bit i: the i-th last block that was published ended a row
  int scores_sent = 0;

  __device__ __forceinline__ Trade(const Part& p, Shared& shared)
      : part(p), s(shared), own(At(shared)), peer(ptx::AddressInBlock(own, 1 - p.half)) {}
  __device__ __forceinline__ std::uint32_t InPeer(std::uint32_t address) const { return peer + (address - own); }

  // Until the other block is there, and has read what was sent in the next slot before. When it has published its part
  // of the message that it made of that, it has. If another message was published in the same slot since, it did long
  // ago.
  __device__ __forceinline__ void WaitForSlot() {
    if (scores_sent == 0) ptx::WaitCluster();
    if (scores_sent++ < kScoreSlots) return;
    if ((ends & 3) == 0) ptx::WaitPhase(At(s.probability_full[seen.slot]), seen.parity);
    seen.Advance();
    if ((ends & 2) != 0) seen.Advance();  // a row's last message is of no block
  }
  // Of the fragments' two rows a thread keeps that of its half; the other goes to the other block.
  __device__ __forceinline__ void SendScores(const float (&sum)[32], float (&kept)[16]) {
    float other[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float top = sum[i / 2 * 4 + i % 2], bottom = sum[i / 2 * 4 + 2 + i % 2];
      kept[i] = part.half == 0 ? top : bottom;
      other[i] = part.half == 0 ? bottom : top;
    }
    const std::uint32_t to = InPeer(At(s.scores[outgoing.slot][0][part.local])),
                        full = InPeer(At(s.score_full[outgoing.slot]));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ptx::SendFour(to + static_cast<std::uint32_t>(i * kGroup * 16),
                    {__float_as_uint(other[4 * i]), __float_as_uint(other[4 * i + 1]),
                     __float_as_uint(other[4 * i + 2]), __float_as_uint(other[4 * i + 3])},
                    full);
    }
    outgoing.Advance();
  }
  __device__ __forceinline__ void AddScores(float (&score)[16]) {
    const std::uint32_t full = At(s.score_full[incoming.slot]);
    if (part.local == 0) ptx::ArriveAndExpect(full, kScoreBytes);
    ptx::WaitPhase(full, incoming.parity);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 theirs = s.scores[incoming.slot][i][part.local];
      score[4 * i] += __uint_as_float(theirs.x);
      score[4 * i + 1] += __uint_as_float(theirs.y);
      score[4 * i + 2] += __uint_as_float(theirs.z);
      score[4 * i + 3] += __uint_as_float(theirs.w);
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
        uint4& at = to.pairs[part.half][i][part.local];
        at = pairs;
        ptx::SendFour(InPeer(At(at)), pairs, peer_full);
      }
    }
    float& at = to.factor[part.half][part.local];
    at = factor;
    ptx::SendOne(InPeer(At(at)), factor, peer_full);
    __syncwarp();
    if (part.local == 0) {
      ptx::ArriveAndExpect(full, kFactorBytes + (Last ? 0 : kPairBytes));
    } else if (part.lane == 0) {
      ptx::Arrive(full);
    }
  }
};

// The row that products are at: queries, and what is left of it.
struct Ahead {
  std::uint32_t q[kHalf / 16][4];
  int item = static_cast<int>(blockIdx.x), blocks = 0;
  Cursor<kRows> row;
};

// Starts the products of queries with the next block of keys of their row.
__device__ __forceinline__ void StartScores(const Shared& s, Cursor<kKeyBuffers>& buffer, Ahead& ahead,
                                            float (&sum)[32]) {
  --ahead.blocks;
  ptx::WaitPhase(At(s.key_full[buffer.slot]), buffer.parity);
  const std::uint64_t keys = ptx::SwizzledDescriptor(At(s.keys[buffer.slot]), kCore);
  buffer.Advance();
#pragma unroll
  for (float& value : sum) value = 0;
  ptx::HoldSums(sum);
  ptx::WarpgroupFence();
#pragma unroll
  for (int step = 0; step < kHalf / 16; ++step) {
    ptx::Wgmma<64>::Add(sum, ahead.q[step], ptx::MovedBy(keys, step / 4 * kLine + step % 4 * 32));
  }
  ptx::WarpgroupCommit();
}

// Goes on to the next row; false if there is none.
__device__ __forceinline__ bool NextRow(const AttentionTask& task, const Part& part, Shared& s, Ahead& ahead,
                                        Cursor<kKeyBuffers>& buffer) {
  if (ahead.item >= Items(task)) return false;
  ahead.item += static_cast<int>(gridDim.x);
  ahead.blocks = BlocksOf(s, ahead.row);
  ahead.row.Advance();
  ptx::WaitPhase(At(s.key_full[buffer.slot]), buffer.parity);
  // Register i of a step has dimensions d and d + 4 of a piece, d = lane % 4, of head lane / 4 (+ 8 if i is odd).
  const std::uint8_t* rows = s.keys[buffer.slot] + (part.warp * 16 + part.lane / 4) * kRowBytes + part.lane % 4 / 2 * 4;
  const std::uint32_t halves = part.lane % 2 == 0 ? 0x5410 : 0x7632;
#pragma unroll
  for (int step = 0; step < kHalf / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int piece = 2 * step + i / 2;
      const auto* words = reinterpret_cast<const std::uint32_t*>(rows + i % 2 * 8 * kRowBytes + piece / 8 * 128 +
                                                                 (piece % 8 ^ part.lane / 4) * 16);
      ahead.q[step][i] = __byte_perm(words[0], words[2], halves);
    }
  }
  __syncwarp();
  if (part.lane == 0) ptx::Arrive(At(s.key_empty[buffer.slot]));
  buffer.Advance();
  return true;
}

__device__ __forceinline__ void MakeProbabilities(const AttentionTask& task, float scale, const Part& part, Shared& s) {
  const int lane = part.lane;
  Trade trade(part, s);
  Ahead ahead;
  Cursor<kKeyBuffers> buffer, masks;
  Cursor<kRows> current;
  int item = static_cast<int>(blockIdx.x), blocks = 0;  // of the row that probabilities are at; blocks that are left
  Row row;
  float sum[32], kept[16] = {}, next[16] = {};
  bool multiplying = false, waiting = false;  // products under way; sums sent of a block that has no probabilities yet
  do {
    ptx::WarpgroupWait<0>();
    ptx::HoldSums(sum);
    if (multiplying) {
      trade.WaitForSlot();
      trade.SendScores(sum, next);
    }
    // Products of the next block start before probabilities of the last one are made, unless they belong to another
    // row: two rows may have their queries in between, and keys would wait for values that wait for those
    // probabilities.
    const bool same_row = ahead.blocks > 0;
    if (same_row) StartScores(s, buffer, ahead, sum);
    if (waiting) {
      if (blocks == 0) {
        blocks = BlocksOf(s, current);
        masks.Advance();  // queries
        row = {};
      }
      --blocks;
      trade.AddScores(kept);
      const uint2 used = *reinterpret_cast<const uint2*>(s.used[masks.slot]);
      masks.Advance();
      if ((used.x & used.y) != 0xFFFFFFFFu) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const std::uint32_t bits = i < 8 ? used.x : used.y;
          if ((bits >> (i / 2 % 4 * 8 + lane % 4 * 2 + i % 2) & 1) == 0) kept[i] = -INFINITY;
        }
      }
      const float factor = Softmax(kept, scale, row);
      trade.Publish<false>(kept, factor);
      trade.ends = trade.ends << 1 | (blocks == 0 ? 1u : 0u);
      if (blocks == 0) {
        const int head = ItemAt(task, item).head0 + part.warp * 16 + part.half * 8 + lane / 4;
        trade.Publish<true>(kept, InverseDenominator(task, head, scale, row));
        if (lane == 0) ptx::Arrive(At(s.row_empty[current.slot]));
        current.Advance();
        item += static_cast<int>(gridDim.x);
      }
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) kept[i] = next[i];
    waiting = multiplying;
    multiplying = same_row;
    if (!same_row) {
      ptx::WarpgroupWait<0>();  // none is left, which the compiler cannot see
      multiplying = NextRow(task, part, s, ahead, buffer);
      if (multiplying) StartScores(s, buffer, ahead, sum);
    }
  } while (multiplying || waiting);
  ptx::WarpgroupWait<0>();  // none is left, which the compiler cannot see
}

}  // namespace galley::backend::cuda::heads
