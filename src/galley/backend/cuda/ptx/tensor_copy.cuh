// SPDX-License-Identifier: Apache-2.0
// Bulk copies of boxes of a tensor (sm_90), which a CUtensorMap describes (tensor_map.h): one thread brings rows that
// lie apart in global memory and one behind the other in shared memory, at a multiple of 128. What lies outside the
// tensor is read as zero.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace galley::backend::cuda::ptx {

// The bytes of the whole box count towards the barrier's phase.
__device__ __forceinline__ void CopyBox2(std::uint32_t to, const CUtensorMap& map, int x, int y,
                                         std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void CopyBox3(std::uint32_t to, const CUtensorMap& map, int x, int y, int z,
                                         std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}

}  // namespace galley::backend::cuda::ptx
