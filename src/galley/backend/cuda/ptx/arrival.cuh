// SPDX-License-Identifier: Apache-2.0
// Counters in global memory by which blocks of threads of one grid tell each other that they are done. A thread speaks
// for its block: behind a barrier of the block, what the others wrote is published and seen with it.
#pragma once

#include <cstdint>

namespace galley::backend::cuda::ptx {

// Publishes what the block has written, adds one and returns what was there.
__device__ __forceinline__ std::uint32_t AddArrival(std::uint32_t* counter) {
  std::uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}
// Adds one and returns what was there; publishes nothing.
__device__ __forceinline__ std::uint32_t AddCount(std::uint32_t* counter) {
  std::uint32_t before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}
// What others published before the count that is returned can be read behind it.
__device__ __forceinline__ std::uint32_t Arrivals(const std::uint32_t* counter) {
  std::uint32_t count;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
  return count;
}

}  // namespace galley::backend::cuda::ptx
