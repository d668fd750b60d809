// SPDX-License-Identifier: Apache-2.0
// Warpgroup products (sm_90a): a[64][16] in registers times b[16][N] in shared memory, added to fp32 registers.
// Register i of d is row 16 w + l/4 (+ 8 when i/2 is odd), column 8 (i/4) + 2 (l%4) + i%2, for lane l of warp w: the
// layout of Mma16x8x16, and the same bits.
#pragma once

#include <cstdint>

#include "galley/backend/cuda/ptx/async_copy.cuh"

namespace galley::backend::cuda::ptx {

// Shared-memory operand without swizzle: cores of 8 columns of b by 8 values of K, 128 bytes each, `k_stride` bytes
// apart along K and `column_stride` along the columns.
__device__ __forceinline__ std::uint64_t CoreDescriptor(std::uint32_t address, std::uint32_t k_stride,
                                                        std::uint32_t column_stride = 128) {
  return static_cast<std::uint64_t>(address >> 4 & 0x3FFFu) | static_cast<std::uint64_t>(k_stride >> 4) << 16 |
         static_cast<std::uint64_t>(column_stride >> 4) << 32;
}

// The same in rows of 128 bytes of which eight make a core of 1,024, aligned so, with the pieces of 16 bytes of row r
// at their place xor r. Rows lie along K or along the columns. K in rows: `row_stride` bytes between cores along the
// columns
// (`line_stride` is unused). Columns in rows: `row_stride` between cores along K, `line_stride` between those along the
// columns.
__device__ __forceinline__ std::uint64_t SwizzledDescriptor(std::uint32_t address, std::uint32_t row_stride,
                                                            std::uint32_t line_stride = 16) {
  return CoreDescriptor(address, line_stride, row_stride) | std::uint64_t{1} << 62;
}
// The same operand `bytes` further on.
__device__ __forceinline__ std::uint64_t MovedBy(std::uint64_t descriptor, int bytes) {
  return descriptor + static_cast<std::uint64_t>(bytes >> 4);
}

__device__ __forceinline__ void WarpgroupFence() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  __trap();
#endif
}
__device__ __forceinline__ void WarpgroupCommit() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  __trap();
#endif
}
template <int Pending>
__device__ __forceinline__ void WarpgroupWait() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
#else
  __trap();
