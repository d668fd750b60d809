// SPDX-License-Identifier: Apache-2.0
// Warp-level matrix products of bf16 with fp32 sums, and the loads that shape their operands.
#pragma once

#include <cstdint>

#include "galley/backend/cuda/ptx/async_copy.cuh"

namespace galley::backend::cuda::ptx {

// d[16][8] += a[16][16] b[16][8]. Lane l holds rows l/4 and l/4 + 8 of a (columns 2(l%4), +1, then the same + 8),
// column l/4 of b (rows as a's columns), and of d rows l/4, l/4 + 8, columns 2(l%4), +1.
__device__ __forceinline__ void Mma16x8x16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                           std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// `row`: in shared memory.
__device__ __forceinline__ void LoadMatrix4(std::uint32_t (&r)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void LoadMatrix4(std::uint32_t (&r)[4], const void* row) {
  LoadMatrix4(r, SharedAddress(row));
}
__device__ __forceinline__ void LoadMatrix4Transposed(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}

}  // namespace galley::backend::cuda::ptx
