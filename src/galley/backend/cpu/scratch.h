// SPDX-License-Identifier: Apache-2.0
// Memory that an op needs only while it runs. It grows while a backend warms up and is reused afterwards, so a step
// does not allocate. Used by the backend's calling thread; workers get their share by number.
#pragma once

#include <cstddef>
#include <vector>

#include "galley/base/aligned_bytes.h"

namespace galley::backend::cpu {

// Memory of one op, taken piece by piece and given back all at once.
class OpMemory {
 public:
  // `count` values, not initialised, valid until the next Reset.
  template <typename T>
  [[nodiscard]] T* Take(std::size_t count) {
    return reinterpret_cast<T*>(TakeBytes(count * sizeof(T)));
  }
  void Reset() {
    if (blocks_.size() > 1) {  // one block that would have sufficed
      blocks_.clear();
      blocks_.emplace_back(total_ + total_ / 4);
    }
    used_ = total_ = 0;
  }

 private:
  [[nodiscard]] std::byte* TakeBytes(std::size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    total_ += bytes;
    if (blocks_.empty() || used_ + bytes > blocks_.back().size()) {
      constexpr std::size_t kLeast = std::size_t{1} << 20;
      blocks_.emplace_back(bytes > kLeast ? bytes : kLeast);
      used_ = 0;
    }
    std::byte* at = blocks_.back().data() + used_;
    used_ += bytes;
    return at;
  }

  std::vector<AlignedBytes> blocks_;
  std::size_t used_ = 0;   // of the last block
  std::size_t total_ = 0;  // since Reset
};

// One piece for each worker.
class WorkerMemory {
 public:
  explicit WorkerMemory(int workers) : pieces_(static_cast<std::size_t>(workers)) {}
  // Every piece has at least `bytes` afterwards. Not while workers run.
  void Reserve(std::size_t bytes) {
    for (AlignedBytes& piece : pieces_) {
      if (piece.size() < bytes) piece = AlignedBytes(bytes + bytes / 4);
    }
  }
  [[nodiscard]] std::byte* of(int worker) const { return pieces_[static_cast<std::size_t>(worker)].data(); }

 private:
  std::vector<AlignedBytes> pieces_;
};

}  // namespace galley::backend::cpu