#endif
}
// Behind a wait: what the products have added to is not used before it.
template <int N>
__device__ __forceinline__ void HoldSums(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// Makes ordinary writes to shared memory visible to warpgroup products; before the barrier, in every writing thread.
__device__ __forceinline__ void FenceForWarpgroup() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// An instruction names every register of d, in its text (GALLEY_NAMES_n: %0 to %n-1) and as an operand
// (GALLEY_FLOATS_n).
#define GALLEY_NAMES_4 "%0, %1, %2, %3"
#define GALLEY_NAMES_8 GALLEY_NAMES_4 ", %4, %5, %6, %7"
#define GALLEY_NAMES_12 GALLEY_NAMES_8 ", %8, %9, %10, %11"
#define GALLEY_NAMES_16 GALLEY_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define GALLEY_NAMES_32 \
  GALLEY_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GALLEY_NAMES_48 \
  GALLEY_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define GALLEY_NAMES_64                                                                \
  GALLEY_NAMES_32                                                                      \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define GALLEY_NAMES_72 GALLEY_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define GALLEY_NAMES_80 \
  GALLEY_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define GALLEY_NAMES_96 \
  GALLEY_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"

#define GALLEY_FLOATS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GALLEY_FLOATS_8(d, i) GALLEY_FLOATS_4(d, i), GALLEY_FLOATS_4(d, i + 4)
#define GALLEY_FLOATS_12(d, i) GALLEY_FLOATS_8(d, i), GALLEY_FLOATS_4(d, i + 8)
#define GALLEY_FLOATS_16(d, i) GALLEY_FLOATS_8(d, i), GALLEY_FLOATS_8(d, i + 8)
#define GALLEY_FLOATS_32(d, i) GALLEY_FLOATS_16(d, i), GALLEY_FLOATS_16(d, i + 16)
#define GALLEY_FLOATS_48(d, i) GALLEY_FLOATS_32(d, i), GALLEY_FLOATS_16(d, i + 32)
#define GALLEY_FLOATS_64(d, i) GALLEY_FLOATS_32(d, i), GALLEY_FLOATS_32(d, i + 32)
#define GALLEY_FLOATS_72(d, i) GALLEY_FLOATS_64(d, i), GALLEY_FLOATS_8(d, i + 64)
#define GALLEY_FLOATS_80(d, i) GALLEY_FLOATS_64(d, i), GALLEY_FLOATS_16(d, i + 64)
#define GALLEY_FLOATS_96(d, i) GALLEY_FLOATS_80(d, i), GALLEY_FLOATS_16(d, i + 80)

// `columns` of b, so `count` = columns / 2 registers of d; a0 to a3 and b_at are the operands behind them;
// `transposed`: whether columns of b are neighbours in a core.
#define GALLEY_WGMMA(columns, count, a0, a1, a2, a3, b_at, transposed)                                 \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" GALLEY_NAMES_##count \
               "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", 1, 1, 1, " #transposed ";"    \
               : GALLEY_FLOATS_##count(d, 0)                                                           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// The same of e4m3 values, where d is not added to.
#define GALLEY_WGMMA_FP8(columns, count, a0, a1, a2, a3, b_at)                                         \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k32.f32.e4m3.e4m3 {" GALLEY_NAMES_##count \
               "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", 0, 1, 1;"                     \
               : GALLEY_FLOATS_##count(d, 0)                                                           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// d += a b of N columns: 8, 16, 24, 32, 64, 96, 128, 144, 160 or 192.
template <int N>
struct Wgmma {
  __device__ __forceinline__ static void Add(float (&d)[N / 2], const std::uint32_t (&a)[4], std::uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if constexpr (N == 8) {
      GALLEY_WGMMA(8, 4, 4, 5, 6, 7, 8, 0);
    } else if constexpr (N == 16) {
      GALLEY_WGMMA(16, 8, 8, 9, 10, 11, 12, 0);
    } else if constexpr (N == 24) {
      GALLEY_WGMMA(24, 12, 12, 13, 14, 15, 16, 0);
    } else if constexpr (N == 32) {
      GALLEY_WGMMA(32, 16, 16, 17, 18, 19, 20, 0);
    } else if constexpr (N == 64) {
      GALLEY_WGMMA(64, 32, 32, 33, 34, 35, 36, 0);
    } else if constexpr (N == 96) {
      GALLEY_WGMMA(96, 48, 48, 49, 50, 51, 52, 0);
    } else if constexpr (N == 128) {
      GALLEY_WGMMA(128, 64, 64, 65, 66, 67, 68, 0);
    } else if constexpr (N == 144) {
      GALLEY_WGMMA(144, 72, 72, 73, 74, 75, 76, 0);
    } else if constexpr (N == 160) {
      GALLEY_WGMMA(160, 80, 80, 81, 82, 83, 84, 0);
    } else {
      static_assert(N == 192, "no such product is instantiated");
      GALLEY_WGMMA(192, 96, 96, 97, 98, 99, 100, 0);
    }
#else
    __trap();
#endif
  }
};

// d += a b of 128 columns whose neighbours lie in a core, instead of values of K.
__device__ __forceinline__ void AddTransposed128(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  GALLEY_WGMMA(128, 64, 64, 65, 66, 67, 68, 1);
#else
  __trap();
#endif
}

// d = a b of e4m3 values, 32 of K: a lane has four neighbouring ones of row l/4 in a[0] (K 4 (l%4)) and a[2] (16 on),
// of row l/4 + 8 in a[1] and a[3]; cores of b are 8 columns by 16 values. 128 or 192 columns.
template <int N>
__device__ __forceinline__ void MultiplyFp8(float (&d)[N / 2], const std::uint32_t (&a)[4], std::uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (N == 128) {
    GALLEY_WGMMA_FP8(128, 64, 64, 65, 66, 67, 68);
  } else {
    static_assert(N == 192, "no such product is instantiated");
    GALLEY_WGMMA_FP8(192, 96, 96, 97, 98, 99, 100);
  }
#else
  __trap();
#endif
}

#undef GALLEY_WGMMA
#undef GALLEY_WGMMA_FP8
#undef GALLEY_NAMES_4
#undef GALLEY_FLOATS_4
#undef GALLEY_NAMES_8
#undef GALLEY_FLOATS_8
#undef GALLEY_NAMES_12
#undef GALLEY_FLOATS_12
#undef GALLEY_NAMES_16
#undef GALLEY_FLOATS_16
#undef GALLEY_NAMES_32
#undef GALLEY_FLOATS_32
#undef GALLEY_NAMES_48
#undef GALLEY_NAMES_64
#undef GALLEY_FLOATS_48
#undef GALLEY_FLOATS_64
#undef GALLEY_NAMES_72
#undef GALLEY_NAMES_80
#undef GALLEY_NAMES_96
#undef GALLEY_FLOATS_72
#undef GALLEY_FLOATS_80
#undef GALLEY_FLOATS_96

}  // namespace galley::backend::cuda::ptx
