// SPDX-License-Identifier: Apache-2.0
// Flattens the sequences of a step into rows. Pure host arithmetic: the arrays that a RowSet is filled with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "galley/backend/step.h"
#include "galley/model/dsv4/model.h"

namespace galley::model {

// Filled anew for every step in memory that it keeps, because nothing may be allocated on the step path.
struct StepRows {
  std::vector<std::int32_t> tokens, positions, row_sequence;  // [T]
  std::vector<std::uint8_t> image_rows;                       // [T]; empty: no images
  std::vector<backend::SequenceEntry> table;                  // [S]
  std::vector<std::int32_t> source_rows;                      // [T] row of the whole step that each row is

  [[nodiscard]] int rows() const { return static_cast<int>(tokens.size()); }
  void Reserve(int rows, int sequences);
  void Clear();
  // Every row of the step.
  void Fill(std::span<const SequenceInput> sequences);
  // Up to `most` rows, copies of the first row of the sequence with the fewest rows: what they compute and store is
  // what that row does, so they change nothing. As many sequences as rows then, those without a row being empty.
  void Pad(int most);
  // Of `all`, rows at or above their sequence's decoder floor. Sequences without any stay in the table with no rows.
  void FillTail(std::span<const SequenceInput> sequences, const StepRows& all);
};

// Rows that steps of `rows` rows are padded to, so that few sizes occur; `rows` where the next size is above `most`.
[[nodiscard]] int PaddedRows(int rows, int most);

// Rows, counted in `tail`, whose logits were asked for, put in place of what `rows` held.
void ListLogitRows(std::span<const SequenceInput> sequences, const StepRows& tail, std::vector<std::int32_t>& rows);

}  // namespace galley::model
