// SPDX-License-Identifier: Apache-2.0
#include "galley/tensor/quantize.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "galley/base/rng.h"
#include "galley/tensor/numeric.h"

namespace galley {
namespace {

float Uniform(std::uint32_t i, std::uint32_t stream) {  // [-1, 1)
  return static_cast<float>(Philox4x32({i, stream, 0, 0}, {7, 0})[0]) * 0x1p-31f - 1.0f;
}

// The nearest code by search over the whole grid, ties to the even code: the definition the fast encoder must match.
template <typename Decode>
std::uint8_t NearestCode(float x, int codes, Decode decode) {
  int best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code < codes; ++code) {
    const double distance = std::fabs(static_cast<double>(decode(static_cast<std::uint8_t>(code))) - std::fabs(x));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return static_cast<std::uint8_t>(best | (std::signbit(x) ? codes == 8 ? 8 : 0x80 : 0));
}

TEST(Numeric, BFloat16RoundsToEven) {
  EXPECT_EQ(ToBFloat16(1.0f).bits, 0x3F80);
  EXPECT_EQ(ToBFloat16(1.0f + 0x1p-8f).bits, 0x3F80);      // half way, down to even
  EXPECT_EQ(ToBFloat16(1.0f + 3 * 0x1p-8f).bits, 0x3F82);  // half way, up to even
  EXPECT_EQ(ToBFloat16(1.0f + 0x1p-8f + 0x1p-20f).bits, 0x3F81);
  EXPECT_TRUE(std::isnan(RoundToBFloat16(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isinf(RoundToBFloat16(std::numeric_limits<float>::max())));
}

TEST(Numeric, E4M3DecodesKnownCodesAndEncodesEveryCodeBack) {
  EXPECT_EQ(DecodeE4M3(0x7E), 448.0f);
  EXPECT_EQ(DecodeE4M3(0x01), 0x1p-9f);
  EXPECT_EQ(DecodeE4M3(0x08), 0x1p-6f);
  EXPECT_EQ(DecodeE4M3(0xB8), -1.0f);
  EXPECT_TRUE(std::isnan(DecodeE4M3(0x7F)));
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) continue;
    EXPECT_EQ(EncodeE4M3(DecodeE4M3(static_cast<std::uint8_t>(code))), code);
  }
}

TEST(Numeric, E4M3EncodeIsNearestOverTheWholeRange) {
  for (std::uint32_t i = 0; i < 20000; ++i) {
    const float x = Uniform(i, 0) * std::exp2(static_cast<float>(i % 20) - 10.5f) * 0.99f;
    ASSERT_EQ(EncodeE4M3(x), NearestCode(x, 127, DecodeE4M3)) << x;
  }
  for (int code = 0; code < 126; ++code) {  // every half way point
    const float x = (DecodeE4M3(static_cast<std::uint8_t>(code)) + DecodeE4M3(static_cast<std::uint8_t>(code + 1))) / 2;
    ASSERT_EQ(EncodeE4M3(x), NearestCode(x, 127, DecodeE4M3)) << x;
    ASSERT_EQ(EncodeE4M3(-x), NearestCode(-x, 127, DecodeE4M3)) << x;
  }
}

TEST(Numeric, E2M1TiesGoToEven) {
  const std::array<std::array<float, 2>, 7> ties = {
      {{0.25f, 0}, {0.75f, 1}, {1.25f, 1}, {1.75f, 2}, {2.5f, 2}, {3.5f, 4}, {5, 4}}};
  for (const auto& [x, want] : ties) EXPECT_EQ(DecodeE2M1(EncodeE2M1(x)), want) << x;
  for (std::uint32_t i = 0; i < 5000; ++i) {
    const float x = Uniform(i, 1) * 6;
    ASSERT_EQ(EncodeE2M1(x), NearestCode(x, 8, DecodeE2M1)) << x;
  }
}

TEST(Numeric, E8M0CoversThePowersOfTwo) {
  EXPECT_EQ(DecodeE8M0(127), 1.0f);
  EXPECT_EQ(DecodeE8M0(0), 0x1p-127f);
  EXPECT_TRUE(std::isnan(DecodeE8M0(255)));
  for (int e = -126; e <= 127; ++e) EXPECT_EQ(DecodeE8M0(EncodeE8M0(std::ldexp(1.0f, e))), std::ldexp(1.0f, e));
  EXPECT_EQ(PowerOfTwoCeil(1.0f), 1.0f);
  EXPECT_EQ(PowerOfTwoCeil(std::nextafter(1.0f, 2.0f)), 2.0f);
  EXPECT_EQ(PowerOfTwoCeil(0.75f), 1.0f);
}

// Scales of groups whose largest magnitude is `amax`, from the specification's table of golden values.
TEST(Quantize, ScalesFollowTheSpecification) {
  const auto fp8_scale = [](float amax) {
    std::vector<float> x(32, 0.0f);
    x[5] = -amax;
    std::array<std::uint8_t, 32> codes;
    std::uint8_t scale = 0;
    QuantizeFp8(x, codes.data(), &scale);
    return DecodeE8M0(scale);
  };
  EXPECT_EQ(fp8_scale(1.0f), 0x1p-8f);
  EXPECT_EQ(fp8_scale(448.0f), 1.0f);
  EXPECT_EQ(fp8_scale(0.0f), 0x1p-22f);
  const auto index_scale = [](float amax) {
    std::vector<float> x(32, 0.0f);
    x[0] = amax;
    std::array<std::uint8_t, 16> packed;
    std::uint8_t scale = 0;
    QuantizeFp4Index(x, packed.data(), &scale);
    return DecodeE8M0(scale);
  };
  EXPECT_EQ(index_scale(1.0f), 0x1p-2f);
  EXPECT_EQ(index_scale(6.0f), 1.0f);
  const auto kv_scale = [](float amax) {
    std::vector<float> x(16, 0.0f);
    x[15] = amax;
    std::array<std::uint8_t, 8> packed;
    std::uint8_t scale = 0;
    QuantizeFp4Kv(x, packed.data(), &scale);
    return DecodeE4M3(scale);
  };
  EXPECT_EQ(kv_scale(1.0f), 0.171875f);
  EXPECT_EQ(kv_scale(0.0f), 0x1p-9f);
}

TEST(Quantize, WhatComesBackIsOnTheBf16GridAndStable) {
  for (std::uint32_t round = 0; round < 200; ++round) {
    std::vector<float> x(64);
    for (std::uint32_t i = 0; i < 64; ++i) {
      x[i] = RoundToBFloat16(Uniform(round * 64 + i, 2) * std::exp2(static_cast<float>(round % 40) - 20.0f));
    }
    std::array<std::uint8_t, 64> codes;
    std::array<std::uint8_t, 4> scales;
    std::vector<float> once(64), twice(64);

    QuantizeFp8(x, codes.data(), scales.data());
    DequantizeFp8(codes.data(), scales.data(), once);
    std::vector<float> fake = x;
    FakeQuantizeFp8(fake);
    EXPECT_EQ(fake, once);
    for (const float value : once) EXPECT_EQ(RoundToBFloat16(value), value);

    QuantizeFp4Kv(x, codes.data(), scales.data());
    DequantizeFp4Kv(codes.data(), scales.data(), once);
    for (const float value : once) EXPECT_EQ(RoundToBFloat16(value), value);

    QuantizeFp4Index(x, codes.data(), scales.data());
    DequantizeFp4Index(codes.data(), scales.data(), once);
    fake = x;
    FakeQuantizeFp4Index(fake);
    EXPECT_EQ(fake, once);
    QuantizeFp4Index(once, codes.data(), scales.data());  // power-of-two scales: a second pass changes nothing
    DequantizeFp4Index(codes.data(), scales.data(), twice);
    EXPECT_EQ(twice, once);
  }
}

TEST(Quantize, LowNibbleIsTheEvenElement) {
  std::vector<float> x(32, 0.0f);
  x[0] = 6.0f;   // code 7 with scale 1
  x[1] = -1.0f;  // code 2 with the sign bit: 10
  std::array<std::uint8_t, 16> packed;
  std::uint8_t scale = 0;
  QuantizeFp4Index(x, packed.data(), &scale);
  EXPECT_EQ(packed[0], 0xA7);
}

}  // namespace
}  // namespace galley
