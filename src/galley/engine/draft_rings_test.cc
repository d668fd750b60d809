// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/draft_rings.h"

#include <gtest/gtest.h>

namespace galley::engine {
namespace {

constexpr SlotId kSlot{1}, kOther{0};
constexpr kv::SnapshotId kPlace{0};

TEST(DraftRings, RowsAreThereFromWhereTheyWereKeptOn) {
  DraftRings rings(2, 1);
  EXPECT_EQ(rings.From(kSlot, 10), 10);
  rings.Ran(kSlot, 0, 10, true);
  EXPECT_EQ(rings.From(kSlot, 10), 0);
  EXPECT_EQ(rings.From(kOther, 10), 10);
  rings.Ran(kSlot, 10, 11, false);
  EXPECT_EQ(rings.From(kSlot, 11), 11);
  rings.Ran(kSlot, 11, 12, true);
  rings.Ran(kSlot, 12, 13, true);
  EXPECT_EQ(rings.From(kSlot, 13), 11);
}

// Six rows, of which two count; what the next step runs over the others leaves no gap if it keeps them, and one if not.
TEST(DraftRings, RejectedRowsAreNotTakenForOthers) {
  DraftRings rings(2, 1);
  rings.Ran(kSlot, 0, 10, true);
  rings.Ran(kSlot, 10, 16, true);
  EXPECT_EQ(rings.From(kSlot, 12), 0);
  rings.Ran(kSlot, 12, 13, true);
  EXPECT_EQ(rings.From(kSlot, 13), 0);
  rings.Ran(kSlot, 13, 19, true);
  rings.Ran(kSlot, 15, 16, false);
  EXPECT_EQ(rings.From(kSlot, 16), 16);
  rings.Ran(kSlot, 16, 17, true);  // position 15 holds a rejected draft's row
  EXPECT_EQ(rings.From(kSlot, 17), 16);
}

TEST(DraftRings, ANewSequenceOfASlotHasNothingOfTheOneBefore) {
  DraftRings rings(2, 1);
  rings.Ran(kSlot, 40, 100, true);
  rings.Ran(kSlot, 0, 30, true);
  EXPECT_EQ(rings.From(kSlot, 30), 0);
  rings.Ran(kSlot, 128, 140, true);
  EXPECT_EQ(rings.From(kSlot, 140), 128);
  rings.Ran(kSlot, 0, 20, false);
  rings.Ran(kSlot, 20, 30, true);
  EXPECT_EQ(rings.From(kSlot, 30), 20);
}

TEST(DraftRings, CopiesOfASlotHaveItsRows) {
  DraftRings rings(2, 1);
  rings.Ran(kSlot, 5, 10, true);
  rings.Save(kSlot, kPlace);
  rings.Fork(kSlot, kOther);
  rings.Ran(kSlot, 10, 11, false);
  EXPECT_EQ(rings.From(kOther, 10), 5);
  rings.Restore(kPlace, kSlot);
  EXPECT_EQ(rings.From(kSlot, 10), 5);
}

}  // namespace
}  // namespace galley::engine
