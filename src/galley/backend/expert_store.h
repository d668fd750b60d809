// SPDX-License-Identifier: Apache-2.0
// Experts of a model that is larger than memory: they stay in their files, and as many as fit into a budget are held in
// buffers that are filled past the page cache. They are read in pieces, so that what a step needs never waits behind
// more than a few pieces of what was only guessed; what was used least goes first. Owned by a backend, whose calling
// thread is the only one that calls; threads of its own read. Bytes.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "galley/backend/backend.h"
#include "galley/backend/disk_ring.h"
#include "galley/backend/heat.h"
#include "galley/backend/ops.h"
#include "galley/io/weight_reader.h"

namespace galley::backend {

[[nodiscard]] std::size_t CodeBytes(const Weight& weight);
[[nodiscard]] std::size_t ScaleBytes(const Weight& weight);
// Codes and scales.
[[nodiscard]] std::size_t BytesOf(const Weight& weight);
[[nodiscard]] std::size_t BytesOf(const ExpertWeights& expert);
// What an expert of so many bytes takes of the budget: each of its six arrays begins and ends on a multiple of
// io::kReadUnit.
[[nodiscard]] constexpr std::size_t ExpertRoom(std::size_t bytes) {
  return (bytes + io::kReadUnit - 1) / io::kReadUnit * io::kReadUnit + std::size_t{12} * io::kReadUnit;
}

// Since the store was made.
struct ExpertCounts {
  std::int64_t uses = 0;        // experts that steps needed
  std::int64_t misses = 0;      // of those, not in memory and not being read
  std::int64_t prefetched = 0;  // a guess began to be read
  std::int64_t guessed = 0;     // of those, needed before they went
  std::int64_t evicted = 0;
  std::int64_t bytes_read = 0;
  double reading_seconds = 0;  // with a read in flight
};

// How reads are kept in flight: by threads, one read each, or by one thread with a DiskRing.
enum class Reading { kThreads, kRing };

class ExpertStore {
 public:
  struct Options {
    std::size_t budget = 0;  // > 0 bytes
    int depth = 8;           // reads at a time, >= 1
    Reading reading = Reading::kThreads;
    // Memory for experts, at multiples of io::kReadUnit; empty: the process's own.
    std::function<Buffer(std::size_t bytes)> allocate = {};
  };
  // Where a ring cannot be had, threads read. Without a reader for their files experts are copied.
  explicit ExpertStore(const Options& options, std::unique_ptr<const io::WeightReader> files = nullptr);
  ~ExpertStore();
  ExpertStore(const ExpertStore&) = delete;
  ExpertStore& operator=(const ExpertStore&) = delete;

  // Where experts are read from now on. Before the first Start.
  void ReadFrom(std::unique_ptr<const io::WeightReader> files);
  // Starts reading what is missing of `needed`, before everything else, and keeps it until the next call. Together they
  // fit into the budget. Guesses that this call shows to be wrong are given up.
  void Start(std::span<const ExpertWeights* const> needed);
  // Returns when every one of them is in memory.
  void Wait(std::span<const ExpertWeights* const> needed);
  // Whether one of them is.
  [[nodiscard]] bool Ready(const ExpertWeights& needed);
  // One of those that were waited for, in memory until the next Start.
  [[nodiscard]] const ExpertWeights& Loaded(const ExpertWeights& expert);
  // Starts reading what the next Start will probably need, the most probable first, as far as there is room that is not
  // needed now. Takes the place of the guess before it: what is not guessed again is not read on.
  void Prefetch(std::span<const ExpertWeights* const> soon);
  // The first error since the last call. An expert that could not be read counts as zeros and is read anew next time.
  [[nodiscard]] Status TakeError();

  [[nodiscard]] std::size_t budget() const { return options_.budget; }
  [[nodiscard]] Reading reading() const { return reading_; }
  [[nodiscard]] ExpertCounts counts() const;
  // Bytes of all buffers; never more than the budget.
  [[nodiscard]] std::size_t held() const;

 private:
  enum class Place { kDisk, kComing, kMemory };
  // Arrays that lie together in a file.
  struct Run {
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
    std::byte* to = nullptr;  // stands for `from` rounded down to a multiple of io::kReadUnit
  };
  struct Entry {
    const ExpertWeights* expert = nullptr;
    std::size_t bytes = 0;
    Place place = Place::kDisk;
    bool failed = false;
    bool given_up = false;         // a guess that goes when its reads in flight have ended
    bool guessed = false;          // nobody has needed it since it began to be read
    Heat heat{};                   // turns are calls of Start
    std::int64_t needed_at = 0;    // call of Start
    std::int64_t guessed_for = 0;  // call of Start
    Buffer buffer{};
    ExpertWeights loaded = {};
    // What is still to be read: from `offset` of run `run` on; and how many pieces are being read.
    std::array<Run, 6> runs{};
    std::size_t run_count = 0, run = 0, offset = 0;
    int flying = 0;
    std::optional<Error> error{};
  };
  struct Piece {
    Entry* entry = nullptr;
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
    std::byte* to = nullptr;  // as of Run
    bool guess = false;
  };

  Entry& EntryOf(const ExpertWeights& expert);
  [[nodiscard]] double HeatOf(const Entry& entry) const { return entry.heat.At(now_); }
  // A buffer for `room` bytes. What is `needed` gets one in any case, if need be when pieces in flight have been read;
  // a guess when something cooler than it can go.
  std::optional<Buffer> TakeBuffer(std::unique_lock<std::mutex>& lock, std::size_t room, bool needed,
                                   double cooler_than);
  std::optional<Buffer> FreeBuffer(std::size_t room);
  bool EvictCoolest(bool needed, double cooler_than);
  // Of an entry that is in no queue any more.
  void GiveUp(Entry& entry);
  void Release(Entry& entry);
  // Begins to read the expert into this buffer.
  void Begin(Entry& entry, Buffer buffer);
  // The next piece to read, needed ones first; counts as in flight.
  std::optional<Piece> NextPiece();
  void Finish(const Piece& piece, const Status& status);
  void ReadWithThread();
  void ReadWithRing(DiskRing& ring);

  const Options options_;
  Reading reading_ = Reading::kThreads;
  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable work_, done_;
  std::unique_ptr<const io::WeightReader> files_;
  std::unordered_map<const void*, Entry> entries_;  // by the address of w1
  std::vector<Entry*> in_memory_;
  std::deque<Entry*> needed_, guesses_;  // with pieces that nobody reads yet
  std::vector<Buffer> free_;             // buffers of experts that went
  std::int64_t now_ = 0;                 // calls of Start
  std::size_t allocated_ = 0;
  int flying_ = 0, guesses_flying_ = 0;  // pieces
  std::chrono::steady_clock::time_point flying_since_;
  ExpertCounts counts_;
  std::optional<Error> error_;
  bool stopping_ = false;
  std::unique_ptr<DiskRing> ring_;
  std::vector<std::thread> readers_;
};

}  // namespace galley::backend
