// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cpu/expert_store.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "galley/base/check.h"

// Linux 5.4 and 5.14; older headers lack the names.
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace galley::backend::cpu {
namespace {

constexpr double kHalfLife = 2000;  // calls of Start, which is once a layer, after which a use counts half
constexpr double kCertain = std::numeric_limits<double>::infinity();

struct Range {
  const void* data;
  std::size_t bytes;
};

std::array<Range, 6> RangesOf(const ExpertWeights& expert) {
  std::array<Range, 6> ranges{};
  std::size_t i = 0;
  for (const Weight* w : {&expert.w1, &expert.w2, &expert.w3}) {
    const auto n = static_cast<std::size_t>(w->rows * w->cols);
    ranges[i++] = {w->data, w->format == WeightFormat::kMxfp4        ? n / 2
                            : w->format == WeightFormat::kFp8Block32 ? n
                            : w->format == WeightFormat::kBF16       ? n * 2
                                                                     : n * 4};
    ranges[i++] = {w->scales, w->format == WeightFormat::kMxfp4        ? n / 32
                              : w->format == WeightFormat::kFp8Block32 ? n / 1024
                                                                       : 0};
  }
  return ranges;
}

std::uintptr_t PageSize() {
  static const auto size = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// Brings the pages in. A page that cannot be read is found out by whoever uses it, as with any mapped weight.
void ReadPages(const ExpertWeights& expert) {
  const std::uintptr_t page = PageSize();
  for (const int advice : {MADV_WILLNEED, MADV_POPULATE_READ}) {  // all reads are under way before the first is awaited
    for (const Range& range : RangesOf(expert)) {
      if (range.bytes == 0) continue;
      const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(range.data) / page * page;
      const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(range.data) + range.bytes;
      (void)madvise(reinterpret_cast<void*>(begin), end - begin, advice);
    }
  }
}

// Lets the pages go that belong to the expert alone.
void DropPages(const ExpertWeights& expert) {
  const std::uintptr_t page = PageSize();
  for (const Range& range : RangesOf(expert)) {
    const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(range.data) + page - 1) / page * page;
    const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(range.data) + range.bytes) / page * page;
    if (range.bytes == 0 || end <= begin) continue;
    // Out of the page cache; a system that does not allow that takes them when it needs the memory.
    if (madvise(reinterpret_cast<void*>(begin), end - begin, MADV_PAGEOUT) != 0) {
      (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    }
  }
}

}  // namespace

std::size_t BytesOf(const ExpertWeights& expert) {
  std::size_t sum = 0;
  for (const Range& range : RangesOf(expert)) sum += range.bytes;
  return sum;
}

ExpertStore::ExpertStore(std::size_t budget, int readers) : budget_(budget) {
  CHECK(budget > 0 && readers >= 1) << budget << " bytes, " << readers << " readers";
  for (int i = 0; i < readers; ++i) readers_.emplace_back([this] { ReadLoop(); });
}

ExpertStore::~ExpertStore() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& reader : readers_) reader.join();
}

ExpertStore::Entry& ExpertStore::EntryOf(const ExpertWeights& expert) {
  Entry& entry = entries_[expert.w1.data];
  if (entry.expert == nullptr) {
    entry.expert = &expert;
    entry.bytes = BytesOf(expert);
  }
  return entry;
}

double ExpertStore::HeatOf(const Entry& entry) const {
  return entry.heat * std::exp2(static_cast<double>(entry.heat_time - now_) / kHalfLife);
}

bool ExpertStore::MakeRoom(std::size_t bytes, double cooler_than) {
  while (held_ + bytes > budget_) {
    Entry* coolest = nullptr;
    double least = cooler_than;
    for (auto& [address, entry] : entries_) {
      if (entry.place != Place::kMemory || entry.pinned_until >= now_) continue;
      const double heat = HeatOf(entry);
      if (heat >= least) continue;
      least = heat;
      coolest = &entry;
    }
    if (coolest == nullptr) return false;
    DropPages(*coolest->expert);
    coolest->place = Place::kDisk;
    held_ -= coolest->bytes;
    ++counts_.evicted;
  }
  return true;
}

void ExpertStore::Start(std::span<const ExpertWeights* const> needed) {
  const std::lock_guard lock(mutex_);
  ++now_;
  for (const ExpertWeights* expert : needed) {
    Entry& entry = EntryOf(*expert);
    entry.heat = HeatOf(entry) + 1;
    entry.heat_time = now_;
    entry.pinned_until = now_;
    ++counts_.uses;
  }
  for (const ExpertWeights* expert : needed) {
    Entry& entry = EntryOf(*expert);
    if (entry.place == Place::kQueued) {  // a guess that came true: before the other guesses
      queue_.erase(std::find(queue_.begin(), queue_.end(), &entry));
      queue_.push_front(&entry);
    }
    if (entry.place != Place::kDisk) continue;
    // Callers ask for no more than fits, but guesses on their way may hold the room; those are pinned by nobody later.
    (void)MakeRoom(entry.bytes, kCertain);
    held_ += entry.bytes;
    entry.place = Place::kQueued;
    queue_.push_front(&entry);
    ++counts_.misses;
    counts_.bytes_read += static_cast<std::int64_t>(entry.bytes);
  }
  work_.notify_all();
}

void ExpertStore::Wait(std::span<const ExpertWeights* const> needed) {
  std::unique_lock lock(mutex_);
  for (const ExpertWeights* expert : needed) {
    const Entry& entry = EntryOf(*expert);
    done_.wait(lock, [&entry] { return entry.place == Place::kMemory; });
  }
}

void ExpertStore::Prefetch(std::span<const ExpertWeights* const> soon) {
  const std::lock_guard lock(mutex_);
  for (const ExpertWeights* expert : soon) {
    Entry& entry = EntryOf(*expert);
    if (entry.place != Place::kDisk) {
      entry.pinned_until = std::max(entry.pinned_until, now_ + 1);
      continue;
    }
    // A guess does not push out what has been needed more often.
    if (!MakeRoom(entry.bytes, HeatOf(entry) + 1)) continue;
    held_ += entry.bytes;
    entry.place = Place::kQueued;
    entry.pinned_until = now_ + 1;
    queue_.push_back(&entry);
    ++counts_.prefetched;
    counts_.bytes_read += static_cast<std::int64_t>(entry.bytes);
  }
  work_.notify_all();
}

void ExpertStore::ReadLoop() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    Entry* entry = queue_.front();
    queue_.pop_front();
    entry->place = Place::kReading;
    lock.unlock();
    ReadPages(*entry->expert);
    lock.lock();
    entry->place = Place::kMemory;
    done_.notify_all();
  }
}

ExpertCounts ExpertStore::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::size_t ExpertStore::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

}  // namespace galley::backend::cpu
