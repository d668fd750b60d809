// SPDX-License-Identifier: Apache-2.0
// The two products of the experts for few rows each (2.9), by warpgroup products in tiles of 8, 16 or 32 rows of x.
// Blocks of threads as in moe_wide.cu, but small enough that three share a multiprocessor, and routed and shared
// experts in one launch. Bits are those of the other forms.
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/moe_tile.cuh"

namespace galley::backend::cuda {
namespace {

template <bool First>
__global__ void __launch_bounds__(kWideThreads, 3) SlimExpertKernel(MoeProblem p) {
  constexpr auto kFp4 = WeightFormat::kMxfp4, kFp8 = WeightFormat::kFp8Block32;
  extern __shared__ __align__(128) std::uint8_t shared[];
  // As in moe.cu: the second product starts while the first still runs, and its tiles are there by then.
  if constexpr (First) ptx::WaitForPreviousKernel();
  ptx::LetNextKernelStart();
  const Tile t = p.work.tiles[blockIdx.y];
  if (t.count == 0) return;
  if (t.expert == p.shared_expert) {
    if (t.count <= 8) return RunTile<First, kFp8, 8, true>(p, t, p.shared_x, shared);
    return RunTile<First, kFp8, kSlimSharedTile, true>(p, t, p.shared_x, shared);
  }
  if (t.count <= 8) return RunTile<First, kFp4, 8, true>(p, t, p.x, shared);
  RunTile<First, kFp4, 16, true>(p, t, p.x, shared);
}

int SharedBytes(int cols) {
  return max(max(WideDot<WeightFormat::kMxfp4, 16>::SharedBytes(cols),
                 WideDot<WeightFormat::kFp8Block32, kSlimSharedTile>::SharedBytes(cols)),
             kSlimSharedTile * kTileStride * 4);
}

template <bool First>
void LaunchSlimExperts(const MoeProblem& p, int blocks, int cols, cudaStream_t stream) {
  const auto kernel = SlimExpertKernel<First>;
  const int bytes = SharedBytes(cols);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  LaunchKernel(kernel, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(p.work.tiles_max)), kWideThreads,
               static_cast<std::size_t>(bytes), stream, p);
}

}  // namespace

void SlimExperts(const MoeProblem& p, cudaStream_t stream) {
  LaunchSlimExperts<true>(p, p.inter / 64, p.dim, stream);
  LaunchSlimExperts<false>(p, p.dim / kTileRows, p.inter, stream);
}

}  // namespace galley::backend::cuda
