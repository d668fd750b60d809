// SPDX-License-Identifier: Apache-2.0
// Number formats on the device: packed codes to pairs of bf16 (exact: every e2m1 or e4m3 value times a power of two is
// a bf16 value), and the model's quantisers with the bits of tensor/quantize.h.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "galley/tensor/numeric.h"

namespace galley::backend::cuda {

constexpr unsigned kFullWarp = 0xFFFFFFFFu;

// ToBFloat16 of both, but for NaNs' bits, in one instruction.
__device__ __forceinline__ std::uint32_t Pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}
__device__ __forceinline__ float LowHalf(std::uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float HighHalf(std::uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}
__device__ __forceinline__ std::uint32_t MultiplyPairs(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 product =
      __hmul2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const std::uint32_t&>(product);
}

// A pair of equal bf16 powers of two: 2^(scale - 127) of a UE8M0 byte times 2^Shift, at most 2^127.
template <int Shift>
__device__ __forceinline__ std::uint32_t ScalePair(std::uint32_t scale) {
  const std::uint32_t exponent = min(scale + Shift, 254u);
  return exponent * 0x00800080u;
}
// What the bit patterns below are short of: an e2m1 code's exponent moved into a bf16 has bias 1 instead of 127, an
// e4m3 code's 7.
constexpr int kFp4Shift = 126, kFp8Shift = 120;

// Eight e2m1 codes k0 … k7 of a word, k0 lowest, as pairs (k0, k4), (k1, k5), (k2, k6), (k3, k7), times `scale`. A
// product puts a code in two places at once, one for the sign and one for the rest: multiplications take no time of
// the units that shift and mask.
__device__ __forceinline__ void DecodeFp4x8(std::uint32_t word, std::uint32_t scale, std::uint32_t (&pairs)[4]) {
  constexpr std::uint32_t kMask = 0x81C081C0u;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t codes = word >> (4 * i);
    pairs[i] = MultiplyPairs((codes & 0x000F000Fu) * 0x1040u & kMask, scale);
    pairs[i + 1] = MultiplyPairs((codes & 0x00F000F0u) * 0x104u & kMask, scale);
  }
}

