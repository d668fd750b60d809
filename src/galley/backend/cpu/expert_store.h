// SPDX-License-Identifier: Apache-2.0
// Experts of a model that is larger than memory: they stay in their files, and as many as fit into a budget are held in
// buffers that are filled past the page cache. Those that a step needs are read first, then those that the next layer
// will probably need; what was used least goes first. Owned by a backend, whose calling thread is the only one that
// calls; threads of its own read. Bytes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "galley/backend/cpu/scratch.h"
#include "galley/backend/cpu/weight_reader.h"
#include "galley/backend/ops.h"

namespace galley::backend::cpu {

// Codes and scales.
[[nodiscard]] std::size_t BytesOf(const Weight& weight);
[[nodiscard]] std::size_t BytesOf(const ExpertWeights& expert);
// What an expert of so many bytes takes of the budget: each of its six arrays begins and ends on a multiple of
// kReadUnit.
[[nodiscard]] constexpr std::size_t ExpertRoom(std::size_t bytes) {
  return (bytes + kReadUnit - 1) / kReadUnit * kReadUnit + std::size_t{12} * kReadUnit;
}

// Since the store was made.
struct ExpertCounts {
  std::int64_t uses = 0;        // experts that steps needed
  std::int64_t misses = 0;      // of those, not in memory and not being read
  std::int64_t prefetched = 0;  // read because of a guess
  std::int64_t guessed = 0;     // of those, needed before they went
  std::int64_t evicted = 0;
  std::int64_t bytes_read = 0;
};

class ExpertStore {
 public:
  // `budget` > 0 bytes; `readers` >= 1 reads at a time. Without a reader for their files experts are copied.
  ExpertStore(std::size_t budget, int readers, std::unique_ptr<const WeightReader> files = nullptr);
  ~ExpertStore();
  ExpertStore(const ExpertStore&) = delete;
  ExpertStore& operator=(const ExpertStore&) = delete;

  // Where experts are read from now on. Before the first Start.
  void ReadFrom(std::unique_ptr<const WeightReader> files);
  // Starts reading what is missing of `needed`, before everything else, and keeps it until the next call. Together they
  // fit into the budget.
  void Start(std::span<const ExpertWeights* const> needed);
  // Returns when every one of them is in memory.
  void Wait(std::span<const ExpertWeights* const> needed);
  // One of those that were waited for, in memory until the next Start.
  [[nodiscard]] const ExpertWeights& Loaded(const ExpertWeights& expert);
  // Starts reading what will probably be needed soon, as far as there is room that is not needed now.
  void Prefetch(std::span<const ExpertWeights* const> soon);
  // The first error since the last call. An expert that could not be read counts as zeros and is read anew next time.
  [[nodiscard]] Status TakeError();

  [[nodiscard]] std::size_t budget() const { return budget_; }
  [[nodiscard]] ExpertCounts counts() const;
  // Bytes of all buffers; never more than the budget.
  [[nodiscard]] std::size_t held() const;

 private:
  enum class Place { kDisk, kQueued, kReading, kMemory };
  struct Entry {
    const ExpertWeights* expert = nullptr;
    std::size_t bytes = 0;
    Place place = Place::kDisk;
    bool failed = false;
    bool guessed = false;  // nobody has needed it since it was asked for
    double heat = 0;       // uses, each counting less the longer ago it was
    std::int64_t heat_time = 0;
    std::int64_t needed_at = 0;     // call of Start
    std::int64_t pinned_until = 0;  // a guess: gives way to what is needed only
    AlignedBytes buffer{};
    ExpertWeights loaded = {};
  };

  Entry& EntryOf(const ExpertWeights& expert);
  [[nodiscard]] double HeatOf(const Entry& entry) const;
  // A buffer for `room` bytes. What is `needed` gets one in any case, if need be when a guess has been read; a guess
  // when something cooler than it can go.
  std::optional<AlignedBytes> TakeBuffer(std::unique_lock<std::mutex>& lock, std::size_t room, bool needed,
                                         double cooler_than);
  std::optional<AlignedBytes> FreeBuffer(std::size_t room);
  bool EvictCoolest(bool needed, double cooler_than);
  bool CancelGuess();
  void Release(Entry& entry);
  [[nodiscard]] Status ReadExpert(Entry& entry) const;
  void ReadLoop();

  const std::size_t budget_;
  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable work_, done_;
  std::unique_ptr<const WeightReader> files_;
  std::unordered_map<const void*, Entry> entries_;  // by the address of w1
  std::vector<Entry*> in_memory_;
  std::deque<Entry*> queue_;
  std::vector<AlignedBytes> free_;  // buffers of experts that went
  std::int64_t now_ = 0;            // calls of Start
  std::size_t allocated_ = 0;
  int reading_ = 0;
  ExpertCounts counts_;
  std::optional<Error> error_;
  bool stopping_ = false;
  std::vector<std::thread> readers_;
};

}  // namespace galley::backend::cpu
