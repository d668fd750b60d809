// SPDX-License-Identifier: Apache-2.0
// A block's share of a matrix product with many rows of x: two warpgroups take 64 rows of weights each, against N rows
// of x that they share. Weights go from the checkpoint's layout through a lane's own shared memory into registers,
// decoded there; x comes in slot order (SlotPlace), so that a warpgroup product meets the values of K that the narrow
// product (stream_dot.cuh) meets, in the same order and cut at the same places: the same bits.
#pragma once

#include "galley/backend/cuda/ptx/wgmma.cuh"
#include "galley/backend/cuda/stream_dot.cuh"

namespace galley::backend::cuda {

// Place of value k of a row of x in slot order, for weights of which a lane holds `values` in 16 bytes. `paired`: order
// of the values within eight that the decoder gives; bf16 weights keep the natural one.
__host__ __device__ __forceinline__ int SlotPlace(int k, int values, bool paired) {
  const int block = k / (4 * values), lane = k / values % 4, v = k % values;
  const int p = paired ? (v & ~3) | ((v & 1) << 1) | ((v >> 1) & 1) : v;
  return block * 4 * values + (p / 2) * 8 + lane * 2 + p % 2;
}

inline constexpr int kWideThreads = 256;
// A block's sums in shared memory: [rows of x][kTileStride], of which kTileRows are rows of weights.
inline constexpr int kTileRows = 128, kTileStride = kTileRows + 4;

// A block's sums of N rows of x to shared memory, so that neighbouring threads can go on with neighbouring rows.
template <int N>
__device__ __forceinline__ void StoreSums(const float (&sum)[N / 2], float* to) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    to[(i / 4 * 8 + lane % 4 * 2 + i % 2) * kTileStride + warp * 16 + lane / 4 + i / 2 % 2 * 8] = sum[i];
  }
}

template <WeightFormat F, int N>
struct WideDot {
  static_assert(F != WeightFormat::kMxfp4, "bulk_dot.cuh has those");
  // Blocks of K in flight, and stages to put them in: one is being read, and products of the one before may still run.
  static constexpr int kThreads = kWideThreads, kStages = 4, kAhead = kStages - 2;
  static constexpr int kV = kLaneValues<F>, kCores = 4 * kV / 8;
  static constexpr int kCoreStride = (N + 1) * 16;  // 16 bytes more keep the copies free of bank conflicts
  static constexpr int kXBytes = kCores * kCoreStride, kWeightBytes = kThreads * 32,
                       kStageBytes = kXBytes + kWeightBytes;
  static constexpr int kTokensPerTurn = kThreads / kCores, kTurns = (N + kTokensPerTurn - 1) / kTokensPerTurn;
  static constexpr int kSums = N / 2;

  __host__ __device__ static constexpr int ScaleBytes(int blocks) {
    return (F == WeightFormat::kFp8Block32 ? 2 * blocks : 0) + 15 & ~15;
  }
  __host__ __device__ static constexpr int SharedBytes(int cols) {
    return kStages * kStageBytes + 8 * ScaleBytes((cols + kBlockK<F> - 1) / kBlockK<F>);
  }

  std::uint8_t* shared;
  TileRows tile;              // 16 rows of this warp
  LaneWeights lane_weights;   // set by Run
  const BFloat16* x[kTurns];  // this thread's piece of 8 values in each of its rows of x; null: zeros
  int cols;

  // First values of the pieces that this thread copies: token of a turn, and where in the row.
  __device__ static int Token(int turn) { return static_cast<int>(threadIdx.x) / kCores + turn * kTokensPerTurn; }
  __device__ static int Piece() { return static_cast<int>(threadIdx.x) % kCores * 8; }

