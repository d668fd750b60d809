// SPDX-License-Identifier: Apache-2.0
// Small vector functions of the reference backend. Sums have one fixed order, written out as lanes, so a compiler may
// vectorise them without changing a bit.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "galley/backend/ops.h"
#include "galley/tensor/numeric.h"

namespace galley::backend::ref {

inline constexpr std::size_t kLanes = 8;

[[nodiscard]] inline float SumLanes(const std::array<float, kLanes>& lane) {
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

// Sum of a[i] * b[i] in fp32.
[[nodiscard]] inline float Dot(const float* a, const float* b, std::size_t n) {
  std::array<float, kLanes> lane{};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) lane[l] += a[i + l] * b[i + l];
  }
  for (std::size_t l = 0; i + l < n; ++l) lane[l] += a[i + l] * b[i + l];
  return SumLanes(lane);
}

// Dot product as the official quantised products add it up: blocks of 32 along K, in order.
[[nodiscard]] inline float DotBlocks32(const float* a, const float* b, std::size_t n) {
  float sum = 0;
  for (std::size_t k = 0; k < n; k += 32) sum += Dot(a + k, b + k, n - k < 32 ? n - k : 32);
  return sum;
}

inline void LoadBf16(const BFloat16* in, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = ToFloat(in[i]);
}
inline void StoreBf16(std::span<const float> in, BFloat16* out) {
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = ToBFloat16(in[i]);
}
inline void RoundBf16(std::span<float> x) {
  for (float& value : x) value = RoundToBFloat16(value);
}

// 1 / sqrt(mean(x^2) + eps).
[[nodiscard]] inline float InverseRms(std::span<const float> x, float eps) {
  return 1.0f / std::sqrt(Dot(x.data(), x.data(), x.size()) / static_cast<float>(x.size()) + eps);
}

// x = bf(weight * (x * inverse rms)), in place.
inline void RmsNorm(std::span<float> x, const BFloat16* weight, float eps) {
  const float r = InverseRms(x, eps);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = RoundToBFloat16(ToFloat(weight[i]) * (x[i] * r));
}

[[nodiscard]] inline float Sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

// Rotates the last `rope.dims` values of x by the angles of position `p` (sign -1: back) and rounds them to bf16. The
// angle is the fp32 product of position and frequency; its sine and cosine are accurate for every position.
inline void Rotate(std::span<float> x, const Rope& rope, std::int64_t p, float sign = 1.0f) {
  float* tail = x.data() + x.size() - static_cast<std::size_t>(rope.dims);
  for (int i = 0; i < rope.dims / 2; ++i) {
    const double angle = static_cast<double>(static_cast<float>(p) * rope.frequencies[i]);
    const float c = static_cast<float>(std::cos(angle)), s = static_cast<float>(std::sin(angle)) * sign;
    const float re = tail[2 * i], im = tail[2 * i + 1];
    tail[2 * i] = RoundToBFloat16(re * c - im * s);
    tail[2 * i + 1] = RoundToBFloat16(re * s + im * c);
  }
}

}  // namespace galley::backend::ref
