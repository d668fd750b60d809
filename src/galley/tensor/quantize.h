// SPDX-License-Identifier: Apache-2.0
// The quantisers that are part of the V4.1 model (specification 2.3, 2.7, 2.8): activations and window rows in FP8, the
// compressed KV in FP4 with e4m3 scales, index keys and queries in FP4 with power-of-two scales. Values that come back
// from them are exact in bf16, so storing codes and scales loses nothing.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace galley {

// Value of every e4m3 code.
extern const std::array<float, 256> kE4M3Values;

inline constexpr int kFp8Group = 32;       // FP8 activations and window rows: one UE8M0 scale per 32 values
inline constexpr int kFp4KvGroup = 16;     // compressed KV: one e4m3 scale per 16 values
inline constexpr int kFp4IndexGroup = 32;  // index keys and queries, MXFP4 weights: one UE8M0 scale per 32 values

// e4m3 codes [n] and UE8M0 scales [n / 32] of x [n]; n must be a multiple of 32.
void QuantizeFp8(std::span<const float> x, std::uint8_t* codes, std::uint8_t* scales);
void DequantizeFp8(const std::uint8_t* codes, const std::uint8_t* scales, std::span<float> out);

// Packed e2m1 codes [n / 2], low nibble first, and e4m3 scales [n / 16].
void QuantizeFp4Kv(std::span<const float> x, std::uint8_t* packed, std::uint8_t* scales);
void DequantizeFp4Kv(const std::uint8_t* packed, const std::uint8_t* scales, std::span<float> out);

// Packed e2m1 codes [n / 2], low nibble first, and UE8M0 scales [n / 32].
void QuantizeFp4Index(std::span<const float> x, std::uint8_t* packed, std::uint8_t* scales);
void DequantizeFp4Index(const std::uint8_t* packed, const std::uint8_t* scales, std::span<float> out);

// Quantise and dequantise in place.
void FakeQuantizeFp8(std::span<float> x);
void FakeQuantizeFp4Index(std::span<float> x);

}  // namespace galley
