// SPDX-License-Identifier: Apache-2.0
// Descriptions of tensors for bulk copies of boxes (ptx/tensor_copy.cuh).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace galley::backend::cuda {

// bf16 values: `rank` (2 or 3) dimensions, the first of neighbours. Strides in bytes, multiples of 16; a box has at
// most 256 values along each dimension, along the first a multiple of 16 bytes.
struct TensorShape {
  void* base = nullptr;
  std::uint32_t rank = 0;
  std::uint64_t sizes[3] = {};
  std::uint64_t strides[2] = {};  // of all dimensions but the first
  std::uint32_t box[3] = {};
};
// False when the driver has no such copies or refuses the shape.
[[nodiscard]] bool DescribeTensor(const TensorShape& shape, CUtensorMap& map);

}  // namespace galley::backend::cuda
