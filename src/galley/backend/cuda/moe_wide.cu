// SPDX-License-Identifier: Apache-2.0
// The two products of the experts for many rows each (2.9), in the tiles of moe.cu, a block of threads a
// multiprocessor.
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/moe_bulk.cuh"

namespace galley::backend::cuda {
namespace {

constexpr auto kFp4 = WeightFormat::kMxfp4, kFp8 = WeightFormat::kFp8Block32;
// A stage takes 160 rows of x beside MXFP4 codes and scales, or 128 beside two blocks of FP8 codes.
using Ring = BulkRing<3, (48 << 10) + 512, kWideTile*(kTileRows * 2 + 16), 1, 2>;

template <bool First>
__global__ void __launch_bounds__(kDividedThreads, 1) WideExpertKernel(MoeProblem p, int columns) {
  extern __shared__ __align__(128) std::uint8_t bytes[];
  ptx::BeginKernel();
  Ring ring{.data = bytes};
  ring.Init();
  const auto copy = [&](const Tile& t, int column) {
    t.expert == p.shared_expert ? ring.Copy<kFp8, false>(TileOf<First, kFp8>(p, t, column))
                                : ring.Copy<kFp4, false>(TileOf<First, kFp4>(p, t, column));
  };
  const auto multiply = [&](auto&& store, const Tile& t, int column) {
    if (t.expert == p.shared_expert) return MultiplyTile<First, kFp8, kWideSharedTile>(p, t, column, ring, store);
    if (t.count <= 64) return MultiplyTile<First, kFp4, 64>(p, t, column, ring, store);
    if (t.count <= 128) return MultiplyTile<First, kFp4, 128>(p, t, column, ring, store);
    if (t.count <= 144) return MultiplyTile<First, kFp4, 144>(p, t, column, ring, store);
    MultiplyTile<First, kFp4, kWideTile>(p, t, column, ring, store);
  };
  const auto finish = [&](const Finishers& f, const Tile& t, int column) { FinishTile<First>(p, t, column, ring, f); };
  WorkOff<kDividedThreads>([&](auto&& run) { ForTiles(p, columns, run); }, copy, multiply, finish);
}

template <bool First>
void Launch(const MoeProblem& p, int columns, cudaStream_t stream) {
  const auto kernel = WideExpertKernel<First>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Ring::kBytes);
  LaunchKernel(kernel, static_cast<unsigned>(MultiprocessorCount()), kDividedThreads,
               static_cast<std::size_t>(Ring::kBytes), stream, p, columns);
}

}  // namespace

void WideExperts(const MoeProblem& p, int rows, cudaStream_t stream) {
  PackForTiles(p, rows, kWideTile, stream);
  Launch<true>(p, p.inter / kGateRows, stream);
  Launch<false>(p, p.dim / kTileRows, stream);
}

}  // namespace galley::backend::cuda
