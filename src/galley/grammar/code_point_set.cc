// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/code_point_set.h"

#include <algorithm>
#include <map>

namespace galley::grammar {
namespace {

std::vector<CodePointRange> Normalised(std::vector<CodePointRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
  std::vector<CodePointRange> out;
  for (const CodePointRange& r : ranges) {
    if (!out.empty() && r.first <= out.back().last + 1) {
      out.back().last = std::max(out.back().last, r.last);
    } else {
      out.push_back(r);
    }
  }
  return out;
}

}  // namespace

CodePointSet CodePointSet::Range(std::uint32_t first, std::uint32_t last) {
  CodePointSet out;
  if (first <= last) out.ranges_.push_back({first, last});
  return out;
}

CodePointSet CodePointSet::Of(std::span<const CodePointRange> ranges) {
  CodePointSet out;
  out.ranges_ = Normalised({ranges.begin(), ranges.end()});
  return out;
}

bool CodePointSet::Contains(std::uint32_t c) const {
  const auto it = std::upper_bound(ranges_.begin(), ranges_.end(), c,
                                   [](std::uint32_t value, const CodePointRange& r) { return value < r.first; });
  return it != ranges_.begin() && c <= std::prev(it)->last;
}

void CodePointSet::Add(const CodePointSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  ranges_ = Normalised(std::move(ranges_));
}

CodePointSet CodePointSet::Negated() const {
  CodePointSet out;
  std::uint32_t next = 0;
  for (const CodePointRange& r : ranges_) {
    if (r.first > next) out.ranges_.push_back({next, r.first - 1});
    next = r.last + 1;
  }
  if (next <= kCodePointMax) out.ranges_.push_back({next, kCodePointMax});
  return out;
}

CodePointSet CodePointSet::Intersected(const CodePointSet& other) const {
  CodePointSet out;
  std::size_t i = 0, j = 0;
  while (i < ranges_.size() && j < other.ranges_.size()) {
    const std::uint32_t first = std::max(ranges_[i].first, other.ranges_[j].first);
    const std::uint32_t last = std::min(ranges_[i].last, other.ranges_[j].last);
    if (first <= last) out.ranges_.push_back({first, last});
    (ranges_[i].last < other.ranges_[j].last ? i : j) += 1;
  }
  return out;
}

CodePointSet CodePointSet::CaseClosed() const {
  std::map<std::uint32_t, std::vector<std::uint32_t>> classes;
  for (const CaseFold& fold : SimpleCaseFolds()) classes[fold.to].push_back(fold.from);
  std::vector<CodePointRange> out = ranges_;
  for (const auto& [to, from] : classes) {
    bool inside = Contains(to);
    for (const std::uint32_t c : from) inside = inside || Contains(c);
    if (!inside) continue;
    out.push_back({to, to});
    for (const std::uint32_t c : from) out.push_back({c, c});
  }
  return Of(out);
}

bool operator==(const CodePointSet& a, const CodePointSet& b) {
  return std::equal(
      a.ranges_.begin(), a.ranges_.end(), b.ranges_.begin(), b.ranges_.end(),
      [](const CodePointRange& x, const CodePointRange& y) { return x.first == y.first && x.last == y.last; });
}

bool operator<(const CodePointSet& a, const CodePointSet& b) {
  return std::lexicographical_compare(a.ranges_.begin(), a.ranges_.end(), b.ranges_.begin(), b.ranges_.end(),
                                      [](const CodePointRange& x, const CodePointRange& y) {
                                        return x.first != y.first ? x.first < y.first : x.last < y.last;
                                      });
}

}  // namespace galley::grammar
