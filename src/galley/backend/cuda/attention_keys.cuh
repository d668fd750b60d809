// SPDX-License-Identifier: Apache-2.0
// The list of keys of one row of attention, shared by both forms of the kernel: which place of the list holds which
// record, and how records become bf16. A place depends on the row alone.
#pragma once

#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/ptx/mma.cuh"
#include "galley/backend/cuda/step.cuh"

namespace galley::backend::cuda {

constexpr int kDim = 512, kDraftRowsMax = 64;  // rows of a draft block
constexpr int kRowStride = kDim + 8;           // bf16 values; 16 bytes more keep ldmatrix free of bank conflicts

enum class KeyKind : int { kNone = 0, kWindow, kEntry };

// Where the key of a place lies; null: nowhere.
struct KeyPlace {
  const std::uint8_t* codes;
  std::int32_t scales;  // from codes to the scales
  KeyKind kind;
};

// Both ops in one shape.
struct AttentionTask {
  StepView step;
  const BFloat16* q;
  const std::uint8_t* window;
  Ring ring;
  bool decoder_floor, draft;
  int window_size, window_places, heads;
  const float* sink;
  Rope rope;
  const std::int32_t* list;
  int topk;
  HistorySlab slab;
  BFloat16* out;
  BFloat16* unrotated_copy;
};

// attention_heads.cu; compute capability 9.0.
void HeadsAttention(const AttentionTask& task, cudaStream_t stream);

inline AttentionTask TaskOf(const AttentionArgs& args) {
  return {.step = args.step,
          .q = args.q,
          .window = args.window,
          .ring = args.ring,
          .decoder_floor = args.decoder_floor,
          .draft = false,
          .window_size = args.window_size,
          .window_places = args.window_places,
          .heads = args.heads,
          .sink = args.sink,
          .rope = args.rope,
          .list = args.list,
          .topk = args.topk,
          .slab = args.slab,
          .out = args.out,
          .unrotated_copy = args.unrotated_copy};
}
inline AttentionTask TaskOf(const DraftAttentionArgs& args) {
  return {.step = args.step,
          .q = args.q,
          .window = args.window,
          .ring = args.ring,
          .decoder_floor = true,
          .draft = true,
          .window_size = args.window_size,
          .window_places = 0,
          .heads = args.heads,
          .sink = args.sink,
          .rope = args.rope,
          .list = nullptr,
          .topk = 0,
          .slab = {},
          .out = args.out,
          .unrotated_copy = nullptr};
}

// Places of one row's list of keys.
struct Places {
  int window_rows, window_places, entries;
  std::int64_t oldest;  // position of the first window row; of drafts, unused
  __device__ int end() const { return entries == 0 ? window_rows : window_places + entries; }
  // From `begin` on, the first block of places that holds a key.
  template <int Block>
  __device__ int NextBlock(int begin) const {
    while (begin < end() && begin >= window_rows && begin + Block <= window_places) begin += Block;
    return begin;
  }
};

__device__ __forceinline__ Places PlacesOf(const AttentionTask& task, const SequenceEntry& sequence, int t,
                                           int entries) {
  if (task.draft) {
    const std::int64_t kept =
        min(static_cast<std::int64_t>(task.window_size), static_cast<std::int64_t>(sequence.start));
    const std::int64_t from =
        max(static_cast<std::int64_t>(sequence.start) - kept, static_cast<std::int64_t>(sequence.decoder_floor));
    const int rows =
        static_cast<int>(max(static_cast<std::int64_t>(sequence.start) - from, std::int64_t{0})) + sequence.rows;
    return {rows, rows, 0, from};
  }
  const std::int64_t p = task.step.positions[t];
  const std::int64_t floor = task.decoder_floor ? sequence.decoder_floor : sequence.encoder_floor;
  const std::int64_t oldest = max(floor, p - task.window_size + 1);
  const std::int64_t places =
      min(static_cast<std::int64_t>(task.window_size), max(static_cast<std::int64_t>(task.window_places), p + 1));
  return {static_cast<int>(p + 1 - oldest), static_cast<int>(places), entries, oldest};
}

// Address of the record at `place` of a draft block's list: committed rows in the order of position mod window_size,
// then the rows of the block.
__device__ __forceinline__ const std::uint8_t* DraftRecord(const AttentionTask& task, const SequenceEntry& sequence,
                                                           const Places& places, int place) {
  const int committed = places.window_rows - sequence.rows;
  if (place >= committed) {
    return task.window + static_cast<std::size_t>(sequence.first_row + place - committed) * task.ring.row_bytes;
  }
  // The committed rows are positions oldest … start - 1. In the order of position mod window_size those of the newest
  // turn of the ring come first.
  const std::int64_t turn = static_cast<std::int64_t>(sequence.start) / task.window_size * task.window_size;
  const std::int64_t newest_first = max(turn, places.oldest);
  const std::int64_t in_turn = max(static_cast<std::int64_t>(sequence.start) - newest_first, std::int64_t{0});
  const std::int64_t position = place < in_turn ? newest_first + place : places.oldest + (place - in_turn);
  return RingRow(task.ring, sequence.slot, position);
}

// Where the key of `place` lies.
__device__ __forceinline__ KeyPlace KeyAt(const AttentionTask& task, const SequenceEntry& sequence,
                                          const Places& places, int t, int place) {
  KeyPlace key{nullptr, 0, KeyKind::kNone};
  if (place < places.window_rows) {
    key.kind = KeyKind::kWindow;
    key.scales = kDim;
    if (task.draft) {
      key.codes = DraftRecord(task, sequence, places, place);
    } else {
      const auto position = static_cast<std::uint32_t>(places.oldest + place);
      const auto start = static_cast<std::uint32_t>(sequence.start);
      key.codes = position >= start
                      ? task.window + static_cast<std::size_t>(static_cast<std::uint32_t>(sequence.first_row) +
                                                               position - start) *
                                          task.ring.row_bytes
                      : reinterpret_cast<const std::uint8_t*>(task.ring.base) +
                            static_cast<std::size_t>(sequence.slot) * task.ring.slot_bytes +
                            static_cast<std::size_t>(position % static_cast<std::uint32_t>(task.ring.rows)) *
                                task.ring.row_bytes;
    }
  } else if (place >= places.window_places && place < places.end()) {
    const auto j =
        static_cast<std::uint32_t>(task.list[static_cast<std::int64_t>(t) * task.topk + place - places.window_places]);
    const auto entries = static_cast<std::uint32_t>(task.slab.entries()), i = j % entries;
    const std::int32_t block = task.step.blocks[static_cast<std::uint32_t>(sequence.block_offset) + j / entries];
    key.kind = KeyKind::kEntry;
    key.codes = reinterpret_cast<const std::uint8_t*>(task.slab.base) +
                static_cast<std::size_t>(block) * task.slab.block_bytes() + i * (kDim / 2);
    key.scales = static_cast<std::int32_t>(entries * (kDim / 2) - i * (kDim / 2) + i * (kDim / 16));
  }
  return key;
}

// Values d and d + 1 of a head as a pair, number `at` of the output's pairs: as they are, where a copy of that is
// wanted, and from value `turned_from` on turned back by the row's angles.
__device__ __forceinline__ void StorePair(const AttentionTask& task, const float2* angles, int turned_from,
                                          std::int64_t at, int d, std::uint32_t pair) {
  if (task.unrotated_copy != nullptr) reinterpret_cast<std::uint32_t*>(task.unrotated_copy)[at] = pair;
  std::uint32_t out = pair;
  if (d >= turned_from) {
    const float2 angle = angles[(d - turned_from) / 2];
    const float2 back = Turn(LowHalf(pair), HighHalf(pair), {angle.x, -angle.y});
    out = Pack(back.x, back.y);
  }
  reinterpret_cast<std::uint32_t*>(task.out)[at] = out;
}

// Entries of row t's list, by all threads of a block.
template <int Threads>
__device__ __forceinline__ int CountEntries(const AttentionTask& task, int t) {
  int entries = 0;
  for (int i = 0; task.list != nullptr && i < task.topk; i += Threads) {
    const int at = i + static_cast<int>(threadIdx.x);
    entries += __syncthreads_count(at < task.topk && task.list[static_cast<std::int64_t>(t) * task.topk + at] >= 0);
  }
  return entries;
}

// Where every key of the list lies, up to whole blocks.
template <int Threads, int Block>
__device__ __forceinline__ void FindKeys(const AttentionTask& task, const SequenceEntry& sequence, const Places& places,
                                         int t, KeyPlace* out) {
  const int end = (places.end() + Block - 1) / Block * Block;
  for (int place = static_cast<int>(threadIdx.x); place < end; place += Threads) {
    out[place] = KeyAt(task, sequence, places, t, place);
  }
}

constexpr int kRawStride = kDim + kDim / 32;  // bytes of a raw record in shared memory

// Starts the copies of the raw records of a block of keys, of up to 64: 33 pieces of 16 bytes a window record, 16 + 2
// an entry. kPerKey threads work on a key.
template <int Threads, int Block>
__device__ __forceinline__ void FetchKeys(const KeyPlace* keys, std::uint8_t* raw) {
  constexpr int kPerKey = Threads / 64;
  const int local = static_cast<int>(threadIdx.x) / kPerKey;
  if (local < Block) {
    const KeyPlace key = keys[local];
    const int code_pieces = key.kind == KeyKind::kWindow ? kDim / 16 : kDim / 32;
    const int pieces = key.kind == KeyKind::kNone ? 0 : code_pieces + (key.kind == KeyKind::kWindow ? 1 : 2);
    const int scales_at = key.kind == KeyKind::kWindow ? kDim : kDim - 16;
    std::uint8_t* to = raw + local * kRawStride;
    for (int piece = static_cast<int>(threadIdx.x) % kPerKey; piece < pieces; piece += kPerKey) {
      const int scale = (piece - code_pieces) * 16;
      ptx::CopyAsync16(to + (scale >= 0 ? scales_at + scale : piece * 16),
                       key.codes + (scale >= 0 ? key.scales + scale : piece * 16), true);
    }
  }
  ptx::CommitCopies();
}

// Eight values in natural order, from their codes and the byte of their scale.
__device__ __forceinline__ uint4 DecodeWindow(uint2 codes, std::uint32_t scale_code) {
  std::uint32_t p[4];
  const std::uint32_t scale = ScalePair<kFp8Shift>(static_cast<std::uint8_t>(scale_code));
  DecodeFp8x4(codes.x, scale, p[0], p[1]);
  DecodeFp8x4(codes.y, scale, p[2], p[3]);
  return {__byte_perm(p[0], p[1], 0x5410), __byte_perm(p[0], p[1], 0x7632), __byte_perm(p[2], p[3], 0x5410),
          __byte_perm(p[2], p[3], 0x7632)};
}
__device__ __forceinline__ uint4 DecodeEntry(std::uint32_t codes, std::uint32_t scale_code) {
  std::uint32_t p[4];
  const float scale = DecodeE4M3(static_cast<std::uint8_t>(scale_code));
  DecodeFp4x8(codes, ScalePair<kFp4Shift>(127), p);  // times 1
  const std::uint32_t both = Pack(scale, scale);
#pragma unroll
  for (std::uint32_t& pair : p) pair = MultiplyPairs(pair, both);  // two and four bits of mantissa: exact
  return {__byte_perm(p[0], p[1], 0x5410), __byte_perm(p[2], p[3], 0x5410), __byte_perm(p[0], p[1], 0x7632),
          __byte_perm(p[2], p[3], 0x7632)};
}

}  // namespace galley::backend::cuda
