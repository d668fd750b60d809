// SPDX-License-Identifier: Apache-2.0
// One warp's share of a matrix product with few rows of x: MT tiles of 16 weight rows times NT tiles of 8 rows of x
// over a range of K. Weights come straight from the checkpoint's layout. Each lane copies the 16 bytes that it will use
// itself, several blocks of K ahead, so the loop has no barrier; the order of K inside a block is a permutation that x
// is stored in as well. Sums are fp32 in tensor cores over bf16 operands, which hold every code times its scale
// exactly. A sum's order depends on K alone, so a row's bits do not depend on the rows beside it.
#pragma once

#include "galley/backend/cuda/numbers.cuh"
#include "galley/backend/cuda/ptx/mma.cuh"
#include "galley/backend/ops.h"

namespace galley::backend::cuda {

// Weights that 16 bytes hold, and the block of K that the four lanes of a row cover.
template <WeightFormat F>
constexpr int kLaneValues = F == WeightFormat::kMxfp4        ? 32
                            : F == WeightFormat::kFp8Block32 ? 16
                                                             : 8;
template <WeightFormat F>
constexpr int kBlockK = 4 * kLaneValues<F>;

// Bytes of one row of weights.
template <WeightFormat F>
__host__ __device__ constexpr std::int64_t RowBytes(std::int64_t cols) {
  return F == WeightFormat::kMxfp4 ? cols / 2 : F == WeightFormat::kFp8Block32 ? cols : cols * 2;
}

// Matrices of whole tiles are stored tile by tile: 16 rows times a block of K are 1,024 bytes, what lane l
// uses of rows l / 4 and then l / 4 + 8 at 16 l and 512 + 16 l. Behind a tile come those of the next rows, up to a
// panel of kPanelRows rows where these divide the matrix, then those of the next block of K. Others keep the
// checkpoint's rows. Scales of MXFP4 matrices lie likewise, 64 bytes a tile, lane l's two at 2 l; none is too large for
// a bf16's exponent. Of bf16 matrices those of wide rows are tiled, head, gates and compressors: narrow ones are small,
// and some are tables too.
inline constexpr std::int64_t kTiledBFloat16Cols = 2048;
template <WeightFormat F>
__host__ __device__ constexpr bool IsTiled(std::int64_t rows, std::int64_t cols) {
  if (F == WeightFormat::kBF16 && (rows % 128 != 0 || cols < kTiledBFloat16Cols)) return false;
  return rows % 16 == 0 && cols % kBlockK<F> == 0;
}
inline constexpr int kPanelRows = 64, kTileBytesPerScale = 16;
// Bytes from block to block of K, and before the codes of `row`, a multiple of 16, and block 0.
__host__ __device__ constexpr int TileStep(std::int64_t rows) {
  return rows % kPanelRows == 0 ? kPanelRows / 16 * 1024 : 1024;
}
__host__ __device__ constexpr std::int64_t TileOffset(int row, std::int64_t rows, std::int64_t blocks) {
  const int panel = rows % kPanelRows == 0 ? kPanelRows : 16;
  return row / panel * blocks * TileStep(rows) + row % panel / 16 * 1024;
}
// Where a lane finds its 16 bytes of a tile of rows.
struct LaneWeights {
  const std::uint8_t* from;  // block 0, row lane / 4
  std::int64_t half;         // to row lane / 4 + 8
  std::int32_t step;         // from block to block
};
template <WeightFormat F>
__device__ __forceinline__ LaneWeights FindLaneWeights(const std::uint8_t* data, int row, int rows, int cols) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (IsTiled<F>(rows, cols)) {
    return {data + TileOffset(row, rows, cols / kBlockK<F>) + lane * 16, 512, TileStep(rows)};
  }
  return {data + (row + lane / 4) * RowBytes<F>(cols) + lane % 4 * 16, 8 * RowBytes<F>(cols), 64};
}

// One tile of 16 rows: the first row's number and matrix, and how many rows of it exist.
struct TileRows {
  const std::uint8_t* data = nullptr;    // the matrix
  const std::uint8_t* scales = nullptr;  // the matrix's scales
  int row = 0;
  int end = 0;  // rows of the matrix
};

template <WeightFormat F, int MT, int NT, int Stages, int Threads>
struct StreamDot {
  static constexpr int kV = kLaneValues<F>;
  static constexpr int kXChunks = NT * kV / 8;
  static constexpr int kRingBytes = Stages * kXChunks * Threads * 16;
  // Scale bytes that a warp keeps for `blocks` blocks of K.
  __host__ __device__ static constexpr int ScaleBytes(int blocks) {
    return F == WeightFormat::kMxfp4 ? MT * 16 * blocks * 4 : F == WeightFormat::kFp8Block32 ? MT * blocks * 2 : 0;
  }

  std::uint8_t* ring;    // kRingBytes, of the whole block of threads
  std::uint8_t* scales;  // ScaleBytes(blocks), of this warp
  TileRows tile[MT];
  const BFloat16* x[NT];  // row of this lane's column (lane / 4) of each tile; null: zeros
  int cols;
  // Set by Prepare: where this lane's weights are, and which of its rows exist.
  LaneWeights from[MT];
  const std::uint8_t* x_from[NT];
  unsigned valid_rows, valid_x;

