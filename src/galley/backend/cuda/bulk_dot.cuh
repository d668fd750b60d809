// SPDX-License-Identifier: Apache-2.0
// Products with many rows of x. A block of threads stays on its multiprocessor and works off many tiles, each 128 rows
// of weights by up to N rows of x: one thread copies codes and x into a ring of stages by few large bulk copies, two
// warpgroups of 64 rows of weights each decode the codes into registers and multiply. So copies are at the next tile
// while the sums of the last go out. x comes packed (PackRows): in slot order (SlotPlace), so that a warpgroup product
// meets the values of K that the narrow product (stream_dot.cuh) meets, in the same order and cut at the same places:
// the same bits.
#pragma once

#include "galley/backend/cuda/packed_rows.h"
#include "galley/backend/cuda/ptx/bulk_copy.cuh"
#include "galley/backend/cuda/wide_dot.cuh"

namespace galley::backend::cuda {

inline constexpr int kBulkThreads = kWideThreads + 128;  // a thread of the last warpgroup copies
inline constexpr int kBulkStageK = 128;                 // values of K in a stage

// What a tile multiplies. A warpgroup takes 64 rows of weights, whose codes are 4 KiB for every block of K
// (kTileHeight); its two may lie in different matrices of equal width.
struct BulkTile {
  const std::uint8_t* codes[2];   // of each warpgroup, block 0 of K
  const std::uint8_t* scales[2];  // first row's
  const BFloat16* x;              // packed, block 0 of K
  int groups;                     // of 8 rows of x
  int cols;
};

// Scale bytes of a lane's two rows of weights, straight from global memory, where a sector holds those of many blocks.
template <WeightFormat F>
struct ScaleReader {
  static constexpr int kStep = kBlockK<F> / 32;
  static constexpr std::uint32_t kShift = F == WeightFormat::kMxfp4 ? kFp4Shift : kFp8Shift;

  const std::uint8_t* from[2];

  // `scales` of row 0, `row` the warp's first.
  __device__ __forceinline__ ScaleReader(const std::uint8_t* scales, int row, int cols) {
    const int lane = static_cast<int>(threadIdx.x) % 32, groups = cols / 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      from[half] = F == WeightFormat::kMxfp4
                       ? scales + static_cast<std::int64_t>(row + half * 8 + lane / 4) * groups + lane % 4
                       : scales + static_cast<std::int64_t>(row / 32) * groups + lane % 4 / 2;
    }
  }
  __device__ __forceinline__ std::uint32_t Load(int half, int block) const { return __ldg(from[half] + block * kStep); }
  // Larger ones would not fit a bf16's exponent.
  __device__ __forceinline__ static std::uint32_t Pair(std::uint32_t byte) {
    return (min(byte, 254 - kShift) + kShift) * 0x00800080u;
  }
};

// Shared memory: stages behind each other, then the tile that goes out, then two barriers a stage. In a stage lie the
// codes of one MXFP4 or two FP8 blocks of K, then x.
template <int Stages, int RowsMax>
struct BulkShared {
  static constexpr int kStages = Stages;
  static constexpr int kStageBytes = 48 << 10;  // 128 rows of x beside FP8 codes, 160 beside MXFP4 ones
  static constexpr int kRowBytes = kTileRows * 2 + 16;  // of a row of x in the tile; the pad keeps the banks apart
  static constexpr int kTileAt = Stages * kStageBytes, kBarriersAt = kTileAt + RowsMax * kRowBytes;
  static constexpr int kBytes = kBarriersAt + 2 * Stages * 8;

  std::uint8_t* data;
  int stage = 0;             // where this thread is in the ring
  std::uint32_t parity = 0;  // of the ring's turn

  __device__ __forceinline__ std::uint32_t full(int i) const {
    return ptx::SharedAddress(data) + static_cast<std::uint32_t>(kBarriersAt + 8 * i);
  }
  __device__ __forceinline__ std::uint32_t empty(int i) const { return full(Stages + i); }
  // Before anything else, by every thread of the block.
  __device__ __forceinline__ void Init() const {
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

  // By the copying thread: the tile's codes and x into the ring.
  template <WeightFormat F>
  __device__ __forceinline__ void Copy(const BulkTile& t) {
    constexpr int kBlocks = kBulkStageK / kBlockK<F>, kCodes = kTileRows * 64;
    const int blocks = t.cols / kBlockK<F>, x_bytes = t.groups * kBlockK<F> * kPackedRows * 2;
    const bool joined = t.codes[1] == t.codes[0] + kCodes / 2;
    for (int first = 0; first < blocks; first += kBlocks) {
      const int count = min(kBlocks, blocks - first);
      const std::uint32_t to = ptx::SharedAddress(data) + static_cast<std::uint32_t>(stage * kStageBytes);
      ptx::WaitPhase(empty(stage), parity ^ 1);
      ptx::ArriveAndExpect(full(stage), count * (kCodes + x_bytes));
      if (joined) {
        ptx::CopyBulk(to, t.codes[0] + std::int64_t{first} * kCodes, count * kCodes, full(stage));
      } else {
        for (int i = 0; i < count; ++i) {
          const std::int64_t at = std::int64_t{first + i} * kCodes;
          const std::uint32_t half = to + static_cast<std::uint32_t>(i * kCodes);
          ptx::CopyBulk(half, t.codes[0] + at, kCodes / 2, full(stage));
          ptx::CopyBulk(half + kCodes / 2, t.codes[1] + at, kCodes / 2, full(stage));
        }
      }
      ptx::CopyBulk(to + kBlocks * kCodes, t.x + std::int64_t{first} * (x_bytes / 2), count * x_bytes, full(stage));
      Advance();
    }
  }
  // By the lanes of a warp that has read stage `i` and whose products over it have ended.
  __device__ __forceinline__ void Release(int i) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::Arrive(empty(i));
  }

