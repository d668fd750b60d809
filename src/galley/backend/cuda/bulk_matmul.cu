// SPDX-License-Identifier: Apache-2.0
// Linear layers of FP8 codes with many rows of x (bulk_dot.cuh).
#include "galley/backend/cuda/bulk_dot.cuh"
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"

namespace galley::backend::cuda {
namespace {

constexpr auto kFp8 = WeightFormat::kFp8Block32;
using Shared = BulkShared<4, kTileRows>;

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

// Sums as they are; no matrix of the models wants them, so straight from registers.
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
__device__ __forceinline__ BulkTile TileOf(const ProductArgs& args, int row0, int x0) {
  const int cols = static_cast<int>(args.weight.cols), groups = PackedGroups(min(N, args.rows - x0));
  const int x_block =
      args.group_rows == 0 ? 0 : static_cast<int>(row0 / args.group_rows * args.group_stride) / kBlockK<kFp8>;
  const auto* codes = static_cast<const std::uint8_t*>(args.weight.data) +
                      TileOffset(row0, kTileHeight / 16, cols / kBlockK<kFp8>);
  const std::uint8_t* scales = args.weight.scales + static_cast<std::int64_t>(row0 / 32) * (cols / 32);
  return {.codes = {codes, codes + kTileRows / 2 * 64},
          .scales = {scales, scales + kTileRows / 2 / 32 * (cols / 32)},
          .x = args.x + x0 * args.x_stride + PackedPlace(kBlockK<kFp8>, groups, x_block, 0, 0),
          .groups = groups,
          .cols = cols};
}

template <int N>
__global__ void __launch_bounds__(kBulkThreads, 1) BulkProductKernel(ProductArgs args, int splits) {
  extern __shared__ __align__(128) std::uint8_t bytes[];
  ptx::BeginKernel();
  Shared shared{.data = bytes};
  shared.Init();
  const int row_tiles = static_cast<int>(args.weight.rows) / kTileRows, x_tiles = (args.rows + N - 1) / N;
  const auto for_tiles = [&](auto&& run) {
    for (int item = static_cast<int>(blockIdx.x); item < row_tiles * x_tiles; item += static_cast<int>(gridDim.x)) {
      const Place place = PlaceOf(item, row_tiles, x_tiles);
      run(place.row_tile * kTileRows, place.x_tile * N);
    }
  };
  const auto copy = [&](int row0, int x0) { shared.Copy<kFp8>(TileOf<N>(args, row0, x0)); };
  const auto multiply = [&](int row0, int x0) {
    float sum[N / 2];
    shared.Multiply<kFp8, N>(TileOf<N>(args, row0, x0), splits, sum);
    if (args.float_out) return StoreFloats<N>(args, row0, x0, sum);
    shared.StoreTile<N>(sum);
    const int count = min(N, args.rows - x0);
    for (int i = static_cast<int>(threadIdx.x); i < count * (kTileRows / 8); i += kWideThreads) {
      const int x_row = i / (kTileRows / 8), row = i % (kTileRows / 8) * 8;
      *reinterpret_cast<uint4*>(static_cast<BFloat16*>(args.out) + (x0 + x_row) * args.out_stride + row0 + row) =
          shared.Piece(x_row, row);
    }
  };
  Shared::Divide([&] { for_tiles(copy); }, [&] { for_tiles(multiply); });
}

template <int N>
void Launch(const ProductArgs& args, cudaStream_t stream) {
  const auto kernel = BulkProductKernel<N>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shared::kBytes);
  const int items = static_cast<int>(args.weight.rows) / kTileRows * ((args.rows + N - 1) / N);
  LaunchKernel(kernel, static_cast<unsigned>(min(items, MultiprocessorCount())), kBulkThreads,
               static_cast<std::size_t>(Shared::kBytes), stream, args, SplitsOf(args.weight.cols));
}

}  // namespace

bool TakesBulkProduct(const Weight& weight, std::int64_t group_rows) {
  return weight.format == kFp8 && weight.rows % kTileRows == 0 && weight.cols % kBlockK<kFp8> == 0 &&
         weight.cols <= 65536 && group_rows % kTileRows == 0;
}

void BulkProduct(const ProductArgs& args, cudaStream_t stream) {
  switch (BulkTileRows(args.rows)) {
    case 32:
      return Launch<32>(args, stream);
    case 64:
      return Launch<64>(args, stream);
    default:
      return Launch<128>(args, stream);
  }
}

}  // namespace galley::backend::cuda
