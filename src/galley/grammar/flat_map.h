// SPDX-License-Identifier: Apache-2.0
// Hash map from non-zero 64-bit keys to 32-bit values with open addressing: the moves of parse states are looked up for
// every byte of every mask. Values only, no erasure.
#pragma once

#include <cstdint>
#include <vector>

#include "galley/base/rng.h"

namespace galley::grammar {

class FlatMap {
 public:
  static constexpr std::uint32_t kMissing = 0xFFFFFFFF;

  [[nodiscard]] std::uint32_t Find(std::uint64_t key) const {
    if (slots_.empty()) return kMissing;
    for (std::size_t i = MixBits(key) & mask_;; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].value;
      if (slots_[i].key == 0) return kMissing;
    }
  }
  // `key` must be new.
  void Insert(std::uint64_t key, std::uint32_t value) {
    if (2 * ++size_ > slots_.size()) Grow();
    Place(key, value);
  }
  void Clear() {
    slots_.clear();
    size_ = 0;
    mask_ = 0;
  }
  [[nodiscard]] std::size_t bytes() const { return slots_.size() * sizeof(Slot); }

 private:
  struct Slot {
    std::uint64_t key = 0;
    std::uint32_t value = 0;
  };
  void Place(std::uint64_t key, std::uint32_t value) {
    std::size_t i = MixBits(key) & mask_;
    while (slots_[i].key != 0) i = (i + 1) & mask_;
    slots_[i] = {key, value};
  }
  void Grow() {
    std::vector<Slot> old(slots_.empty() ? 256 : 2 * slots_.size());
    old.swap(slots_);
    mask_ = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.key != 0) Place(slot.key, slot.value);
    }
  }
  std::vector<Slot> slots_;
  std::size_t size_ = 0;
  std::size_t mask_ = 0;
};

}  // namespace galley::grammar
