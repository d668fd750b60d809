// SPDX-License-Identifier: Apache-2.0
// Slots: storage for the state of one running sequence each. A slot is never shared, so a handle is move-only and gives
// the slot back when it dies. Owned by the rank thread; the pool outlives its handles.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "galley/base/strong_id.h"

namespace galley::kv {

class SlotPool;

class SlotRef {
 public:
  SlotRef() = default;
  SlotRef(SlotRef&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}
  SlotRef& operator=(SlotRef&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~SlotRef();

  [[nodiscard]] bool valid() const { return pool_ != nullptr; }
  [[nodiscard]] SlotId id() const { return id_; }

 private:
  friend class SlotPool;
  SlotRef(SlotPool* pool, SlotId id) : pool_(pool), id_(id) {}

  SlotPool* pool_ = nullptr;
  SlotId id_;
};

class SlotPool {
 public:
  explicit SlotPool(int slots);
  ~SlotPool();
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  [[nodiscard]] int total() const { return total_; }
  [[nodiscard]] int available() const { return static_cast<int>(free_.size()); }
  // Nothing when every slot is in use.
  [[nodiscard]] std::optional<SlotRef> Acquire();

 private:
  friend class SlotRef;
  void Release(SlotId id) { free_.push_back(id); }

  int total_;
  std::vector<SlotId> free_;
};

}  // namespace galley::kv
