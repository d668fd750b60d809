// SPDX-License-Identifier: Apache-2.0
// The sequences of one scheduler by their ids. They lie together in chunks, so that walking over all of them meets few
// pages, and never move. Owned by one scheduler.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "galley/kv/index.h"
#include "galley/sched/sequence.h"

namespace galley::sched {

class SequencePool {
 public:
  // A fresh one with its id set; a freed id is given out again.
  [[nodiscard]] Sequence& New() {
    if (unused_.empty()) {
      const auto first = static_cast<int>(in_use_.size());
      chunks_.push_back(std::make_unique<std::array<Sequence, kChunk>>());
      in_use_.resize(in_use_.size() + kChunk, nullptr);
      for (int i = kChunk - 1; i >= 0; --i) unused_.push_back(SequenceId(first + i));
    }
    const SequenceId id = unused_.back();
    unused_.pop_back();
    Sequence& sequence = (*chunks_[kv::Idx(id.value / kChunk)])[kv::Idx(id.value % kChunk)];
    sequence.id = id;
    in_use_[kv::Idx(id.value)] = &sequence;
    return sequence;
  }
  // Its place holds nothing any more, resources included.
  void Free(Sequence& sequence) {
    const SequenceId id = sequence.id;
    sequence = Sequence();
    in_use_[kv::Idx(id.value)] = nullptr;
    unused_.push_back(id);
  }

  // Null when no sequence has the id.
  [[nodiscard]] Sequence* Find(SequenceId id) const { return in_use_[kv::Idx(id.value)]; }
  // By id, null where there is none.
  [[nodiscard]] const std::vector<Sequence*>& all() const { return in_use_; }
  // Frees all.
  void Clear() {
    in_use_.clear();
    unused_.clear();
    chunks_.clear();
  }

 private:
  static constexpr int kChunk = 64;
  std::vector<std::unique_ptr<std::array<Sequence, kChunk>>> chunks_;
  std::vector<Sequence*> in_use_;
  std::vector<SequenceId> unused_;
};

}  // namespace galley::sched
