// SPDX-License-Identifier: Apache-2.0
// Linear layers of FP8 codes by bulk copies (bulk_dot.cuh) with few tiles: each part of K is a block of threads of its
// own, the parts of a tile are one cluster, and its blocks add the parts in ascending order from each other's shared
// memory, so that matrices with few rows fill the device too.
#include <type_traits>

#include "galley/backend/cuda/bulk_linear.cuh"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/cluster.cuh"

namespace galley::backend::cuda {
namespace {

constexpr auto kFp8 = WeightFormat::kFp8Block32;
constexpr int kUnpackedRowsMax = 16, kUnpackedBlocksMax = 10;  // of x, and of K in a part
constexpr int kSplitsMax = 8;                                  // SplitsOf

// PerSm: blocks of threads that share a multiprocessor's memory. A single one leaves room for a small kernel's, which
// can then start before this one ends.
template <int N, int PerSm, bool Unpacked>
struct SplitRing {
  static constexpr int kXBytes = Unpacked ? kUnpackedBlocksMax * N * kBlockK<kFp8> * 2 : 0,
                       kStageBytes = 2 * kPanelRows * 64 + (Unpacked ? 0 : N * kBlockK<kFp8> * 2),
                       kBudget = PerSm == 1 ? 216 << 10 : (228 << 10) / PerSm - (1 << 10) - 512;
  using Type = BulkRing<(kBudget - kXBytes) / kStageBytes, kStageBytes, 0, 1, 1>;
  static constexpr int kXAt = Type::kBytes, kBytes = kXAt + kXBytes;
  static_assert(N * kTileStride * 4 <= Type::kTileAt);
};

// Packs the part of x that the tile meets, by the threads that multiply.
template <int N>
__device__ __forceinline__ void PackPart(const ProductArgs& args, const TileMatrix& m, int begin, int blocks,
                                         std::uint8_t* to) {
  constexpr int kK = kBlockK<kFp8>, kGroups = N / kPackedRows, kWarps = kWideThreads / 32;
  constexpr int kTurns = (kUnpackedBlocksMax * kGroups + kWarps - 1) / kWarps;
  const int groups = PackedGroups(min(N, args.rows)), warp = static_cast<int>(threadIdx.x) / 32;
  const BFloat16* from = args.x + begin * kK;
  if (args.group_rows != 0) from += m.row0 / args.group_rows * args.group_stride;
  PackedPiece<kFp8> piece[kTurns];  // all under way before the first is needed
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int item = warp + i * kWarps, row = item % groups * kPackedRows + static_cast<int>(threadIdx.x) % 32 / 4;
    if (item < blocks * groups && row < args.rows) piece[i].Load(from + row * args.x_stride + item / groups * kK);
  }
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int item = warp + i * kWarps;
    if (item < blocks * groups) {
      piece[i].Store(args.quantize, reinterpret_cast<BFloat16*>(to) + item * (kK * kPackedRows));
    }
  }
}

