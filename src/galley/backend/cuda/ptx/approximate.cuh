// SPDX-License-Identifier: Apache-2.0
// Functions that the device has an instruction for, a unit or two in the last place from the exact result.
#pragma once

namespace galley::backend::cuda::ptx {

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

}  // namespace galley::backend::cuda::ptx
