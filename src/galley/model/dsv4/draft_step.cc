// SPDX-License-Identifier: Apache-2.0
// The draft head of V4.1, DSpark (specification 2.12): a block of rows after the newest committed position, through
// three small stages whose attention sees committed rows through rings made from the main hidden.
#include <algorithm>
#include <numeric>

#include "galley/base/check.h"
#include "galley/model/dsv4/model_impl.h"

namespace galley::model {

void ForwardStep::StoreDraftWindow() {
  const Config& c = m_.config;
  const DraftWeights& draft = m_.weights.draft;
  std::vector<backend::DraftStageKv>& stages = m_.draft_stages;
  stages.clear();
  for (int s = 0; s < c.dspark.n_stages; ++s) {
    const AttentionWeights& attention = draft.stages[static_cast<std::size_t>(s)].attention;
    stages.push_back({.wkv = attention.wkv, .kv_norm = attention.kv_norm, .ring = state_.DraftRing(s)});
  }
  m_.backend->DraftWindow({.step = view(),
                           .main_hidden = w_.main_hidden.as<BFloat16>(),
                           .main_proj = draft.main_proj,
                           .main_norm = draft.main_norm,
                           .head_dim = c.head_dim,
                           .eps = static_cast<float>(c.norm_eps),
                           .rope = m_.window_rope(),
                           .stages = c.dspark.n_stages,
                           .stage = stages.data()});
}

void ForwardStep::RunDraftStage(int stage) {
  const Config& c = m_.config;
  const LayerWeights& weights = m_.weights.draft.stages[static_cast<std::size_t>(stage)];
  Boundary(weights.hc_attn, weights.attn_norm);
  ProjectIn(weights.attention, m_.window_rope());
  m_.backend->DraftAttention({.step = view(),
                              .q = w_.q.as<BFloat16>(),
                              .window = w_.window.as<std::uint8_t>(),
                              .ring = state_.DraftRing(stage),
                              .window_size = c.window_size,
                              .heads = c.n_heads,
                              .head_dim = c.head_dim,
                              .sink = weights.attention.sink,
                              .rope = m_.window_rope(),
                              .out = w_.o.as<BFloat16>()});
  ProjectOut(weights.attention);
  Boundary(weights.hc_ffn, weights.ffn_norm);
  MoeSite(c.n_layers + stage, weights.moe, c.dspark.n_activated_experts);
}

Result<std::span<const Draft>> ForwardStep::RunDrafts(std::span<const DraftInput> inputs, int depth) {
  const Config& c = m_.config;
  CHECK(m_.options.drafts) << "the model was made without drafts";
  CHECK(!inputs.empty() && static_cast<int>(inputs.size()) <= m_.options.sequences_max)
      << inputs.size() << " sequences";
  CHECK(depth >= 1 && depth <= c.dspark.block_size) << depth << " drafts of a block";
  all_.Clear();
  // Row 0 holds the token already chosen, the others noise; all see each other.
  for (const DraftInput& input : inputs) {
    const auto sequence = static_cast<std::int32_t>(all_.table.size());
    all_.table.push_back({.slot = input.slot.value,
                          .first_row = all_.rows(),
                          .rows = depth,
                          .start = static_cast<std::int32_t>(input.position + 1),
                          .block_offset = 0,
                          .history_from = 0,
                          .encoder_floor = 0,
                          .decoder_floor = static_cast<std::int32_t>(input.decoder_floor)});
    for (int i = 0; i < depth; ++i) {
      all_.tokens.push_back(i == 0 ? input.token : c.dspark.noise_token_id);
      all_.positions.push_back(static_cast<std::int32_t>(input.position + 1 + i));
      all_.row_sequence.push_back(sequence);
    }
  }
  RETURN_IF_ERROR(Place(w_.sets[0], all_));
  EmbedRows();
  for (int stage = 0; stage < c.dspark.n_stages; ++stage) RunDraftStage(stage);
  Collapse();
  return DrawDrafts(inputs, depth);
}

Result<std::span<const Draft>> ForwardStep::DrawDrafts(std::span<const DraftInput> inputs, int depth) {
  const Config& c = m_.config;
  const DraftWeights& draft = m_.weights.draft;
  std::vector<std::int32_t>&rows = m_.draft_rows, &first_tokens = m_.draft_first_tokens;
  rows.resize(static_cast<std::size_t>(view().rows));
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<backend::SampleParams>& params = m_.draft_params;
  first_tokens.clear();
  params.clear();
  for (const DraftInput& input : inputs) {
    first_tokens.push_back(input.token);
    params.push_back(input.sampling);
    params.back().position = input.position + 2;  // row i predicts position p + 2 + i
  }
  m_.backend->Head({.dim = c.dim,
                    .count = view().rows,
                    .row_list = rows.data(),
                    .x = w_.x.as<BFloat16>(),
                    .norm = draft.norm,
                    .eps = static_cast<float>(c.norm_eps),
                    .head = m_.weights.head,
                    .logits = w_.draft_logits.as<float>()});
  m_.backend->DraftChain({.sequences = static_cast<int>(inputs.size()),
                          .block = depth,
                          .dim = c.dim,
                          .first_tokens = first_tokens.data(),
                          .params = params.data(),
                          .x = w_.x.as<BFloat16>(),
                          .embed = draft.markov_embed,
                          .head = draft.markov_head,
                          .confidence = draft.confidence,
                          .logits = w_.draft_logits.as<float>(),
                          .tokens = w_.draft_tokens.as<std::int32_t>(),
                          .confidences = w_.draft_confidences.as<float>()});
  RETURN_IF_ERROR(m_.backend->Synchronize());
  std::vector<Draft>& drafts = m_.drafts;
  drafts.resize(std::max(drafts.size(), inputs.size()));
  const auto block = static_cast<std::size_t>(depth), vocab = static_cast<std::size_t>(c.vocab_size);
  for (std::size_t s = 0; s < inputs.size(); ++s) {
    drafts[s].tokens.resize(block);
    drafts[s].confidences.resize(block);
    drafts[s].logits = w_.draft_logits.as<float>() + s * block * vocab;
    RETURN_IF_ERROR(m_.backend->CopyToHost(drafts[s].tokens.data(), w_.draft_tokens.as<std::int32_t>() + s * block,
                                           block * sizeof(std::int32_t)));
    RETURN_IF_ERROR(m_.backend->CopyToHost(drafts[s].confidences.data(), w_.draft_confidences.as<float>() + s * block,
                                           block * sizeof(float)));
  }
  return std::span(drafts).first(inputs.size());
}

}  // namespace galley::model
