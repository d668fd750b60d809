// SPDX-License-Identifier: Apache-2.0
// What the kernels of the mixture of experts share: rows grouped by expert, cut into tiles. Private to moe*.cu.
#pragma once

#include "galley/backend/cuda/kernels.h"
#include "galley/backend/cuda/packed_rows.h"

namespace galley::backend::cuda {

// Places in the work buffer. Positions 0 … are routed pairs by ascending expert, from `shared_begin` on one per row for
// the shared expert. In the packed forms tiles begin at multiples of 8, and the positions between hold nothing.
struct MoeWork {
  std::int32_t* position;  // [pairs], those of a row by ascending expert
  std::int32_t* token;     // [positions]
  float* weight;           // [positions]
  Tile* tiles;             // [tiles_max]
  BFloat16* activated;     // [positions][inter], quantised, in the order of the next product
  BFloat16* y;             // [positions][dim]; before that, packed x
  int pairs, shared_begin, align, tiles_max, routed_tile, shared_tile;
};

struct MoeProblem {
  MoeWork work;
  const ExpertPointers* experts;
  const BFloat16* x;
  BFloat16* out;  // [rows][dim]
  int shared_expert, rows, topk, dim, inter;
  float limit;
  std::uint32_t* arrivals;  // null: the sum over experts has a launch of its own
};

// Rows of x that a tile of the wide kernels holds at most, routed and shared.
inline constexpr int kWideTile = 160, kWideSharedTile = 128;

// Rows of x in a tile of the shared expert of the slim kernels.
inline constexpr int kSlimSharedTile = 32;

// Both products for x [rows][dim] as the op has it. moe_slim.cu: for tiles of up to 16 rows, up to kSlimSharedTile of
// the shared expert.
void SlimExperts(const MoeProblem& problem, int rows, cudaStream_t stream);
// moe_wide.cu: for tiles of up to kWideTile rows.
void WideExperts(const MoeProblem& problem, int rows, cudaStream_t stream);

}  // namespace galley::backend::cuda
