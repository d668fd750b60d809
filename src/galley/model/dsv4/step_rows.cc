// SPDX-License-Identifier: Apache-2.0
#include "galley/model/dsv4/step_rows.h"

#include <algorithm>

#include "galley/base/check.h"

namespace galley::model {
namespace {

backend::SequenceEntry Entry(const SequenceInput& sequence, std::int32_t first_row, std::int32_t block_offset) {
  return {.slot = sequence.slot.value,
          .first_row = first_row,
          .rows = static_cast<std::int32_t>(sequence.tokens.size()),
          .start = static_cast<std::int32_t>(sequence.start),
          .block_offset = block_offset,
          .history_from = static_cast<std::int32_t>(sequence.history_from),
          .encoder_floor = static_cast<std::int32_t>(sequence.encoder_floor),
          .decoder_floor = static_cast<std::int32_t>(sequence.decoder_floor)};
}

}  // namespace

StepRows AllRows(std::span<const SequenceInput> sequences) {
  StepRows step;
  const bool images =
      std::any_of(sequences.begin(), sequences.end(), [](const SequenceInput& s) { return !s.image_rows.empty(); });
  std::int32_t block_offset = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const SequenceInput& sequence = sequences[s];
    const auto last = sequence.start + static_cast<Position>(sequence.tokens.size()) - 1;
    CHECK(sequence.slot.valid()) << "sequence " << s << " has no slot";
    CHECK(last / backend::kBlockTokens < static_cast<Position>(sequence.blocks.size()))
        << "position " << last << " is outside " << sequence.blocks.size() << " blocks";
    step.table.push_back(Entry(sequence, step.rows(), block_offset));
    block_offset += static_cast<std::int32_t>(sequence.blocks.size());
    for (std::size_t i = 0; i < sequence.tokens.size(); ++i) {
      step.source_rows.push_back(step.rows());
      step.tokens.push_back(sequence.tokens[i]);
      step.positions.push_back(static_cast<std::int32_t>(sequence.start + static_cast<Position>(i)));
      step.row_sequence.push_back(static_cast<std::int32_t>(s));
      if (images) step.image_rows.push_back(sequence.image_rows.empty() ? 0 : sequence.image_rows[i]);
    }
  }
  return step;
}

StepRows TailRows(std::span<const SequenceInput> sequences, const StepRows& all) {
  StepRows tail;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    backend::SequenceEntry entry = all.table[s];
    const Position from = sequences[s].decoder_from >= 0 ? sequences[s].decoder_from : sequences[s].decoder_floor;
    const auto skipped = static_cast<std::int32_t>(std::clamp<Position>(from - entry.start, 0, entry.rows));
    const std::int32_t first = entry.first_row + skipped;
    entry.first_row = tail.rows();
    entry.start += skipped;
    entry.rows -= skipped;
    tail.table.push_back(entry);
    for (std::int32_t row = first; row < first + entry.rows; ++row) {
      const auto r = static_cast<std::size_t>(row);
      tail.source_rows.push_back(row);
      tail.tokens.push_back(all.tokens[r]);
      tail.positions.push_back(all.positions[r]);
      tail.row_sequence.push_back(all.row_sequence[r]);
      if (!all.image_rows.empty()) tail.image_rows.push_back(all.image_rows[r]);
    }
  }
  return tail;
}

std::vector<std::int32_t> LogitRowList(std::span<const SequenceInput> sequences, const StepRows& tail) {
  std::vector<std::int32_t> rows;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const backend::SequenceEntry& entry = tail.table[s];
    const std::int32_t wanted = sequences[s].logit_rows;
    CHECK(wanted >= 0 && wanted <= entry.rows)
        << wanted << " logit rows asked for, " << entry.rows << " run the decoder";
    for (std::int32_t i = entry.rows - wanted; i < entry.rows; ++i) rows.push_back(entry.first_row + i);
  }
  return rows;
}

}  // namespace galley::model
