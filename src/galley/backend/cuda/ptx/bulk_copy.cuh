// SPDX-License-Identifier: Apache-2.0
// Bulk copies from global to shared memory (sm_90), the barriers in shared memory that tell of their arrival, and what
// warps with different work need beside them.
#pragma once

#include <cstdint>

#include "galley/backend/cuda/ptx/async_copy.cuh"

namespace galley::backend::cuda::ptx {

// `barrier` is the shared address of 8 bytes. A phase ends when `arrivals` threads have arrived and all bytes that were
// announced have come.
__device__ __forceinline__ void InitBarrier(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// By the thread that initialised barriers, before the block's barrier behind which others use them.
__device__ __forceinline__ void FenceBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void Arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void ArriveAndExpect(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Returns when the phase of this parity has ended.
__device__ __forceinline__ void WaitPhase(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done = 0;
  while (done == 0) {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
  }
}
// Arrives when this thread's earlier CopyAsync16 have come.
__device__ __forceinline__ void ArriveAfterCopies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Copies `bytes`, a multiple of 16, between 16-byte aligned addresses; they count towards the barrier's phase.
__device__ __forceinline__ void CopyBulk(std::uint32_t to, const void* from, int bytes, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// Moves registers between the warpgroups of a block: their number for each thread of this one, a multiple of 8.
template <int N>
__device__ __forceinline__ void RaiseRegisters() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
template <int N>
__device__ __forceinline__ void ReduceRegisters() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

// A barrier of `threads` of the block's threads; `id` from 1 on.
__device__ __forceinline__ void SyncThreads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// This thread's part in such a barrier without waiting for it.
__device__ __forceinline__ void ArriveThreads(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Stores four 8 × 8 matrices of 16-bit values, held as fragments of Mma16x8x16's sums: lane 8 m + i gives the address
// of row i of matrix m, 16 bytes.
__device__ __forceinline__ void StoreMatrix4(std::uint32_t row, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}
// The same transposed: lane 8 m + i gives the address of column i of matrix m.
__device__ __forceinline__ void StoreMatrix4Transposed(std::uint32_t column, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(column), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace galley::backend::cuda::ptx
