// SPDX-License-Identifier: Apache-2.0
#include "galley/base/nearest.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace galley {
namespace {

constexpr std::size_t kWordBytesMax = 64;

}  // namespace

int EditDistance(std::string_view a, std::string_view b) {
  // Three rows of the usual table are enough: a swap looks back two rows.
  std::vector<int> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  std::iota(above.begin(), above.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::optional<std::string_view> Nearest(std::string_view word, std::span<const std::string_view> candidates) {
  if (word.empty() || word.size() > kWordBytesMax) return std::nullopt;
  std::optional<std::string_view> best;
  int least = std::max(1, static_cast<int>(word.size()) / 3);
  for (const std::string_view candidate : candidates) {
    const int distance = EditDistance(word, candidate);
    if (best ? distance < least : distance <= least) {
      best = candidate;
      least = distance;
    }
  }
  return best;
}

std::string Suggestion(std::string_view word, std::span<const std::string_view> candidates, std::string_view prefix) {
  const std::optional<std::string_view> nearest = Nearest(word, candidates);
  return nearest ? fmt::format(" (did you mean {}{}?)", prefix, *nearest) : std::string();
}

}  // namespace galley
