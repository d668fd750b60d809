// SPDX-License-Identifier: Apache-2.0
// Exact conversions between fp32 and the small formats of the V4 family. Everything is a pure function of its bits: no
// rounding mode, no look-up that differs between machines. Rounding is to nearest, ties to even, throughout.
#pragma once

#include <bit>
#include <cstdint>

namespace galley {

struct BFloat16 {
  std::uint16_t bits = 0;
};
static_assert(sizeof(BFloat16) == 2);

[[nodiscard]] constexpr float ToFloat(BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
// NaN stays a (quiet) NaN.
[[nodiscard]] constexpr BFloat16 ToBFloat16(float x) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return BFloat16{static_cast<std::uint16_t>((bits >> 16) | 0x40)};
  bits += 0x7FFF + ((bits >> 16) & 1);
  return BFloat16{static_cast<std::uint16_t>(bits >> 16)};
}
// fp32 value after a round trip through bf16: `bf(.)` of the model specification.
[[nodiscard]] constexpr float RoundToBFloat16(float x) {
  return ToFloat(ToBFloat16(x));
}

// 2^ceil(log2 x) of a positive normal fp32.
[[nodiscard]] constexpr float PowerOfTwoCeil(float x) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) + 0x7FFFFF) & 0x7F800000);
}

// UE8M0 scale byte: value 2^(byte - 127). Byte 0 is 2^-127 (an fp32 subnormal), byte 255 is NaN.
[[nodiscard]] constexpr float DecodeE8M0(std::uint8_t byte) {
  if (byte == 255) return std::bit_cast<float>(0x7FC00000u);
  return byte == 0 ? std::bit_cast<float>(0x00400000u) : std::bit_cast<float>(static_cast<std::uint32_t>(byte) << 23);
}
// Byte of a power of two in [2^-126, 2^127].
[[nodiscard]] constexpr std::uint8_t EncodeE8M0(float power_of_two) {
  return static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(power_of_two) >> 23);
}

// OCP e4m3fn. Decode: 0x7F and 0xFF are NaN. Encode: |x| must be at most 448; values round to the grid of steps 2^-9
// (subnormal) and up.
[[nodiscard]] constexpr float DecodeE4M3(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80) << 24;
  const std::uint32_t magnitude = code & 0x7F;
  if (magnitude == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000u);
  if (magnitude < 8) {  // subnormal: magnitude * 2^-9
    const float value = static_cast<float>(magnitude) * 0x1p-9f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));  // exponent bias 127 - 7
}
[[nodiscard]] constexpr std::uint8_t EncodeE4M3(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint8_t sign = static_cast<std::uint8_t>((bits >> 24) & 0x80);
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude < (121u << 23)) {  // below 2^-6: adding 2^14 leaves the multiple of 2^-9 in the low mantissa bits
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) & 0xF));
  }
  const std::uint32_t rounded = magnitude + 0x7FFFF + ((magnitude >> 20) & 1);
  return static_cast<std::uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

// e2m1: codes 0..7 are 0, .5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign. Encode: |x| must be at most 6.
[[nodiscard]] constexpr float DecodeE2M1(std::uint8_t code) {
  constexpr float kGrid[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float value = kGrid[code & 7];
  return (code & 8) != 0 ? -value : value;
}
[[nodiscard]] constexpr std::uint8_t EncodeE2M1(float x) {
  const bool negative = (std::bit_cast<std::uint32_t>(x) >> 31) != 0;
  const float a = negative ? -x : x;
  // Borders lie half way between neighbours; a tie goes to the even code.
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return static_cast<std::uint8_t>(code | (negative ? 8 : 0));
}

}  // namespace galley
