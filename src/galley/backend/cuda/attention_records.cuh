// SPDX-License-Identifier: Apache-2.0
// The warpgroups of attention_heads.cu that fetch: a row's queries as they are, and the records of its keys, which they
// decode. Each warp has eight keys of every block of 64, and waits for nobody but itself and for room.
#pragma once

#include "galley/backend/cuda/attention_heads.cuh"

namespace galley::backend::cuda::heads {

// Starts the copies of eight heads' queries, of this half of the dimensions; zeros for heads that are none.
__device__ __forceinline__ void FetchQueries(const AttentionTask& task, const Item& item, int own, int half, int lane,
                                             std::uint8_t* out) {
#pragma unroll 2
  for (int i = 0; i < 8; ++i) {
    const int head = item.head0 + own * 8 + i;
    const std::int64_t row = static_cast<std::int64_t>(item.t) * task.heads + min(head, task.heads - 1);
    ptx::CopyAsync16(out + (own * 8 + i) * kRowBytes + (lane ^ i) * 16, task.q + row * kDim + half * kHalf + lane * 8,
                     head < task.heads);
  }
}

// Brings the dimensions of the queries that this lane has copied into the order of keys.
__device__ __forceinline__ void OrderQueries(int own, int lane, std::uint8_t* out) {
#pragma unroll 4
  for (int i = 0; i < 8; ++i) {
    uint4& piece = *reinterpret_cast<uint4*>(out + (own * 8 + i) * kRowBytes + (lane ^ i) * 16);
    const uint4 p = piece;
    piece = {__byte_perm(p.x, p.z, 0x5410), __byte_perm(p.x, p.z, 0x7632), __byte_perm(p.y, p.w, 0x5410),
             __byte_perm(p.y, p.w, 0x7632)};
  }
}

// Starts the copies of this half of eight records.
__device__ __forceinline__ void FetchRecords(const KeyPlace* places, int half, int lane, std::uint8_t* raw) {
  const KeyPlace key = places[lane / 4];
  if (key.kind() == KeyKind::kNone) return;
  const bool entry = key.kind() == KeyKind::kEntry;
  const int part = lane % 4;
  const std::uint8_t* codes = key.codes();
  const std::uint8_t* from = codes + half * (entry ? kHalf / 2 : kHalf) + part * 16;
  std::uint8_t* to = raw + lane / 4 * kRawStride + part * 16;
#pragma unroll
  for (int i = 0; i < kHalf; i += 64) {
    if (i < kHalf / 2 || !entry) ptx::CopyAsync16(to + i, from + i, true);
  }
  if (part == 0) ptx::CopyAsync16(to + kHalf, codes + key.scales() * 16 + (entry ? half * 16 : 0), true);
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
// Of an e4m3 scale, which has no sign: in two steps, as the factor between its bits and its place is beyond bf16.
__device__ __forceinline__ std::uint32_t EntryPieceScale(std::uint32_t code) {
  return MultiplyPairs(MultiplyPairs(code * 0x00100010u, ScalePair<kFp8Shift>(127)),
                       ScalePair<kFp4Shift - kKeyShift>(127));
}

// Eight raw records to bf16, eight lanes to a core; keys that are none become zero.
__device__ __forceinline__ void DecodeRecords(KeyKind kind, const std::uint8_t* raw, int half, int lane,
                                              std::uint8_t* out) {
  const int part = lane / 8, key = lane % 8;
  raw += key * kRawStride;
  out += key * 128;
  // Piece `piece` of line `line`.
  const auto at = [&](int line, int piece) {
    return reinterpret_cast<uint4*>(out + line * kLine + (piece ^ key) * 16);
  };
  if (kind == KeyKind::kStep || kind == KeyKind::kRing) {
#pragma unroll 1
    for (int line = 0; line < kHalf / 64; ++line) {
      const int i = line * 4 + part;
      const uint4 codes = *reinterpret_cast<const uint4*>(raw + i * 16);
      const std::uint32_t scale = raw[kHalf + half * (kHalf / 32) + i / 2];
      *at(line, 2 * part) = WindowPiece(codes.x, codes.y, scale);
      *at(line, 2 * part + 1) = WindowPiece(codes.z, codes.w, scale);
    }
  } else if (kind == KeyKind::kEntry) {
    constexpr int kPairs = kHalf / 128;  // of lines; all are read before the first is decoded
    uint4 codes[kPairs];
    std::uint32_t scales[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      codes[i] = *reinterpret_cast<const uint4*>(raw + (4 * i + part) * 16);
      scales[i] = *reinterpret_cast<const std::uint16_t*>(raw + kHalf + (4 * i + part) * 2);
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int line = 2 * i + part / 2, piece = part % 2 * 4;
      const std::uint32_t low = EntryPieceScale(scales[i] & 0xFF), high = EntryPieceScale(scales[i] >> 8);
      *at(line, piece) = EntryPiece(codes[i].x, low);
      *at(line, piece + 1) = EntryPiece(codes[i].y, low);
      *at(line, piece + 2) = EntryPiece(codes[i].z, high);
      *at(line, piece + 3) = EntryPiece(codes[i].w, high);
    }
  } else {
    for (int i = part; i < kHalf / 8; i += 4) *at(i / 8, i % 8) = {0, 0, 0, 0};
  }
}

// The list of a row in the making, by each warp for its own keys. Every stage begins with what the one before it has
// loaded, so that nobody waits for memory when there is other work between the stages.
struct NextList {
  static constexpr int kStages = 5, kAtOnce = 3;
  const AttentionTask& task;
  int own, lane;
  int item = static_cast<int>(blockIdx.x), stage = 0;
  int t = 0, position = 0, sequence_index = 0, entries = 0, blocks = 0, window_blocks = 0, skipped_places = 0;
  int4 quads[4];
  SequenceEntry sequence;
  Places places{};
  EntryPlace listed[kAtOnce];

  // This lane's key of the b-th block that is visited.
  __device__ __forceinline__ int Place(int b) const {
    return b * kBlock + own * 8 + lane % 8 + (b < window_blocks ? 0 : skipped_places);
  }
  // `row_free` waits until the places of an earlier row may be overwritten.
  template <typename RowFree>
  __device__ __forceinline__ void Advance(KeyPlace* out, RowFree&& row_free) {
    constexpr int kQuadsAtOnce = 4 * 32;
    switch (stage++) {
      case 0: {
        t = ItemAt(task, item).t;
        sequence_index = task.step.row_sequence[t];
        position = task.step.positions[t];
        const auto* list = reinterpret_cast<const int4*>(task.list + static_cast<std::int64_t>(t) * task.topk);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool there = Whole() && lane + 32 * i < task.topk / 4;
          quads[i] = there ? list[lane + 32 * i] : int4{-1, -1, -1, -1};
        }
        break;
      }
      case 1:
        sequence = task.step.table[sequence_index];
        entries = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // a negative number shifts to -1
          entries += 4 + (quads[i].x >> 31) + (quads[i].y >> 31) + (quads[i].z >> 31) + (quads[i].w >> 31);
        }
#pragma unroll 1
        for (int i = (Whole() ? 4 * kQuadsAtOnce : 0) + lane; task.list != nullptr && i < task.topk; i += 32) {
          entries += task.list[static_cast<std::int64_t>(t) * task.topk + i] >= 0 ? 1 : 0;
        }
        entries = __reduce_add_sync(kFullWarp, entries);
        break;
      case 2:
        places = PlacesOf(task, sequence, position, entries);
        blocks = max(places.Blocks<kBlock>(), 1);  // a row without keys has a block of none
        window_blocks = places.WindowBlocks<kBlock>();
        skipped_places = places.SkippedBlocks<kBlock>() * kBlock;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) listed[i].entry = EntryAt(task, places, t, Place(lane / 8 + 4 * i));
        break;
      case 3:
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) listed[i].block = BlockOf(task, sequence.block_offset, listed[i].entry);
        break;
      default:
        row_free();
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int b = lane / 8 + 4 * i;
          if (b < blocks) out[b * kBlock + own * 8 + lane % 8] = KeyAt(task, places, Place(b), listed[i]);
        }
