// SPDX-License-Identifier: Apache-2.0
// The two products of the experts for few rows each (2.9), in tiles of up to 16 rows of x, 32 of the shared expert. As
// moe_wide.cu, but with blocks of threads so small that two share a multiprocessor: one's copies and barriers hide
// behind the other's decoding.
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/moe_bulk.cuh"

namespace galley::backend::cuda {
namespace {

constexpr auto kFp4 = WeightFormat::kMxfp4, kFp8 = WeightFormat::kFp8Block32;
constexpr int kBlocksOfThreads = 2;  // on a multiprocessor
constexpr int kStages = 7, kStageBlocks = 1;
// A stage takes 16 rows of x beside MXFP4 codes and scales, or 32 beside FP8 codes.
using Ring = BulkRing<kStages, kStageBlocks*((12 << 10) + 512), kSlimSharedTile*(kTileRows * 2 + 16), kStageBlocks,
                      kStageBlocks>;

template <bool First>
__global__ void __launch_bounds__(kBulkThreads, kBlocksOfThreads) SlimExpertKernel(MoeProblem p, int columns) {
  extern __shared__ __align__(128) std::uint8_t bytes[];
  // The second product starts while the first still runs. The tiles are there by then, because the first lets its
  // successor start only after its own wait.
  if constexpr (First) ptx::WaitForPreviousKernel();
  ptx::LetNextKernelStart();
  Ring ring{.data = bytes};
  ring.Init();
  bool begun = First;
  const auto copy = [&](const Tile& t, int column) {
    if (!begun) {
      begun = true;
      return t.expert == p.shared_expert ? ring.Copy<kFp8, true>(TileOf<First, kFp8>(p, t, column))
                                         : ring.Copy<kFp4, true>(TileOf<First, kFp4>(p, t, column));
    }
    t.expert == p.shared_expert ? ring.Copy<kFp8, false>(TileOf<First, kFp8>(p, t, column))
                                : ring.Copy<kFp4, false>(TileOf<First, kFp4>(p, t, column));
  };
  const auto multiply = [&](auto&& store, const Tile& t, int column) {
    if (t.expert == p.shared_expert) return MultiplyTile<First, kFp8, kSlimSharedTile>(p, t, column, ring, store);
    if (t.count <= 8) return MultiplyTile<First, kFp4, 8>(p, t, column, ring, store);
    MultiplyTile<First, kFp4, 16>(p, t, column, ring, store);
  };
  const auto finish = [&](const Finishers& f, const Tile& t, int column) { FinishTile<First>(p, t, column, ring, f); };
  WorkOff<kBulkThreads>([&](auto&& run) { ForTiles(p, columns, run); }, copy, multiply, finish);
}

template <bool First>
void Launch(const MoeProblem& p, int columns, cudaStream_t stream) {
  const auto kernel = SlimExpertKernel<First>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Ring::kBytes);
  LaunchKernel(kernel, static_cast<unsigned>(kBlocksOfThreads * MultiprocessorCount()), kBulkThreads,
               static_cast<std::size_t>(Ring::kBytes), stream, p, columns);
}

}  // namespace

void SlimExperts(const MoeProblem& p, int rows, cudaStream_t stream) {
  PackForTiles(p, rows, kSlimSharedTile, stream);
  Launch<true>(p, p.inter / kGateRows, stream);
  Launch<false>(p, p.dim / kTileRows, stream);
}

}  // namespace galley::backend::cuda
