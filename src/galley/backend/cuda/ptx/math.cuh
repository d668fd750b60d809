// SPDX-License-Identifier: Apache-2.0
// Single instructions of arithmetic that C++ has no name for.
#pragma once

namespace galley::backend::cuda::ptx {

// 2^x within two units in the last place; 0 for minus infinity.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x; 0 for infinite x, and x is not subnormal.
__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / sqrt(x).
__device__ __forceinline__ float ReciprocalRoot(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Binary logarithm: within 2^-22 from 0.5 to 2, else to 2^-22 of it. Subnormal numbers count as zero.
__device__ __forceinline__ float Log2Approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace galley::backend::cuda::ptx
