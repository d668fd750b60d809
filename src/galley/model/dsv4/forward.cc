// SPDX-License-Identifier: Apache-2.0
// The order of a forward pass: specification 2.1 (top level), 2.2 (sites), 2.10 (Engram), 2.13 (truncated decoder).
#include <algorithm>
#include <bit>
#include <numeric>

#include "galley/base/check.h"
#include "galley/model/dsv4/model_impl.h"

namespace galley::model {

using backend::Backend;

namespace {

// Steps that are repeated: up to so many rows, and in classes of the largest position that double from here on.
constexpr int kRepeatedRowsMax = 256;
constexpr std::int32_t kRepeatedPositionsMin = 4096;

std::int32_t PositionEnd(const StepRows& rows) {
  std::int32_t end = 1;
  for (const std::int32_t p : rows.positions) end = std::max(end, p + 1);
  return end;
}

}  // namespace

Status ForwardStep::Place(RowSet& set, const StepRows& rows) {
  Backend& device = *m_.backend;
  const auto copy = [&device](const backend::Buffer& to, const auto& from) {
    return device.CopyToDevice(to.data(), from.data(), from.size() * sizeof(from[0]));
  };
  RETURN_IF_ERROR(copy(set.tokens, rows.tokens));
  RETURN_IF_ERROR(copy(set.positions, rows.positions));
  RETURN_IF_ERROR(copy(set.row_sequence, rows.row_sequence));
  RETURN_IF_ERROR(copy(set.image_rows, rows.image_rows));
  RETURN_IF_ERROR(copy(set.table, rows.table));
  set.pre_index = 0;
  set.view = {.rows = rows.rows(),
              .sequences = static_cast<int>(rows.table.size()),
              .position_end = PositionEnd(rows),
              .tokens = set.tokens.as<std::int32_t>(),
              .positions = set.positions.as<std::int32_t>(),
              .row_sequence = set.row_sequence.as<std::int32_t>(),
              .image_rows = rows.image_rows.empty() ? nullptr : set.image_rows.as<std::uint8_t>(),
              .table = set.table.as<backend::SequenceEntry>(),
              .blocks = w_.blocks.as<std::int32_t>()};
  return {};
}

Result<const float*> ForwardStep::Run(std::span<const SequenceInput> sequences, const LayerRange* range) {
  all_.Fill(sequences);
  tail_.FillTail(sequences, all_);
  CHECK(all_.rows() >= 1 && all_.rows() <= m_.options.rows_max)
      << all_.rows() << " rows, at most " << m_.options.rows_max;
  CHECK(static_cast<int>(sequences.size()) <= m_.options.sequences_max) << sequences.size() << " sequences";
  std::vector<std::int32_t>& logit_rows = m_.logit_rows;
  ListLogitRows(sequences, tail_, logit_rows);
  CHECK(static_cast<int>(logit_rows.size()) <= m_.options.logit_rows_max) << logit_rows.size() << " logit rows";

  std::vector<std::int32_t>& blocks = m_.block_ids;
  blocks.clear();
  for (const SequenceInput& sequence : sequences)
    blocks.insert(blocks.end(), sequence.blocks.begin(), sequence.blocks.end());
  CHECK(blocks.size() <= m_.blocks_max) << blocks.size() << " block ids, at most " << m_.blocks_max;
  RETURN_IF_ERROR(m_.backend->CopyToDevice(w_.blocks.data(), blocks.data(), blocks.size() * sizeof(blocks[0])));
  m_.scored.clear();
  if (range == nullptr && CanRepeat()) return RunRepeated();
  RETURN_IF_ERROR(Place(w_.sets[0], all_));
  if (tail_.rows() != all_.rows()) RETURN_IF_ERROR(Place(w_.sets[1], tail_));

  RETURN_IF_ERROR(StartStream(range));
  const int end = range == nullptr ? m_.config.n_layers : range->end;
  for (int layer = range == nullptr ? 0 : range->first; layer < end; ++layer) {
    if (layer == m_.config.decoder_start() && tail_.rows() != all_.rows()) {
      SwitchToTail(layer);
      if (tail_.rows() == 0) break;
    }
    RunLayer(layer);
  }
  const bool head = tail_.rows() > 0 && end == m_.config.n_layers;
  if (!head) ExpandPending();
  const float* logits = head ? Logits(logit_rows) : nullptr;
  if (head) m_.scored = tail_.table;
  RETURN_IF_ERROR(m_.backend->Synchronize());
  return logits;
}

bool ForwardStep::CanRepeat() const {
  // Every row through every layer, logits of every row: what decode steps are.
  const int rows = all_.rows();
  return m_.backend->repeats_steps() && observer_ == nullptr && tail_.rows() == rows && all_.image_rows.empty() &&
         static_cast<int>(m_.logit_rows.size()) == rows && rows <= kRepeatedRowsMax;
}

Result<const float*> ForwardStep::RunRepeated() {
  m_.scored = tail_.table;
  // A copied row stores again what its source stores, unless the source's sequence is so long that a newer row of it
  // takes the place in a ring.
  const auto rows_of = [](const backend::SequenceEntry& e) { return e.rows > 0 ? e.rows : kRepeatedRowsMax; };
  const std::int32_t fewest = rows_of(*std::ranges::min_element(all_.table, {}, rows_of));
  const bool padded = fewest <= 1 + state_.layout().backtrack_rows;
  all_.Pad(padded ? PaddedRows(all_.rows(), std::min(m_.options.rows_max, m_.options.logit_rows_max)) : all_.rows());
  RETURN_IF_ERROR(Place(w_.sets[0], all_));
  std::int32_t& end = set().view.position_end;
  end = static_cast<std::int32_t>(std::min<Position>(
      std::max<std::int32_t>(static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint32_t>(end))),
                             kRepeatedPositionsMin),
      std::max<Position>(m_.options.seq_len_max, end)));
  m_.backend->RunRepeated({.model = &m_, .state = &state_, .rows = all_.rows(), .position_end = end}, [this] {
    EmbedRows();
    FindEngramRows();
    for (int layer = 0; layer < m_.config.n_layers; ++layer) RunLayer(layer);
    Collapse();
    Head(nullptr, all_.rows());
  });
  RETURN_IF_ERROR(m_.backend->Synchronize());
  return w_.logits.as<float>();
}