  // The block's threads by what they do: `copy` by one of the last warpgroup, `multiply` by the others, which take the
  // registers that it leaves.
  template <typename CopyTiles, typename MultiplyTiles>
  __device__ __forceinline__ static void Divide(CopyTiles&& copy, MultiplyTiles&& multiply) {
    if (threadIdx.x >= kWideThreads) {
      ptx::ReduceRegisters<24>();
      if (threadIdx.x == kWideThreads) copy();
    } else {
      ptx::RaiseRegisters<240>();
      multiply();
    }
  }

  // sum = weights times x, K in `splits` parts; columns beyond the tile's rows of x hold anything.
  template <WeightFormat F, int N>
  __device__ __forceinline__ void Multiply(const BulkTile& t, int splits, float (&sum)[N / 2]) {
    constexpr int kV = kLaneValues<F>, kGroups = kV / 8, kBlocks = kBulkStageK / kBlockK<F>;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int blocks = t.cols / kBlockK<F>, x_bytes = t.groups * kBlockK<F> * kPackedRows * 2;
    StreamDot<F, 1, 1, 2, kWideThreads> narrow;  // for its decoder
    const ScaleReader<F> scales(warp < 4 ? t.scales[0] : t.scales[1], warp % 4 * 16, t.cols);
    std::uint32_t next[2] = {scales.Load(0, 0), scales.Load(1, 0)};
    std::uint32_t a[2][2][4];
    int last = -1;  // the stage before this one
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sum[i] = 0;
    for (int split = 0, b = 0; split < splits; ++split) {
      const int end = SplitBegin(blocks, splits, split + 1);
      if (b == end) continue;
      float acc[N / 2] = {};
      for (; b < end; ++b) {
        const int sub = b % kBlocks;
        if (sub == 0) ptx::WaitPhase(full(stage), parity);
        const std::uint8_t* from = data + stage * kStageBytes;
        const auto* w = reinterpret_cast<const uint4*>(from + sub * kTileRows * 64 + warp * 1024) + lane;
        const uint4 codes[2] = {w[0], w[32]};
        const std::uint32_t scale[2] = {scales.Pair(next[0]), scales.Pair(next[1])};
        if (b + 1 < blocks) next[0] = scales.Load(0, b + 1), next[1] = scales.Load(1, b + 1);
        const std::uint32_t x =
            ptx::SharedAddress(from) + static_cast<std::uint32_t>(kBlocks * kTileRows * 64 + sub * x_bytes);
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          std::uint32_t top[4], bottom[4];
          narrow.Decode(codes[0], g, scale[0], top);
          narrow.Decode(codes[1], g, scale[1], bottom);
#pragma unroll
          for (int step = 0; step < 2; ++step) {
            a[g % 2][step][0] = top[2 * step], a[g % 2][step][1] = bottom[2 * step];
            a[g % 2][step][2] = top[2 * step + 1], a[g % 2][step][3] = bottom[2 * step + 1];
          }
          ptx::WarpgroupFence();
#pragma unroll
          for (int step = 0; step < 2; ++step) {
            ptx::Wgmma<N>::Add(acc, a[g % 2][step],
                               ptx::CoreDescriptor(x + static_cast<std::uint32_t>((g * 2 + step) * 2 * 128), 128,
                                                   kBlockK<F> * kPackedRows * 2));
          }
          ptx::WarpgroupCommit();
          ptx::WarpgroupWait<1>();
          if (g == 0 && last >= 0) Release(last), last = -1;
        }
        if (sub == kBlocks - 1 || b + 1 == blocks) last = stage, Advance();
      }
      ptx::WarpgroupWait<0>();
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sum[i] += acc[i];
    }
    if (last >= 0) Release(last);
  }

  // The two warpgroups put their sums, rounded to bf16, into the tile: [rows of x][kTileRows]. Rows of x that the
  // product does not hold are not written.
  template <int N>
  __device__ __forceinline__ void StoreTile(const float (&sum)[N / 2]) const {
    static_assert(N % 16 == 0);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    // Matrix m of four: rows m % 2 * 8 of the warp's 16, columns m / 2 * 8 of 16.
    const std::uint32_t to = ptx::SharedAddress(data) +
                             static_cast<std::uint32_t>(kTileAt + (lane / 16 * 8 + lane % 8) * kRowBytes +
                                                        (warp * 16 + lane / 8 % 2 * 8) * 2);
    ptx::SyncThreads(1, kWideThreads);  // the last tile has been read
#pragma unroll
    for (int j = 0; j < N / 16; ++j) {
      const float* s = sum + 8 * j;
      ptx::StoreMatrix4Transposed(to + static_cast<std::uint32_t>(j * 16 * kRowBytes), Pack(s[0], s[1]),
                                  Pack(s[2], s[3]), Pack(s[4], s[5]), Pack(s[6], s[7]));
    }
    ptx::SyncThreads(1, kWideThreads);
  }
  // Eight neighbouring rows of weights of a row of x in the tile.
  __device__ __forceinline__ uint4 Piece(int x_row, int row) const {
    return *reinterpret_cast<const uint4*>(data + kTileAt + x_row * kRowBytes + row * 2);
  }
};

}  // namespace galley::backend::cuda
