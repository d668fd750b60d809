// SPDX-License-Identifier: Apache-2.0
// The tile unit as products use it: blocks of sixteen weight rows times up to sixteen activation rows. Two namespaces
// have it: amx drives the processor's tile registers (tiles_amx.cc), tile_model is the documented arithmetic of the
// instruction in plain C++ (tiles_model.cc), which tests run on every machine. What an element of a tile becomes
// depends on its own row and column only, so a row's bits do not depend on what else is in the tile. Included by kernel
// sources only.
#pragma once

#include <cstddef>

namespace galley::backend::cpu::GALLEY_ISA {

inline constexpr std::size_t kTileRows = 16;  // of weights; also the most activation rows of a tile
inline constexpr std::size_t kStep = 32;      // columns of the matrix that one step takes: sixteen pairs of bf16
inline constexpr std::size_t kLine = 64;      // bytes of a row of a tile of weights
inline constexpr std::size_t kTile = kTileRows * kLine;

// One or two tiles of weight rows with one or two of activation rows: sums += weights . inputs over `steps` steps.
struct TileBlock {
  const std::byte* weights = nullptr;               // [steps][weight_tiles][kTileRows] pairs of bf16 in a line
  const std::byte* inputs[2] = {nullptr, nullptr};  // each [steps][16 pairs][columns]
  int weight_tiles = 1, input_tiles = 1;
  std::size_t columns = 0;  // activation rows of a tile, 1 to 16
  std::size_t steps = 0;
  float* sums = nullptr;  // [input_tiles][weight_tiles][kTileRows][columns]
  bool first = false;     // `sums` counts as zero
};

// A thread opens the unit before it multiplies and closes it afterwards; all blocks between have as many columns.
void OpenTiles(std::size_t columns);
void MultiplyTiles(const TileBlock& block);
void CloseTiles();

}  // namespace galley::backend::cpu::GALLEY_ISA
