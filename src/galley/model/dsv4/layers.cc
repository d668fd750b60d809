// SPDX-License-Identifier: Apache-2.0
// The two sub-layers of a block: attention (specification 2.4, 2.6 to 2.8) and mixture of experts (2.9).
#include "galley/model/dsv4/model_impl.h"

namespace galley::model {

void ForwardStep::CompressRows(int layer) {
  const CompressorWeights& weights = m_.weights.layers[static_cast<std::size_t>(layer)].attention.compressor;
  const std::size_t owner = state_.layout().owner_of(m_.config, layer);
  m_.backend->Compress({.step = view(),
                        .x = w_.x.as<BFloat16>(),
                        .wkv = weights.wkv,
                        .wgate = weights.wgate,
                        .norm = weights.norm,
                        .index_wk = weights.index_wk,
                        .index_norm = weights.index_norm,
                        .eps = static_cast<float>(m_.config.norm_eps),
                        .rope = m_.rope(layer),
                        .slab = state_.Slab(owner),
                        .input_ring = state_.InputRing(owner)});
}

void ForwardStep::SelectEntries(int layer) {
  const Config& c = m_.config;
  const IndexerWeights& weights = m_.weights.layers[static_cast<std::size_t>(layer)].attention.indexer;
  const auto role = layer == c.candidate_source_layer  ? backend::CandidateRole::kSource
                    : layer > c.candidate_source_layer ? backend::CandidateRole::kUser
                                                       : backend::CandidateRole::kNone;
  const bool observed = observer_ != nullptr;
  m_.backend->IndexSelect({.step = view(),
                           .x = w_.x.as<BFloat16>(),
                           .qr = w_.qr.as<BFloat16>(),
                           .wq_b = weights.wq_b,
                           .weights_proj = weights.weights_proj,
                           .heads = c.index_n_heads,
                           .topk = c.index_topk,
                           .rope = m_.rope(layer),
                           .slab = state_.Slab(state_.layout().owner_of(c, layer)),
                           .role = role,
                           .candidate_blocks = c.candidate_topk_blocks,
                           .candidate_block_size = c.candidate_block_size,
                           .candidates = w_.candidates.as<std::int32_t>(),
                           .list = w_.list.as<std::int32_t>(),
                           .query_copy = observed ? w_.index_query.as<BFloat16>() : nullptr,
                           .weight_copy = observed ? w_.index_weight.as<float>() : nullptr});
  Observe("index_q", layer, w_.index_query.data(), DType::kBF16, {c.index_n_heads, c.index_head_dim});
  Observe("index_w", layer, w_.index_weight.data(), DType::kF32, {c.index_n_heads});
  Observe("topk", layer, w_.list.data(), DType::kI32, {c.index_topk});
}

void ForwardStep::Attend(int layer) {
  const Config& c = m_.config;
  const backend::Ring ring = state_.WindowRing(layer);
  m_.backend->Attention(
      {.step = view(),
       .q = w_.q.as<BFloat16>(),
       .window = w_.window.as<std::uint8_t>(),
       .ring = ring,
       .decoder_floor = layer >= c.decoder_start(),
       .window_size = c.window_size,
       .window_places = m_.options.window_places > 0 ? m_.options.window_places : c.window_size,
       .heads = c.n_heads,
       .head_dim = c.head_dim,
       .sink = m_.weights.layers[static_cast<std::size_t>(layer)].attention.sink,
       .rope = m_.rope(layer),
       .list = m_.compressed(layer) ? w_.list.as<std::int32_t>() : nullptr,
       .topk = c.index_topk,
       .slab = m_.compressed(layer) ? state_.Slab(state_.layout().owner_of(c, layer)) : backend::HistorySlab{},
       .out = w_.o.as<BFloat16>(),
       .unrotated_copy = observer_ != nullptr ? w_.unrotated.as<BFloat16>() : nullptr});
  m_.backend->WindowWrite({.step = view(), .window = w_.window.as<std::uint8_t>(), .ring = ring});
  Observe("window_records", layer, w_.window.data(), DType::kU8, {static_cast<std::int64_t>(ring.row_bytes)});
  Observe("attn_o", layer, w_.unrotated.data(), DType::kBF16, {c.n_heads, c.head_dim});
}

void ForwardStep::ProjectIn(const AttentionWeights& weights, const backend::Rope& rope) {
  const Config& c = m_.config;
  m_.backend->AttnIn({.step = view(),
                      .x = w_.x.as<BFloat16>(),
                      .wq_a = weights.wq_a,
                      .wq_b = weights.wq_b,
                      .wkv = weights.wkv,
                      .q_norm = weights.q_norm,
                      .kv_norm = weights.kv_norm,
                      .heads = c.n_heads,
                      .head_dim = c.head_dim,
                      .eps = static_cast<float>(c.norm_eps),
                      .rope = rope,
                      .qr = w_.qr.as<BFloat16>(),
                      .q = w_.q.as<BFloat16>(),
                      .window = w_.window.as<std::uint8_t>()});
}

void ForwardStep::ProjectOut(const AttentionWeights& weights) {
  m_.backend->AttnOut({.rows = view().rows,
                       .groups = m_.config.o_groups,
                       .o = w_.o.as<BFloat16>(),
                       .wo_a = weights.wo_a,
                       .wo_b = weights.wo_b,
                       .y = w_.y.as<BFloat16>()});
  pending_ = true;
}

void ForwardStep::AttentionSite(int layer, bool history_written) {
  const Config& c = m_.config;
  const AttentionWeights& weights = m_.weights.layers[static_cast<std::size_t>(layer)].attention;
  ProjectIn(weights, m_.rope(layer));
  if (c.is_kv_source(layer) && !history_written) CompressRows(layer);
  if (c.is_index_source(layer)) SelectEntries(layer);
  Attend(layer);
  ProjectOut(weights);
}

void ForwardStep::Foresee(int layer, bool next) {
  const MoeWeights& weights = m_.weights.layers[static_cast<std::size_t>(layer)].moe;
  m_.backend->ForeseeMoe({.rows = view().rows,
                          .x = w_.x.as<BFloat16>(),
                          .gate = weights.gate,
                          .bias = weights.bias,
                          .topk = m_.config.n_activated_experts,
                          .temperature = static_cast<float>(m_.config.gate_temp),
                          .routed = weights.routed.data(),
                          .next = next});
}

void ForwardStep::MoeSite(int layer, const MoeWeights& weights, int selected) {
  const Config& c = m_.config;
  m_.backend->Route({.step = view(),
                     .x = w_.x.as<BFloat16>(),
                     .gate = weights.gate,
                     .bias = weights.bias,
                     .image_bias = weights.image_bias,
                     .topk = selected,
                     .temperature = static_cast<float>(c.gate_temp),
                     .scale = static_cast<float>(c.route_scale),
                     .experts = w_.experts.as<std::int32_t>(),
                     .weights = w_.expert_weights.as<float>()});
  Observe("router_idx", layer, w_.experts.data(), DType::kI32, {selected});
  Observe("router_w", layer, w_.expert_weights.data(), DType::kF32, {selected});
  if (layer + 1 < c.n_layers) Foresee(layer + 1, false);
  m_.backend->Moe({.rows = view().rows,
                   .x = w_.x.as<BFloat16>(),
                   .experts = w_.experts.as<std::int32_t>(),
                   .weights = w_.expert_weights.as<float>(),
                   .topk = selected,
                   .expert_count = static_cast<int>(weights.routed.size()),
                   .routed = weights.routed.data(),
                   .shared = weights.shared,
                   .swiglu_limit = static_cast<float>(c.swiglu_limit),
                   .y = w_.y.as<BFloat16>()});
  pending_ = true;
}

}  // namespace galley::model
