// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/char_classes.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "galley/base/rng.h"

namespace galley::grammar {

CharClasses::CharClasses() : starts_{0}, class_of_{0} {}

std::size_t CharClasses::IntervalOf(std::uint32_t c) const {
  return static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), c) - starts_.begin()) - 1;
}

void CharClasses::FillAscii() {
  for (std::uint32_t c = 0; c < 128; ++c) ascii_[c] = class_of_[IntervalOf(c)];
}

CharClasses CharClasses::OfSets(std::span<const CodePointSet> sets) {
  CharClasses out;
  std::vector<std::uint32_t> starts = {0};
  for (const CodePointSet& set : sets) {
    for (const CodePointRange& r : set.ranges()) {
      starts.push_back(r.first);
      if (r.last < kCodePointMax) starts.push_back(r.last + 1);
    }
  }
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  out.starts_ = starts;
  // Sweep over the intervals with a signature of the sets that hold each: one mixed word per set, combined by xor.
  std::vector<std::uint64_t> toggles(starts.size() + 1, 0);
  const auto index_of = [&](std::uint32_t c) {
    return static_cast<std::size_t>(std::lower_bound(starts.begin(), starts.end(), c) - starts.begin());
  };
  for (std::size_t s = 0; s < sets.size(); ++s) {
    for (const CodePointRange& r : sets[s].ranges()) {
      toggles[index_of(r.first)] ^= MixBits(s + 1);
      toggles[index_of(r.last + 1)] ^= MixBits(s + 1);
    }
  }
  std::unordered_map<std::uint64_t, std::uint32_t> ids;
  out.class_of_.clear();
  std::uint64_t signature = 0;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    signature ^= toggles[i];
    out.class_of_.push_back(ids.try_emplace(signature, static_cast<std::uint32_t>(ids.size())).first->second);
  }
  out.count_ = static_cast<std::uint32_t>(ids.size());
  out.FillAscii();
  return out;
}

CharClasses CharClasses::Refine(std::span<const CharClasses* const> parts,
                                std::vector<std::vector<std::uint32_t>>& maps) {
  CharClasses out;
  maps.assign(parts.size(), {});
  if (parts.size() == 1) {
    out = *parts[0];
    for (std::uint32_t c = 0; c < out.count_; ++c) maps[0].push_back(c);
    return out;
  }
  std::vector<std::uint32_t> starts = {0};
  for (const CharClasses* part : parts) starts.insert(starts.end(), part->starts_.begin(), part->starts_.end());
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  std::map<std::vector<std::uint32_t>, std::uint32_t> ids;
  out.starts_ = starts;
  out.class_of_.clear();
  std::vector<std::uint32_t> signature(parts.size());
  for (const std::uint32_t start : starts) {
    for (std::size_t i = 0; i < parts.size(); ++i) signature[i] = parts[i]->class_of_[parts[i]->IntervalOf(start)];
    const auto [it, fresh] = ids.try_emplace(signature, static_cast<std::uint32_t>(ids.size()));
    if (fresh) {
      for (std::size_t i = 0; i < parts.size(); ++i) maps[i].push_back(signature[i]);
    }
    out.class_of_.push_back(it->second);
  }
  out.count_ = static_cast<std::uint32_t>(ids.size());
  out.FillAscii();
  return out;
}

}  // namespace galley::grammar
