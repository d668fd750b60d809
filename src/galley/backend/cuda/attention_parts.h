// SPDX-License-Identifier: Apache-2.0
// Launchers of attention in parts (attention_parts.cu, CudaOptions::part_attention), and which products are split. They
// issue work on a stream and return.
#pragma once

#include <cuda_runtime_api.h>

#include "galley/backend/ops.h"

namespace galley::backend::cuda {

// A part is 80 places of the list of keys; a cluster of blocks of threads takes all parts of a row.
inline constexpr int kPartKeys = 80, kPartsMax = 8;
inline constexpr int kDraftRowsMax = 64;  // rows of a draft block
// Whether lists of so many places fit, which the model's shape decides.
[[nodiscard]] constexpr bool TakesPartAttention(int places) {
  return places <= kPartKeys * kPartsMax;
}
void PartAttention(const AttentionArgs& args, cudaStream_t stream);
void PartDraftAttention(const DraftAttentionArgs& args, cudaStream_t stream);

// Products that are split though rows of x would allow another form, by shape alone; all forms give equal bits.
// bf16: 1 … kSplitAlwaysRows rows always, but for narrow matrices, whose few clusters leave the device idle; more where
// the plain wide grid, 128 rows of weights a block of threads, is smaller than the device. FP8: where tiles of all of K
// are too few.
inline constexpr int kSplitAlwaysRows = 16;
inline constexpr std::int64_t kSplitBFloat16RowsMin = 1024, kPlainTilesMin = 128, kWholeTilesMin = 80;
[[nodiscard]] constexpr bool SplitPays(const Weight& weight, int rows) {
  const std::int64_t tiles = (weight.rows + 127) / 128;
  if (weight.format == WeightFormat::kFp8Block32) return tiles * ((rows + 127) / 128) < kWholeTilesMin;
  if (weight.format == WeightFormat::kBF16 && weight.rows < kSplitBFloat16RowsMin) return false;
  return rows <= kSplitAlwaysRows || tiles < kPlainTilesMin;
}

}  // namespace galley::backend::cuda
