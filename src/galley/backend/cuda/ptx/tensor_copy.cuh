// SPDX-License-Identifier: Apache-2.0
// Bulk copies of boxes of a tensor (sm_90), which a CUtensorMap describes (tensor_map.h): one thread moves rows that
// lie apart in global memory and one behind the other in shared memory. Shared addresses are multiples of 128. What
// lies outside the tensor is read as zero and not written.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace galley::backend::cuda::ptx {

// From global to shared memory; the bytes of the whole box count towards the barrier's phase.
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
// From shared to global memory. What threads wrote there by ordinary stores, each followed by FenceForBulkCopies, has
// to be visible to this one.
__device__ __forceinline__ void StoreBox3(const CUtensorMap& map, int x, int y, int z, std::uint32_t from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
               "r"(x), "r"(y), "r"(z), "r"(from)
               : "memory");
}
__device__ __forceinline__ void FenceForBulkCopies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Ends this thread's group of stores.
__device__ __forceinline__ void CommitBoxes() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until all groups of this thread have read shared memory; until they have written, too.
__device__ __forceinline__ void WaitForReads() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void WaitForBoxes() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace galley::backend::cuda::ptx
