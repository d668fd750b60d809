// SPDX-License-Identifier: Apache-2.0
// Addresses of a step's state on the device: the arithmetic of memory_formats.h, and rotations.
#pragma once

#include "galley/backend/cuda/numbers.cuh"
#include "galley/backend/ops.h"

namespace galley::backend::cuda {

__device__ __forceinline__ std::uint8_t* RingRow(const Ring& ring, std::int32_t slot, std::int64_t position) {
  return reinterpret_cast<std::uint8_t*>(ring.base) + static_cast<std::size_t>(slot) * ring.slot_bytes +
         static_cast<std::size_t>(position % ring.rows) * ring.row_bytes;
}

__device__ __forceinline__ HistoryEntry EntryOf(const HistorySlab& slab, const std::int32_t* blocks, std::int64_t j) {
  const auto n = static_cast<std::size_t>(slab.entries());
  const auto block = static_cast<std::size_t>(blocks[j / slab.entries()]);
  const auto i = static_cast<std::size_t>(j % slab.entries());
  auto* at = reinterpret_cast<std::uint8_t*>(slab.base) + block * slab.block_bytes();
  std::uint8_t* scales = at + n * slab.latent_bytes();
  std::uint8_t* keys = scales + n * slab.latent_scales();
  std::uint8_t* key_scales = keys + n * slab.key_bytes();
  return {at + i * slab.latent_bytes(), scales + i * slab.latent_scales(), keys + i * slab.key_bytes(),
          key_scales + i * slab.key_scales()};
}

// Cosine and sine of a pair at position `p`: the fp32 product of position and frequency, accurate at every position.
__device__ __forceinline__ float2 RopeAngle(float frequency, std::int64_t p) {
  double s, c;
  sincos(static_cast<double>(static_cast<float>(p) * frequency), &s, &c);
  return {static_cast<float>(c), static_cast<float>(s)};
}
__device__ __forceinline__ float2 RopeAngle(const Rope& rope, std::int64_t p, int i) {
  return RopeAngle(rope.frequencies[i], p);
}
// (re, im) turned and rounded to bf16.
__device__ __forceinline__ float2 Turn(float re, float im, float2 angle) {
  return {RoundToBFloat16(re * angle.x - im * angle.y), RoundToBFloat16(re * angle.y + im * angle.x)};
}

}  // namespace galley::backend::cuda
