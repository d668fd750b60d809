// SPDX-License-Identifier: Apache-2.0
#include "galley/model/dsv4/step_rows.h"

#include <algorithm>
#include <iterator>
#include <limits>

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

void StepRows::Reserve(int most_rows, int sequences) {
  const auto count = static_cast<std::size_t>(most_rows);
  for (auto* list : {&tokens, &positions, &row_sequence, &source_rows}) list->reserve(count);
  image_rows.reserve(count);
  table.reserve(static_cast<std::size_t>(sequences));
}

void StepRows::Clear() {
  for (auto* list : {&tokens, &positions, &row_sequence, &source_rows}) list->clear();
  image_rows.clear();
  table.clear();
}

void StepRows::Fill(std::span<const SequenceInput> sequences) {
  Clear();
  const bool images =
      std::any_of(sequences.begin(), sequences.end(), [](const SequenceInput& s) { return !s.image_rows.empty(); });
  std::int32_t block_offset = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const SequenceInput& sequence = sequences[s];
    const auto last = sequence.start + static_cast<Position>(sequence.tokens.size()) - 1;
    CHECK(sequence.slot.valid()) << "sequence " << s << " has no slot";
    CHECK(last / backend::kBlockTokens < static_cast<Position>(sequence.blocks.size()))
        << "position " << last << " is outside " << sequence.blocks.size() << " blocks";
    table.push_back(Entry(sequence, rows(), block_offset));
    block_offset += static_cast<std::int32_t>(sequence.blocks.size());
    for (std::size_t i = 0; i < sequence.tokens.size(); ++i) {
      source_rows.push_back(rows());
      tokens.push_back(sequence.tokens[i]);
      positions.push_back(static_cast<std::int32_t>(sequence.start + static_cast<Position>(i)));
      row_sequence.push_back(static_cast<std::int32_t>(s));
      if (images) image_rows.push_back(sequence.image_rows.empty() ? 0 : sequence.image_rows[i]);
    }
  }
}

void StepRows::Pad(int most) {
  const auto fewest = std::ranges::min_element(table, {}, [](const backend::SequenceEntry& e) {
    return e.rows > 0 ? e.rows : std::numeric_limits<std::int32_t>::max();
  });
  backend::SequenceEntry copy = *fewest;
  const auto source = static_cast<std::size_t>(copy.first_row);
  for (int row = rows(); row < most; ++row) {
    copy.first_row = row;
    copy.rows = 1;
    source_rows.push_back(row);
    tokens.push_back(tokens[source]);
    positions.push_back(positions[source]);
    row_sequence.push_back(static_cast<std::int32_t>(table.size()));
    table.push_back(copy);
  }
  copy.rows = 0;
  table.resize(std::max(table.size(), static_cast<std::size_t>(most)), copy);
}

int PaddedRows(int rows, int most) {
  constexpr int kSizes[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};
  const int* size = std::ranges::lower_bound(kSizes, rows);
  return size == std::end(kSizes) || *size > most ? rows : *size;
}

void StepRows::FillTail(std::span<const SequenceInput> sequences, const StepRows& all) {
  Clear();
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    backend::SequenceEntry entry = all.table[s];
    const Position from = sequences[s].decoder_from >= 0 ? sequences[s].decoder_from : sequences[s].decoder_floor;
    const auto skipped = static_cast<std::int32_t>(std::clamp<Position>(from - entry.start, 0, entry.rows));
    const std::int32_t first = entry.first_row + skipped;
    entry.first_row = rows();
    entry.start += skipped;
    entry.rows -= skipped;
    table.push_back(entry);
    for (std::int32_t row = first; row < first + entry.rows; ++row) {
      const auto r = static_cast<std::size_t>(row);
      source_rows.push_back(row);
      tokens.push_back(all.tokens[r]);
      positions.push_back(all.positions[r]);
      row_sequence.push_back(all.row_sequence[r]);
      if (!all.image_rows.empty()) image_rows.push_back(all.image_rows[r]);
    }
  }
}

void ListLogitRows(std::span<const SequenceInput> sequences, const StepRows& tail, std::vector<std::int32_t>& rows) {
  rows.clear();
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const backend::SequenceEntry& entry = tail.table[s];
    const std::int32_t wanted = sequences[s].logit_rows;
    CHECK(wanted >= 0 && wanted <= entry.rows)
        << wanted << " logit rows asked for, " << entry.rows << " run the decoder";
    for (std::int32_t i = entry.rows - wanted; i < entry.rows; ++i) rows.push_back(entry.first_row + i);
  }
}

}  // namespace galley::model
