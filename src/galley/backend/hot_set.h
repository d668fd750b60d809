// SPDX-License-Identifier: Apache-2.0
// Which experts lie in a number of places of equal size: those that a step needs, then those used most of late
// (heat.h). It decides and moves nothing. A value, pure.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "galley/backend/heat.h"

namespace galley::backend {

class HotSet {
 public:
  explicit HotSet(std::size_t places) : places_(places) {}

  struct Placed {
    std::size_t place = 0;
    bool fresh = false;  // it did not lie there before
  };
  // A place for each of `needed`, in their order. They differ, and there are no more of them than places. What is not
  // needed now and was used least goes. Valid until the next call.
  [[nodiscard]] std::span<const Placed> Place(std::span<const void* const> needed);
  // It did not come to lie where Place said.
  void Drop(const void* thing);

  [[nodiscard]] std::size_t places() const { return places_.size(); }

 private:
  struct Thing {
    Heat heat;
    std::int64_t needed_at = 0;  // turn
    std::size_t place = kNowhere;
  };
  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

  std::int64_t turn_ = 0;
  std::unordered_map<const void*, Thing> things_;
  std::vector<Thing*> places_;  // null: empty
  std::vector<Placed> placed_;
  std::vector<std::size_t> coolest_;
};

}  // namespace galley::backend
