// SPDX-License-Identifier: Apache-2.0
// Linear layers with many rows of x. A block computes 128 rows of weights by N rows of x.
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/wide_dot.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kRows = 128, kThreads = 256, kStride = kRows + 4;

template <WeightFormat F, int N>
__global__ void __launch_bounds__(kThreads, 1) WideProductKernel(ProductArgs args, int splits) {
  using Dot = WideDot<F, N>;
  extern __shared__ __align__(128) std::uint8_t shared[];
  ptx::BeginKernel();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // Blocks that run at the same time share rows of weights.
  const int row0 = static_cast<int>(blockIdx.y) * kRows, token0 = static_cast<int>(blockIdx.x) * N;
  Dot dot;
  dot.shared = shared;
  dot.cols = static_cast<int>(args.weight.cols);
  dot.tile = {.data = static_cast<const std::uint8_t*>(args.weight.data),
              .scales = args.weight.scales,
              .row = row0 + warp * 16,
              .end = static_cast<int>(args.weight.rows)};
  const std::int64_t group = args.group_rows == 0 ? 0 : row0 / args.group_rows;
#pragma unroll
  for (int i = 0; i < Dot::kTurns; ++i) {
    const int token = token0 + Dot::Token(i);
    const bool used = Dot::Token(i) < N && token < args.rows;
    dot.x[i] = used ? args.x + token * args.x_stride + group * args.group_stride + Dot::Piece() : nullptr;
  }
  float sum[Dot::kSums];
  dot.Run(splits, sum);

  // Through shared memory, so that neighbouring threads write neighbouring rows.
  auto* tile = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < Dot::kSums; ++i) {
    tile[(i / 4 * 8 + lane % 4 * 2 + i % 2) * kStride + warp * 16 + lane / 4 + i / 2 % 2 * 8] = sum[i];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < N * kRows; i += kThreads) {
    const int row = i % kRows, token = i / kRows;
    if (row0 + row >= args.weight.rows || token0 + token >= args.rows) continue;
    const std::int64_t at = (token0 + token) * args.out_stride + row0 + row;
    const float value = tile[token * kStride + row];
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
  const int shared = max(WideDot<F, N>::SharedBytes(static_cast<int>(args.weight.cols)), N * kStride * 4);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  const dim3 grid(static_cast<unsigned>((args.rows + N - 1) / N),
                  static_cast<unsigned>((args.weight.rows + kRows - 1) / kRows));
  LaunchKernel(kernel, grid, kThreads, static_cast<std::size_t>(shared), stream, args, SplitsOf(args.weight.cols));
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
  if (rows <= 16 || block == 0 || weight.cols % block != 0 || weight.cols > 65536 || group_rows % kRows != 0)
    return false;
  // Too few blocks of threads leave most of the device idle; the narrow kernels cut K instead. Both give the same bits.
  constexpr std::int64_t kBlocksMin = 64;
  return (weight.rows + kRows - 1) / kRows * ((rows + kRows - 1) / kRows) >= kBlocksMin;
}

void WideProduct(const ProductArgs& args, cudaStream_t stream) {
  args.weight.format == WeightFormat::kBF16 ? ChooseWidth<WeightFormat::kBF16>(args, stream)
                                            : ChooseWidth<WeightFormat::kFp8Block32>(args, stream);
}

}  // namespace galley::backend::cuda
