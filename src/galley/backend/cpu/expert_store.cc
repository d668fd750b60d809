// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cpu/expert_store.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "galley/base/check.h"

namespace galley::backend::cpu {
namespace {

constexpr double kHalfLife = 2000;  // calls of Start, which is once a layer, after which a use counts half
constexpr double kCertain = std::numeric_limits<double>::infinity();

struct Range {
  const std::byte* data;
  std::size_t bytes;
  const std::byte** loaded;  // where its place in memory is noted
};

std::size_t CodeBytes(const Weight& w) {
  const auto n = static_cast<std::size_t>(w.rows * w.cols);
  switch (w.format) {
    case WeightFormat::kMxfp4:
      return n / 2;
    case WeightFormat::kFp8Block32:
      return n;
    case WeightFormat::kBF16:
      return n * 2;
    case WeightFormat::kF32:
      return n * 4;
  }
  return 0;
}

std::size_t ScaleBytes(const Weight& w) {
  const auto blocks = [](std::int64_t n) { return static_cast<std::size_t>((n + 31) / 32); };
  if (w.format == WeightFormat::kMxfp4) return static_cast<std::size_t>(w.rows) * blocks(w.cols);
  return w.format == WeightFormat::kFp8Block32 ? blocks(w.rows) * blocks(w.cols) : 0;
}

std::uintptr_t Down(const std::byte* p) {
  return reinterpret_cast<std::uintptr_t>(p) / kReadUnit * kReadUnit;
}
std::uintptr_t Up(const std::byte* p) {
  return (reinterpret_cast<std::uintptr_t>(p) + kReadUnit - 1) / kReadUnit * kReadUnit;
}

}  // namespace

std::size_t BytesOf(const Weight& weight) {
  return CodeBytes(weight) + ScaleBytes(weight);
}
std::size_t BytesOf(const ExpertWeights& expert) {
  return BytesOf(expert.w1) + BytesOf(expert.w2) + BytesOf(expert.w3);
}

ExpertStore::ExpertStore(std::size_t budget, int readers, std::unique_ptr<const WeightReader> files)
    : budget_(budget), files_(std::move(files)) {
  CHECK(budget > 0 && readers >= 1) << budget << " bytes, " << readers << " readers";
  if (files_ == nullptr) files_ = std::make_unique<WeightReader>();
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

void ExpertStore::ReadFrom(std::unique_ptr<const WeightReader> files) {
  const std::lock_guard lock(mutex_);
  CHECK(now_ == 0) << "experts are being read";
  files_ = std::move(files);
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

void ExpertStore::Release(Entry& entry) {
  free_.push_back(std::move(entry.buffer));
  entry.buffer = AlignedBytes();
  entry.place = Place::kDisk;
  entry.guessed = false;
  ++counts_.evicted;
}

std::optional<AlignedBytes> ExpertStore::FreeBuffer(std::size_t room) {
  for (AlignedBytes& buffer : free_) {
    if (buffer.size() < room || buffer.size() > 2 * room) continue;
    std::swap(buffer, free_.back());
    AlignedBytes found = std::move(free_.back());
    free_.pop_back();
    return found;
  }
  // Others, of a model with experts of several sizes, make room.
  while (!free_.empty() && allocated_ + room > budget_) {
    allocated_ -= free_.back().size();
    free_.pop_back();
  }
  if (allocated_ + room > budget_) return std::nullopt;
  allocated_ += room;
  return AlignedBytes(room);
}

bool ExpertStore::EvictCoolest(bool needed, double cooler_than) {
  // Guesses stay while something else can go, whatever their heat.
  const auto rank = [this](const Entry& entry) { return std::pair(entry.pinned_until >= now_, HeatOf(entry)); };
  auto coolest = in_memory_.end();
  for (auto it = in_memory_.begin(); it != in_memory_.end(); ++it) {
    const auto [guess, heat] = rank(**it);
    if ((*it)->needed_at == now_ || heat >= cooler_than || (guess && !needed)) continue;
    if (coolest == in_memory_.end() || std::pair(guess, heat) < rank(**coolest)) coolest = it;
  }
  if (coolest == in_memory_.end()) return false;
  Release(**coolest);
  in_memory_.erase(coolest);
  return true;
}

bool ExpertStore::CancelGuess() {
  const auto guess =
      std::find_if(queue_.rbegin(), queue_.rend(), [this](const Entry* e) { return e->needed_at != now_; });
  if (guess == queue_.rend()) return false;
  Entry& entry = **guess;
  queue_.erase(std::next(guess).base());
  counts_.bytes_read -= static_cast<std::int64_t>(entry.bytes);
  --counts_.prefetched;
  Release(entry);
  return true;
}

std::optional<AlignedBytes> ExpertStore::TakeBuffer(std::unique_lock<std::mutex>& lock, std::size_t room, bool needed,
                                                    double cooler_than) {
  while (true) {
    std::optional<AlignedBytes> buffer = FreeBuffer(room);
    if (buffer) return buffer;
    if (EvictCoolest(needed, cooler_than)) continue;
    if (!needed) return std::nullopt;
    if (CancelGuess()) continue;
    // What is left are guesses on their way.
    CHECK(reading_ > 0) << "a step needs more experts than " << budget_ << " bytes hold";
    done_.wait(lock);
  }
}

void ExpertStore::Start(std::span<const ExpertWeights* const> needed) {
  std::unique_lock lock(mutex_);
  ++now_;
  for (const ExpertWeights* expert : needed) {
    Entry& entry = EntryOf(*expert);
    entry.heat = HeatOf(entry) + 1;
    entry.heat_time = now_;
    entry.needed_at = now_;
    ++counts_.uses;
    counts_.guessed += entry.guessed ? 1 : 0;
    entry.guessed = false;
  }
  for (const ExpertWeights* expert : needed) {
    Entry& entry = EntryOf(*expert);
    if (entry.place == Place::kQueued) {  // a guess that came true: before the other guesses
      queue_.erase(std::find(queue_.begin(), queue_.end(), &entry));
      queue_.push_front(&entry);
    }
    if (entry.place == Place::kMemory && entry.failed) {
      in_memory_.erase(std::find(in_memory_.begin(), in_memory_.end(), &entry));
      Release(entry);
    }
    if (entry.place != Place::kDisk) continue;
    entry.buffer = *TakeBuffer(lock, ExpertRoom(entry.bytes), true, kCertain);
    entry.place = Place::kQueued;
    queue_.push_front(&entry);
    ++counts_.misses;
    counts_.bytes_read += static_cast<std::int64_t>(entry.bytes);
    work_.notify_one();
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

const ExpertWeights& ExpertStore::Loaded(const ExpertWeights& expert) {
  const std::lock_guard lock(mutex_);
  const Entry& entry = EntryOf(expert);
  CHECK(entry.place == Place::kMemory && entry.needed_at == now_) << "not waited for";
  return entry.loaded;
}

void ExpertStore::Prefetch(std::span<const ExpertWeights* const> soon) {
  std::unique_lock lock(mutex_);
  for (const ExpertWeights* expert : soon) {
    Entry& entry = EntryOf(*expert);
    if (entry.place != Place::kDisk) {
      entry.pinned_until = std::max(entry.pinned_until, now_ + 1);
      continue;
    }
    // A guess does not push out what has been needed more often.
    std::optional<AlignedBytes> buffer = TakeBuffer(lock, ExpertRoom(entry.bytes), false, HeatOf(entry) + 1);
    if (!buffer) continue;
    entry.buffer = std::move(*buffer);
    entry.place = Place::kQueued;
    entry.pinned_until = now_ + 1;
    entry.guessed = true;
    queue_.push_back(&entry);
    ++counts_.prefetched;
    counts_.bytes_read += static_cast<std::int64_t>(entry.bytes);
  }
  work_.notify_all();
}

Status ExpertStore::ReadExpert(Entry& entry) const {
  entry.loaded = *entry.expert;
  std::array<const std::byte*, 6> places{};
  std::array<Range, 6> ranges{};
  std::size_t count = 0;
  for (Weight* w : {&entry.loaded.w1, &entry.loaded.w2, &entry.loaded.w3}) {
    ranges[count] = {static_cast<const std::byte*>(w->data), CodeBytes(*w), &places[count]};
    ++count;
    ranges[count] = {reinterpret_cast<const std::byte*>(w->scales), ScaleBytes(*w), &places[count]};
    ++count;
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.data < b.data; });
  std::byte* to = entry.buffer.data();
  Status status;
  for (std::size_t i = 0; i < count;) {
    // Arrays that follow each other in a file come with one read.
    const std::byte *begin = ranges[i].data, *end = begin + ranges[i].bytes;
    std::size_t next = i;
    for (; next < count; ++next) {
      const Range& range = ranges[next];
      if (next > i && (Down(range.data) > Up(end) || !files_->SameFile(begin, range.data))) break;
      *range.loaded = to + (reinterpret_cast<std::uintptr_t>(range.data) - Down(begin));
      end = std::max(end, range.data + range.bytes);
    }
    if (end > begin && status) status = files_->Read(begin, static_cast<std::size_t>(end - begin), to);
    to += Up(end) - Down(begin);
    i = next;
  }
  CHECK(to <= entry.buffer.data() + entry.buffer.size()) << entry.bytes << " bytes in " << entry.buffer.size();
  std::size_t at = 0;
  for (Weight* w : {&entry.loaded.w1, &entry.loaded.w2, &entry.loaded.w3}) {
    w->data = places[at++];
    w->scales = reinterpret_cast<const std::uint8_t*>(places[at++]);
  }
  if (!status) std::memset(entry.buffer.data(), 0, entry.buffer.size());
  return status;
}

void ExpertStore::ReadLoop() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    Entry* entry = queue_.front();
    queue_.pop_front();
    entry->place = Place::kReading;
    ++reading_;
    lock.unlock();
    const Status status = ReadExpert(*entry);
    lock.lock();
    --reading_;
    entry->place = Place::kMemory;
    entry->failed = !status;
    if (!status && !error_) error_ = status.error();
    in_memory_.push_back(entry);
    done_.notify_all();
  }
}

Status ExpertStore::TakeError() {
  const std::lock_guard lock(mutex_);
  if (!error_) return {};
  Error error = std::move(*error_);
  error_.reset();
  return Err(std::move(error));
}

ExpertCounts ExpertStore::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::size_t ExpertStore::held() const {
  const std::lock_guard lock(mutex_);
  return allocated_;
}

}  // namespace galley::backend::cpu
