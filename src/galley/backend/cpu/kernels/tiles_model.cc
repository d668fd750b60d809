// SPDX-License-Identifier: Apache-2.0
// The tile unit as plain C++, after the documented operation of TDPBF16PS: for each output, one step sums its even
// products and its odd ones by themselves, from zero, in order, each with one rounding; then both are added, and that
// to the running sum. Subnormal values count as zero on the way in and become zero on the way out.
#include "galley/backend/cpu/kernels/simd.h"
#include "galley/backend/cpu/kernels/tiles.h"

namespace galley::backend::cpu::GALLEY_ISA {
namespace {

static_assert(kLanes == kTileRows);
constexpr std::size_t kPairs = kStep / 2;

GALLEY_SIMD F32 Flushed(F32 x) {
  const U32 bits = (U32)x;
  return Select((I32)((bits & 0x7F800000u) == 0), (F32)(bits & 0x80000000u), x);
}

// A step's inputs as fp32, the activation rows of the tile side by side.
struct Inputs {
  F32 even[kPairs], odd[kPairs];
  explicit Inputs(const std::byte* pairs, std::size_t columns) {
    for (std::size_t k = 0; k < kPairs; ++k, pairs += 4 * columns) {
      U32 bits{};
      __builtin_memcpy(&bits, pairs, 4 * columns);
      even[k] = Flushed((F32)(bits << 16));
      odd[k] = Flushed((F32)(bits & 0xFFFF0000u));
    }
  }
};

// `sums` of one weight row after one step. A product of two bf16 values has 16 bits, so that it is exact by itself (but
// below 2^-133) and adding it is the one rounding of a fused step.
GALLEY_SIMD F32 AfterStep(F32 sums, const std::byte* weights, const Inputs& x) {
  F32 even{}, odd{};
  for (std::size_t k = 0; k < kPairs; ++k) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, weights + 4 * k, 4);
    even = Flushed(even + Flushed((F32)BroadcastBits(bits << 16)) * x.even[k]);
    odd = Flushed(odd + Flushed((F32)BroadcastBits(bits & 0xFFFF0000u)) * x.odd[k]);
  }
  return Flushed(Flushed(sums) + Flushed(even + odd));
}

}  // namespace

void OpenTiles(std::size_t) {}

void MultiplyTiles(const TileBlock& b) {
  const auto weight_tiles = static_cast<std::size_t>(b.weight_tiles),
             input_tiles = static_cast<std::size_t>(b.input_tiles);
  const std::size_t rows = weight_tiles * kTileRows, line = b.columns * sizeof(float);
  for (std::size_t j = 0; j < input_tiles; ++j) {
    for (std::size_t s = 0; s < b.steps; ++s) {
      const Inputs x(b.inputs[j] + s * kPairs * line, b.columns);
      for (std::size_t m = 0; m < rows; ++m) {
        float* at = b.sums + (j * rows + m) * b.columns;
        F32 sums{};
        if (!b.first || s > 0) __builtin_memcpy(&sums, at, line);
        sums = AfterStep(sums, b.weights + (s * rows + m) * kLine, x);
        __builtin_memcpy(at, &sums, line);
      }
    }
  }
}

void CloseTiles() {}

}  // namespace galley::backend::cpu::GALLEY_ISA
