// SPDX-License-Identifier: Apache-2.0
#include "galley/model/shapes.h"

#include <algorithm>
#include <numeric>

#include "galley/base/check.h"
#include "galley/model/engram_primes.h"

namespace galley::model {
namespace {

// Rows of a column are a prime from here on; the true tables have 16 million.
constexpr std::int64_t kEngramRows = 10'000;

EngramConfig SmallEngram(int heads) {
  EngramConfig engram{.layer_ids = {1},
                      .num_embeddings = {},
                      .max_ngram_size = 4,
                      .vocab_size = kEngramRows,
                      .n_heads = heads,
                      .head_dim = 256,
                      .pad_id = 2,
                      .compressed_vocab_size = 99092};
  const std::vector<std::int64_t> primes = EngramPrimes(engram).front();
  engram.num_embeddings = {std::accumulate(primes.begin(), primes.end(), std::int64_t{0})};
  return engram;
}

}  // namespace

const ModelShape* FindShape(std::string_view name) {
  const auto* found = std::ranges::find(kModelShapes, name, &ModelShape::name);
  return found == kModelShapes.end() ? nullptr : found;
}

Config SliceOf(const ModelShape& shape, int layers) {
  CHECK(layers >= kSliceLayersMin) << layers;
  Config config;
  config.vocab_size = kShapeVocab;
  config.dim = shape.dim;
  config.moe_inter_dim = shape.inter;
  config.n_layers = layers;
  config.n_heads = shape.heads;
  config.n_routed_experts = shape.experts;
  config.n_shared_experts = 1;
  config.n_activated_experts = shape.topk;
  config.route_scale = 1.5;
  config.swiglu_limit = 10;
  config.q_lora_rank = shape.q_rank;
  config.head_dim = shape.head_dim;
  config.rope_head_dim = 64;
  config.norm_eps = 1e-20;
  config.o_groups = shape.o_groups;
  config.o_lora_rank = shape.o_rank;
  config.window_size = 128;
  config.candidate_source_layer = layers / 2;
  config.candidate_topk_blocks = 2048;
  config.candidate_block_size = 8;
  config.rope_theta = 10000;
  config.compress_rope_theta = 160000;
  config.original_seq_len = 65536;
  config.rope_factor = 16;
  config.index_n_heads = shape.index_heads;
  config.index_head_dim = 128;
  config.index_topk = shape.index_topk;
  config.hc_mult = 4;
  config.hc_sinkhorn_iters = 20;
  config.hc_eps = 1e-6;
  config.max_seq_len = 1 << 20;
  config.compress_ratios.push_back(0);
  config.kv_source_layers = {1, layers / 2};
  config.index_source_layers = {1};
  for (int layer = 1; layer < layers; ++layer) config.compress_ratios.push_back(layer < layers / 2 ? 2 : 1);
  for (int layer = layers / 2; layer < layers; layer += 4) config.index_source_layers.push_back(layer);
  if (shape.engram_heads > 0) config.engram = SmallEngram(shape.engram_heads);
  return config;
}

}  // namespace galley::model
