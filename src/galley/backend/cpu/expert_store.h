// SPDX-License-Identifier: Apache-2.0
// Routed experts that stay in their files: a set of them is kept in memory, the rest is read when it is chosen. Their
// bytes are those of the mapped checkpoint, so being in memory means being in the page cache; the store says what to
// read and what to let go, and keeps the sum under a budget. What was used often and lately stays. Owned by a backend
// and called by its thread; readers are threads of the store's own.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "galley/backend/ops.h"

namespace galley::backend::cpu {

struct ExpertCounts {
  std::int64_t uses = 0;        // experts that a step needed
  std::int64_t misses = 0;      // of those, not in memory when asked for and not on their way
  std::int64_t prefetched = 0;  // read because a later layer will probably need them
  std::int64_t evicted = 0;
  std::int64_t bytes_read = 0;
};

// Bytes of an expert's matrices and scales.
[[nodiscard]] std::size_t BytesOf(const ExpertWeights& expert);

class ExpertStore {
 public:
  // `budget` > 0 bytes; `readers` threads read at the same time.
  ExpertStore(std::size_t budget, int readers);
  ~ExpertStore();
  ExpertStore(const ExpertStore&) = delete;
  ExpertStore& operator=(const ExpertStore&) = delete;

  // Starts reading what is missing of `needed`, before everything else, and keeps it until the next call.
  void Start(std::span<const ExpertWeights* const> needed);
  // Returns when every one of them is in memory.
  void Wait(std::span<const ExpertWeights* const> needed);
  // Starts reading what will probably be needed soon, as far as there is room that is not needed now.
  void Prefetch(std::span<const ExpertWeights* const> soon);

  [[nodiscard]] std::size_t budget() const { return budget_; }
  [[nodiscard]] ExpertCounts counts() const;
  // Bytes of the experts that are in memory or on their way.
  [[nodiscard]] std::size_t held() const;

 private:
  enum class Place { kDisk, kQueued, kReading, kMemory };
  struct Entry {
    const ExpertWeights* expert = nullptr;
    std::size_t bytes = 0;
    Place place = Place::kDisk;
    double heat = 0;  // uses, each counting less the longer ago it was
    std::int64_t heat_time = 0;
    std::int64_t pinned_until = 0;
  };

  Entry& EntryOf(const ExpertWeights& expert);
  [[nodiscard]] double HeatOf(const Entry& entry) const;
  // Makes room by letting go of the coolest entries that are not pinned; false when there are too few of them.
  bool MakeRoom(std::size_t bytes, double cooler_than);
  void ReadLoop();

  const std::size_t budget_;
  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable work_, done_;
  std::unordered_map<const void*, Entry> entries_;  // by the address of w1
  std::deque<Entry*> queue_;
  std::int64_t now_ = 0;  // calls of Start
  std::size_t held_ = 0;
  ExpertCounts counts_;
  bool stopping_ = false;
  std::vector<std::thread> readers_;
};

}  // namespace galley::backend::cpu
