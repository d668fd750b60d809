// SPDX-License-Identifier: Apache-2.0
// Flattens the sequences of a step into rows. Pure host arithmetic: the arrays that a RowSet is filled with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "galley/backend/step.h"
#include "galley/model/dsv4/model.h"

namespace galley::model {

struct StepRows {
  std::vector<std::int32_t> tokens, positions, row_sequence;  // [T]
  std::vector<std::uint8_t> image_rows;                       // [T]; empty: no images
  std::vector<backend::SequenceEntry> table;                  // [S]
  std::vector<std::int32_t> source_rows;                      // [T] row of the whole step that each row is

  [[nodiscard]] int rows() const { return static_cast<int>(tokens.size()); }
};

// Every row of the step.
[[nodiscard]] StepRows AllRows(std::span<const SequenceInput> sequences);
// Rows at or above their sequence's decoder floor. Sequences without any stay in the table with no rows.
[[nodiscard]] StepRows TailRows(std::span<const SequenceInput> sequences, const StepRows& all);
// Rows, counted in `tail`, whose logits were asked for.
[[nodiscard]] std::vector<std::int32_t> LogitRowList(std::span<const SequenceInput> sequences, const StepRows& tail);

}  // namespace galley::model