  __device__ __forceinline__ uint4* Slot(int stage, int chunk) const {
    return reinterpret_cast<uint4*>(ring) + (stage * kXChunks + chunk) * Threads + threadIdx.x;
  }

  __device__ __forceinline__ void Prepare() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    valid_rows = valid_x = 0;
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      const int row = tile[m].row + lane / 4;
      valid_rows |= (row < tile[m].end ? 1u : 0u) << (2 * m) | (row + 8 < tile[m].end ? 2u : 0u) << (2 * m);
      from[m] = FindLaneWeights<F>(tile[m].data, tile[m].row, tile[m].end, cols);
    }
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      valid_x |= (x[n] != nullptr ? 1u : 0u) << n;
      x_from[n] = reinterpret_cast<const std::uint8_t*>(
          x[n] != nullptr ? x[n] + lane % 4 * kV : reinterpret_cast<const BFloat16*>(tile[0].data));
    }
  }

  __device__ __forceinline__ void LoadWeights(int block, uint4 (&w)[2 * MT]) const {
    const bool inside = block * kBlockK<F> + static_cast<int>(threadIdx.x) % 4 * kV < cols;
#pragma unroll
    for (int c = 0; c < 2 * MT; ++c) {
      const LaneWeights& lane = from[c / 2];
      w[c] = ptx::LoadOnce16(lane.from + std::int64_t{block} * lane.step + (c % 2 != 0 ? lane.half : 0),
                             inside && (valid_rows >> c & 1) != 0);
    }
  }
  __device__ __forceinline__ void IssueX(int block, int stage) const {
    const bool inside = block * kBlockK<F> + static_cast<int>(threadIdx.x) % 4 * kV < cols;
    const std::int64_t x_at = std::int64_t{block} * (kBlockK<F> * 2);
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const bool valid = inside && (valid_x >> n & 1) != 0;
#pragma unroll
      for (int c = 0; c < kV / 8; ++c) {
        ptx::CopyAsync16(Slot(stage, n * (kV / 8) + c), x_from[n] + x_at + c * 16, valid);
      }
    }
  }

  // Copies the warp's scales of blocks [begin, end) to shared memory; missing ones are 0.
  __device__ __forceinline__ void LoadScales(int begin, int end) const {
    if constexpr (F == WeightFormat::kBF16) return;
    const int lane = static_cast<int>(threadIdx.x) % 32, blocks = end - begin;
    const int groups = (cols + 31) / 32;
    // MXFP4: 64 bytes for each block, as in a tile. FP8: two bytes for each block, of 32 rows.
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      const TileRows& t = tile[m];
      if constexpr (F == WeightFormat::kMxfp4) {
        std::uint8_t* to = scales + m * 64 * blocks;
        if (IsTiled<F>(t.end, cols)) {
          const std::uint8_t* tile_scales = t.scales + TileOffset(t.row, t.end, cols / kBlockK<F>) / kTileBytesPerScale;
          const int step = TileStep(t.end) / kTileBytesPerScale;
#pragma unroll 4
          for (int i = lane; i < 16 * blocks; i += 32) {
            reinterpret_cast<std::uint32_t*>(to)[i] =
                t.row < t.end
                    ? *reinterpret_cast<const std::uint32_t*>(tile_scales + (begin + i / 16) * step + i % 16 * 4)
                    : 0;
          }
          continue;
        }
        for (int i = lane; i < 64 * blocks; i += 32) {
          const int row = i % 64 / 8 + i % 2 * 8, g = (begin + i / 64) * 4 + i / 2 % 4;
          const bool there = t.row + row < t.end && g < groups;
          to[i] = there ? min(t.scales[static_cast<std::int64_t>(t.row + row) * groups + g],
                              static_cast<std::uint8_t>(254 - kFp4Shift))
                        : 0;
        }
      } else {
        const std::uint8_t* from_scales = t.scales + static_cast<std::int64_t>(t.row / 32) * groups;
        for (int i = lane; i < 2 * blocks; i += 32) {
          const int g = 2 * begin + i;
          scales[m * 2 * blocks + i] =
              t.row < t.end && g < groups ? min(from_scales[g], static_cast<std::uint8_t>(254 - kFp8Shift)) : 0;
        }
      }
    }
    __syncwarp();
  }

  // Eight values of K of one row of weights, as pairs.
  __device__ __forceinline__ void Decode(const uint4& codes, int group, std::uint32_t scale,
                                         std::uint32_t (&pairs)[4]) const {
    const std::uint32_t* words = reinterpret_cast<const std::uint32_t*>(&codes);
    if constexpr (F == WeightFormat::kMxfp4) {
      DecodeArrangedFp4x8(words[group], scale, pairs);
    } else if constexpr (F == WeightFormat::kFp8Block32) {
      DecodeFp8x4(words[2 * group], scale, pairs[0], pairs[1]);
      DecodeFp8x4(words[2 * group + 1], scale, pairs[2], pairs[3]);
    } else {
      pairs[0] = codes.x, pairs[1] = codes.y, pairs[2] = codes.z, pairs[3] = codes.w;
    }
  }
  // Eight values of each of a lane's two rows of weights, as operands of two steps of 16 values of K.
  __device__ __forceinline__ void Operands(const uint4 (&codes)[2], const std::uint32_t (&scale)[2], int group,
                                           std::uint32_t (&a)[2][4]) const {
    std::uint32_t top[4], bottom[4];
    Decode(codes[0], group, scale[0], top);
    Decode(codes[1], group, scale[1], bottom);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      a[step][0] = top[2 * step], a[step][1] = bottom[2 * step];
      a[step][2] = top[2 * step + 1], a[step][3] = bottom[2 * step + 1];
    }
  }
  __device__ __forceinline__ std::uint32_t Scale(int m, int half, int block, int blocks) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (F == WeightFormat::kMxfp4) {
      const std::uint32_t scale = scales[(m * blocks + block) * 64 + lane * 2 + half];
      return (scale + kFp4Shift) * 0x00800080u;
    } else if constexpr (F == WeightFormat::kFp8Block32) {
      const std::uint32_t scale = scales[(m * blocks + block) * 2 + lane % 4 / 2];
      return (scale + kFp8Shift) * 0x00800080u;
    } else {
      return 0;
    }
  }

  template <bool NaturalX>
  __device__ __forceinline__ void Consume(const uint4 (&w)[2 * MT], int block, int blocks, int stage,
                                          float (&acc)[MT][NT][4]) const {
    constexpr int kGroups = kV / 8;
    std::uint32_t scale[MT][2];
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) scale[m][half] = Scale(m, half, block, blocks);
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      std::uint32_t xp[NT][4];
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        const uint4 natural = *Slot(stage, n * kGroups + g);
        if constexpr (NaturalX && F != WeightFormat::kBF16) {
          PairFromNatural(natural, xp[n]);
        } else {
          xp[n][0] = natural.x, xp[n][1] = natural.y, xp[n][2] = natural.z, xp[n][3] = natural.w;
        }
      }
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        std::uint32_t a[2][4];
        Operands({w[2 * m], w[2 * m + 1]}, scale[m], g, a);
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
          for (int n = 0; n < NT; ++n) ptx::Mma16x8x16(acc[m][n], a[step], xp[n][2 * step], xp[n][2 * step + 1]);
        }
      }
    }
  }

  // acc += weights times x over blocks [begin, end) of K. With `waits`, the kernel before this one in the stream may
  // still be at work on x, and is waited for once the first weights are on their way.
  template <bool NaturalX, bool Waits>
  __device__ __forceinline__ void Run(int begin, int end, float (&acc)[MT][NT][4]) {
    const int blocks = end - begin;
    Prepare();
    uint4 w[2 * MT], next[2 * MT] = {};
    if (blocks > 0) LoadWeights(begin, next);
    LoadScales(begin, end);
    if constexpr (Waits) ptx::WaitForPreviousKernel();
#pragma unroll
    for (int s = 0; s < Stages - 1; ++s) {
      if (s < blocks) IssueX(begin + s, s);
      ptx::CommitCopies();
    }
    int stage = 0;
#pragma unroll 2
    for (int b = 0; b < blocks; ++b) {
#pragma unroll
      for (int c = 0; c < 2 * MT; ++c) w[c] = next[c];
      if (b + 1 < blocks) LoadWeights(begin + b + 1, next);
      ptx::WaitCopies<Stages - 2>();
      const int ahead = b + Stages - 1;
      if (ahead < blocks) IssueX(begin + ahead, (stage + Stages - 1) % Stages);
      ptx::CommitCopies();
      Consume<NaturalX>(w, b, blocks, stage, acc);
      stage = stage + 1 == Stages ? 0 : stage + 1;
    }
    ptx::WaitCopies<0>();
  }
};

// First block of K of part `s` out of `splits`.
__host__ __device__ constexpr int SplitBegin(int blocks, int splits, int s) {
  return blocks * s / splits;
}
// Parts that K is cut into, a constant of the matrix.
__host__ __device__ constexpr int SplitsOf(std::int64_t cols) {
  return cols >= 4096 ? 8 : cols >= 2048 ? 4 : cols >= 1024 ? 2 : 1;
}

// Partial sums of a warp in shared memory as [rows of x][MT * 16 + 4]; the pad keeps the banks apart.
template <int MT, int NT>
__device__ __forceinline__ void StorePartial(const float (&acc)[MT][NT][4], float* partial) {
  constexpr int kStride = MT * 16 + 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < MT; ++m) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        partial[(n * 8 + lane % 4 * 2 + i % 2) * kStride + m * 16 + lane / 4 + i / 2 * 8] = acc[m][n][i];
      }
    }
  }
}

}  // namespace galley::backend::cuda
