// SPDX-License-Identifier: Apache-2.0
// The warpgroups of attention_heads.cu that fetch: a row's queries as they are, and the records of its keys, which they
// decode. Each warp has eight keys of every block of 64, and waits for nobody but itself and for room.
#pragma once

#include "galley/backend/cuda/attention_heads.cuh"

namespace galley::backend::cuda::heads {

// Entries of row t's list, by each warp.
__device__ __forceinline__ int CountEntries(const AttentionTask& task, int t, int lane) {
  int entries = 0;
  if (task.list != nullptr) {
    const std::int32_t* list = task.list + static_cast<std::int64_t>(t) * task.topk;
    const int quads = task.topk % 4 == 0 ? task.topk / 4 : 0;
#pragma unroll 4
    for (int i = lane; i < quads; i += 32) {
      const int4 four = reinterpret_cast<const int4*>(list)[i];
      // A negative number shifts to -1.
      entries += 4 + ((four.x >> 31) + (four.y >> 31) + (four.z >> 31) + (four.w >> 31));
    }
#pragma unroll 1
    for (int i = 4 * quads + lane; i < task.topk; i += 32) entries += list[i] >= 0 ? 1 : 0;
  }
  return __reduce_add_sync(kFullWarp, entries);
}

// Eight heads' queries, of this half of the dimensions; zeros for heads that are none.
__device__ __forceinline__ void CopyQueries(const AttentionTask& task, const Item& item, int own, int half, int lane,
                                            std::uint8_t* out) {
  constexpr int kAtOnce = 4;
#pragma unroll 1
  for (int first = own * 8; first < own * 8 + 8; first += kAtOnce) {
    uint4 pieces[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int head = item.head0 + first + i;
      const std::int64_t row = static_cast<std::int64_t>(item.t) * task.heads + head;
      pieces[i] = {0, 0, 0, 0};
      if (head < task.heads) pieces[i] = *reinterpret_cast<const uint4*>(task.q + row * kDim + half * kHalf + lane * 8);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const uint4& p = pieces[i];
      *reinterpret_cast<uint4*>(out + (first + i) * kRowBytes + (lane ^ (first + i) % 8) * 16) = {
          __byte_perm(p.x, p.z, 0x5410), __byte_perm(p.x, p.z, 0x7632), __byte_perm(p.y, p.w, 0x5410),
          __byte_perm(p.y, p.w, 0x7632)};
    }
  }
}

// Starts the copies of this half of eight records.
__device__ __forceinline__ void FetchRecords(const AttentionTask& task, const KeyPlace* places, int half, int lane,
                                             std::uint8_t* raw) {
  const KeyPlace key = places[lane / 4];
  if (key.kind == KeyKind::kNone) return;
  const bool entry = key.kind == KeyKind::kEntry;
  const int part = lane % 4, pieces = entry ? kHalf / 32 : kHalf / 16;
  const std::uint8_t* codes = CodesOf(task, key);
  const std::uint8_t* from = codes + half * pieces * 16;
  std::uint8_t* to = raw + lane / 4 * kRawStride;
#pragma unroll
  for (int i = 0; i < kHalf / 16; i += 4) {
    if (i < pieces) ptx::CopyAsync16(to + (i + part) * 16, from + (i + part) * 16, true);
  }
  if (part == 0) ptx::CopyAsync16(to + kHalf, codes + key.scales * 16 + (entry ? half * 16 : 0), true);
}

// Eight values in the order of attention_heads.cuh from their codes, and the byte of their scale or what becomes of it.
__device__ __forceinline__ uint4 WindowPiece(std::uint32_t low, std::uint32_t high, std::uint32_t scale_code) {
  const std::uint32_t scale = ScalePair<kFp8Shift - kKeyShift>(scale_code);
  uint4 value;
  DecodeFp8x4(__byte_perm(low, high, 0x5410), scale, value.x, value.y);
  DecodeFp8x4(__byte_perm(low, high, 0x7632), scale, value.z, value.w);
  return value;
}
// A code's bits are masked where they are, and one multiplication brings both its sign and the rest to their places.
__device__ __forceinline__ uint4 EntryPiece(std::uint32_t codes, std::uint32_t scale) {
  constexpr std::uint32_t kFirst = 0x000F000F, kSecond = 0x00F000F0, kPlaces = 0x81C081C0;
  const std::uint32_t rest = codes >> 8;
  return {MultiplyPairs((codes & kFirst) * 0x1040u & kPlaces, scale),
          MultiplyPairs((codes & kSecond) * 0x0104u & kPlaces, scale),
          MultiplyPairs((rest & kFirst) * 0x1040u & kPlaces, scale),
          MultiplyPairs((rest & kSecond) * 0x0104u & kPlaces, scale)};
}
__device__ __forceinline__ std::uint32_t EntryPieceScale(std::uint32_t code) {
  return MultiplyPairs(EntryScale(code), ScalePair<kFp4Shift - kKeyShift>(127));
}

// Eight raw records to cores of bf16, eight lanes to a core; keys that are none become zero.
__device__ __forceinline__ void DecodeRecords(KeyKind kind, const std::uint8_t* raw, int half, int lane,
                                              std::uint8_t* out) {
  const int part = lane / 8;
  raw += lane % 8 * kRawStride;
  out += lane % 8 * 16;
  const auto store = [&](int piece, const uint4& value) {
    *reinterpret_cast<uint4*>(out + piece * kPieceCores) = value;
  };
  if (kind == KeyKind::kStep || kind == KeyKind::kRing) {
#pragma unroll 1
    for (int first = 0; first < kHalf / 16; first += 4) {
      const int i = first + part;
      const uint4 codes = *reinterpret_cast<const uint4*>(raw + i * 16);
      const std::uint32_t scale = raw[kHalf + half * (kHalf / 32) + i / 2];
      store(2 * i, WindowPiece(codes.x, codes.y, scale));
      store(2 * i + 1, WindowPiece(codes.z, codes.w, scale));
    }
  } else if (kind == KeyKind::kEntry) {
#pragma unroll
    for (int first = 0; first < kHalf / 32; first += 4) {
      const int i = first + part;
      const uint4 codes = *reinterpret_cast<const uint4*>(raw + i * 16);
      const std::uint32_t both = *reinterpret_cast<const std::uint16_t*>(raw + kHalf + i * 2);
      const std::uint32_t low = EntryPieceScale(both & 0xFF), high = EntryPieceScale(both >> 8);
      store(4 * i, EntryPiece(codes.x, low));
      store(4 * i + 1, EntryPiece(codes.y, low));
      store(4 * i + 2, EntryPiece(codes.z, high));
      store(4 * i + 3, EntryPiece(codes.w, high));
    }
  } else {
    for (int i = part; i < kHalf / 8; i += 4) store(i, {0, 0, 0, 0});
  }
}

// Where this warp's keys of every block lie; a lane finds those of every fourth block. Loads for three at a time are
// under way; the rest is too much code for more than one.
__device__ __forceinline__ void FindKeys(const AttentionTask& task, const SequenceEntry& sequence, const Places& places,
                                         int t, int blocks, int own, int lane, KeyPlace* out) {
  constexpr int kAtOnce = 3;
  static_assert(sizeof(EntryPlace) == sizeof(KeyPlace));
  const int key = own * 8 + lane % 8;
  for (int first = lane / 8; first < blocks; first += 4 * kAtOnce) {
    EntryPlace listed[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      listed[i].entry = EntryAt(task, places, t, places.BlockBegin<kBlock>(first + 4 * i) + key);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) listed[i].block = BlockOf(task, sequence, listed[i].entry);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int b = first + 4 * i;
      if (b < blocks) *reinterpret_cast<EntryPlace*>(out + b * kBlock + key) = listed[i];
    }
  }
#pragma unroll 1
  for (int b = lane / 8; b < blocks; b += 4) {
    KeyPlace* at = out + b * kBlock + key;
    *at = KeyAt(task, sequence, places, places.BlockBegin<kBlock>(b) + key, *reinterpret_cast<const EntryPlace*>(at));
  }
  __syncwarp();
}