#pragma unroll 1
        for (int b = lane / 8 + 4 * kAtOnce; b < blocks; b += 4) {  // a longer list than usual
          const int place = Place(b);
          EntryPlace entry{.entry = EntryAt(task, places, t, place)};
          entry.block = BlockOf(task, sequence.block_offset, entry.entry);
          out[b * kBlock + own * 8 + lane % 8] = KeyAt(task, places, place, entry);
        }
        __syncwarp();
    }
  }

 private:
  // Whether the list can be read four entries at once.
  __device__ __forceinline__ bool Whole() const {
    return task.list != nullptr && task.topk % 4 == 0;
  }
};

__device__ __forceinline__ void DecodeRows(const AttentionTask& task, const Part& part, Shared& s) {
  const int own = static_cast<int>(threadIdx.x) / 32 - (kThreads / 32 - kRecordWarps), lane = part.lane;
  const int list_places = static_cast<int>(PlacesMax(task, kBlock)), items = Items(task);
  Cursor<kKeyBuffers> buffer;
  Cursor<kRows> row;       // of the list in the making
  const auto fill = [&] {  // this warp has filled its part of the buffer
    __syncwarp();
    if (lane == 0) ptx::Arrive(At(s.key_full[buffer.slot]));
    buffer.Advance();
  };
  NextList next{.task = task, .own = own, .lane = lane};
  const KeyPlace* places = nullptr;
  int blocks = 0, b = 0;
  int stage = 0;       // of the copies, where the record of block b is; those of the next blocks take turns
  int begun = 0;       // blocks of the next row whose copies have begun
  bool asked = false;  // for the next row's queries
  const auto fetch = [&](const KeyPlace* list, int i, int blocks_on) {
    FetchRecords(list + i * kBlock + own * 8, part.half, lane, s.raw[own][(stage + blocks_on) % kRawStages]);
  };
  // Begins the copies of the block two behind this one, be it of the next row.
  const auto fetch_ahead = [&] {
    if (b + kRawStages < blocks) {
      fetch(places, b + kRawStages, kRawStages);
    } else if (next.item < items && next.stage == NextList::kStages && begun < next.blocks) {
      fetch(s.places + row.slot * list_places, begun, blocks - b + begun);
      ++begun;
    }
    ptx::CommitCopies();
  };
  while (true) {
    const bool between = b == blocks;
    if (next.item < items) {
      if (between && !asked) {
        ptx::WaitPhase(At(s.key_empty[buffer.slot]), buffer.parity ^ 1);
        FetchQueries(task, ItemAt(task, next.item), own, part.half, lane, s.keys[buffer.slot]);
        ptx::CommitCopies();
        asked = true;
      }
      // The list of a row is made while the row before it is worked on. Its last stage waits until scores and values
      // have finished the row before that.
      if (next.stage < NextList::kStages) {
        next.Advance(s.places + row.slot * list_places, [&] {
          ptx::WaitPhase(At(s.row_empty[row.slot]), row.parity ^ 1);
          if (own == 0 && lane == 0) {
            s.blocks[row.slot] = next.blocks;
            ptx::Arrive(At(s.row_full[row.slot]));
          }
        });
        if (between) continue;
      }
    }
    if (between) {
      if (next.item >= items) return;
      blocks = next.blocks, b = 0;
      places = s.places + row.slot * list_places;
#pragma unroll 1
      for (; begun < kRawStages; ++begun) {
        if (begun < blocks) fetch(places, begun, begun);
        ptx::CommitCopies();
      }
      // Values read the angles behind the first block of keys.
      if (own == kRecordWarps - 1) {
#pragma unroll 1
        for (int i = lane; i < task.rope.dims / 2; i += 32) {
          s.angle[row.slot][i] = RopeAngle(task.rope, next.position, i);
        }
      }
      row.Advance();
      next.item += static_cast<int>(gridDim.x);
      next.stage = begun = 0;
      asked = false;
    }
    ptx::WaitCopies<kRawStages - 1>();
    __syncwarp();
    const KeyKind kind = places[b * kBlock + own * 8 + lane % 8].kind();
    const unsigned used = __ballot_sync(kFullWarp, kind != KeyKind::kNone) & 0xFF;
    // The first block of a row is decoded while its queries are on the way, which lie in the buffer before it.
    Cursor<kKeyBuffers> to = buffer;
    if (b == 0) to.Advance();
    ptx::WaitPhase(At(s.key_empty[to.slot]), to.parity ^ 1);
    DecodeRecords(kind, s.raw[own][stage], part.half, lane, s.keys[to.slot] + own * kCore);
    if (b == 0) {
      ptx::WaitCopies<0>();
      OrderQueries(own, lane, s.keys[buffer.slot]);
      fill();
    }
    if (lane == 0) s.used[buffer.slot][own] = static_cast<std::uint8_t>(used);
    ptx::FenceForWarpgroup();
    fill();
    fetch_ahead();
    stage = (stage + 1) % kRawStages;
    ++b;
  }
}

}  // namespace galley::backend::cuda::heads
