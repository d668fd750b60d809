// SPDX-License-Identifier: Apache-2.0
#include "galley/tensor/quantize.h"

#include <algorithm>
#include <cmath>

#include "galley/base/check.h"
#include "galley/tensor/numeric.h"

namespace galley {
namespace {

constexpr float kInverse448 = 1.0f / 448.0f;
constexpr float kInverse6 = 1.0f / 6.0f;

float AbsMax(std::span<const float> x) {
  float largest = 0;
  for (const float value : x) largest = std::max(largest, std::fabs(value));
  return largest;
}

// The published activation scale: the amax has a floor of 1e-4, so a scale is at least 2^-22.
float Fp8Scale(std::span<const float> group) {
  return PowerOfTwoCeil(std::max(AbsMax(group), 1e-4f) * kInverse448);
}

float Fp4IndexScale(std::span<const float> group) {
  return PowerOfTwoCeil(std::max(AbsMax(group), 6 * 0x1p-126f) * kInverse6);
}

std::uint8_t Fp4KvScale(std::span<const float> group) {
  return EncodeE4M3(std::min(std::max(AbsMax(group), 6 * 0x1p-9f) / 6.0f, 448.0f));
}

std::uint8_t EncodePair(float low, float high, float scale) {
  const std::uint8_t a = EncodeE2M1(std::clamp(low / scale, -6.0f, 6.0f));
  const std::uint8_t b = EncodeE2M1(std::clamp(high / scale, -6.0f, 6.0f));
  return static_cast<std::uint8_t>(a | (b << 4));
}

void CheckGroups(std::size_t n, int group) {
  CHECK(n % static_cast<std::size_t>(group) == 0) << n << " values in groups of " << group;
}

// Packs one group of values with its scale.
void PackGroup(std::span<const float> group, float scale, std::uint8_t* packed) {
  for (std::size_t i = 0; i < group.size(); i += 2) packed[i / 2] = EncodePair(group[i], group[i + 1], scale);
}

void UnpackGroup(const std::uint8_t* packed, float scale, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); i += 2) {
    out[i] = DecodeE2M1(packed[i / 2] & 15) * scale;
    out[i + 1] = DecodeE2M1(packed[i / 2] >> 4) * scale;
  }
}

}  // namespace

constinit const std::array<float, 256> kE4M3Values = [] {
  std::array<float, 256> values{};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = DecodeE4M3(static_cast<std::uint8_t>(i));
  return values;
}();

void QuantizeFp8(std::span<const float> x, std::uint8_t* codes, std::uint8_t* scales) {
  CheckGroups(x.size(), kFp8Group);
  for (std::size_t g = 0; g < x.size() / kFp8Group; ++g) {
    const auto group = x.subspan(g * kFp8Group, kFp8Group);
    const float scale = Fp8Scale(group);
    scales[g] = EncodeE8M0(scale);
    for (std::size_t i = 0; i < kFp8Group; ++i) {
      codes[g * kFp8Group + i] = EncodeE4M3(std::clamp(group[i] / scale, -448.0f, 448.0f));
    }
  }
}

void DequantizeFp8(const std::uint8_t* codes, const std::uint8_t* scales, std::span<float> out) {
  for (std::size_t g = 0; g < out.size() / kFp8Group; ++g) {
    const float scale = DecodeE8M0(scales[g]);
    for (std::size_t i = g * kFp8Group; i < (g + 1) * kFp8Group; ++i) out[i] = kE4M3Values[codes[i]] * scale;
  }
}

void QuantizeFp4Kv(std::span<const float> x, std::uint8_t* packed, std::uint8_t* scales) {
  CheckGroups(x.size(), kFp4KvGroup);
  for (std::size_t g = 0; g < x.size() / kFp4KvGroup; ++g) {
    const auto group = x.subspan(g * kFp4KvGroup, kFp4KvGroup);
    scales[g] = Fp4KvScale(group);
    PackGroup(group, DecodeE4M3(scales[g]), packed + g * kFp4KvGroup / 2);
  }
}

void DequantizeFp4Kv(const std::uint8_t* packed, const std::uint8_t* scales, std::span<float> out) {
  for (std::size_t g = 0; g < out.size() / kFp4KvGroup; ++g) {
    UnpackGroup(packed + g * kFp4KvGroup / 2, DecodeE4M3(scales[g]), out.subspan(g * kFp4KvGroup, kFp4KvGroup));
  }
}

void QuantizeFp4Index(std::span<const float> x, std::uint8_t* packed, std::uint8_t* scales) {
  CheckGroups(x.size(), kFp4IndexGroup);
  for (std::size_t g = 0; g < x.size() / kFp4IndexGroup; ++g) {
    const auto group = x.subspan(g * kFp4IndexGroup, kFp4IndexGroup);
    const float scale = Fp4IndexScale(group);
    scales[g] = EncodeE8M0(scale);
    PackGroup(group, scale, packed + g * kFp4IndexGroup / 2);
  }
}

void DequantizeFp4Index(const std::uint8_t* packed, const std::uint8_t* scales, std::span<float> out) {
  for (std::size_t g = 0; g < out.size() / kFp4IndexGroup; ++g) {
    UnpackGroup(packed + g * kFp4IndexGroup / 2, DecodeE8M0(scales[g]),
                out.subspan(g * kFp4IndexGroup, kFp4IndexGroup));
  }
}

void FakeQuantizeFp8(std::span<float> x) {
  CheckGroups(x.size(), kFp8Group);
  for (std::size_t g = 0; g < x.size(); g += kFp8Group) {
    const auto group = x.subspan(g, kFp8Group);
    const float scale = Fp8Scale(group);
    for (float& value : group) value = DecodeE4M3(EncodeE4M3(std::clamp(value / scale, -448.0f, 448.0f))) * scale;
  }
}

void FakeQuantizeFp4Index(std::span<float> x) {
  CheckGroups(x.size(), kFp4IndexGroup);
  for (std::size_t g = 0; g < x.size(); g += kFp4IndexGroup) {
    const auto group = x.subspan(g, kFp4IndexGroup);
    const float scale = Fp4IndexScale(group);
    for (float& value : group) value = DecodeE2M1(EncodeE2M1(std::clamp(value / scale, -6.0f, 6.0f))) * scale;
  }
}

}  // namespace galley