void ForwardStep::Observe(std::string_view name, int layer, const void* data, DType dtype,
                          std::initializer_list<std::int64_t> row_shape) {
  if (observer_ == nullptr) return;
  observer_->Observe({.name = name, .layer = layer, .data = data, .dtype = dtype, .row_shape = Shape(row_shape)},
                     view());
}

void ForwardStep::EmbedRows() {
  m_.backend->Embed({.step = view(),
                     .table = m_.weights.embed,
                     .dim = m_.config.dim,
                     .copies = m_.config.hc_mult,
                     .h = set().h.as<BFloat16>(),
                     .pre = set().pre_in()});
}

Status ForwardStep::StartStream(const LayerRange* range) {
  const Config& c = m_.config;
  if (range != nullptr) {
    const auto rows = static_cast<std::size_t>(view().rows), copies = static_cast<std::size_t>(c.hc_mult);
    CHECK(range->h.size() == rows * copies * static_cast<std::size_t>(c.dim) && range->pre.size() == rows * copies)
        << range->h.size() << " and " << range->pre.size() << " values for " << rows << " rows";
    RETURN_IF_ERROR(m_.backend->CopyToDevice(set().h.data(), range->h.data(), range->h.size_bytes()));
    return m_.backend->CopyToDevice(set().pre_in(), range->pre.data(), range->pre.size_bytes());
  }
  EmbedRows();
  // Every copy holds the embedding; the observer sees all of them.
  Observe("embed", -1, set().h.data(), DType::kBF16, {c.hc_mult, c.dim});
  FindEngramRows();
  return {};
}

void ForwardStep::FindEngramRows() {
  const Config& c = m_.config;
  if (c.engram.layer_ids.empty()) return;
  m_.backend->EngramRows({.step = view(),
                          .compressed_ids = m_.device_compressed_ids.as<std::int32_t>(),
                          .pad = m_.engram_pad,
                          .id_ring = state_.IdRing(),
                          .max_ngram = c.engram.max_ngram_size,
                          .heads = c.engram.n_heads,
                          .layers = static_cast<int>(m_.hashes.size()),
                          .hashes = m_.hashes.data(),
                          .rows = w_.engram_rows.as<std::int32_t>()});
  for (const int layer : c.engram.layer_ids) m_.backend->EngramAhead(EngramRowsOf(layer));
}

