// SPDX-License-Identifier: Apache-2.0
// The list of keys of one row of attention, shared by both kernels: which place of the list holds which record, and how
// records become bf16. A place depends on the row alone.
#pragma once

#include <bit>
#include <cmath>

#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/ptx/mma.cuh"
#include "galley/backend/cuda/step.cuh"

namespace galley::backend::cuda {

constexpr int kDim = 512, kDraftRowsMax = 64;  // rows of a draft block

enum class KeyKind : std::uint32_t { kNone = 0, kStep, kRing, kEntry };

// Where the key of a place lies. Addresses are counted in units of 16 bytes, of which 46 bits are enough.
class KeyPlace {
 public:
  KeyPlace() = default;
  // `scales`: units from the codes to the scales.
  __device__ KeyPlace(KeyKind kind, const void* codes, std::uint32_t scales) {
    const std::uint64_t units = reinterpret_cast<std::uint64_t>(codes) >> 4;
    low_ = static_cast<std::uint32_t>(units);
    high_ = static_cast<std::uint32_t>(kind) << 30 | scales << 14 | static_cast<std::uint32_t>(units >> 32);
  }
  [[nodiscard]] __device__ KeyKind kind() const { return static_cast<KeyKind>(high_ >> 30); }
  [[nodiscard]] __device__ const std::uint8_t* codes() const {
    return reinterpret_cast<const std::uint8_t*>((static_cast<std::uint64_t>(high_ & 0x3FFF) << 32 | low_) << 4);
  }
  [[nodiscard]] __device__ int scales() const { return static_cast<int>(high_ >> 14 & 0xFFFF); }

 private:
  std::uint32_t low_ = 0, high_ = 0;
};

// Strides of records in units of 16 bytes, and how many bits of an entry's number are its place in its block.
struct RecordUnits {
  std::uint32_t row, slot, block;
  int entry_bits;
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
  RecordUnits units;
  BFloat16* out;
  BFloat16* unrotated_copy;
};
inline RecordUnits UnitsOf(const Ring& ring, const HistorySlab& slab) {
  const auto units = [](std::size_t bytes) { return static_cast<std::uint32_t>(bytes / 16); };
  // A block of history has a power of two of entries.
  return {units(ring.row_bytes), units(ring.slot_bytes), units(slab.block_bytes()),
          std::countr_zero(static_cast<unsigned>(slab.entries()))};
}

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
          .units = UnitsOf(args.ring, args.slab),
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
          .units = UnitsOf(args.ring, {}),
          .out = args.out,
          .unrotated_copy = nullptr};
}

// Places of one row's list of keys.
struct Places {
  int window_rows, window_places, entries;
  // Window places below `committed` lie in the ring: those below `turned` from row `newest` of the ring on, the others
  // from row `oldest`. Those behind are rows of the step, the place's number and `step_row`.
  int committed, turned, newest, oldest, step_row;
  std::uint32_t slot;  // where the sequence's ring begins, in units
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
  // Blocks of window rows, and how many behind them hold no key.
  template <int Block>
  __device__ int WindowBlocks() const {
    return (window_rows + Block - 1) / Block;
  }
  template <int Block>
  __device__ int SkippedBlocks() const {
    return max(window_places / Block - WindowBlocks<Block>(), 0);
  }
};

// Of the row at position `p`. Window rows are listed by position; for draft blocks, committed ones are in the order of
// position mod window_size (those of the newest turn first), then come the rows of the block.
__device__ __forceinline__ Places PlacesOf(const AttentionTask& task, const SequenceEntry& sequence, int p,
                                           int entries) {
  const auto ring_row = [&](int position) {
    return static_cast<int>(static_cast<unsigned>(position) % static_cast<unsigned>(task.ring.rows));
  };
  Places places;
  places.slot = static_cast<std::uint32_t>(sequence.slot) * task.units.slot;
  if (task.draft) {
    const int from = max(max(sequence.start - task.window_size, 0), sequence.decoder_floor);
    const int newest = max(sequence.start / task.window_size * task.window_size, from);
    places.committed = max(sequence.start - from, 0);
    places.window_rows = places.window_places = places.committed + sequence.rows;
    places.entries = 0;
    places.turned = max(sequence.start - newest, 0);
    places.newest = ring_row(newest), places.oldest = ring_row(from);
    places.step_row = sequence.first_row - places.committed;
  } else {
    const int floor = task.decoder_floor ? sequence.decoder_floor : sequence.encoder_floor;
    const int oldest = max(floor, p - task.window_size + 1);
    places.window_rows = p + 1 - oldest;
    places.window_places = min(task.window_size, max(task.window_places, p + 1));
    places.entries = entries;
    places.committed = max(sequence.start - oldest, 0);
    places.turned = places.newest = 0;
    places.oldest = ring_row(oldest);
    places.step_row = sequence.first_row + oldest - sequence.start;
  }
  return places;
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
// `block_offset`: that of the sequence.
__device__ __forceinline__ std::int32_t BlockOf(const AttentionTask& task, int block_offset, std::int32_t entry) {
  return entry < 0 ? 0 : task.step.blocks[block_offset + (entry >> task.units.entry_bits)];
}

// Where the key of `place` lies.
__device__ __forceinline__ KeyPlace KeyAt(const AttentionTask& task, const Places& places, int place,
                                          EntryPlace listed) {
  const auto at = [](const void* base, std::uint32_t units) {
    return static_cast<const std::uint8_t*>(base) + static_cast<std::size_t>(units) * 16;
  };
  if (place < places.window_rows) {
    if (place >= places.committed) {
      const std::uint32_t row = static_cast<std::uint32_t>(places.step_row + place);
      return {KeyKind::kStep, at(task.window, row * task.units.row), kDim / 16};
    }
    int row = place < places.turned ? places.newest + place : places.oldest + (place - places.turned);
    if (row >= task.ring.rows) row -= task.ring.rows;
    return {KeyKind::kRing, at(task.ring.base, places.slot + static_cast<std::uint32_t>(row) * task.units.row),
            kDim / 16};
  }
  if (listed.entry < 0) return {};
  constexpr std::uint32_t kCodes = kDim / 2 / 16, kScales = kDim / 16 / 16;
  const std::uint32_t entries = 1u << task.units.entry_bits,
                      i = static_cast<std::uint32_t>(listed.entry) & (entries - 1);
  return {KeyKind::kEntry, at(task.slab.base, static_cast<std::uint32_t>(listed.block) * task.units.block + i * kCodes),
          entries * kCodes - i * (kCodes - kScales)};
}

}  // namespace galley::backend::cuda
