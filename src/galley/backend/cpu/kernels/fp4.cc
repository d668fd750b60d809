// SPDX-License-Identifier: Apache-2.0
// The FP4 quantisers of compressed history (specification 2.7, 2.8); tensor/quantize.h states them one value at a time.
#include "galley/backend/cpu/kernels.h"
#include "galley/backend/cpu/kernels/functions.h"
#include "galley/backend/cpu/kernels/simd.h"

namespace galley::backend::cpu::GALLEY_ISA {
namespace {

GALLEY_SIMD F32 Magnitude(F32 x) {
  return (F32)((U32)x & 0x7FFFFFFFu);
}

// x / scale on the e2m1 grid, between -6 and 6; NaN becomes zero.
GALLEY_SIMD F32 RoundE2M1(F32 x, F32 scale) {
  const F32 ratio = x / scale;
  const F32 magnitude = Min(Magnitude(ratio), Broadcast(6.0f));
  // Adding and subtracting 1.5 * 2^k rounds to multiples of 2^(k - 23), ties to even: steps of 0.5, 1 and 2.
  const F32 far = Select(magnitude < 4.0f, Broadcast(0x1.8p23f), Broadcast(0x1.8p24f));
  const F32 shift = Select(magnitude < 2.0f, Broadcast(0x1.8p22f), far);
  const F32 rounded = Select(x == x, (magnitude + shift) - shift, F32{});
  return (F32)((U32)rounded | ((U32)ratio & 0x80000000u));
}

// Codes of sixteen values of the grid, two a byte, the low nibble first.
GALLEY_SIMD void StoreE2M1(std::uint8_t* packed, F32 value) {
  const F32 magnitude = Magnitude(value);
  const U32 from_one = ((U32)magnitude >> 22) - 252u;  // exponent and first bit of the mantissa
  const U32 below_one = (U32)Convert<I32>(magnitude * 2.0f);
  const U32 codes = (U32)Select(magnitude < 1.0f, (F32)below_one, (F32)from_one) | (((U32)value >> 28) & 8u);
  const U64 pairs = (U64)codes;
  StoreAs(packed, NarrowTo8(pairs | (pairs >> 28)));
}

GALLEY_SIMD float PowerOfTwoCeil(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0x7FFFFFu) & 0x7F800000u;
  __builtin_memcpy(&x, &bits, sizeof(bits));
  return x;
}

// Scale of a group of 32 index values.
GALLEY_SIMD float IndexScale(F32 a, F32 b) {
  const float largest = MaxLanes(Max(Magnitude(a), Magnitude(b))), least = 6 * 0x1p-126f;
  return PowerOfTwoCeil((largest > least ? largest : least) * (1.0f / 6.0f));
}

}  // namespace

void RoundFp4Index(BFloat16* x, std::size_t n) {
  for (std::size_t i = 0; i < n; i += 2 * kLanes) {
    const F32 a = LoadBf16(x + i), b = LoadBf16(x + i + kLanes), scale = Broadcast(IndexScale(a, b));
    StoreBf16(x + i, RoundE2M1(a, scale) * scale);
    StoreBf16(x + i + kLanes, RoundE2M1(b, scale) * scale);
  }
}

void EncodeFp4Index(const BFloat16* x, std::uint8_t* packed, std::uint8_t* scales, std::size_t n) {
  for (std::size_t i = 0; i < n; i += 2 * kLanes) {
    const F32 a = LoadBf16(x + i), b = LoadBf16(x + i + kLanes);
    const float scale = IndexScale(a, b);
    StoreE2M1(packed + i / 2, RoundE2M1(a, Broadcast(scale)));
    StoreE2M1(packed + i / 2 + kLanes / 2, RoundE2M1(b, Broadcast(scale)));
    std::uint32_t bits;
    __builtin_memcpy(&bits, &scale, sizeof(bits));
    scales[i / 32] = static_cast<std::uint8_t>(bits >> 23);
  }
}

void EncodeFp4Kv(const BFloat16* x, std::uint8_t* packed, std::uint8_t* scales, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kLanes) {
    const F32 a = LoadBf16(x + i);
    const float largest = MaxLanes(Magnitude(a)), least = 6 * 0x1p-9f;
    const F32 wanted = Min(Broadcast((largest > least ? largest : least) / 6.0f), Broadcast(448.0f));
    const auto code = static_cast<std::uint8_t>(EncodeE4M3(wanted)[0]);
    const F32 scale = Broadcast(RoundE4M3(wanted)[0]);
    scales[i / 16] = code;
    StoreE2M1(packed + i / 2, RoundE2M1(a, scale));
  }
}

}  // namespace galley::backend::cpu::GALLEY_ISA
