// SPDX-License-Identifier: Apache-2.0
// Blocks of threads of one cluster (sm_90): their barrier, and reading and writing each other's shared memory.
#pragma once

#include <cstdint>

#include "galley/backend/cuda/ptx/async_copy.cuh"

namespace galley::backend::cuda::ptx {

// Every thread of every block of the cluster; what was written to shared memory before can be read behind it.
__device__ __forceinline__ void SyncCluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// The same barrier in two halves, the first without waiting for what the thread has written: fit for barriers behind
// FenceBarriers, and before a block ends.
__device__ __forceinline__ void ArriveCluster() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void WaitCluster() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Where block `rank` of the cluster has what lies at `own` in this block's shared memory.
__device__ __forceinline__ std::uint32_t AddressInBlock(std::uint32_t own, int rank) {
  std::uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
  return there;
}
// Stores at `to` and counts the bytes towards the phase of `barrier`, both in the same other block.
__device__ __forceinline__ void SendFour(std::uint32_t to, const uint4& value, std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void SendTwo(std::uint32_t to, const uint2& value, std::uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "r"(value.x), "r"(value.y), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void SendOne(std::uint32_t to, float value, std::uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(value),
               "r"(barrier)
               : "memory");
}
// At a barrier of another block, for what this thread has read. Of the block's scope: with the cluster's the thread
// would wait for all memory that it has touched.
__device__ __forceinline__ void ArriveInBlock(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// What `own`, an address in this block's shared memory, holds in block `rank` of the cluster.
__device__ __forceinline__ float LoadOfBlock(const float* own, int rank) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];"
               : "=f"(value)
               : "r"(AddressInBlock(SharedAddress(own), rank))
               : "memory");
  return value;
}
// Four values; `own` is 16-byte aligned.
__device__ __forceinline__ float4 LoadFourOfBlock(const float* own, int rank) {
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(AddressInBlock(SharedAddress(own), rank))
               : "memory");
  return value;
}

// Stores a value where `own` is in block `rank` of the cluster. Its 4 bytes count towards the phase of that block's
// barrier at `own_barrier`, behind which they can be read: no fence, which would wait for all other memory accesses
// too.
__device__ __forceinline__ void StoreToBlock(const float* own, float value, std::uint32_t own_barrier, int rank) {
  SendOne(AddressInBlock(SharedAddress(own), rank), value, AddressInBlock(own_barrier, rank));
}

__device__ __forceinline__ std::uint64_t LoadOfBlock(const std::uint64_t* own, int rank) {
  std::uint64_t value;
  asm volatile("ld.shared::cluster.u64 %0, [%1];"
               : "=l"(value)
               : "r"(AddressInBlock(SharedAddress(own), rank))
               : "memory");
  return value;
}
__device__ __forceinline__ std::uint32_t LoadOfBlock(const std::uint32_t* own, int rank) {
  std::uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];"
               : "=r"(value)
               : "r"(AddressInBlock(SharedAddress(own), rank))
               : "memory");
  return value;
}

}  // namespace galley::backend::cuda::ptx
