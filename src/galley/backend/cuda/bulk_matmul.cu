// SPDX-License-Identifier: Apache-2.0
// Linear layers of FP8 codes by bulk copies (bulk_dot.cuh), in two forms of the same bits. Whole: blocks of threads
// stay for many tiles and go through all of K. Split: each part of K is a block of threads of its own, the parts of a
// tile are one cluster, and its blocks add the parts in ascending order from each other's shared memory, so that
// matrices with few rows fill the device too.
#include <utility>

#include "galley/backend/cuda/bulk_dot.cuh"
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/cluster.cuh"

namespace galley::backend::cuda {
namespace {

constexpr auto kFp8 = WeightFormat::kFp8Block32;
using WholeRing = BulkRing<4, 48 << 10, kTileRows*(kTileRows * 2 + 16), 1, 2>;
// Blocks of threads of the split form on a multiprocessor, as registers allow. All that hold weights ahead of x help.
template <int N>
constexpr int kSplitBlocks = N <= 16   ? 4
                             : N <= 32 ? 3
                             : N <= 64 ? 2
                                       : 1;
template <int N>
using SplitRing = BulkRing<(190 << 10) / kSplitBlocks<N> / ((8 << 10) + N * 128), (8 << 10) + N * 128, 0, 1, 1>;

// 128 rows of weights from `row0` on by up to N rows of x from `x0` on, over blocks [begin, end) of K.
template <int N>
__device__ __forceinline__ BulkTile TileOf(const ProductArgs& args, int row0, int x0, int begin, int end) {
  const int cols = static_cast<int>(args.weight.cols), groups = PackedGroups(min(N, args.rows - x0));
  const int x_begin =
      args.group_rows == 0 ? 0 : static_cast<int>(row0 / args.group_rows * args.group_stride) / kBlockK<kFp8>;
  const auto codes = [&](int row) {
    return static_cast<const std::uint8_t*>(args.weight.data) + TileOffset(row, kPanelRows, cols / kBlockK<kFp8>) +
           static_cast<std::int64_t>(begin) * TileStep(kPanelRows);
  };
  const std::uint8_t* scales = args.weight.scales + static_cast<std::int64_t>(row0 / 32) * (cols / 32) + begin * 2;
  return {.codes = {codes(row0), codes(row0 + kPanelRows)},
          .scales = {scales, scales + kPanelRows / 32 * (cols / 32)},
          .x = args.x + x0 * args.x_stride + PackedPlace(kBlockK<kFp8>, groups, x_begin + begin, 0, 0),
          .groups = groups,
          .blocks = end - begin,
          .scale_cols = cols / 32};
}

// Tiles that run at the same time should share rows of weights as well as rows of x: bands of so many tiles of x.
constexpr int kBand = 12;
struct Place {
  int row_tile, x_tile;
};
__device__ __forceinline__ Place PlaceOf(int item, int row_tiles, int x_tiles) {
  const int band = item / (row_tiles * kBand), in_band = item - band * row_tiles * kBand;
  const int width = min(kBand, x_tiles - band * kBand);
  return {in_band / width, band * kBand + in_band % width};
}

// Sums as they are; no matrix of the models wants them of many rows, so straight from registers.
template <int N>
__device__ __forceinline__ void StoreFloats(const ProductArgs& args, int row0, int x0, const float (&sum)[N / 2]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const int x_row = x0 + i / 4 * 8 + lane % 4 * 2 + i % 2, row = row0 + warp * 16 + lane / 4 + i / 2 % 2 * 8;
    if (x_row < args.rows) static_cast<float*>(args.out)[x_row * args.out_stride + row] = sum[i];
  }
}

template <int N>
__global__ void __launch_bounds__(kDividedThreads, 1) WholeProductKernel(ProductArgs args, int splits) {
  extern __shared__ __align__(128) std::uint8_t bytes[];
  ptx::LetNextKernelStart();
  WholeRing ring{.data = bytes};
  ring.Init();
  bool begun = false;
  const int row_tiles = static_cast<int>(args.weight.rows) / kTileRows, x_tiles = (args.rows + N - 1) / N,
            blocks = static_cast<int>(args.weight.cols) / kBlockK<kFp8>;
  const auto for_tiles = [&](auto&& run) {
    for (int item = static_cast<int>(blockIdx.x); item < row_tiles * x_tiles; item += static_cast<int>(gridDim.x)) {
      const Place place = PlaceOf(item, row_tiles, x_tiles);
      run(place.row_tile * kTileRows, place.x_tile * N);
    }
  };
  const auto copy = [&](int row0, int x0) {
    const BulkTile t = TileOf<N>(args, row0, x0, 0, blocks);
    std::exchange(begun, true) ? ring.Copy<kFp8, false>(t) : ring.Copy<kFp8, true>(t);
  };
  const auto multiply = [&](auto&& store, int row0, int x0) {
    float sum[N / 2];
    ring.Multiply<kFp8, N, true>(TileOf<N>(args, row0, x0, 0, blocks), splits, sum);
    store([&] { args.float_out ? StoreFloats<N>(args, row0, x0, sum) : ring.StoreTile<N>(sum); });
  };
  const auto finish = [&](const Finishers& f, int row0, int x0) {
    const int count = args.float_out ? 0 : min(N, args.rows - x0);
    for (int i = f.thread; i < count * (kTileRows / 8); i += f.threads) {
      const int x_row = i / (kTileRows / 8), row = i % (kTileRows / 8) * 8;
      *reinterpret_cast<uint4*>(static_cast<BFloat16*>(args.out) + (x0 + x_row) * args.out_stride + row0 + row) =
          ring.Piece(x_row, row);
    }
  };
  WorkOff<kDividedThreads>(for_tiles, copy, multiply, finish);
}

template <int N>
__global__ void __launch_bounds__(kBulkThreads, kSplitBlocks<N>) SplitProductKernel(ProductArgs args) {
  extern __shared__ __align__(128) std::uint8_t bytes[];
  ptx::LetNextKernelStart();
  SplitRing<N> ring{.data = bytes};
  ring.Init();
  const int splits = static_cast<int>(gridDim.z), split = static_cast<int>(blockIdx.z);
  const int row0 = static_cast<int>(blockIdx.y) * kTileRows, x0 = static_cast<int>(blockIdx.x) * N;
  const int blocks = static_cast<int>(args.weight.cols) / kBlockK<kFp8>;
  const BulkTile t =
      TileOf<N>(args, row0, x0, SplitBegin(blocks, splits, split), SplitBegin(blocks, splits, split + 1));
  auto* sums = reinterpret_cast<float*>(bytes);  // [rows of x][kTileStride], where the stages were
  if (threadIdx.x == kWideThreads) ring.template Copy<kFp8, true>(t);
  if (threadIdx.x < kWideThreads) {
    float sum[N / 2];
    ring.template Multiply<kFp8, N, false>(t, 1, sum);
    ptx::SyncThreads(1, kWideThreads);
    StoreSums<N>(sum, sums);
  }
  ptx::SyncCluster();
  constexpr int kFours = kTileRows / 4;
  for (int i = split * kBulkThreads + static_cast<int>(threadIdx.x); i < N * kFours; i += splits * kBulkThreads) {
    const int row = i % kFours * 4, x_row = i / kFours;
    if (x0 + x_row >= args.rows) break;
    float4 value = {0, 0, 0, 0};
    for (int s = 0; s < splits; ++s) {
      const float4 part = ptx::LoadFourOfBlock(sums + x_row * kTileStride + row, s);
      value.x += part.x, value.y += part.y, value.z += part.z, value.w += part.w;
    }
    const std::int64_t at = (x0 + x_row) * args.out_stride + row0 + row;
    if (args.float_out) {
      *reinterpret_cast<float4*>(static_cast<float*>(args.out) + at) = value;
    } else {
      *reinterpret_cast<uint2*>(static_cast<BFloat16*>(args.out) + at) = {Pack(value.x, value.y),
                                                                          Pack(value.z, value.w)};
    }
  }
  ptx::SyncCluster();  // no block ends while another reads its sums
}

template <int N>
void Launch(const ProductArgs& args, cudaStream_t stream) {
  const int row_tiles = static_cast<int>(args.weight.rows) / kTileRows, x_tiles = (args.rows + N - 1) / N,
            splits = SplitsOf(args.weight.cols);
  if (args.split) {
    const auto kernel = SplitProductKernel<N>;
    constexpr int kBytes = SplitRing<N>::kBytes;
    static_assert(N * kTileStride * 4 <= SplitRing<N>::kTileAt);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    const dim3 grid(static_cast<unsigned>(x_tiles), static_cast<unsigned>(row_tiles), static_cast<unsigned>(splits));
    return LaunchClusters(kernel, grid, kBulkThreads, std::size_t{kBytes}, stream, args);
  }
  const auto kernel = WholeProductKernel<N>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, WholeRing::kBytes);
  LaunchKernel(kernel, static_cast<unsigned>(min(row_tiles * x_tiles, MultiprocessorCount())), kDividedThreads,
               std::size_t{WholeRing::kBytes}, stream, args, splits);
}

}  // namespace

bool TakesBulkProduct(const Weight& weight, std::int64_t group_rows) {
  return weight.format == kFp8 && weight.rows % kTileRows == 0 && weight.cols % kBlockK<kFp8> == 0 &&
         weight.cols <= 65536 && group_rows % kTileRows == 0;
}

void BulkProduct(const ProductArgs& args, cudaStream_t stream) {
  switch (BulkTileRows(args.rows)) {
    case 16:
      return Launch<16>(args, stream);
    case 32:
      return Launch<32>(args, stream);
    case 64:
      return Launch<64>(args, stream);
    default:
      return Launch<128>(args, stream);
  }
}

}  // namespace galley::backend::cuda
