// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/draft_rings.h"

#include <algorithm>

namespace galley::engine {

DraftRings::DraftRings(int slots, int snapshots)
    : slots_(static_cast<std::size_t>(slots)), snapshots_(static_cast<std::size_t>(snapshots)) {}

void DraftRings::Ran(SlotId slot, Position begin, Position end, bool kept) {
  Rows& rows = slots_[static_cast<std::size_t>(slot.value)];
  if (!kept) {
    // Rows of rejected drafts stay behind where these ran.
    rows.end = std::min(rows.end, begin);
    return;
  }
  if (begin < rows.from || begin > rows.end) rows.from = begin;
  rows.end = end;
}

Position DraftRings::From(SlotId slot, Position newest) const {
  const Rows& rows = slots_[static_cast<std::size_t>(slot.value)];
  return rows.from < newest && newest <= rows.end ? rows.from : newest;
}

void DraftRings::Fork(SlotId from, SlotId to) {
  slots_[static_cast<std::size_t>(to.value)] = slots_[static_cast<std::size_t>(from.value)];
}

void DraftRings::Save(SlotId from, kv::SnapshotId to) {
  snapshots_[static_cast<std::size_t>(to.value)] = slots_[static_cast<std::size_t>(from.value)];
}

void DraftRings::Restore(kv::SnapshotId from, SlotId to) {
  slots_[static_cast<std::size_t>(to.value)] = snapshots_[static_cast<std::size_t>(from.value)];
}

}  // namespace galley::engine
