// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

namespace galley::backend::cuda {
namespace {

// The driver's function, which the runtime finds: nothing is linked against the driver.
auto FindEncoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kSince = 12000;  // CUDA 12.0
  const cudaError_t code =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince, cudaEnableDefault, &found);
  if (code != cudaSuccess) (void)cudaGetLastError();
  return code == cudaSuccess && found == cudaDriverEntryPointSuccess
             ? reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)
             : nullptr;
}

}  // namespace

bool DescribeTensor(const TensorShape& shape, CUtensorMap& map) {
  static const auto encode = FindEncoder();
  constexpr std::uint32_t kEach[3] = {1, 1, 1};
  return encode != nullptr &&
         encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, shape.rank, shape.base, shape.sizes, shape.strides, shape.box,
                kEach, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace galley::backend::cuda