void ForwardStep::RunLayer(int layer) {
  const Config& c = m_.config;
  const LayerWeights& weights = m_.weights.layers[static_cast<std::size_t>(layer)];
  const bool history_written = current_ == 1 && layer == c.decoder_start();
  if (c.engram_index(layer) >= 0) EngramLayer(layer);
  CaptureMainHidden(layer);
  Boundary(weights.hc_attn, weights.attn_norm);
  Foresee(layer, true);
  AttentionSite(layer, history_written);
  Boundary(weights.hc_ffn, weights.ffn_norm);
  MoeSite(layer, weights.moe, c.n_activated_experts);
  if (observer_ != nullptr) {
    ExpandPending();
    Observe("h", layer, set().h.data(), DType::kBF16, {c.hc_mult, c.dim});
    Observe("pre", layer, set().pre_in(), DType::kF32, {c.hc_mult});
  }
}

backend::EngramGatherArgs ForwardStep::EngramRowsOf(int layer) {
  const Config& c = m_.config;
  const EngramWeights& weights = m_.weights.layers[static_cast<std::size_t>(layer)].engram;
  const std::int64_t columns = c.engram.columns();
  return {.rows = view().rows,
          .columns = c.engram.columns(),
          .dim = c.engram.head_dim,
          .row_numbers = w_.engram_rows.as<std::int32_t>() +
                         c.engram_index(layer) * static_cast<std::int64_t>(view().rows) * columns,
          .codes = weights.codes,
          .scales = weights.scales,
          .out = w_.engram_values.as<BFloat16>()};
}

void ForwardStep::EngramLayer(int layer) {
  const Config& c = m_.config;
  const EngramWeights& weights = m_.weights.layers[static_cast<std::size_t>(layer)].engram;
  CHECK(current_ == 0) << "Engram layer " << layer << " lies in the decoder";
  const backend::EngramGatherArgs gather = EngramRowsOf(layer);
  Observe("engram_rows", layer, gather.row_numbers, DType::kI32, {gather.columns});
  ExpandPending();
  m_.backend->EngramGather(gather);
  m_.backend->Linear({.rows = view().rows,
                      .weight = weights.wkv,
                      .x = w_.engram_values.as<BFloat16>(),
                      .out = w_.engram_kv.as<BFloat16>()});
  m_.backend->EngramMix({.step = view(),
                         .dim = c.dim,
                         .copies = c.hc_mult,
                         .key_value = w_.engram_kv.as<BFloat16>(),
                         .q_weight = weights.q_weight,
                         .k_weight = weights.k_weight,
                         .eps = static_cast<float>(c.norm_eps),
                         .h = set().h.as<BFloat16>()});
}

void ForwardStep::CaptureMainHidden(int layer) {
  const Config& c = m_.config;
  const bool keep = m_.options.drafts && m_.keep_draft_rings;
  if (!keep && observer_ == nullptr) return;
  const std::vector<int>& targets = c.dspark.target_layer_ids;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] != layer) continue;
    ExpandPending();
    const auto stride = static_cast<std::int64_t>(targets.size()) * c.dim;
    m_.backend->MeanCopies({.rows = view().rows,
                            .dim = c.dim,
                            .copies = c.hc_mult,
                            .h = set().h.as<BFloat16>(),
                            .out = w_.main_hidden.as<BFloat16>() + static_cast<std::int64_t>(i) * c.dim,
                            .out_stride = stride});
    if (i + 1 < targets.size()) continue;
    Observe("main_hidden", -1, w_.main_hidden.data(), DType::kBF16, {stride});
    if (keep) StoreDraftWindow();
  }
}

void ForwardStep::Boundary(const MhcWeights& site, const BFloat16* norm) {
  const Config& c = m_.config;
  m_.backend->MhcBoundary({.rows = view().rows,
                           .dim = c.dim,
                           .copies = c.hc_mult,
                           .norm_eps = static_cast<float>(c.norm_eps),
                           .h = set().h.as<BFloat16>(),
                           .y = pending_ ? w_.y.as<BFloat16>() : nullptr,
                           .post_in = w_.post.as<float>(),
                           .comb_in = w_.comb.as<float>(),
                           .fn = site.fn,
                           .base = site.base,
                           .scale = site.scale,
                           .sinkhorn_iters = c.hc_sinkhorn_iters,
                           .hc_eps = static_cast<float>(c.hc_eps),
                           .pre_out = set().pre_out(),
                           .post_out = w_.post.as<float>(),
                           .comb_out = w_.comb.as<float>(),
                           .pre_in = set().pre_in(),
                           .norm = norm,
                           .x = w_.x.as<BFloat16>()});
  set().pre_index = 1 - set().pre_index;  // this site's pre is the next site's (the shifted order of V4.1)
  pending_ = false;
}

