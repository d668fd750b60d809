// SPDX-License-Identifier: Apache-2.0
#include "galley/model/dsv4/workspace.h"

#include <algorithm>

namespace galley::model {
namespace {

struct Request {
  backend::Buffer* buffer;
  std::size_t bytes;
};

// Every buffer of the workspace with its size.
std::vector<Request> Requests(Workspace& w, const Config& config, const ModelOptions& options, std::size_t blocks_max) {
  constexpr std::size_t kF = sizeof(float), kB = sizeof(BFloat16), kI = sizeof(std::int32_t);
  const auto draft_rows = options.drafts ? static_cast<std::size_t>(options.sequences_max) *
                                               static_cast<std::size_t>(config.dspark.block_size)
                                         : 0;
  const auto rows = std::max(static_cast<std::size_t>(options.rows_max), draft_rows),
             dim = static_cast<std::size_t>(config.dim);
  const auto copies = static_cast<std::size_t>(config.hc_mult);
  const std::size_t heads = static_cast<std::size_t>(config.n_heads) * static_cast<std::size_t>(config.head_dim);
  const auto index_heads = static_cast<std::size_t>(config.index_n_heads);
  const auto columns = static_cast<std::size_t>(config.engram.columns());
  const auto selected =
      static_cast<std::size_t>(std::max(config.n_activated_experts, config.dspark.n_activated_experts));

  std::vector<Request> requests = {
      {&w.blocks, blocks_max * kI},
      {&w.post, rows * copies * kF},
      {&w.comb, rows * copies * copies * kF},
      {&w.x, rows * dim * kB},
      {&w.y, rows * dim * kB},
      {&w.qr, rows * static_cast<std::size_t>(config.q_lora_rank) * kB},
      {&w.q, rows * heads * kB},
      {&w.o, rows * heads * kB},
      {&w.unrotated, rows * heads * kB},
      {&w.window, rows * backend::WindowRecordBytes(config.head_dim)},
      {&w.list, rows * static_cast<std::size_t>(config.index_topk) * kI},
      {&w.candidates, rows * static_cast<std::size_t>(config.candidate_topk_blocks) * kI},
      {&w.index_query, rows * index_heads * static_cast<std::size_t>(config.index_head_dim) * kB},
      {&w.index_weight, rows * index_heads * kF},
      {&w.experts, rows * selected * kI},
      {&w.expert_weights, rows * selected * kF},
      {&w.engram_rows, config.engram.layer_ids.size() * rows * columns * kI},
      {&w.engram_values, rows * columns * static_cast<std::size_t>(config.engram.head_dim) * kB},
      {&w.engram_kv, columns == 0 ? 0 : rows * (copies + 1) * dim * kB},
      {&w.main_hidden, rows * config.dspark.target_layer_ids.size() * dim * kB},
      {&w.draft_logits, draft_rows * static_cast<std::size_t>(config.vocab_size) * kF},
      {&w.draft_tokens, draft_rows * kI},
      {&w.draft_confidences, draft_rows * kF},
      {&w.logits, static_cast<std::size_t>(options.logit_rows_max) * static_cast<std::size_t>(config.vocab_size) * kF},
  };
  for (RowSet& set : w.sets) {
    requests.insert(requests.end(), {{&set.tokens, rows * kI},
                                     {&set.positions, rows * kI},
                                     {&set.row_sequence, rows * kI},
                                     {&set.image_rows, rows},
                                     // Padded steps have as many sequences as rows.
                                     {&set.table, std::max(rows, static_cast<std::size_t>(options.sequences_max)) *
                                                      sizeof(backend::SequenceEntry)},
                                     {&set.h, rows * copies * dim * kB},
                                     {&set.pre[0], rows * copies * kF},
                                     {&set.pre[1], rows * copies * kF}});
  }
  return requests;
}

}  // namespace

Result<Workspace> Workspace::Create(backend::Backend& backend, const Config& config, const ModelOptions& options,
                                    std::size_t blocks_max) {
  Workspace w;
  for (const Request& request : Requests(w, config, options, blocks_max)) {
    ASSIGN_OR_RETURN(*request.buffer, backend.Allocate(request.bytes, "activations of the largest step"));
  }
  return w;
}

std::size_t Workspace::Bytes(const Config& config, const ModelOptions& options, std::size_t blocks_max) {
  Workspace w;
  std::size_t bytes = 0;
  for (const Request& request : Requests(w, config, options, blocks_max)) bytes += request.bytes;
  return bytes;
}

}  // namespace galley::model