  // `stage`: where block `block` of K goes.
  __device__ __forceinline__ std::uint8_t* Stage(int stage) const { return shared + stage % kStages * kStageBytes; }
  __device__ __forceinline__ void IssueWeights(int block, int stage) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, k = block * kBlockK<F> + lane % 4 * kV;
    auto* to = reinterpret_cast<uint4*>(Stage(stage) + kXBytes) + threadIdx.x;
    const std::uint8_t* from = lane_weights.from + std::int64_t{block} * lane_weights.step;
    const bool inside = k < cols;
    ptx::CopyAsync16(to, from, inside && tile.row + lane / 4 < tile.end);
    ptx::CopyAsync16(to + kThreads, from + lane_weights.half, inside && tile.row + lane / 4 + 8 < tile.end);
  }
  __device__ __forceinline__ void IssueX(int block, int stage) const {
    std::uint8_t* to = Stage(stage) + static_cast<int>(threadIdx.x) % kCores * kCoreStride;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int token = Token(i);
      if (N % kTokensPerTurn != 0 && token >= N) break;
      // Rows end at a multiple of a block: x in slot order is padded with zeros.
      const void* from =
          x[i] != nullptr ? static_cast<const void*>(x[i] + std::int64_t{block} * kBlockK<F>) : tile.data;
      ptx::CopyAsync16(to + token * 16, from, x[i] != nullptr);
    }
  }

  // Of both halves of the warp's rows.
  __device__ __forceinline__ std::uint32_t Scale(const std::uint8_t* scales, int block) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (F != WeightFormat::kFp8Block32) return 0;
    return (std::uint32_t{scales[block * 2 + lane % 4 / 2]} + kFp8Shift) * 0x00800080u;
  }

  // sum = weights times x, K in `splits` parts as the narrow product has them.
  __device__ __forceinline__ void Run(int splits, float (&sum)[kSums]) {
    RunBlocks<false>(0, (cols + kBlockK<F> - 1) / kBlockK<F>, splits, sum);
  }
  // The same over one of the parts, whose blocks of K are [begin, end). With `Waits`, the kernel before this one in the
  // stream may still be at work on x, and is waited for once the first weights are on their way.
  template <bool Waits>
  __device__ __forceinline__ void RunPart(int begin, int end, float (&sum)[kSums]) {
    RunBlocks<Waits>(begin, end, 1, sum);
  }

  // Puts the sums where the stages were.
  __device__ __forceinline__ float* StoreSums(const float (&sum)[kSums]) const {
    auto* to = reinterpret_cast<float*>(shared);
    cuda::StoreSums<N>(sum, to);
    return to;
  }

  template <bool Waits>
  __device__ __forceinline__ void RunBlocks(int first, int end, int splits, float (&sum)[kSums]) {
    using Narrow = StreamDot<F, 1, 1, 2, kThreads>;
    const int warp = static_cast<int>(threadIdx.x) / 32, blocks = end - first;
    Narrow narrow;  // for its scales and decoder
    narrow.scales = shared + kStages * kStageBytes + warp * ScaleBytes(blocks);
    narrow.tile[0] = tile;
    narrow.cols = cols;
    lane_weights = FindLaneWeights<F>(tile.data, tile.row, tile.end, cols);
#pragma unroll
    for (int b = 0; b < kAhead; ++b) {
      if (b < blocks) IssueWeights(first + b, b);
    }
    narrow.LoadScales(first, end);
    if constexpr (Waits) ptx::WaitForPreviousKernel();
#pragma unroll
    for (int b = 0; b < kAhead; ++b) {
      if (b < blocks) IssueX(first + b, b);
      ptx::CommitCopies();
    }
    float acc[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) acc[i] = sum[i] = 0;
    const std::uint32_t base = ptx::SharedAddress(shared);
    int split = 1;  // the part that ends at `border`
    while (split < splits && SplitBegin(blocks, splits, split) <= 0) ++split;
    int border = SplitBegin(blocks, splits, split);
    std::uint32_t a[2][2][4];
    for (int b = 0; b < blocks; ++b) {
      ptx::WaitCopies<kAhead - 1>();
      ptx::FenceForWarpgroup();
      // Behind the barrier every warp has seen the products of block b - 2 end, so their stage can be written again.
      __syncthreads();
      if (b + kAhead < blocks) IssueWeights(first + b + kAhead, b + kAhead), IssueX(first + b + kAhead, b + kAhead);
      ptx::CommitCopies();
      const std::uint32_t stage = base + static_cast<std::uint32_t>(b % kStages * kStageBytes);
      const auto* w = reinterpret_cast<const uint4*>(Stage(b) + kXBytes) + threadIdx.x;
      const uint4 codes[2] = {w[0], w[kThreads]};
      const std::uint32_t both = Scale(narrow.scales, b), scale[2] = {both, both};
#pragma unroll
      for (int g = 0; g < kV / 8; ++g) {
        narrow.Operands(codes, scale, g, a[g % 2]);
        ptx::WarpgroupFence();
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          ptx::Wgmma<N>::Add(
              acc, a[g % 2][step],
              ptx::CoreDescriptor(stage + static_cast<std::uint32_t>((g * 2 + step) * 2 * kCoreStride), kCoreStride));
        }
        ptx::WarpgroupCommit();
        ptx::WarpgroupWait<kV / 8 == 1 ? 0 : 1>();
      }
      if (b + 1 == border) {
        ptx::WarpgroupWait<0>();
#pragma unroll
        for (int i = 0; i < kSums; ++i) sum[i] += acc[i], acc[i] = 0;
        do {
          border = SplitBegin(blocks, splits, ++split);
        } while (border <= b + 1 && split < splits);
      }
    }
    ptx::WarpgroupWait<0>();
    ptx::WaitCopies<0>();
    __syncthreads();
  }
};

}  // namespace galley::backend::cuda
