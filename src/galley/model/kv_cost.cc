// SPDX-License-Identifier: Apache-2.0
#include "galley/model/kv_cost.h"

#include "galley/base/math.h"
#include "galley/model/dsv4/state.h"

namespace galley::model {

std::int64_t KvCost::HistoryBytes(std::int64_t tokens) const {
  return CeilDiv(tokens, std::int64_t{backend::kBlockTokens}) * block_bytes;
}

KvCost ComputeKvCost(const Config& config) {
  const StateLayout layout = StateLayout::Make(config);
  const auto bytes = [](int rows, std::size_t row_bytes) { return rows * static_cast<std::int64_t>(row_bytes); };
  KvCost cost;
  for (const StateLayout::Owner& owner : layout.owners) {
    const std::int64_t entries = backend::kBlockTokens / owner.ratio;
    cost.owners.push_back({owner.layer, owner.ratio, static_cast<std::int64_t>(owner.block_bytes) / entries});
    cost.history_bytes_per_token += cost.owners.back().bytes_per_token();
    // A group of one token is never open.
    if (owner.ratio > 1) cost.compressor_bytes += bytes(layout.input_ring_rows, layout.input_record_bytes);
  }
  const std::int64_t ring_bytes = bytes(layout.window_ring_rows, layout.window_record_bytes);
  cost.block_bytes = static_cast<std::int64_t>(layout.block_bytes);
  cost.window_bytes = config.n_layers * ring_bytes;
  cost.draft_bytes = config.dspark.n_stages * ring_bytes;
  if (!config.engram.layer_ids.empty()) cost.engram_bytes = bytes(layout.id_ring_rows, sizeof(TokenId));
  return cost;
}

}  // namespace galley::model