// Stored rows of x pair values that lie two apart, (k0, k2), (k1, k3), (k4, k6), (k5, k7), which is what the bytes of a
// word of e4m3 codes give without shuffling. MXFP4 weights are brought into the same order when they are uploaded, the
// bits of a word placed so that few instructions make bf16 pairs of it: of pairs 0, 1 and 2 a mask does after turning
// the word right by 0, 3 and 6 bits. No fourth pair fits that way; its bits are low ones, which one product brings to
// their places without carrying.
inline constexpr std::uint32_t kFp4Places = 0x81C081C0u, kFp4Last = 0x001B001Bu, kFp4LastFactor = 0x1084u;
__host__ __device__ constexpr std::uint32_t ArrangeFp4(std::uint32_t natural) {
  constexpr int kSource[2][4] = {{0, 1, 4, 5}, {2, 3, 6, 7}};
  constexpr int kTarget[4] = {15, 8, 7, 6};  // sign, exponent, mantissa of a bf16
  constexpr int kLast[4] = {3, 1, 0, 4};
  std::uint32_t word = 0;
  for (int half = 0; half < 2; ++half) {
    for (int pair = 0; pair < 4; ++pair) {
      const std::uint32_t code = natural >> (4 * kSource[half][pair]) & 15;
      for (int bit = 0; bit < 4; ++bit) {
        const int place = 16 * half + (pair < 3 ? kTarget[bit] + 3 * pair : kLast[bit]);
        word |= (code >> (3 - bit) & 1) << (place % 32);
      }
    }
  }
  return word;
}
__device__ __forceinline__ void DecodeArrangedFp4x8(std::uint32_t word, std::uint32_t scale,
                                                    std::uint32_t (&pairs)[4]) {
  pairs[0] = MultiplyPairs(word & kFp4Places, scale);
  pairs[1] = MultiplyPairs(__funnelshift_r(word, word, 3) & kFp4Places, scale);
  pairs[2] = MultiplyPairs(__funnelshift_r(word, word, 6) & kFp4Places, scale);
  pairs[3] = MultiplyPairs((word & kFp4Last) * kFp4LastFactor & kFp4Places, scale);
}
// Four e4m3 codes of a word as pairs (k0, k2), (k1, k3).
__device__ __forceinline__ void DecodeFp8x4(std::uint32_t word, std::uint32_t scale, std::uint32_t& even,
                                            std::uint32_t& odd) {
  even = MultiplyPairs(((word * 16u) & 0x07F007F0u) | ((word * 256u) & 0x80008000u), scale);
  odd = MultiplyPairs(((word >> 4) & 0x07F007F0u) | (word & 0x80008000u), scale);
}
// Eight bf16 values in natural order, (k0, k1) …, brought into the same pairs.
__device__ __forceinline__ void PairFromNatural(const uint4& natural, std::uint32_t (&pairs)[4]) {
  pairs[0] = __byte_perm(natural.x, natural.y, 0x5410);
  pairs[1] = __byte_perm(natural.x, natural.y, 0x7632);
  pairs[2] = __byte_perm(natural.z, natural.w, 0x5410);
  pairs[3] = __byte_perm(natural.z, natural.w, 0x7632);
}
// Place of value i in a stored row of x.
__device__ __forceinline__ int PairedPlace(int i) {
  return (i & ~3) | ((i & 1) << 1) | ((i >> 1) & 1);
}
// Place of value i in a row that meets natural e2m1 words, whose pairs are (k0, k4), (k1, k5), … (DecodeFp4x8).
__device__ __forceinline__ int PlaceForNaturalFp4(int i) {
  return (i & ~7) | ((i & 3) << 1) | ((i >> 2) & 1);
}

// Scale of a group of FP8 activations from its largest magnitude.
__device__ __forceinline__ float Fp8Scale(float amax) {
  return PowerOfTwoCeil(fmaxf(amax, 1e-4f) * (1.0f / 448.0f));
}
__device__ __forceinline__ float ClampTo(float x, float limit) {
  return fminf(fmaxf(x, -limit), limit);
}
// `scale` is a power of two from 2^-126 to 2^126, so that its inverse is one as well and multiplying is dividing.
__device__ __forceinline__ float FakeFp8(float x, float scale) {
  const float inverse = __uint_as_float(0x7F000000u - __float_as_uint(scale));
  const __nv_fp8_storage_t code = __nv_cvt_float_to_fp8(ClampTo(x * inverse, 448.0f), __NV_SATFINITE, __NV_E4M3);
  return __half2float(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)) * scale;
}
__device__ __forceinline__ float Fp4IndexScale(float amax) {
  return PowerOfTwoCeil(fmaxf(amax, 6 * 0x1p-126f) * (1.0f / 6.0f));
}
__device__ __forceinline__ std::uint8_t Fp4KvScale(float amax) {
  return EncodeE4M3(fminf(fmaxf(amax, 6 * 0x1p-9f) / 6.0f, 448.0f));
}
__device__ __forceinline__ std::uint8_t EncodeFp4(float x, float scale) {
  return EncodeE2M1(ClampTo(x / scale, 6.0f));
}

// Sums and maxima over a warp; every lane gets the result, added up as a fixed tree.
__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(kFullWarp, x, step);
  return x;
}
__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, step));
  return x;
}
// Sum over the block, the warps in order; `shared` holds one float a warp. Ends with a barrier.
template <int Warps>
__device__ __forceinline__ float BlockSum(float x, float* shared) {
  x = WarpSum(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < Warps; ++w) sum += shared[w];
  __syncthreads();
  return sum;
}

__device__ __forceinline__ float SigmoidOf(float x) {
  return 1.0f / (1.0f + expf(-x));
}

}  // namespace galley::backend::cuda
