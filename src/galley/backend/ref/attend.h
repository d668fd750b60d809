// SPDX-License-Identifier: Apache-2.0
// Attention of one query head over gathered rows, and the window record (specification 2.4).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "galley/backend/ops.h"

namespace galley::backend::ref {

// The rows that one query attends to, in order: the window, oldest position first, then the selected entries. Both
// have places in the list of keys: unused ones lie behind the rows of the window and behind the entries. They hold no
// row but keep their place, so that blocks of 64 fall on the same borders for every row.
struct KeyRows {
  std::vector<float> values;  // [window_rows + entries][head_dim]
  std::size_t window_rows = 0, window_places = 0, entries = 0;

  // The first place that no row comes after.
  [[nodiscard]] std::size_t end() const { return entries == 0 ? window_rows : window_places + entries; }
  // Index into `values` of the row at `place`; nothing at an unused place.
  [[nodiscard]] std::optional<std::size_t> RowAt(std::size_t place) const {
    if (place < window_rows) return place;
    if (place < window_places) return std::nullopt;
    return window_rows + (place - window_places);
  }
};

// Online softmax over blocks of 64 places, as the official kernel runs it: probabilities are rounded to bf16 against
// the running maximum before they meet the values; the denominator adds them unrounded, and the sink last. `out` is
// rounded to bf16; zero when no place is used.
void AttendHead(const KeyRows& keys, const std::vector<float>& q, float scale, float sink, std::span<float> out);

// `kv` is the output of wkv rounded to bf16; it is normed, rotated, quantised and written to `record`.
void StoreWindowRecord(std::span<float> kv, const BFloat16* norm, float eps, const Rope& rope, std::int64_t position,
                       std::uint8_t* record);
void DecodeWindowRecord(const std::uint8_t* record, std::span<float> out);

}  // namespace galley::backend::ref
