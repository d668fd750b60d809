// SPDX-License-Identifier: Apache-2.0
// Products by bulk copies: one thread copies codes and x into a ring of stages by few large copies, two warpgroups of
// 64 rows of weights each decode the codes into registers and multiply, others may send the sums out. A block of
// threads may work off many tiles, each 128 rows of weights by up to N rows of x; copies and products are at the next
// tile while the sums of the last go out. x comes packed (packed_rows.h), in slot order (SlotPlace), so that a
// warpgroup product meets the values of K that the narrow product (stream_dot.cuh) meets, in the same order and cut at
// the same places: the same bits.
#pragma once

#include "galley/backend/cuda/packed_rows.h"
#include "galley/backend/cuda/ptx/bulk_copy.cuh"
#include "galley/backend/cuda/wide_dot.cuh"

namespace galley::backend::cuda {

// What a tile multiplies. A warpgroup takes a panel of weights (kPanelRows); its two may lie in different matrices of
// equal width.
struct BulkTile {
  const std::uint8_t* codes[2];   // of each warpgroup, first block of K
  const std::uint8_t* scales[2];  // of each warpgroup's first row, first block of K
  const BFloat16* x;              // packed, first block of K
  int groups;                     // of 8 rows of x
  int blocks;                     // of K
  int scale_cols;                 // FP8: scales in a row of the matrix
  // Whether packed x lies in shared memory already, at the address `x_at`; else it comes with the codes.
  bool resident = false;
  std::uint32_t x_at = 0;
};

// Rows of x up to which warps multiply by themselves.
inline constexpr int kFewColumns = 32;

// Shared memory: stages behind each other, then the tile that goes out, then two barriers a stage. In a stage lie
// Fp4Blocks or, of other formats, Fp8Blocks blocks of K: the codes of each warpgroup, their MXFP4 scales, then x. FP8
// scales, a fiftieth of those, come straight from global memory.
template <int Stages, int StageBytes, int TileBytes, int Fp4Blocks, int Fp8Blocks>
struct BulkRing {
  static constexpr int kStages = Stages, kStageBytes = StageBytes;
  static constexpr int kRowBytes = kTileRows * 2 + 16;  // of a row of x in a bf16 tile; the pad keeps the banks apart
  static constexpr int kTileAt = Stages * StageBytes, kBarriersAt = kTileAt + TileBytes;
  static constexpr int kBytes = kBarriersAt + 2 * Stages * 8;
  // Of a panel's block of K.
  static constexpr int kCodeBytes = kPanelRows * 64, kScaleBytes = kCodeBytes / kTileBytesPerScale;
  template <WeightFormat F>
  static constexpr int kBlocks = F == WeightFormat::kMxfp4 ? Fp4Blocks : Fp8Blocks;
  // Where scales and x begin in a stage.
  template <WeightFormat F>
  static constexpr int kScalesAt = 2 * kBlocks<F>* kCodeBytes;
  template <WeightFormat F>
  static constexpr int kXAt = kScalesAt<F> + (F == WeightFormat::kMxfp4 ? 2 * kBlocks<F> * kScaleBytes : 0);

  std::uint8_t* data;
  std::uint32_t address = 0;  // of data in shared memory
  int stage = 0;              // where this thread is in the ring
  std::uint32_t parity = 0;   // of the ring's turn

  __device__ __forceinline__ std::uint32_t full(int i) const {
    return address + static_cast<std::uint32_t>(kBarriersAt + 8 * i);
  }
  __device__ __forceinline__ std::uint32_t empty(int i) const { return full(Stages + i); }
  // Before anything else, by every thread of the block.
  __device__ __forceinline__ void Init() {
    address = ptx::KeptSharedAddress(data);
    if (threadIdx.x == 0) {
      for (int i = 0; i < Stages; ++i) {
        ptx::InitBarrier(full(i), 1);
        ptx::InitBarrier(empty(i), kWideThreads / 32);
      }
      ptx::FenceBarriers();
    }
    __syncthreads();
  }
  __device__ __forceinline__ void Advance() {
    if (++stage == Stages) stage = 0, parity ^= 1;
  }

