// SPDX-License-Identifier: Apache-2.0
// One activation row, quantised where the model says so, in the order in which a weight format's products want it.
#include "galley/backend/cpu/kernels.h"
#include "galley/backend/cpu/kernels/formats.h"
#include "galley/backend/cpu/kernels/functions.h"
#include "galley/backend/cpu/kernels/simd.h"

namespace galley::backend::cpu::GALLEY_ISA {
namespace {

// Sixteen lanes of a row of `cols` values from column `at` on, zero behind its end.
GALLEY_SIMD F32 LoadRow(const BFloat16* x, std::size_t at, std::size_t cols) {
  if (at + kLanes <= cols) return LoadBf16(x + at);
  F32 out{};
  for (std::size_t l = 0; at + l < cols; ++l) out[l] = OneFloat(x[at + l]);
  return out;
}

// Both halves of a group of 32 on the grid of the activation quantiser; returns their scale.
GALLEY_SIMD float QuantiseHalves(F32& a, F32& b) {
  const float scale = Fp8GroupScale(a, b);
  const F32 down = Broadcast(1.0f / scale), top = Broadcast(448.0f), bottom = Broadcast(-448.0f);
  a = RoundE4M3(Max(Min(a * down, top), bottom));
  b = RoundE4M3(Max(Min(b * down, top), bottom));
  return scale;
}

// The same and back.
GALLEY_SIMD void QuantiseGroup(F32& a, F32& b) {
  const F32 up = Broadcast(QuantiseHalves(a, b));
  a = a * up;
  b = b * up;
}

// Pairs of bf16: the upper and then the lower halves as fp32, or for a tile unit as they are.
#if defined(GALLEY_TILE_BASE)
constexpr std::size_t kPairs = 64;  // bytes of sixteen
GALLEY_SIMD void StorePairs(std::byte* out, U32 pairs) {
  StoreAs(out, pairs);
}
#else
constexpr std::size_t kPairs = 128;
GALLEY_SIMD void StorePairs(std::byte* out, U32 pairs) {
  StoreAs(out, pairs & 0xFFFF0000u);
  StoreAs(out + 64, pairs << 16);
}
#endif

GALLEY_SIMD void PackEvenOdd(const U16* natural, std::byte* out) {
  for (std::size_t half = 0; half < 2; ++half) {
    U32 even, odd;
    for (std::size_t i = 0; i < 2; ++i) {
      const U32 pair = (U32)natural[2 * half + i];
      StoreAs(reinterpret_cast<std::byte*>(&even) + i * 32, NarrowTo16(pair & 0xFFFFu));
      StoreAs(reinterpret_cast<std::byte*>(&odd) + i * 32, NarrowTo16(pair >> 16));
    }
    StorePairs(out + half * 2 * kPairs, even);
    StorePairs(out + (half * 2 + 1) * kPairs, odd);
  }
}

#if GALLEY_DIGITS
// A chunk as formats.h describes it for Mxfp4. `values`: 128 fp32 in natural order, always quantised.
GALLEY_SIMD void PackDigits(F32 values[8], std::byte* out) {
  U8x64 digits[6];
  F32 scales{};
  for (std::size_t g = 0; g < 4; ++g) {
    const float scale = QuantiseHalves(values[2 * g], values[2 * g + 1]) * 0x1p-10f;
    for (std::size_t l = 0; l < 4; ++l) scales[4 * g + l] = scale;
  }
  for (std::size_t i = 0; i < 8; ++i) {
    I32 rest = Convert<I32>(values[i] * 512.0f);
    for (std::size_t digit = 0; digit < 3; ++digit) {
      const I32 low = (rest << 24) >> 24;
      rest = (rest - low) >> 8;
      const U64 pairs = (U64)low;
      auto* at = reinterpret_cast<std::byte*>(&digits[2 * (2 - digit)]) + 8 * i;
      StoreAs(at, NarrowTo8(pairs));
      StoreAs(at + 64, NarrowTo8(pairs >> 32));
    }
  }
  for (std::size_t i = 0; i < 6; ++i) StoreAs(out + 64 * i, digits[i]);
  const U32 twelve[2] = {BroadcastBits(0x0C0C0C0Cu), BroadcastBits(0x0C0C0C0Cu)};
  const auto* x = reinterpret_cast<const U32*>(digits);
  auto sum = (__m512i)((U32)Mxfp4::Sum(_mm512_setzero_si512(), twelve, x) << 8);
  sum = (__m512i)((U32)Mxfp4::Sum(sum, twelve, x + 2) << 8);
  StoreAs(out + 384, -(I32)Mxfp4::Sum(sum, twelve, x + 4));
  StoreAs(out + 448, scales);
}
#else
GALLEY_SIMD void PackStride4(const U16* natural, std::byte* out) {
  for (std::size_t s = 0; s < 4; ++s) {
    U32 pairs;
    for (std::size_t i = 0; i < 4; ++i) {
      const U64 quad = ((U64)natural[i] >> static_cast<int>(16 * s)) & 0xFFFFull;
      StoreAs(reinterpret_cast<std::byte*>(&pairs) + i * 16, NarrowTo16(quad));
    }
    StorePairs(out + s * kPairs, pairs);
  }
}
#endif

}  // namespace

void Pack(const PackArgs& a) {
  const auto cols = static_cast<std::size_t>(a.cols);
  auto* out = static_cast<std::byte*>(a.out);
  for (std::size_t begin = 0; begin < cols; begin += kChunk) {
    F32 values[8];
    for (std::size_t i = 0; i < 8; ++i) values[i] = LoadRow(a.x, begin + i * kLanes, cols);
#if GALLEY_DIGITS
    if (a.packing == Packing::kMxfp4) {
      PackDigits(values, out + begin / kChunk * Mxfp4::kInputBytes);
      continue;
    }
#endif
    if (a.quantise) {
      for (std::size_t i = 0; i < 8; i += 2) QuantiseGroup(values[i], values[i + 1]);
    }
    if (a.packing == Packing::kFloat) {
      for (std::size_t i = 0; i < 8; ++i) StoreAs(out + (begin + i * kLanes) * 4, values[i]);
      continue;
    }
    U16 natural[4];
    for (std::size_t i = 0; i < 8; ++i) {
      StoreBf16(reinterpret_cast<BFloat16*>(natural) + i * kLanes, values[i]);
    }
    std::byte* to = out + begin / 32 * kPairs;
    if (a.packing == Packing::kNatural) {
      for (std::size_t i = 0; i < 4; ++i) StorePairs(to + i * kPairs, (U32)natural[i]);
    } else if (a.packing == Packing::kEvenOdd) {
      PackEvenOdd(natural, to);
    }
#if !GALLEY_DIGITS
    if (a.packing == Packing::kMxfp4) PackStride4(natural, to);
#endif
  }
}

}  // namespace galley::backend::cpu::GALLEY_ISA
