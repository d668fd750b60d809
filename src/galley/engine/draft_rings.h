// SPDX-License-Identifier: Apache-2.0
// Which rows of the draft head's rings are there. Steps that nobody drafts in, nor soon will, leave the rings alone, so
// a sequence has rows from where steps kept them again. Pure bookkeeping, owned by the executor.
#pragma once

#include <vector>

#include "galley/base/strong_id.h"
#include "galley/kv/snapshot_store.h"

namespace galley::engine {

class DraftRings {
 public:
  DraftRings(int slots, int snapshots);

  // A step ran rows [begin, end) of the slot's sequence through the layers that the head sees; `kept`: into its rings.
  void Ran(SlotId slot, Position begin, Position end, bool kept);
  // First of the consecutive rows up to `newest` (not included) that are there; `newest`: none is.
  [[nodiscard]] Position From(SlotId slot, Position newest) const;

  // Copies of slots.
  void Fork(SlotId from, SlotId to);
  void Save(SlotId from, kv::SnapshotId to);
  void Restore(kv::SnapshotId from, SlotId to);

 private:
  struct Rows {
    Position from = 0;
    Position end = 0;
  };
  std::vector<Rows> slots_, snapshots_;
};

}  // namespace galley::engine
