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

enum class KeyKind : std::uint16_t { kNone = 0, kStep, kRing, kEntry };

// Where the key of a place lies, in units of 16 bytes: codes from where the records of its kind begin, and scales from
// the codes.
struct KeyPlace {
  std::uint32_t codes;
  std::uint16_t scales;
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
__host__ __device__ inline std::size_t PlacesMax(const AttentionTask& task, int block) {
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
  int oldest;  // position of the first window row
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

// Of the row at position `p`.
__device__ __forceinline__ Places PlacesOf(const AttentionTask& task, const SequenceEntry& sequence, int p,
                                           int entries) {
  if (task.draft) {
    const int from = max(max(sequence.start - task.window_size, 0), sequence.decoder_floor);
    const int rows = max(sequence.start - from, 0) + sequence.rows;
    return {rows, rows, 0, from};
  }
  const int floor = task.decoder_floor ? sequence.decoder_floor : sequence.encoder_floor;
  const int oldest = max(floor, p - task.window_size + 1);
  return {p + 1 - oldest, min(task.window_size, max(task.window_places, p + 1)), entries, oldest};
}

// A place that holds an entry has its number, and the id of the block of history that it lies in. Apart, so that a
// thread can have loads for several places under way.
struct EntryPlace {
  std::int32_t entry = -1, block = 0;
};
// A block of history has a power of two of entries.
__device__ __forceinline__ int EntryBits(const HistorySlab& slab) {
  return 31 - __clz(slab.entries());
}
__device__ __forceinline__ std::int32_t EntryAt(const AttentionTask& task, const Places& places, int t, int place) {
  if (place < places.window_places || place >= places.end()) return -1;
  return task.list[static_cast<std::int64_t>(t) * task.topk + place - places.window_places];
}
__device__ __forceinline__ std::int32_t BlockOf(const AttentionTask& task, const SequenceEntry& sequence,
                                                std::int32_t entry) {
  if (entry < 0) return 0;
  return task.step.blocks[sequence.block_offset + (entry >> EntryBits(task.slab))];
}

// The record of a window place: row `row` of the step, or `position` in the ring (row < 0).
struct WindowPlace {
  int row, position;
};
__device__ __forceinline__ WindowPlace WindowAt(const AttentionTask& task, const SequenceEntry& sequence,
                                                const Places& places, int place) {
  if (!task.draft) {
    const int position = places.oldest + place, ahead = position - sequence.start;
    return {ahead >= 0 ? sequence.first_row + ahead : -1, position};
  }
  // Committed rows in the order of position mod window_size, then the rows of the block. Of the committed ones,
  // positions oldest … start - 1, those of the newest turn of the ring come first.
  const int committed = places.window_rows - sequence.rows;
  if (place >= committed) return {sequence.first_row + place - committed, 0};
  const int newest_first = max(sequence.start / task.window_size * task.window_size, places.oldest);
  const int in_turn = max(sequence.start - newest_first, 0);
  return {-1, place < in_turn ? newest_first + place : places.oldest + (place - in_turn)};
}

// Where the key of `place` lies.
__device__ __forceinline__ KeyPlace KeyAt(const AttentionTask& task, const SequenceEntry& sequence,
                                          const Places& places, int place, EntryPlace listed) {
  if (place < places.window_rows) {
    const auto [row, position] = WindowAt(task, sequence, places, place);
    const auto unit = [](std::size_t bytes) { return static_cast<std::uint32_t>(bytes / 16); };
    const std::uint32_t row_units = unit(task.ring.row_bytes);
    if (row >= 0) return {static_cast<std::uint32_t>(row) * row_units, kDim / 16, KeyKind::kStep};
    return {static_cast<std::uint32_t>(sequence.slot) * unit(task.ring.slot_bytes) +
                static_cast<std::uint32_t>(position % task.ring.rows) * row_units,
            kDim / 16, KeyKind::kRing};
  }
  if (listed.entry < 0) return {0, 0, KeyKind::kNone};
  constexpr std::uint32_t kCodes = kDim / 2 / 16, kScales = kDim / 16 / 16;
  const auto entries = static_cast<std::uint32_t>(task.slab.entries()),
             i = static_cast<std::uint32_t>(listed.entry) & (entries - 1);
  return {
      static_cast<std::uint32_t>(listed.block) * static_cast<std::uint32_t>(task.slab.block_bytes() / 16) + i * kCodes,
      static_cast<std::uint16_t>(entries * kCodes - i * (kCodes - kScales)), KeyKind::kEntry};
}
__device__ __forceinline__ const std::uint8_t* CodesOf(const AttentionTask& task, const KeyPlace& key) {
  const void* base = key.kind == KeyKind::kStep   ? static_cast<const void*>(task.window)
                     : key.kind == KeyKind::kRing ? static_cast<const void*>(task.ring.base)
                                                  : static_cast<const void*>(task.slab.base);
  return static_cast<const std::uint8_t*>(base) + static_cast<std::size_t>(key.codes) * 16;
}

}  // namespace galley::backend::cuda
