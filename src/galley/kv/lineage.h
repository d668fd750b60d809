// SPDX-License-Identifier: Apache-2.0
// Which runs computed a stretch of history. After a bounded replay a run's rows differ from a cold run's, and so do the
// entries that it writes; their bytes are a function of the tokens and of where every run on the way there began. A
// sequence that repeats those starts computes the same bytes again. Pure; positions are tokens.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "galley/base/strong_id.h"

namespace galley::kv {

// A run that wrote history from `from` on and whose first row was `begin`: its windows hold nothing below.
struct Origin {
  Position from = 0;
  Position begin = 0;
  friend bool operator==(const Origin&, const Origin&) = default;
};

// Origins of a sequence's history, ascending by `from`, each valid up to the next one's; the last is the sequence's
// own. Empty: computed from position 0, or as if it were, throughout.
using Lineage = std::vector<Origin>;

[[nodiscard]] inline Origin OriginAt(std::span<const Origin> lineage, Position position) {
  const auto after = std::upper_bound(lineage.begin(), lineage.end(), position,
                                      [](Position p, const Origin& origin) { return p < origin.from; });
  return after == lineage.begin() ? Origin{} : *(after - 1);
}

// Adds the origin of the next stretch of history.
inline void AppendOrigin(Lineage& lineage, const Origin& origin) {
  if (origin == (lineage.empty() ? Origin{} : lineage.back())) return;
  lineage.push_back(origin);
}

}  // namespace galley::kv
