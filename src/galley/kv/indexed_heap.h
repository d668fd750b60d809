// SPDX-License-Identifier: Apache-2.0
// Binary min-heap over the integers [0, capacity) with a 64-bit key each, where any member can be removed. Its memory
// is fixed at construction, which is why it is not a std::set. Owned by one thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "galley/base/check.h"
#include "galley/kv/index.h"

namespace galley::kv {

class IndexedHeap {
 public:
  explicit IndexedHeap(int capacity) : keys_(Idx(capacity), 0), places_(Idx(capacity), -1) {
    heap_.reserve(Idx(capacity));
  }

  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] int size() const { return static_cast<int>(heap_.size()); }
  [[nodiscard]] bool contains(int item) const { return places_[Idx(item)] >= 0; }
  [[nodiscard]] int top() const { return heap_.front(); }

  void Push(int item, std::uint64_t key) {
    DCHECK(!contains(item));
    keys_[Idx(item)] = key;
    heap_.push_back(item);
    places_[Idx(item)] = size() - 1;
    Up(size() - 1);
  }

  void Remove(int item) {
    const int place = places_[Idx(item)];
    DCHECK(place >= 0);
    Swap(place, size() - 1);
    heap_.pop_back();
    places_[Idx(item)] = -1;
    if (place < size()) {
      Up(place);
      Down(place);
    }
  }

 private:
  [[nodiscard]] bool Less(int a, int b) const { return keys_[Idx(heap_[Idx(a)])] < keys_[Idx(heap_[Idx(b)])]; }

  void Swap(int a, int b) {
    std::swap(heap_[Idx(a)], heap_[Idx(b)]);
    places_[Idx(heap_[Idx(a)])] = a;
    places_[Idx(heap_[Idx(b)])] = b;
  }

  void Up(int place) {
    while (place > 0 && Less(place, (place - 1) / 2)) {
      Swap(place, (place - 1) / 2);
      place = (place - 1) / 2;
    }
  }

  void Down(int place) {
    for (;;) {
      int least = place;
      for (const int child : {2 * place + 1, 2 * place + 2}) {
        if (child < size() && Less(child, least)) least = child;
      }
      if (least == place) return;
      Swap(place, least);
      place = least;
    }
  }

  std::vector<std::uint64_t> keys_;
  std::vector<int> places_;  // position in heap_, -1: not a member
  std::vector<int> heap_;
};

}  // namespace galley::kv