__device__ __forceinline__ void DecodeRows(const AttentionTask& task, const Part& part, Shared& s) {
  const int own = static_cast<int>(threadIdx.x) / 32 - (kThreads / 32 - kRecordWarps), lane = part.lane;
  const int list_places = static_cast<int>(PlacesMax(task, kBlock));
  Cursor<kKeyBuffers> buffer;
  Cursor<kRows> row;
  const auto fill = [&] {  // this warp has filled its part of the buffer
    __syncwarp();
    if (lane == 0) ptx::Arrive(At(s.key_full[buffer.slot]));
    buffer.Advance();
  };
  // The list of a row is made while the row before it is worked on, after `due` of its blocks, when buffers are full
  // anyway. Not before the first one: scores finish the row before that only once they have started on this one.
  constexpr int kDue = kKeyBuffers;
  int ahead = static_cast<int>(blockIdx.x), ahead_blocks = 0;  // the next row, and how many blocks its list has
  const KeyPlace* places = nullptr;
  int blocks = 0, b = 0, due = 0;
  const auto fetch = [&](int i) {
    if (i < blocks) FetchRecords(task, places + i * kBlock + own * 8, part.half, lane, s.raw[own][i % kRawStages]);
    ptx::CommitCopies();
  };
  while (true) {
    if (b == due) {
      due = -1;
      ahead_blocks = 0;
      if (ahead < Items(task)) {
        const int t = ItemAt(task, ahead).t;
        const SequenceEntry sequence = task.step.sequence_of(t);
        const Places listed = PlacesOf(task, sequence, t, CountEntries(task, t, lane));
        ahead_blocks = max(listed.Blocks<kBlock>(), 1);  // a row without keys has a block of none
        ptx::WaitPhase(At(s.row_empty[row.slot]), row.parity ^ 1);
        if (own == 0 && lane == 0) {
          s.blocks[row.slot] = ahead_blocks;
          ptx::Arrive(At(s.row_full[row.slot]));
        }
        FindKeys(task, sequence, listed, t, ahead_blocks, own, lane, s.places + row.slot * list_places);
      }
    }
    if (b == blocks) {
      if (ahead_blocks == 0) return;
      blocks = ahead_blocks, b = 0, due = min(kDue, blocks);
      places = s.places + row.slot * list_places;
#pragma unroll 1
      for (int i = 0; i < kRawStages; ++i) fetch(i);
      ptx::WaitPhase(At(s.key_empty[buffer.slot]), buffer.parity ^ 1);
      const Item item = ItemAt(task, ahead);
      CopyQueries(task, item, own, part.half, lane, s.keys[buffer.slot]);
      fill();
      // Values read the angles behind the first block of keys.
      if (own == kRecordWarps - 1) {
#pragma unroll 1
        for (int i = lane; i < task.rope.dims / 2; i += 32) {
          s.angle[row.slot][i] = RopeAngle(task.rope, task.step.positions[item.t], i);
        }
      }
      row.Advance();
      ahead += static_cast<int>(gridDim.x);
      continue;
    }
    ptx::WaitCopies<kRawStages - 1>();
    __syncwarp();
    const KeyKind kind = places[b * kBlock + own * 8 + lane % 8].kind;
    const unsigned used = __ballot_sync(kFullWarp, kind != KeyKind::kNone) & 0xFF;
    ptx::WaitPhase(At(s.key_empty[buffer.slot]), buffer.parity ^ 1);
    DecodeRecords(kind, s.raw[own][b % kRawStages], part.half, lane, s.keys[buffer.slot] + own * kCore);
    if (lane == 0) s.used[buffer.slot][own] = static_cast<std::uint8_t>(used);
    ptx::FenceForWarpgroup();
    fill();
    fetch(b + kRawStages);
    ++b;
  }
}

}  // namespace galley::backend::cuda::heads
