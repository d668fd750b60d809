// SPDX-License-Identifier: Apache-2.0
// What one step carries: the flattened rows of all its sequences and the table that says where each sequence keeps its
// history and state. Plain data with device addresses; rows of a sequence are contiguous and ascending in position.
#pragma once

#include <cstdint>

namespace galley::backend {

struct SequenceEntry {
  std::int32_t slot = 0;
  std::int32_t first_row = 0;  // in the step
  std::int32_t rows = 0;
  std::int32_t start = 0;         // position of the first row
  std::int32_t block_offset = 0;  // index into StepView::blocks of the sequence's first block id
  std::int32_t history_from = 0;  // history of positions below this is shared or complete: replayed rows leave it alone
  std::int32_t encoder_floor = 0;  // window rows below a floor do not exist (replay, truncation)
  std::int32_t decoder_floor = 0;
};

struct StepView {
  int rows = 0;
  int sequences = 0;
  std::int32_t position_end = 0;               // one past the largest position, known on the host; 0: not told
  const std::int32_t* tokens = nullptr;        // [rows]
  const std::int32_t* positions = nullptr;     // [rows]
  const std::int32_t* row_sequence = nullptr;  // [rows] index into table
  const std::uint8_t* image_rows = nullptr;    // [rows] 1 inside an image span; null: no images
  const SequenceEntry* table = nullptr;        // [sequences]
  const std::int32_t* blocks = nullptr;        // block ids of all sequences, one after the other

  [[nodiscard]] constexpr const SequenceEntry& sequence_of(int row) const { return table[row_sequence[row]]; }
};

}  // namespace galley::backend
