// SPDX-License-Identifier: Apache-2.0
// Activations of the largest step a model will run, allocated once.
#pragma once

#include <array>
#include <vector>

#include "galley/backend/backend.h"
#include "galley/base/error.h"
#include "galley/model/config.h"
#include "galley/model/dsv4/model.h"

namespace galley::model {

// The rows that a run of layers works on: their place in the step, the residual stream, and the collapse coefficients
// that the next site will use. There is one set for all rows and one for the rows that run the decoder.
struct RowSet {
  backend::StepView view;
  backend::Buffer tokens, positions, row_sequence, image_rows, table;
  backend::Buffer h;                   // [T][C][D] bf16
  std::array<backend::Buffer, 2> pre;  // [T][C] f32, used in turn
  int pre_index = 0;

  [[nodiscard]] float* pre_in() const { return pre[static_cast<std::size_t>(pre_index)].as<float>(); }
  [[nodiscard]] float* pre_out() const { return pre[static_cast<std::size_t>(1 - pre_index)].as<float>(); }
};

struct Workspace {
  std::array<RowSet, 2> sets;  // all rows, tail rows
  backend::Buffer blocks;
  backend::Buffer post, comb;  // [T][C], [T][C][C] f32
  backend::Buffer x, y;        // [T][D] bf16
  backend::Buffer qr, q, o;    // [T][q_lora], [T][H][head_dim] bf16
  backend::Buffer unrotated;   // as o; only with an observer
  backend::Buffer window;      // [T] records
  backend::Buffer list, candidates;
  backend::Buffer index_query, index_weight;        // only with an observer
  backend::Buffer experts, expert_weights;          // [T][top-k]
  backend::Buffer engram_rows;                      // [layers][T][columns] i32
  backend::Buffer engram_values;                    // [T][columns * head_dim] bf16
  backend::Buffer engram_kv;                        // [T][C + 1][D] bf16
  backend::Buffer main_hidden;                      // [T][targets * D] bf16
  backend::Buffer logits;                           // [n][V] f32
  backend::Buffer draft_logits;                     // [S * block][V] f32; these three only with drafts
  backend::Buffer draft_tokens, draft_confidences;  // [S * block]

  // `blocks_max`: block ids of all sequences of a step together.
  [[nodiscard]] static Result<Workspace> Create(backend::Backend& backend, const Config& config,
                                                const ModelOptions& options, std::size_t blocks_max);
  // What Create takes from the backend.
  [[nodiscard]] static std::size_t Bytes(const Config& config, const ModelOptions& options, std::size_t blocks_max);
};

}  // namespace galley::model
