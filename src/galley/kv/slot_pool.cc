// SPDX-License-Identifier: Apache-2.0
#include "galley/kv/slot_pool.h"

#include "galley/base/check.h"
#include "galley/kv/index.h"

namespace galley::kv {

SlotRef::~SlotRef() {
  if (pool_ != nullptr) pool_->Release(id_);
}

SlotPool::SlotPool(int slots) : total_(slots) {
  CHECK(slots > 0);
  free_.reserve(Idx(slots));
  for (int id = slots - 1; id >= 0; --id) free_.push_back(SlotId(id));
}

SlotPool::~SlotPool() {
  CHECK(available() == total_) << total_ - available() << " of " << total_ << " slots are still held";
}

std::optional<SlotRef> SlotPool::Acquire() {
  if (free_.empty()) return std::nullopt;
  const SlotId id = free_.back();
  free_.pop_back();
  return SlotRef(this, id);
}

}  // namespace galley::kv
