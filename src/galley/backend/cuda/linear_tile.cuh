// SPDX-License-Identifier: Apache-2.0
// What a block of a linear layer works on, for wide_matmul.cu and split_matmul.cu.
#pragma once

#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/wide_dot.cuh"

namespace galley::backend::cuda {

// kTileRows rows of weights from `row0` on by N rows of x from `token0` on.
template <WeightFormat F, int N>
__device__ __forceinline__ WideDot<F, N> LinearDot(const ProductArgs& args, int row0, int token0,
                                                   std::uint8_t* shared) {
  using Dot = WideDot<F, N>;
  Dot dot;
  dot.shared = shared;
  dot.cols = static_cast<int>(args.weight.cols);
  dot.tile = {.data = static_cast<const std::uint8_t*>(args.weight.data),
              .scales = args.weight.scales,
              .row = row0 + static_cast<int>(threadIdx.x) / 32 * 16,
              .end = static_cast<int>(args.weight.rows)};
  const std::int64_t group = args.group_rows == 0 ? 0 : row0 / args.group_rows;
#pragma unroll
  for (int i = 0; i < Dot::kTurns; ++i) {
    const int token = token0 + Dot::Token(i);
    const bool used = Dot::Token(i) < N && token < args.rows;
    dot.x[i] = used ? args.x + token * args.x_stride + group * args.group_stride + Dot::Piece() : nullptr;
  }
  return dot;
}

}  // namespace galley::backend::cuda
