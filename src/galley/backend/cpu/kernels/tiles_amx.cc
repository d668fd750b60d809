// SPDX-License-Identifier: Apache-2.0
// The tile unit of processors with AMX: tiles 0 to 3 hold sums, 4 and 5 weights, 6 and 7 inputs. The only file that is
// compiled for these instructions.
#include <immintrin.h>

#include <cstdint>

#include "galley/backend/cpu/kernels/tiles.h"

namespace galley::backend::cpu::GALLEY_ISA {
namespace {

// What the instruction that configures tiles reads.
struct alignas(64) Shapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t line_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(Shapes) == 64);

// Tile numbers are part of an instruction, so every shape has its own code.
template <bool kWeights2, bool kInputs2>
void Multiply(const TileBlock& b) {
  const std::size_t line = b.columns * 4, tile = kTileRows * line;
  auto* const sums = reinterpret_cast<std::byte*>(b.sums);
  constexpr std::size_t kWeightTiles = kWeights2 ? 2 : 1;
  if (b.first) {
    _tile_zero(0);
    if constexpr (kWeights2) _tile_zero(1);
    if constexpr (kInputs2) _tile_zero(2);
    if constexpr (kWeights2 && kInputs2) _tile_zero(3);
  } else {
    _tile_loadd(0, sums, line);
    if constexpr (kWeights2) _tile_loadd(1, sums + tile, line);
    if constexpr (kInputs2) _tile_loadd(2, sums + kWeightTiles * tile, line);
    if constexpr (kWeights2 && kInputs2) _tile_loadd(3, sums + 3 * tile, line);
  }
  for (std::size_t s = 0; s < b.steps; ++s) {
    const std::byte* weights = b.weights + s * kWeightTiles * kTile;
    _tile_loadd(4, weights, kLine);
    _tile_loadd(6, b.inputs[0] + s * tile, line);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kWeights2) {
      _tile_loadd(5, weights + kTile, kLine);
      _tile_dpbf16ps(1, 5, 6);
    }
    if constexpr (kInputs2) {
      _tile_loadd(7, b.inputs[1] + s * tile, line);
      _tile_dpbf16ps(2, 4, 7);
    }
    if constexpr (kWeights2 && kInputs2) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, line);
  if constexpr (kWeights2) _tile_stored(1, sums + tile, line);
  if constexpr (kInputs2) _tile_stored(2, sums + kWeightTiles * tile, line);
  if constexpr (kWeights2 && kInputs2) _tile_stored(3, sums + 3 * tile, line);
}

}  // namespace

void OpenTiles(std::size_t columns) {
  Shapes shapes;
  for (int t = 0; t < 8; ++t) {
    shapes.line_bytes[t] = static_cast<std::uint16_t>(t == 4 || t == 5 ? kLine : columns * 4);
    shapes.rows[t] = kTileRows;
  }
  _tile_loadconfig(&shapes);
}

void MultiplyTiles(const TileBlock& block) {
  using Call = void (*)(const TileBlock&);
  static constexpr Call kCalls[2][2] = {{Multiply<false, false>, Multiply<false, true>},
                                        {Multiply<true, false>, Multiply<true, true>}};
  kCalls[block.weight_tiles - 1][block.input_tiles - 1](block);
}

// The system then need not keep tile registers when it changes threads.
void CloseTiles() {
  _tile_release();
}

}  // namespace galley::backend::cpu::GALLEY_ISA