template <int N, int PerSm, bool Unpacked>
__global__ void __launch_bounds__(kBulkThreads, PerSm) SplitProductKernel(ProductArgs args) {
  using Shape = SplitRing<N, PerSm, Unpacked>;
  extern __shared__ __align__(128) std::uint8_t bytes[];
  ptx::LetNextKernelStart();
  typename Shape::Type ring{.data = bytes};
  ring.Init();
  const int splits = static_cast<int>(gridDim.z), split = static_cast<int>(blockIdx.z);
  const TileMatrix m = MatrixOf(args, static_cast<int>(blockIdx.y) * kTileRows);
  const int x0 = static_cast<int>(blockIdx.x) * N, blocks = static_cast<int>(args.weight.cols) / kBlockK<kFp8>;
  const int begin = SplitBegin(blocks, splits, split), end = SplitBegin(blocks, splits, split + 1);
  BulkTile t = TileOf<kFp8, N>(args, m, x0, begin, end);
  if constexpr (Unpacked) t.resident = true, t.x_at = ring.address + Shape::kXAt;
  auto* sums = reinterpret_cast<float*>(bytes);  // [rows of x][kTileStride], where the stages were
  if (threadIdx.x == kWideThreads) {
    if constexpr (Unpacked) {
      ring.template CopyOnlyCodes<kFp8>(t);
    } else {
      ring.template Copy<kFp8, true>(t);
    }
  }
  if (threadIdx.x < kWideThreads) {
    if constexpr (Unpacked) {
      ptx::WaitForPreviousKernel();
      PackPart<N>(args, m, begin, end - begin, bytes + Shape::kXAt);
      ptx::SyncThreads(1, kWideThreads);
    }
    float sum[N / 2];
    ring.template Multiply<kFp8, N, false, PerSm <= 2>(t, 1, sum);
    ptx::SyncThreads(1, kWideThreads);
    StoreSums<N>(sum, sums);
  }
  ptx::SyncCluster();
  constexpr int kFours = kTileRows / 4;
  for (int i = split * kBulkThreads + static_cast<int>(threadIdx.x); i < N * kFours; i += splits * kBulkThreads) {
    const int row = i % kFours * 4, x_row = i / kFours;
    if (x0 + x_row >= args.rows) break;  // the same for the whole warp
    float4 part[kSplitsMax];             // all under way before the first is needed
#pragma unroll
    for (int s = 0; s < kSplitsMax; ++s) {
      if (s < splits) part[s] = ptx::LoadFourOfBlock(sums + x_row * kTileStride + row, s);
    }
    float value[4] = {};
#pragma unroll
    for (int s = 0; s < kSplitsMax; ++s) {
      if (s >= splits) break;
      value[0] += part[s].x, value[1] += part[s].y, value[2] += part[s].z, value[3] += part[s].w;
    }
    SendSums<4>(args, m, x0 + x_row, m.row0 + row, value, kFullWarp);
  }
  ptx::SyncCluster();  // no block ends while another reads its sums
}

template <int N, int PerSm, bool Unpacked>
void Launch(const ProductArgs& args, const dim3& grid, cudaStream_t stream) {
  const auto kernel = SplitProductKernel<N, PerSm, Unpacked>;
  constexpr int kBytes = SplitRing<N, PerSm, Unpacked>::kBytes;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  LaunchClusters(kernel, grid, kBulkThreads, std::size_t{kBytes}, stream, args);
}

// No more blocks of threads on a multiprocessor than it takes to hold all: each then has more weights on their way.
template <int N, int Most>
void ChooseRing(const ProductArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((args.rows + N - 1) / N), static_cast<unsigned>(RowsOf(args) / kTileRows),
                  static_cast<unsigned>(SplitsOf(args.weight.cols)));
  const int all = static_cast<int>(grid.x * grid.y * grid.z), each = (all - 1) / MultiprocessorCount() + 1;
  const auto launch = [&](auto per_sm) {
    if constexpr (N <= kUnpackedRowsMax) {
      if (args.order == RowOrder::kUnpacked) return Launch<N, per_sm(), true>(args, grid, stream);
    }
    Launch<N, per_sm(), false>(args, grid, stream);
  };
  if constexpr (Most == 1) return launch(std::integral_constant<int, 1>());
  if (each <= 2 || Most == 2) return launch(std::integral_constant < int, Most == 1 ? 1 : 2 > ());
  if (each == 3 || Most == 3) return launch(std::integral_constant < int, Most <= 2 ? Most : 3 > ());
  launch(std::integral_constant<int, Most>());
}

}  // namespace

bool TakesUnpacked(const Weight& weight, int rows) {
  const std::int64_t blocks = weight.cols / kBlockK<kFp8>, splits = SplitsOf(weight.cols);
  return rows <= kUnpackedRowsMax && weight.format == kFp8 && (blocks + splits - 1) / splits <= kUnpackedBlocksMax;
}

void BulkSplitProduct(const ProductArgs& args, cudaStream_t stream) {
  switch (args.tile_rows) {
    case 8:
      return ChooseRing<8, 4>(args, stream);
    case 16:
      return ChooseRing<16, 4>(args, stream);
    case 32:
      return ChooseRing<32, 3>(args, stream);
    case 64:
      return ChooseRing<64, 3>(args, stream);
    default:
      return ChooseRing<128, 1>(args, stream);
  }
}

}  // namespace galley::backend::cuda