void ForwardStep::ExpandPending() {
  if (!pending_) return;
  m_.backend->MhcBoundary({.rows = view().rows,
                           .dim = m_.config.dim,
                           .copies = m_.config.hc_mult,
                           .h = set().h.as<BFloat16>(),
                           .y = w_.y.as<BFloat16>(),
                           .post_in = w_.post.as<float>(),
                           .comb_in = w_.comb.as<float>()});
  pending_ = false;
}

void ForwardStep::SwitchToTail(int layer) {
  const Config& c = m_.config;
  ExpandPending();
  // The decoder's history needs only the attention input of its first layer, for every row.
  m_.backend->MhcBoundary({.rows = view().rows,
                           .dim = c.dim,
                           .copies = c.hc_mult,
                           .norm_eps = static_cast<float>(c.norm_eps),
                           .h = set().h.as<BFloat16>(),
                           .pre_in = set().pre_in(),
                           .norm = m_.weights.layers[static_cast<std::size_t>(layer)].attn_norm,
                           .x = w_.x.as<BFloat16>()});
  CompressRows(layer);

  const RowSet& from = set();
  current_ = 1;
  const auto copies = static_cast<std::size_t>(c.hc_mult), dim = static_cast<std::size_t>(c.dim);
  m_.backend->GatherRows({.count = tail_.rows(),
                          .row_list = tail_.source_rows.data(),
                          .row_bytes = copies * dim * sizeof(BFloat16),
                          .in = from.h.data(),
                          .out = set().h.data()});
  m_.backend->GatherRows({.count = tail_.rows(),
                          .row_list = tail_.source_rows.data(),
                          .row_bytes = copies * sizeof(float),
                          .in = from.pre_in(),
                          .out = set().pre_in()});
}

void ForwardStep::Collapse() {
  const Config& c = m_.config;
  m_.backend->MhcBoundary({.rows = view().rows,
                           .dim = c.dim,
                           .copies = c.hc_mult,
                           .norm_eps = static_cast<float>(c.norm_eps),
                           .h = set().h.as<BFloat16>(),
                           .y = pending_ ? w_.y.as<BFloat16>() : nullptr,
                           .post_in = w_.post.as<float>(),
                           .comb_in = w_.comb.as<float>(),
                           .pre_in = set().pre_in(),
                           .x = w_.x.as<BFloat16>()});
  pending_ = false;
}

const float* ForwardStep::Logits(const std::vector<std::int32_t>& rows) {
  const Config& c = m_.config;
  Collapse();
  Observe("final", -1, w_.x.data(), DType::kBF16, {c.dim});
  Head(rows.data(), static_cast<int>(rows.size()));
  return w_.logits.as<float>();
}

void ForwardStep::Head(const std::int32_t* rows, int count) {
  m_.backend->Head({.dim = m_.config.dim,
                    .count = count,
                    .row_list = rows,
                    .x = w_.x.as<BFloat16>(),
                    .norm = m_.weights.norm,
                    .eps = static_cast<float>(m_.config.norm_eps),
                    .head = m_.weights.head,
                    .logits = w_.logits.as<float>()});
}

Result<const float*> ForwardStep::RowLogits(int sequence, int first, int count) {
  CHECK(sequence >= 0 && static_cast<std::size_t>(sequence) < m_.scored.size()) << "sequence " << sequence;
  const backend::SequenceEntry& entry = m_.scored[static_cast<std::size_t>(sequence)];
  CHECK(first >= 0 && count <= m_.options.logit_rows_max && first + count <= entry.rows)
      << count << " rows from " << first << " on, of " << entry.rows << "; at most " << m_.options.logit_rows_max;
  std::vector<std::int32_t>& rows = m_.logit_rows;
  rows.resize(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), entry.first_row + first);
  Head(rows.data(), count);
  RETURN_IF_ERROR(m_.backend->Synchronize());
  return w_.logits.as<float>();
}

}  // namespace galley::model
