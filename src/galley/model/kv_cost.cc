// SPDX-License-Identifier: Apache-2.0
#include "galley/model/kv_cost.h"

#include "galley/base/math.h"

namespace galley::model {
namespace {

// Values stored as FP4: half a byte each, and one scale byte per `group` of them.
std::int64_t Fp4Bytes(std::int64_t values, std::int64_t group) {
  return values / 2 + values / group;
}

// Values stored as FP8 with one scale byte per 32 of them.
std::int64_t Fp8Bytes(std::int64_t values) {
  return values + values / 32;
}

}  // namespace

std::int64_t KvCost::HistoryBytes(std::int64_t tokens) const {
  return CeilDiv(tokens, std::int64_t{kBlockTokens}) * block_bytes;
}

KvCost ComputeKvCost(const Config& config) {
  KvCost cost;
  const int backtrack = config.dspark.n_stages > 0 ? config.dspark.block_size : 0;
  for (const int layer : config.kv_source_layers) {
    const int ratio = config.compress_ratios[static_cast<std::size_t>(layer)];
    const OwnerCost owner{layer, ratio, Fp4Bytes(config.head_dim, 16) + Fp4Bytes(config.index_head_dim, 32)};
    cost.history_bytes_per_token += owner.bytes_per_token();
    cost.block_bytes += owner.entry_bytes * (kBlockTokens / ratio);
    // Value and gate of the tokens of the open group, in fp32; a group of one token is never open.
    if (ratio > 1) cost.compressor_bytes += std::int64_t{ratio + backtrack} * 2 * config.head_dim * 4;
    cost.owners.push_back(owner);
  }
  const std::int64_t ring_bytes = std::int64_t{config.window_size + backtrack} * Fp8Bytes(config.head_dim);
  cost.window_bytes = config.n_layers * ring_bytes;
  cost.draft_bytes = config.dspark.n_stages * ring_bytes;
  if (!config.engram.layer_ids.empty()) {
    const std::int64_t ids = config.engram.max_ngram_size - 1 + backtrack;
    cost.engram_bytes = ids * static_cast<std::int64_t>(sizeof(TokenId));
  }
  return cost;
}

}  // namespace galley::model
