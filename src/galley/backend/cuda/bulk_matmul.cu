// SPDX-License-Identifier: Apache-2.0
// Linear layers by bulk copies (bulk_dot.cuh): blocks of threads stay for many tiles and go through all of K.
#include <utility>

#include "galley/backend/cuda/bulk_linear.cuh"
#include "galley/backend/cuda/launch.h"

namespace galley::backend::cuda {
namespace {

constexpr auto kFp8 = WeightFormat::kFp8Block32, kBf16 = WeightFormat::kBF16;

// As many stages as fit beside the tile that goes out. With few rows of x room is left for a small kernel's block of
// threads on the same multiprocessor, so that weights are on their way while the kernel before this one runs.
template <WeightFormat F, int N>
struct WholeRing {
  static constexpr int kBlocks = F == kBf16 && N <= 64    ? 4
                                 : F == kBf16 || N <= 128 ? 2
                                                          : 1,
                       kBudget = (N <= 64 ? 216 : 226) << 10, kTileBytes = (N + 15) / 16 * 16 * (kTileRows * 2 + 16),
                       kStageBytes = kBlocks * (2 * kPanelRows * 64 + N * kBlockK<F> * 2);
  using Type = BulkRing<(kBudget - kTileBytes) / kStageBytes, kStageBytes, kTileBytes, 1, kBlocks>;
};

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

// Sums as they are, straight from registers: a warp writes whole sectors of 8 rows of weights.
template <int N>
__device__ __forceinline__ void StoreFloats(const ProductArgs& args, const TileMatrix& m, int x0,
                                            const float (&sum)[N / 2]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const int x_row = x0 + i / 4 * 8 + lane % 4 * 2 + i % 2, row = m.row0 + warp * 16 + lane / 4 + i / 2 % 2 * 8;
    if (x_row < args.rows) static_cast<float*>(m.out)[x_row * m.out_stride + row] = sum[i];
  }
}

template <WeightFormat F, int N>
__global__ void __launch_bounds__(kDividedThreads, 1) WholeProductKernel(ProductArgs args, int splits) {
  extern __shared__ __align__(128) std::uint8_t bytes[];
  ptx::LetNextKernelStart();
  typename WholeRing<F, N>::Type ring{.data = bytes};
  ring.Init();
  bool begun = false;
  const int row_tiles = RowsOf(args) / kTileRows, x_tiles = (args.rows + N - 1) / N,
            blocks = static_cast<int>(args.weight.cols) / kBlockK<F>;
  const auto for_tiles = [&](auto&& run) {
    for (int item = static_cast<int>(blockIdx.x); item < row_tiles * x_tiles; item += static_cast<int>(gridDim.x)) {
      const Place place = PlaceOf(item, row_tiles, x_tiles);
      run(MatrixOf(args, place.row_tile * kTileRows), place.x_tile * N);
    }
  };
  const auto copy = [&](const TileMatrix& m, int x0) {
    const BulkTile t = TileOf<F, N>(args, m, x0, 0, blocks);
    std::exchange(begun, true) ? ring.template Copy<F, false>(t) : ring.template Copy<F, true>(t);
  };
  const auto multiply = [&](auto&& store, const TileMatrix& m, int x0) {
    float sum[N / 2];
    ring.template Multiply<F, N, true>(TileOf<F, N>(args, m, x0, 0, blocks), splits, sum);
    store([&] { args.float_out ? StoreFloats<N>(args, m, x0, sum) : ring.template StoreTile<N>(sum); });
  };
  // Three warps send a tile out while the next is multiplied; the conversions of SendSums would take them longer.
  const bool plain = args.out_tile_rows == 0 && args.angles == nullptr;
  const auto finish = [&](const Finishers& f, const TileMatrix& m, int x0) {
    const int count = args.float_out ? 0 : min(N, args.rows - x0);
    for (int i = f.thread; i < count * (kTileRows / 8); i += f.threads) {
      const int x_row = i / (kTileRows / 8), row = i % (kTileRows / 8) * 8;
      const uint4 piece = ring.Piece(x_row, row);
      if (plain) {
        *reinterpret_cast<uint4*>(static_cast<BFloat16*>(m.out) + (x0 + x_row) * m.out_stride + m.row0 + row) = piece;
        continue;
      }
      const float sum[8] = {LowHalf(piece.x), HighHalf(piece.x), LowHalf(piece.y), HighHalf(piece.y),
                            LowHalf(piece.z), HighHalf(piece.z), LowHalf(piece.w), HighHalf(piece.w)};
      SendSums<8>(args, m, x0 + x_row, m.row0 + row, sum, 0xFu << (threadIdx.x & 28u));
    }
  };
  WorkOff<kDividedThreads>(for_tiles, copy, multiply, finish);
}

template <WeightFormat F, int N>
void Launch(const ProductArgs& args, cudaStream_t stream) {
  const int tiles = RowsOf(args) / kTileRows * ((args.rows + N - 1) / N);
  const auto kernel = WholeProductKernel<F, N>;
  constexpr int kBytes = WholeRing<F, N>::Type::kBytes;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  LaunchKernel(kernel, static_cast<unsigned>(min(tiles, MultiprocessorCount())), kDividedThreads, std::size_t{kBytes},
               stream, args, SplitsOf(args.weight.cols));
}

template <WeightFormat F>
void ChooseTile(const ProductArgs& args, cudaStream_t stream) {
  switch (args.tile_rows) {
    case 8:
      return Launch<F, 8>(args, stream);
    case 16:
      return Launch<F, 16>(args, stream);
    case 32:
      return Launch<F, 32>(args, stream);
    case 64:
      return Launch<F, 64>(args, stream);
    case 96:
      return Launch<F, 96>(args, stream);
    case 192:
      return Launch<F, 192>(args, stream);
    default:
      return Launch<F, 128>(args, stream);
  }
}

}  // namespace

bool TakesBulkProduct(const Weight& weight, int rows, std::int64_t group_rows) {
  if (weight.format == kBf16) {
    return group_rows == 0 && IsTiled<kBf16>(weight.rows, weight.cols) && WholeTiles(weight, rows) >= kWholeTilesMin;
  }
  return weight.format == kFp8 && weight.rows % kTileRows == 0 && weight.cols % kBlockK<kFp8> == 0 &&
         weight.cols <= 65536 && group_rows % kTileRows == 0;
}

void BulkProduct(const ProductArgs& args, cudaStream_t stream) {
  if (args.weight.format == kBf16) return ChooseTile<kBf16>(args, stream);
  args.split ? BulkSplitProduct(args, stream) : ChooseTile<kFp8>(args, stream);
}

}  // namespace galley::backend::cuda