  // By the copying thread: the tile's codes and x into the ring. With `Waits`, the kernel before this one in the stream
  // may still be at work on x, and is waited for once the ring is full of codes; so of a block's first tile only.
  template <WeightFormat F, bool Waits>
  __device__ __forceinline__ void Copy(const BulkTile& t) {
    constexpr int kPer = kBlocks<F>;
    int first = 0;
    if constexpr (Waits) {
      const int ahead = min(Stages, (t.blocks + kPer - 1) / kPer);
      for (int i = 0; i < ahead; ++i) CopyCodes<F>(t, i * kPer, i);
      ptx::WaitForPreviousKernel();
      for (; first < ahead * kPer; first += kPer) CopyX<F>(t, first);
    }
    for (; first < t.blocks; first += kPer) {
      ptx::WaitPhase(empty(stage), parity ^ 1);
      CopyCodes<F>(t, first, stage);
      CopyX<F>(t, first);
    }
  }
  // The same of codes alone, for a tile whose x is resident.
  template <WeightFormat F>
  __device__ __forceinline__ void CopyOnlyCodes(const BulkTile& t) {
    for (int first = 0; first < t.blocks; first += kBlocks<F>) {
      ptx::WaitPhase(empty(stage), parity ^ 1);
      CopyCodes<F>(t, first, stage);
      Advance();
    }
  }
  template <WeightFormat F>
  __device__ __forceinline__ static int XBytes(const BulkTile& t) {
    return t.groups * kBlockK<F> * kPackedRows * 2;
  }
  template <WeightFormat F>
  __device__ __forceinline__ void CopyCodes(const BulkTile& t, int first, int to_stage) const {
    const int count = min(kBlocks<F>, t.blocks - first);
    const std::uint32_t to = address + static_cast<std::uint32_t>(to_stage * StageBytes), barrier = full(to_stage);
    ptx::ArriveAndExpect(barrier, count * (kXAt<F> / kBlocks<F> + (t.resident ? 0 : XBytes<F>(t))));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t codes = to + static_cast<std::uint32_t>(half * kBlocks<F> * kCodeBytes);
      ptx::CopyBulk(codes, t.codes[half] + std::int64_t{first} * kCodeBytes, count * kCodeBytes, barrier);
      if constexpr (F == WeightFormat::kMxfp4) {
        const std::uint32_t scales = to + static_cast<std::uint32_t>(kScalesAt<F> + half * kBlocks<F> * kScaleBytes);
        ptx::CopyBulk(scales, t.scales[half] + std::int64_t{first} * kScaleBytes, count * kScaleBytes, barrier);
      }
    }
  }
  template <WeightFormat F>
  __device__ __forceinline__ void CopyX(const BulkTile& t, int first) {
    const int count = min(kBlocks<F>, t.blocks - first), bytes = XBytes<F>(t);
    const std::uint32_t to = address + static_cast<std::uint32_t>(stage * StageBytes + kXAt<F>);
    ptx::CopyBulk(to, t.x + std::int64_t{first} * (bytes / 2), count * bytes, full(stage));
    Advance();
  }

