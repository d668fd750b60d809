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

__device__ __forceinline__ std::uint64_t LoadOfBlock(const std::uint64_t* own, int rank) {
  std::uint32_t there;
  std::uint64_t value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(SharedAddress(own)), "r"(rank));
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(value) : "r"(there) : "memory");
  return value;
}
__device__ __forceinline__ std::uint32_t LoadOfBlock(const std::uint32_t* own, int rank) {
  std::uint32_t there, value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(SharedAddress(own)), "r"(rank));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(there) : "memory");
  return value;
}

}  // namespace galley::backend::cuda::ptx
