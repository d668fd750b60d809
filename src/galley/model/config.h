// SPDX-License-Identifier: Apache-2.0
// Architecture of a DeepSeek-V4.1 checkpoint as its config.json states it. Both spellings (the Hugging Face root file
// with text_config and vision_config, and the flat inference/config.json) parse into this one struct; field names
// follow the flat spelling. Immutable after parsing; every value has been range-checked, so arithmetic on it cannot
// overflow.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/error.h"
#include "galley/base/strong_id.h"

namespace galley::model {

struct VisionConfig {
  int n_layers = 0;  // 0: the checkpoint has no vision tower and no gate.bias_vl
  int dim = 0;
  int n_heads = 0;
  int inter_dim = 0;
  int patch_size = 14;
  double rope_theta = 10000.0;
  int downsample_ratio = 3;
  int max_image_tokens = 1024;
  int min_pixels = 0;
};

struct EngramConfig {
  std::vector<int> layer_ids;                // empty: no Engram
  std::vector<std::int64_t> num_embeddings;  // table rows, one entry a layer
  int max_ngram_size = 0;
  std::int64_t vocab_size = 0;  // where the prime search starts
  int n_heads = 0;
  int head_dim = 0;
  TokenId pad_id = 0;
  std::int64_t compressed_vocab_size = 0;

  // Table rows read per token and layer.
  [[nodiscard]] int columns() const { return (max_ngram_size - 1) * n_heads; }
};

struct DSparkConfig {
  int n_stages = 0;  // 0: no draft head
  int block_size = 0;
  TokenId noise_token_id = 0;
  std::vector<int> target_layer_ids;
  int markov_rank = 0;
  int n_routed_experts = 0;
  int n_activated_experts = 0;
};

struct Config {
  int vocab_size = 0;
  int dim = 0;  // hidden size
  int moe_inter_dim = 0;
  int n_layers = 0;  // without draft stages
  int n_heads = 0;
  int n_routed_experts = 0;
  int n_shared_experts = 0;
  int n_activated_experts = 0;
  double gate_temp = 1.0;  // divides router logits
  double route_scale = 1.0;
  double swiglu_limit = 0;
  int q_lora_rank = 0;
  int head_dim = 0;
  int rope_head_dim = 0;
  double norm_eps = 0;
  int o_groups = 0;
  int o_lora_rank = 0;
  int window_size = 0;
  std::vector<int> compress_ratios;      // n_layers + dspark.n_stages entries: 0 (window only), 1 or 2
  std::vector<int> kv_source_layers;     // owner layers, ascending
  std::vector<int> index_source_layers;  // layers that run an indexer, ascending
  int candidate_source_layer = -1;
  int candidate_topk_blocks = 0;
  int candidate_block_size = 0;
  double rope_theta = 0;
  double compress_rope_theta = 0;
  std::int64_t original_seq_len = 0;
  double rope_factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  int index_n_heads = 0;
  int index_head_dim = 0;
  int index_topk = 0;
  int hc_mult = 0;
  int hc_sinkhorn_iters = 0;
  double hc_eps = 0;
  std::int64_t max_seq_len = 0;  // 0 in the flat spelling, where it is a run-time setting
  TokenId bos_token_id = 0;
  TokenId eos_token_id = 1;
  TokenId pad_token_id = 2;
  TokenId image_token_id = -1;
  EngramConfig engram;
  DSparkConfig dspark;
  VisionConfig vision;

  // First decoder layer: the candidate source, which is also the last KV owner and has ratio 1.
  [[nodiscard]] int decoder_start() const { return candidate_source_layer; }
  // The owner layer whose compressed KV `layer` reads: the last owner at or before it. Requires compress ratio > 0.
  [[nodiscard]] int kv_source(int layer) const;
  // The index source whose top-k list `layer` uses: the last one at or before it. Requires compress ratio > 0.
  [[nodiscard]] int index_source(int layer) const;
  [[nodiscard]] bool is_kv_source(int layer) const;
  [[nodiscard]] bool is_index_source(int layer) const;
  // Position of `layer` in engram.layer_ids, or -1.
  [[nodiscard]] int engram_index(int layer) const;
};

// Parses the text of config.json in either spelling. `where` names the file in errors. One error lists every field that
// is missing, of the wrong type, out of range or inconsistent with the others; another architecture (a V3 checkpoint,
// say) is kUnsupported and says what was found and what is supported.
[[nodiscard]] Result<Config> ParseConfig(std::string_view json, std::string_view where);

}  // namespace galley::model