  // By the lanes of a warp that has read stage `i` and whose products over it have ended.
  __device__ __forceinline__ void Release(int i) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::Arrive(empty(i));
  }

  // A thread's way through a tile.
  template <WeightFormat F>
  struct Cursor {
    const BulkTile& tile;
    std::uint32_t codes, mxfp4_scales;  // of this lane in the first block of a stage, counted from the stage's begin
    std::uint32_t x_bytes;              // of a block
    const std::uint8_t* scales;         // FP8: of this lane, for the coming block
    std::uint32_t next = 0;             // FP8: scale of the coming block
    int block = 0, last = -1;           // coming block; stage that products may still read

    __device__ __forceinline__ explicit Cursor(const BulkTile& t)
        : tile(t), x_bytes(static_cast<std::uint32_t>(XBytes<F>(t))) {
      const auto warp = threadIdx.x / 32, lane = threadIdx.x % 32, panel = warp / 4 * kBlocks<F>;
      codes = panel * kCodeBytes + warp % 4 * 1024 + lane * 16;
      mxfp4_scales = kScalesAt<F> + panel * kScaleBytes + warp % 4 * 64 + lane * 2;
      if constexpr (F != WeightFormat::kFp8Block32) return;
      scales = (warp < 4 ? t.scales[0] : t.scales[1]) + warp % 4 / 2 * t.scale_cols + lane % 4 / 2;
      next = __ldg(scales);
    }
  };
  // What a lane multiplies in a block of K.
  template <WeightFormat F>
  struct Block {
    uint4 codes[2];          // of its two rows of weights
    std::uint32_t scale[2];  // as pairs
    std::uint32_t x;         // where x lies in shared memory
  };
  template <WeightFormat F>
  __device__ __forceinline__ Block<F> Load(Cursor<F>& at) const {
    const auto sub = static_cast<std::uint32_t>(kBlocks<F> == 1 ? 0 : at.block % kBlocks<F>);
    if (sub == 0) ptx::WaitPhase(full(stage), parity);
    const std::uint32_t from = address + static_cast<std::uint32_t>(stage * StageBytes);
    const std::uint32_t codes = from + at.codes + sub * kCodeBytes;
    Block<F> block{.codes = {ptx::LoadShared16(codes), ptx::LoadShared16(codes + 512)},
                   .scale = {},
                   .x = at.tile.resident ? at.tile.x_at + static_cast<std::uint32_t>(at.block) * at.x_bytes
                                         : from + kXAt<F> + sub * at.x_bytes};
    if constexpr (F == WeightFormat::kMxfp4) {
      const std::uint32_t bytes = ptx::LoadShared2(from + at.mxfp4_scales + sub * kScaleBytes);
      block.scale[0] = ((bytes & 255u) + kFp4Shift) * 0x00800080u;
      block.scale[1] = ((bytes >> 8) + kFp4Shift) * 0x00800080u;
    } else if constexpr (F == WeightFormat::kFp8Block32) {
      // Larger ones would not fit a bf16's exponent.
      block.scale[0] = block.scale[1] = (min(at.next, 254u - kFp8Shift) + kFp8Shift) * 0x00800080u;
      at.scales += 2;
      if (at.block + 1 < at.tile.blocks) at.next = __ldg(at.scales);
    }
    return block;
  }
  // Whether the block was the last of its stage.
  template <WeightFormat F>
  __device__ __forceinline__ static bool EndsStage(const Cursor<F>& at) {
    return (at.block + 1) % kBlocks<F> == 0 || at.block + 1 == at.tile.blocks;
  }

  // sum = weights times x; columns beyond the tile's rows of x hold anything. `Parts`: K in `parts` parts.
  template <WeightFormat F, int N, bool Parts, bool Overlaps = true>
  __device__ __forceinline__ void Multiply(const BulkTile& t, int parts, float (&sum)[N / 2]) {
    Cursor<F> at(t);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sum[i] = 0;
    const auto multiply = [&](int end, float(&to)[N / 2]) {
      if constexpr (N <= kFewColumns) {
        MultiplyFew<F, N>(at, end, to);
      } else {
        MultiplyMany<F, N, Overlaps>(at, end, to);
      }
    };
    if constexpr (!Parts) {
      multiply(t.blocks, sum);
    } else {
      for (int part = 0; part < parts; ++part) {
        const int end = SplitBegin(t.blocks, parts, part + 1);
        if (at.block == end) continue;
        float acc[N / 2] = {};
        multiply(end, acc);
#pragma unroll
        for (int i = 0; i < N / 2; ++i) sum[i] += acc[i];
      }
    }
    if (at.last >= 0) Release(at.last);
  }
  // acc += the product over blocks up to `end`, warp by warp: a warpgroup product of few columns takes as long as one
  // of 32, and its warps wait for each other.
  template <WeightFormat F, int N>
  __device__ __forceinline__ void MultiplyFew(Cursor<F>& at, int end, float (&acc)[N / 2]) {
    const auto lane = threadIdx.x % 32;
    StreamDot<F, 1, 1, 2, kWideThreads> narrow;  // for its decoder
    for (; at.block < end; ++at.block) {
      const Block<F> block = Load(at);
      const std::uint32_t x = block.x + lane * 16;  // four cores of 8 rows at once
#pragma unroll
      for (int g = 0; g < kLaneValues<F> / 8; ++g) {
        std::uint32_t a[2][4];
        narrow.Operands(block.codes, block.scale, g, a);
#pragma unroll
        for (int n = 0; n < N / 8; ++n) {
          std::uint32_t cores[4];
          ptx::LoadMatrix4(cores, x + n * (kBlockK<F> * kPackedRows * 2) + g * 512);
          auto& d = *reinterpret_cast<float(*)[4]>(acc + 4 * n);
#pragma unroll
          for (int step = 0; step < 2; ++step) ptx::Mma16x8x16(d, a[step], cores[2 * step], cores[2 * step + 1]);
        }
      }
      if (EndsStage(at)) Release(stage), Advance();
    }
  }
  // The same by warpgroup products. With `Overlaps` one group of them runs while the operands of the next are decoded;
  // without, other blocks of threads fill the time, and fewer registers are needed.
  template <WeightFormat F, int N, bool Overlaps>
  __device__ __forceinline__ void MultiplyMany(Cursor<F>& at, int end, float (&acc)[N / 2]) {
    constexpr int kGroups = kLaneValues<F> / 8, kSets = Overlaps && kGroups > 1 ? 2 : 1;
    StreamDot<F, 1, 1, 2, kWideThreads> narrow;  // for its decoder
    std::uint32_t a[kSets][2][4];
    for (; at.block < end; ++at.block) {
      const Block<F> block = Load(at);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        narrow.Operands(block.codes, block.scale, g, a[g % kSets]);
        ptx::WarpgroupFence();
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          ptx::Wgmma<N>::Add(acc, a[g % kSets][step],
                             ptx::CoreDescriptor(block.x + static_cast<std::uint32_t>((g * 2 + step) * 2 * 128), 128,
                                                 kBlockK<F> * kPackedRows * 2));
        }
        ptx::WarpgroupCommit();
        ptx::WarpgroupWait<kSets - 1>();
        if (g == 0 && at.last >= 0) Release(at.last), at.last = -1;
      }
      if (EndsStage(at)) at.last = stage, Advance();
    }
    ptx::WarpgroupWait<0>();
  }

  // The two warpgroups put their sums, rounded to bf16, into the tile: [rows of x][kTileRows].
  template <int N>
  __device__ __forceinline__ void StoreTile(const float (&sum)[N / 2]) const {
    static_assert((N + 15) / 16 * 16 * kRowBytes <= TileBytes);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    // Matrix m of four: rows m % 2 * 8 of the warp's 16, columns m / 2 * 8 of 16.
    const std::uint32_t to = address + static_cast<std::uint32_t>(kTileAt + (lane / 16 * 8 + lane % 8) * kRowBytes +
                                                                  (warp * 16 + lane / 8 % 2 * 8) * 2);
#pragma unroll
    for (int j = 0; j < (N + 15) / 16; ++j) {
      std::uint32_t pairs[4] = {};
#pragma unroll
      for (int i = 0; i < 4 && 8 * j + 2 * i < N / 2; ++i) pairs[i] = Pack(sum[8 * j + 2 * i], sum[8 * j + 2 * i + 1]);
      ptx::StoreMatrix4Transposed(to + static_cast<std::uint32_t>(j * 16 * kRowBytes), pairs);
    }
  }
  // Eight neighbouring rows of weights of a row of x in the tile.
  __device__ __forceinline__ uint4 Piece(int x_row, int row) const {
    return *reinterpret_cast<const uint4*>(data + kTileAt + x_row * kRowBytes + row * 2);
  }
};

