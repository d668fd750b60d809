// SPDX-License-Identifier: Apache-2.0
// The two products of the experts for many rows (2.9), in the tiles of moe.cu (moe_tile.cuh).
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/moe_tile.cuh"

namespace galley::backend::cuda {
namespace {

// `Shared`: tiles of the shared expert, the last ones; otherwise the routed ones.
template <bool First, WeightFormat F, bool Shared>
__global__ void __launch_bounds__(kWideThreads, 1) WideExpertKernel(MoeProblem p) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  ptx::BeginKernel();
  const Tile t = p.work.tiles[blockIdx.y];
  if (t.count == 0 || (t.expert == p.shared_expert) != Shared) return;
  const BFloat16* x = Shared ? p.shared_x : p.x;
  if (t.count <= 64) return RunTile<First, F, 64, false>(p, t, x, shared);
  if (t.count <= 128) return RunTile<First, F, 128, false>(p, t, x, shared);
  RunTile<First, F, kWideTile, false>(p, t, x, shared);
}

template <WeightFormat F>
constexpr int SharedBytes(int cols) {
  const int stages = WideDot<F, kWideTile>::SharedBytes(cols), sums = kWideTile * kTileStride * 4;
  return stages > sums ? stages : sums;
}

template <bool First, WeightFormat F, bool Shared>
void LaunchWideExperts(const MoeProblem& p, int rows, int cols, cudaStream_t stream) {
  const auto kernel = WideExpertKernel<First, F, Shared>;
  const int bytes = SharedBytes<F>(cols);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  LaunchKernel(kernel, dim3(static_cast<unsigned>(rows), static_cast<unsigned>(p.work.tiles_max)), kWideThreads,
               static_cast<std::size_t>(bytes), stream, p);
}

}  // namespace

void WideExperts(const MoeProblem& p, cudaStream_t stream) {
  LaunchWideExperts<true, WeightFormat::kMxfp4, false>(p, p.inter / 64, p.dim, stream);
  LaunchWideExperts<true, WeightFormat::kFp8Block32, true>(p, p.inter / 64, p.dim, stream);
  LaunchWideExperts<false, WeightFormat::kMxfp4, false>(p, p.dim / kTileRows, p.inter, stream);
  LaunchWideExperts<false, WeightFormat::kFp8Block32, true>(p, p.dim / kTileRows, p.inter, stream);
}

}  // namespace galley::backend::cuda
