// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/hot_set.h"

#include <algorithm>
#include <utility>

#include "galley/base/check.h"

namespace galley::backend {

std::span<const HotSet::Placed> HotSet::Place(std::span<const void* const> needed) {
  ++turn_;
  std::size_t missing = 0;
  for (const void* thing : needed) {
    Thing& t = things_[thing];
    t.heat.Use(turn_);
    t.needed_at = turn_;
    if (t.place == kNowhere) ++missing;
  }
  coolest_.clear();
  if (missing > 0) {
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (places_[i] == nullptr || places_[i]->needed_at != turn_) coolest_.push_back(i);
    }
    CHECK(coolest_.size() >= missing) << needed.size() << " things in " << places_.size() << " places";
    // Empty places first; equal ones in order, so that the choice depends on nothing else.
    const auto rank = [this](std::size_t i) { return std::pair(places_[i] ? places_[i]->heat.At(turn_) : -1.0, i); };
    std::ranges::partial_sort(coolest_, coolest_.begin() + static_cast<std::ptrdiff_t>(missing), {}, rank);
  }
  placed_.clear();
  std::size_t next = 0;
  for (const void* thing : needed) {
    Thing& t = things_[thing];
    const bool fresh = t.place == kNowhere;
    if (fresh) {
      t.place = coolest_[next++];
      if (Thing* old = std::exchange(places_[t.place], &t); old != nullptr) old->place = kNowhere;
    }
    placed_.push_back({t.place, fresh});
  }
  return placed_;
}

void HotSet::Drop(const void* thing) {
  const auto found = things_.find(thing);
  if (found == things_.end() || found->second.place == kNowhere) return;
  places_[std::exchange(found->second.place, kNowhere)] = nullptr;
}

}  // namespace galley::backend
