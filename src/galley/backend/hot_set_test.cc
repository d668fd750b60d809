// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/hot_set.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <vector>

#include "galley/base/rng.h"

namespace galley::backend {
namespace {

const std::array<char, 20> kThings{};

std::vector<std::pair<std::size_t, bool>> Place(HotSet& set, const std::vector<int>& list) {
  std::vector<const void*> needed;
  for (const int i : list) needed.push_back(&kThings[static_cast<std::size_t>(i)]);
  std::vector<std::pair<std::size_t, bool>> result;
  for (const HotSet::Placed& p : set.Place(needed)) result.emplace_back(p.place, p.fresh);
  return result;
}
using Places = std::vector<std::pair<std::size_t, bool>>;

TEST(HotSetTest, WhatIsUsedLeastGoes) {
  HotSet set(3);
  EXPECT_EQ(Place(set, {0, 1}), (Places{{0, true}, {1, true}}));
  EXPECT_EQ(Place(set, {1, 2}), (Places{{1, false}, {2, true}}));  // an empty place before one that is in use
  EXPECT_EQ(Place(set, {3}), (Places{{0, true}}));                 // 0 was used once and longest ago, 1 twice
  EXPECT_EQ(Place(set, {0}), (Places{{2, true}}));                 // 2 once, before 3
  EXPECT_EQ(Place(set, {1, 3, 0}), (Places{{1, false}, {0, false}, {2, false}}));
  // All places at once, whatever was used how often.
  EXPECT_EQ(Place(set, {4, 5, 6}).size(), 3u);
}

TEST(HotSetTest, WhatIsDroppedIsFreshAgain) {
  HotSet set(2);
  (void)Place(set, {0, 1});
  set.Drop(&kThings[0]);
  set.Drop(&kThings[0]);
  set.Drop(&kThings[9]);
  EXPECT_EQ(Place(set, {1, 0}), (Places{{1, false}, {0, true}}));
}

// A use long ago counts for less than a few recent ones.
TEST(HotSetTest, HeatFades) {
  HotSet set(2);
  for (int i = 0; i < 10; ++i) (void)Place(set, {0});
  for (int i = 0; i < 8000; ++i) (void)Place(set, {});  // four half-lives: 10 uses are 0.6
  (void)Place(set, {1});
  EXPECT_EQ(Place(set, {2}), (Places{{0, true}}));
}

// Whatever comes: places differ, and what is not fresh lies where it was put.
TEST(HotSetTest, RandomTraffic) {
  constexpr std::uint64_t kSeed = 3;
  HotSet set(7);
  std::map<std::size_t, int> holds;
  for (std::uint32_t step = 0; step < 2000; ++step) {
    std::vector<int> needed;
    for (std::uint32_t i = 0; i < kThings.size(); ++i) {
      if (needed.size() < 7 && Philox4x32({step, i, 0, 0}, {kSeed, 0})[0] % 5 == 0)
        needed.push_back(static_cast<int>(i));
    }
    const Places placed = Place(set, needed);
    std::map<std::size_t, int> now;
    for (std::size_t i = 0; i < needed.size(); ++i) {
      const auto [place, fresh] = placed[i];
      ASSERT_LT(place, 7u);
      ASSERT_TRUE(now.emplace(place, needed[i]).second) << "seed " << kSeed << ", step " << step;
      if (!fresh) {
        ASSERT_EQ(holds.at(place), needed[i]) << "seed " << kSeed << ", step " << step;
      }
    }
    for (const auto& [place, thing] : now) holds[place] = thing;
  }
}

}  // namespace
}  // namespace galley::backend
