// SPDX-License-Identifier: Apache-2.0
// Linear layers with few rows of x, by warpgroup products: each part of K is a block of threads of its own, the parts
// of 128 rows of weights are one cluster, and its blocks add the parts in ascending order from each other's shared
// memory. So matrices with few rows still fill the device, and x is read once for 128 rows of weights. Bits are those
// of the other products.
#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/launch.h"
#include "galley/backend/cuda/ptx/cluster.cuh"
#include "galley/backend/cuda/wide_dot.cuh"

namespace galley::backend::cuda {
namespace {

constexpr int kRows = 128, kThreads = 256, kStride = kRows + 4;

template <WeightFormat F, int N>
__global__ void __launch_bounds__(kThreads, N <= 32   ? 3
                                            : N <= 64 ? 2
                                                      : 1) SplitProductKernel(ProductArgs args) {
  using Dot = WideDot<F, N>;
  extern __shared__ __align__(128) std::uint8_t shared[];
  ptx::LetNextKernelStart();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int splits = static_cast<int>(gridDim.z), split = static_cast<int>(blockIdx.z);
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
  const int blocks = (dot.cols + kBlockK<F> - 1) / kBlockK<F>;
  float sum[Dot::kSums];
  dot.template RunPart<true>(SplitBegin(blocks, splits, split), SplitBegin(blocks, splits, split + 1), sum);

  auto* tile = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < Dot::kSums; ++i) {
    tile[(i / 4 * 8 + lane % 4 * 2 + i % 2) * kStride + warp * 16 + lane / 4 + i / 2 % 2 * 8] = sum[i];
  }
  ptx::SyncCluster();
  for (int i = split * kThreads + static_cast<int>(threadIdx.x); i < N * kRows; i += splits * kThreads) {
    const int row = i % kRows, token = i / kRows;
    if (row0 + row >= args.weight.rows || token0 + token >= args.rows) continue;
    float value = 0;
    for (int s = 0; s < splits; ++s) value += ptx::LoadOfBlock(tile + token * kStride + row, s);
    const std::int64_t at = (token0 + token) * args.out_stride + row0 + row;
    if (args.float_out) {
      static_cast<float*>(args.out)[at] = value;
    } else {
      static_cast<BFloat16*>(args.out)[at] = ToBFloat16(value);
    }
  }
  ptx::SyncCluster();  // no block ends while another reads its sums
}

template <WeightFormat F, int N>
void LaunchSplit(const ProductArgs& args, cudaStream_t stream) {
  using Dot = WideDot<F, N>;
  const auto kernel = SplitProductKernel<F, N>;
  const int splits = SplitsOf(args.weight.cols);
  const int blocks = static_cast<int>((args.weight.cols + kBlockK<F> - 1) / kBlockK<F>);
  const int part = (blocks + splits - 1) / splits;
  const int shared = max(Dot::kStages * Dot::kStageBytes + 8 * Dot::ScaleBytes(part), N * kStride * 4);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  const dim3 grid(static_cast<unsigned>((args.rows + N - 1) / N),
                  static_cast<unsigned>((args.weight.rows + kRows - 1) / kRows), static_cast<unsigned>(splits));
  LaunchClusters(kernel, grid, kThreads, static_cast<std::size_t>(shared), stream, args);
}

template <WeightFormat F>
void ChooseWidth(const ProductArgs& args, cudaStream_t stream) {
  if (args.rows <= 8) return LaunchSplit<F, 8>(args, stream);
  if (args.rows <= 16) return LaunchSplit<F, 16>(args, stream);
  if (args.rows <= 32) return LaunchSplit<F, 32>(args, stream);
  if (args.rows <= 64) return LaunchSplit<F, 64>(args, stream);
  LaunchSplit<F, 128>(args, stream);
}

}  // namespace

bool TakesSplitProduct(const Weight& weight, std::int64_t group_rows) {
  const int block = weight.format == WeightFormat::kFp8Block32 ? 64 : weight.format == WeightFormat::kBF16 ? 32 : 0;
  return block != 0 && weight.cols % block == 0 && weight.cols <= 65536 && group_rows % kRows == 0;
}

void SplitProduct(const ProductArgs& args, cudaStream_t stream) {
  args.weight.format == WeightFormat::kBF16 ? ChooseWidth<WeightFormat::kBF16>(args, stream)
                                            : ChooseWidth<WeightFormat::kFp8Block32>(args, stream);
}

}  // namespace galley::backend::cuda
