// SPDX-License-Identifier: Apache-2.0
// Approximate functions of the special units.
#pragma once

namespace galley::backend::cuda::ptx {

// Binary logarithm: within 2^-22 from 0.5 to 2, else to 2^-22 of it. Subnormal numbers count as zero.
__device__ __forceinline__ float Log2Approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace galley::backend::cuda::ptx
