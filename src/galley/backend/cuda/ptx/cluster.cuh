// SPDX-License-Identifier: Apache-2.0
// Blocks of threads of one cluster (sm_90): their barrier, and reading each other's shared memory.
#pragma once

#include <cstdint>

#include "galley/backend/cuda/ptx/async_copy.cuh"

namespace galley::backend::cuda::ptx {

// Every thread of every block of the cluster; what was written to shared memory before can be read behind it.
__device__ __forceinline__ void SyncCluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// What `own`, an address in this block's shared memory, holds in block `rank` of the cluster.
__device__ __forceinline__ float LoadOfBlock(const float* own, int rank) {
  std::uint32_t there;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(SharedAddress(own)), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
  return value;
}
// Four values; `own` is 16-byte aligned.
__device__ __forceinline__ float4 LoadFourOfBlock(const float* own, int rank) {
  std::uint32_t there;
  float4 value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(SharedAddress(own)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(there)
               : "memory");
  return value;
}

// Stores a value where `own` is in block `rank` of the cluster. Its 4 bytes count towards the phase of that block's
// barrier at `own_barrier`, behind which they can be read: no fence, which would wait for all other memory accesses
// too.
__device__ __forceinline__ void StoreToBlock(const float* own, float value, std::uint32_t own_barrier, int rank) {
  std::uint32_t there, barrier;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(SharedAddress(own)), "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(own_barrier), "r"(rank));
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(there),
               "f"(value), "r"(barrier)
               : "memory");
}

}  // namespace galley::backend::cuda::ptx