// Threads of a block: the two warpgroups, then either one warp of which one thread copies, or a warpgroup, which also
// sends out the sums with its other warps and gives registers to the two.
inline constexpr int kBulkThreads = kWideThreads + 32, kDividedThreads = kWideThreads + 128;

// The threads that send out a tile's sums: this one's number and how many there are.
struct Finishers {
  int thread, threads;
};

// One block's way through its tiles. `for_tiles(run)` calls run(tile) for each; `copy(tile)` brings its operands into
// the ring, `multiply(tile)` leaves its sums in the ring's tile through the function that it is given, which must be
// called once, and `finish(tile, finishers)` sends them out.
template <int Threads, typename ForTiles, typename Copy, typename Multiply, typename Finish>
__device__ __forceinline__ void WorkOff(ForTiles&& for_tiles, Copy&& copy, Multiply&& multiply, Finish&& finish) {
  constexpr int kOwn = 1, kReady = 2, kFree = 3;  // barriers: of the multiplying threads, tile is filled, tile is read
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (Threads == kBulkThreads) {
    if (thread >= kWideThreads) {
      if (thread == kWideThreads) for_tiles(copy);
      return;
    }
    for_tiles([&](auto&&... tile) {
      multiply(
          [&](auto&& store) {
            ptx::SyncThreads(kOwn, kWideThreads);
            store();
            ptx::SyncThreads(kOwn, kWideThreads);
          },
          tile...);
      finish(Finishers{thread, kWideThreads}, tile...);
    });
  } else {
    constexpr int kFinishers = Threads - kBulkThreads, kBoth = kWideThreads + kFinishers;
    bool first = true;
    if (thread >= kWideThreads) {
      ptx::ReduceRegisters<40>();
      if (thread == kWideThreads) for_tiles(copy);
      if (thread < kBulkThreads) return;
      for_tiles([&](auto&&... tile) {
        if (!first) ptx::ArriveThreads(kFree, kBoth);
        first = false;
        ptx::SyncThreads(kReady, kBoth);
        finish(Finishers{thread - kBulkThreads, kFinishers}, tile...);
      });
    } else {
      ptx::RaiseRegisters<232>();
      for_tiles([&](auto&&... tile) {
        multiply(
            [&](auto&& store) {
              if (!first) ptx::SyncThreads(kFree, kBoth);
              first = false;
              store();
              ptx::ArriveThreads(kReady, kBoth);
            },
            tile...);
      });
    }
  }
}

}  // namespace galley::backend::cuda
