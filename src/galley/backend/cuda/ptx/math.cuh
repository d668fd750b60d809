// SPDX-License-Identifier: Apache-2.0
// Single instructions of arithmetic that C++ has no name for.
#pragma once

#include <cstdint>

namespace galley::backend::cuda::ptx {

// 2^x within two units in the last place; 0 for minus infinity.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two values rounded to bf16, `low` in the low half.
__device__ __forceinline__ std::uint32_t RoundPair(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Binary logarithm: within 2^-22 from 0.5 to 2, else to 2^-22 of it. Subnormal numbers count as zero.
__device__ __forceinline__ float Log2Approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace galley::backend::cuda::ptx
