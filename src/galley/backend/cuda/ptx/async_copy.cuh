// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies from global to shared memory (cp.async) of 16 bytes. A thread that reads back only what it copied
// itself needs no barrier, just the wait.
#pragma once

#include <cstdint>

namespace galley::backend::cuda::ptx {

__device__ __forceinline__ std::uint32_t SharedAddress(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// The same, kept in a register: the compiler would find it out anew wherever it is needed, from slow registers.
__device__ __forceinline__ std::uint32_t KeptSharedAddress(const void* p) {
  std::uint32_t address;
  asm volatile("mov.u32 %0, %1;" : "=r"(address) : "r"(SharedAddress(p)));
  return address;
}
__device__ __forceinline__ uint4 LoadShared16(std::uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}
__device__ __forceinline__ std::uint32_t LoadShared4(std::uint32_t at) {
  std::uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
__device__ __forceinline__ std::uint32_t LoadShared2(std::uint32_t at) {
  std::uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
  return v;
}
__device__ __forceinline__ std::uint32_t LoadShared1(std::uint32_t at) {
  std::uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}

// Copies 16 bytes; zeros when `valid` is false (nothing is read then).
__device__ __forceinline__ void CopyAsync16(void* to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(to)), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `Pending` of this thread's newest groups are still under way.
template <int Pending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// 16 bytes that are read once; zeros when `valid` is false.
__device__ __forceinline__ uint4 LoadOnce16(const void* from, bool valid) {
  uint4 v = {0, 0, 0, 0};
  if (valid) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
  }
  return v;
}

// Stores 16 bytes at once, wherever the values are; the compiler may prefer four stores to moving them.
__device__ __forceinline__ void Store16(void* to, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// Programmatic dependent launch: what comes before the wait may run while the previous kernel of the stream still does.
__device__ __forceinline__ void WaitForPreviousKernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void LetNextKernelStart() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// The first statement of a kernel that has nothing to do before its inputs are there.
__device__ __forceinline__ void BeginKernel() {
  LetNextKernelStart();
  WaitForPreviousKernel();
}

}  // namespace galley::backend::cuda::ptx
