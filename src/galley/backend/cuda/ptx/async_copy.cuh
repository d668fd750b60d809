// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies from global to shared memory (cp.async) of 16 bytes. A thread that reads back only what it copied
// itself needs no barrier, just the wait.
#pragma once

#include <cstdint>

namespace galley::backend::cuda::ptx {

__device__ __forceinline__ std::uint32_t SharedAddress(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
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
