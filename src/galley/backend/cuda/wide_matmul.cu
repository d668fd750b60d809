// SPDX-License-Identifier: Apache-2.0
// Linear layers with many rows of x. A block computes 128 rows of weights by N rows of x.
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/linear_tile.cuh"

namespace galley::backend::cuda {
namespace {

template <WeightFormat F, int N>
__global__ void __launch_bounds__(kWideThreads, 1) WideProductKernel(ProductArgs args, int splits) {
  using Dot = WideDot<F, N>;
  extern __shared__ __align__(128) std::uint8_t shared[];
  ptx::BeginKernel();
  // Blocks that run at the same time share rows of weights.
  const int row0 = static_cast<int>(blockIdx.y) * kTileRows, token0 = static_cast<int>(blockIdx.x) * N;
  Dot dot = LinearDot<F, N>(args, row0, token0, shared);
  float sum[Dot::kSums];
  dot.Run(splits, sum);

  // Through shared memory, so that neighbouring threads write neighbouring rows.
  float* tile = dot.StoreSums(sum);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < N * kTileRows; i += kWideThreads) {
    const int row = i % kTileRows, token = i / kTileRows;
    if (row0 + row >= args.weight.rows || token0 + token >= args.rows) continue;
    const std::int64_t at = (token0 + token) * args.out_stride + row0 + row;
    const float value = tile[token * kTileStride + row];
    if (args.float_out) {
      static_cast<float*>(args.out)[at] = value;
    } else {
      static_cast<BFloat16*>(args.out)[at] = ToBFloat16(value);
    }
  }
}

template <WeightFormat F, int N>
void LaunchWide(const ProductArgs& args, cudaStream_t stream) {
  const auto kernel = WideProductKernel<F, N>;
  const int shared = max(WideDot<F, N>::SharedBytes(static_cast<int>(args.weight.cols)), N * kTileStride * 4);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  const dim3 grid(static_cast<unsigned>((args.rows + N - 1) / N),
                  static_cast<unsigned>((args.weight.rows + kTileRows - 1) / kTileRows));
  LaunchKernel(kernel, grid, kWideThreads, static_cast<std::size_t>(shared), stream, args, SplitsOf(args.weight.cols));
}

template <WeightFormat F>
void ChooseWidth(const ProductArgs& args, cudaStream_t stream) {
  if (args.rows <= 32) return LaunchWide<F, 32>(args, stream);
  if (args.rows <= 64) return LaunchWide<F, 64>(args, stream);
  LaunchWide<F, 128>(args, stream);
}

}  // namespace

bool UsesWideProduct(const Weight& weight, int rows, std::int64_t group_rows) {
  const int block = weight.format == WeightFormat::kFp8Block32 ? 64 : weight.format == WeightFormat::kBF16 ? 32 : 0;
  if (rows <= 16 || block == 0 || weight.cols % block != 0 || weight.cols > 65536 || group_rows % kTileRows != 0)
    return false;
  // Too few blocks of threads leave most of the device idle; the narrow kernels cut K instead. Both give the same bits.
  constexpr std::int64_t kBlocksMin = 64;
  return (weight.rows + kTileRows - 1) / kTileRows * ((rows + kTileRows - 1) / kTileRows) >= kBlocksMin;
}

void WideProduct(const ProductArgs& args, cudaStream_t stream) {
  args.weight.format == WeightFormat::kBF16 ? ChooseWidth<WeightFormat::kBF16>(args, stream)
                                            : ChooseWidth<WeightFormat::kFp8Block32>(args, stream);
}

}  // namespace galley::backend::cuda
