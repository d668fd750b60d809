// SPDX-License-Identifier: Apache-2.0
// Sizes of published models, for benchmarks that need no checkpoint, and cuts of such models that run on one device.
#pragma once

#include <array>
#include <string_view>

#include "galley/model/config.h"

namespace galley::model {

// Of one layer. Whatever the model, its ops are those of V4.1. V4's FP8 weights have one scale for 128 by 128 values:
// that is sixteen equal ones of 32 by 32, which is how its matrices are read.
struct ModelShape {
  std::string_view name, title;
  int scale_block;  // of FP8 weights
  int dim, q_rank, heads, head_dim, o_groups, o_rank, inter, experts, topk, index_heads, index_topk;
  int engram_heads;  // 0: the model has no Engram
};
inline constexpr std::array kModelShapes = {
    ModelShape{"v41", "V4.1-Flash", 32, 5120, 1280, 64, 512, 8, 1024, 2304, 384, 6, 32, 512, 8},
    ModelShape{"v4flash", "V4-Flash", 128, 4096, 1024, 64, 512, 8, 1024, 2048, 256, 6, 64, 512, 0},
    ModelShape{"v4pro", "V4-Pro", 128, 7168, 1536, 128, 512, 16, 1024, 3072, 384, 6, 64, 1024, 0},
};
inline constexpr int kShapeVocab = 129280;

// nullptr: there is none of this name.
[[nodiscard]] const ModelShape* FindShape(std::string_view name);

// A model of `shape` cut down to `layers` layers, at least 4, with V4.1's plan: the first sees
// windows alone, the others up to the middle share compressed history of ratio 2, the rest history of ratio 1, of which
// every fourth chooses entries anew. The second has Engram where the model has it, with tables that are small beside
// the true ones (a row is as long as it is). No draft head, no vision. Pure.
inline constexpr int kSliceLayersMin = 4;
[[nodiscard]] Config SliceOf(const ModelShape& shape, int layers);

}  // namespace galley::model
