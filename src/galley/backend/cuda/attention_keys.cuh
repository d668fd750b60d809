// SPDX-License-Identifier: Apache-2.0
// The list of keys of one row of attention, shared by both kernels: which place of the list holds which record, and how
// records become bf16. A place depends on the row alone.
#pragma once

#include <cmath>

#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/ptx/mma.cuh"
#include "galley/backend/cuda/step.cuh"

namespace galley::backend::cuda {

constexpr int kDim = 512, kDraftRowsMax = 64;  // rows of a draft block

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
// Places that a list may have, up to whole blocks.
inline std::size_t PlacesMax(const AttentionTask& task, int block) {
  return static_cast<std::size_t>(task.window_size + task.topk + (task.draft ? kDraftRowsMax : 0) + block);
}
inline float ScoreScale() {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(kDim)));
}

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
  // Blocks of places, without those that lie in the window's unused places and hold no key.
  template <int Block>
  __device__ int Blocks() const {
    return entries == 0 ? WindowBlocks<Block>() : (end() + Block - 1) / Block - SkippedBlocks<Block>();
  }
  // First place of the i-th of them.
  template <int Block>
  __device__ int BlockBegin(int i) const {
    return (i < WindowBlocks<Block>() ? i : i + SkippedBlocks<Block>()) * Block;
  }

 private:
  template <int Block>
  __device__ int WindowBlocks() const {
    return (window_rows + Block - 1) / Block;
  }
  template <int Block>
  __device__ int SkippedBlocks() const {
    return max(window_places / Block - WindowBlocks<Block>(), 0);
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

// A place that holds an entry has its number, and the id of the block of history that it lies in. Apart, so that a
// thread can have loads for several places under way.
struct EntryPlace {
  std::int32_t entry = -1, block = 0;
};
__device__ __forceinline__ std::int32_t EntryAt(const AttentionTask& task, const Places& places, int t, int place) {
  if (place < places.window_places || place >= places.end()) return -1;
  return task.list[static_cast<std::int64_t>(t) * task.topk + place - places.window_places];
}
__device__ __forceinline__ std::int32_t BlockOf(const AttentionTask& task, const SequenceEntry& sequence,
                                                std::int32_t entry) {
  if (entry < 0) return 0;
  return task.step.blocks[sequence.block_offset + entry / task.slab.entries()];
}

// Where the key of `place` lies.
__device__ __forceinline__ KeyPlace KeyAt(const AttentionTask& task, const SequenceEntry& sequence,
                                          const Places& places, int place, EntryPlace listed) {
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
  } else if (listed.entry >= 0) {
    const std::int32_t entries = task.slab.entries(), i = listed.entry % entries;
    key.kind = KeyKind::kEntry;
    key.codes = reinterpret_cast<const std::uint8_t*>(task.slab.base) +
                static_cast<std::size_t>(listed.block) * task.slab.block_bytes() +
                static_cast<std::size_t>(i * (kDim / 2));
    key.scales = entries * (kDim / 2) - i * (kDim / 2) + i * (kDim / 16);
  }
  return key;
}

// The e4m3 scale of 16 values of an entry, twice.
__device__ __forceinline__ std::uint32_t EntryScale(std::uint32_t code) {
  return MultiplyPairs(((code * 0x00100010u) & 0x07F007F0u) | ((code * 0x01000100u) & 0x80008000u),
                       ScalePair<kFp8Shift>(127));
}

}  // namespace galley::backend::cuda
