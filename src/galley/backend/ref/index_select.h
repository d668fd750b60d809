// SPDX-License-Identifier: Apache-2.0
// The indexer's arithmetic on plain arrays (specification 2.8): scores, candidate blocks, top-k. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace galley::backend::ref {

struct ScoredEntry {
  float score;
  std::int32_t entry;
};

// sum over heads of w[h] * relu(q[h] . key), heads in order; q [heads][dim], key [dim]. NaN becomes minus infinity, so
// that an order of scores is total.
[[nodiscard]] float IndexScore(std::span<const float> q, std::span<const float> w, std::span<const float> key);

// The `count` best entries, in ascending order. Equal scores: the lower entry wins.
[[nodiscard]] std::vector<std::int32_t> TopAscending(std::vector<ScoredEntry> scored, int count);

// The `count` best blocks of `block_size` entries, a block being worth its best entry; `scored` is ascending in entry
// and holds every visible one. The block of the newest entry is always among them.
[[nodiscard]] std::vector<std::int32_t> CandidateBlocks(const std::vector<ScoredEntry>& scored, int block_size,
                                                        int count);

}  // namespace galley::backend::ref
