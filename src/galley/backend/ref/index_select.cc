// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/ref/index_select.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "galley/backend/ref/math.h"

namespace galley::backend::ref {
namespace {

bool Better(const ScoredEntry& a, const ScoredEntry& b) {
  return a.score > b.score || (a.score == b.score && a.entry < b.entry);
}

}  // namespace

float IndexScore(std::span<const float> q, std::span<const float> w, std::span<const float> key) {
  float score = 0;
  for (std::size_t h = 0; h < w.size(); ++h) {
    score += std::max(Dot(q.data() + h * key.size(), key.data(), key.size()), 0.0f) * w[h];
  }
  return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score;
}

std::vector<std::int32_t> TopAscending(std::vector<ScoredEntry> scored, int count) {
  const std::size_t kept = std::min(scored.size(), static_cast<std::size_t>(count));
  if (kept < scored.size()) {
    std::nth_element(scored.begin(), scored.begin() + static_cast<std::ptrdiff_t>(kept), scored.end(), Better);
    scored.resize(kept);
  }
  std::vector<std::int32_t> entries(kept);
  std::transform(scored.begin(), scored.end(), entries.begin(), [](const ScoredEntry& s) { return s.entry; });
  std::sort(entries.begin(), entries.end());
  return entries;
}

std::vector<std::int32_t> CandidateBlocks(const std::vector<ScoredEntry>& scored, int block_size, int count) {
  std::vector<ScoredEntry> blocks;
  for (const ScoredEntry& s : scored) {
    const std::int32_t block = s.entry / block_size;
    if (blocks.empty() || blocks.back().entry != block) blocks.push_back({s.score, block});
    blocks.back().score = std::max(blocks.back().score, s.score);
  }
  if (!blocks.empty()) blocks.back().score = std::numeric_limits<float>::infinity();
  return TopAscending(std::move(blocks), count);
}

}  // namespace galley::backend::ref
