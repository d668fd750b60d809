// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/expert_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "galley/base/aligned_bytes.h"
#include "galley/base/check.h"

namespace galley::backend {
namespace {

constexpr double kCertain = std::numeric_limits<double>::infinity();

// Bytes of one read: enough to keep a disk at its rate, little enough to wait for.
constexpr std::size_t kPiece = std::size_t{512} << 10;

Buffer PlainMemory(std::size_t bytes) {
  auto memory = std::make_shared<AlignedBytes>(bytes);
  std::byte* data = memory->data();
  return {data, bytes, [memory = std::move(memory)](std::byte*) {}};
}

std::size_t Odd(const std::byte* p) {
  return reinterpret_cast<std::uintptr_t>(p) % io::kReadUnit;
}
std::uintptr_t Down(const std::byte* p) {
  return reinterpret_cast<std::uintptr_t>(p) / io::kReadUnit * io::kReadUnit;
}
std::uintptr_t Up(const std::byte* p) {
  return (reinterpret_cast<std::uintptr_t>(p) + io::kReadUnit - 1) / io::kReadUnit * io::kReadUnit;
}

}  // namespace

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

std::size_t BytesOf(const Weight& weight) {
  return CodeBytes(weight) + ScaleBytes(weight);
}
std::size_t BytesOf(const ExpertWeights& expert) {
  return BytesOf(expert.w1) + BytesOf(expert.w2) + BytesOf(expert.w3);
}

ExpertStore::ExpertStore(const Options& options, std::unique_ptr<const io::WeightReader> files)
    : options_(options), files_(std::move(files)) {
  CHECK(options.budget > 0 && options.depth >= 1) << options.budget << " bytes, " << options.depth << " reads";
  if (files_ == nullptr) files_ = std::make_unique<io::WeightReader>();
  if (options.reading == Reading::kRing) ring_ = DiskRing::Create(static_cast<unsigned>(options.depth));
  if (ring_ != nullptr) {
    readers_.emplace_back([this] { ReadWithRing(*ring_); });
    return;
  }
  for (int i = 0; i < options.depth; ++i) readers_.emplace_back([this] { ReadWithThread(); });
}

ExpertStore::~ExpertStore() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& reader : readers_) reader.join();
}

void ExpertStore::ReadFrom(std::unique_ptr<const io::WeightReader> files) {
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

void ExpertStore::Release(Entry& entry) {
  free_.push_back(std::move(entry.buffer));
  entry.buffer = Buffer();
  entry.place = Place::kDisk;
  entry.guessed = entry.given_up = false;
}

std::optional<Buffer> ExpertStore::FreeBuffer(std::size_t room) {
  for (Buffer& buffer : free_) {
    if (buffer.bytes() < room || buffer.bytes() > 2 * room) continue;
    std::swap(buffer, free_.back());
    Buffer found = std::move(free_.back());
    free_.pop_back();
    return found;
  }
  // Others, of a model with experts of several sizes, make room.
  while (!free_.empty() && allocated_ + room > options_.budget) {
    allocated_ -= free_.back().bytes();
    free_.pop_back();
  }
  if (allocated_ + room > options_.budget) return std::nullopt;
  allocated_ += room;
  return options_.allocate ? options_.allocate(room) : PlainMemory(room);
}

bool ExpertStore::EvictCoolest(bool needed, double cooler_than) {
  // Guesses stay while something else can go, whatever their heat.
  const auto rank = [this](const Entry& entry) { return std::pair(entry.guessed_for > now_, HeatOf(entry)); };
  auto coolest = in_memory_.end();
  for (auto it = in_memory_.begin(); it != in_memory_.end(); ++it) {
    const auto [guess, heat] = rank(**it);
    if ((*it)->needed_at == now_ || heat >= cooler_than || (guess && !needed)) continue;
    if (coolest == in_memory_.end() || std::pair(guess, heat) < rank(**coolest)) coolest = it;
  }
  if (coolest == in_memory_.end()) return false;
  ++counts_.evicted;
  Release(**coolest);
  in_memory_.erase(coolest);
  return true;
}

void ExpertStore::GiveUp(Entry& entry) {
  if (entry.flying > 0) {
    entry.given_up = true;  // its buffer is free when they have ended
  } else {
    Release(entry);
  }
}

std::optional<Buffer> ExpertStore::TakeBuffer(std::unique_lock<std::mutex>& lock, std::size_t room, bool needed,
                                              double cooler_than) {
  while (true) {
    std::optional<Buffer> buffer = FreeBuffer(room);
    if (buffer) return buffer;
    if (EvictCoolest(needed, cooler_than)) continue;
    if (!needed) return std::nullopt;
    // What is left has pieces in flight and nothing else.
    CHECK(flying_ > 0) << "a step needs more experts than " << options_.budget << " bytes hold";
    done_.wait(lock);
  }
}

void ExpertStore::Start(std::span<const ExpertWeights* const> needed) {
  std::unique_lock lock(mutex_);
  ++now_;
  for (const ExpertWeights* expert : needed) {
    Entry& entry = EntryOf(*expert);
    entry.heat.Use(now_);
    entry.needed_at = now_;
    ++counts_.uses;
    counts_.guessed += entry.guessed ? 1 : 0;
    counts_.misses += entry.place == Place::kComing && !entry.guessed ? 1 : 0;
    entry.guessed = false;
  }
  for (std::deque<Entry*>* queue : {&guesses_, &needed_}) {  // of `needed_`, what nobody has waited for
    std::erase_if(*queue, [this](Entry* entry) {
      if (entry->needed_at == now_) return false;
      GiveUp(*entry);
      return true;
    });
  }
  for (const ExpertWeights* expert : needed) {  // a guess that came true is partly there
    Entry& entry = EntryOf(*expert);
    const bool queued = std::erase(guesses_, &entry) > 0 || std::exchange(entry.given_up, false);
    if (queued && entry.run < entry.run_count) needed_.push_back(&entry);
  }
  for (const ExpertWeights* expert : needed) {
    Entry& entry = EntryOf(*expert);
    if (entry.place == Place::kMemory && entry.failed) {
      std::erase(in_memory_, &entry);
      Release(entry);
    }
    if (entry.place != Place::kDisk) continue;
    ++counts_.misses;
    Begin(entry, *TakeBuffer(lock, ExpertRoom(entry.bytes), true, kCertain));
    needed_.push_back(&entry);
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

bool ExpertStore::Ready(const ExpertWeights& needed) {
  const std::lock_guard lock(mutex_);
  return EntryOf(needed).place == Place::kMemory;
}

const ExpertWeights& ExpertStore::Loaded(const ExpertWeights& expert) {
  const std::lock_guard lock(mutex_);
  const Entry& entry = EntryOf(expert);
  CHECK(entry.place == Place::kMemory && entry.needed_at == now_) << "not waited for";
  return entry.loaded;
}

void ExpertStore::Prefetch(std::span<const ExpertWeights* const> soon) {
  std::unique_lock lock(mutex_);
  for (const ExpertWeights* expert : soon) EntryOf(*expert).guessed_for = now_ + 1;
  std::erase_if(guesses_, [&](Entry* entry) {
    if (std::find(soon.begin(), soon.end(), entry->expert) != soon.end()) return false;
    entry->guessed_for = 0;
    GiveUp(*entry);
    return true;
  });
  std::size_t first = 0;  // where the next one stands among the guesses
  for (const ExpertWeights* expert : soon) {
    Entry& entry = EntryOf(*expert);
    const auto newer = guesses_.begin() + static_cast<std::ptrdiff_t>(first);
    if (std::find(guesses_.begin(), newer, &entry) != newer) continue;  // two rows guess it
    if (entry.place == Place::kDisk) {
      // A guess does not push out what has been needed more often.
      std::optional<Buffer> buffer = TakeBuffer(lock, ExpertRoom(entry.bytes), false, HeatOf(entry) + 1);
      if (!buffer) continue;
      Begin(entry, std::move(*buffer));
    } else if (std::erase(guesses_, &entry) == 0 && !std::exchange(entry.given_up, false)) {
      continue;  // in memory, or every piece is on its way
    }
    if (entry.run == entry.run_count) continue;
    guesses_.insert(guesses_.begin() + static_cast<std::ptrdiff_t>(first++), &entry);
  }
  work_.notify_all();
}

void ExpertStore::Begin(Entry& entry, Buffer buffer) {
  entry.buffer = std::move(buffer);
  entry.place = Place::kComing;
  entry.failed = false;
  entry.error.reset();
  entry.loaded = *entry.expert;
  entry.run_count = entry.run = entry.offset = 0;
  struct Range {
    const std::byte* data;
    std::size_t bytes;
    std::size_t at;  // among places
  };
  std::array<const std::byte*, 6> places{};
  std::array<Range, 6> ranges{};
  std::size_t count = 0;
  for (const Weight* w : {&entry.loaded.w1, &entry.loaded.w2, &entry.loaded.w3}) {
    ranges[count] = {static_cast<const std::byte*>(w->data), CodeBytes(*w), count};
    ++count;
    ranges[count] = {reinterpret_cast<const std::byte*>(w->scales), ScaleBytes(*w), count};
    ++count;
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.data < b.data; });
  std::byte* to = entry.buffer.data();
  for (std::size_t i = 0; i < count;) {
    // Arrays that follow each other in a file come together.
    const std::byte *begin = ranges[i].data, *end = begin;
    std::size_t next = i;
    for (; next < count; ++next) {
      const Range& range = ranges[next];
      if (next > i && (Down(range.data) > Up(end) || !files_->SameFile(begin, range.data))) break;
      places[range.at] = to + (reinterpret_cast<std::uintptr_t>(range.data) - Down(begin));
      end = std::max(end, range.data + range.bytes);
    }
    if (end > begin) entry.runs[entry.run_count++] = {begin, static_cast<std::size_t>(end - begin), to};
    to += Up(end) - Down(begin);
    i = next;
  }
  CHECK(to <= entry.buffer.data() + entry.buffer.bytes()) << entry.bytes << " bytes in " << entry.buffer.bytes();
  std::size_t at = 0;
  for (Weight* w : {&entry.loaded.w1, &entry.loaded.w2, &entry.loaded.w3}) {
    w->data = places[at++];
    w->scales = reinterpret_cast<const std::uint8_t*>(places[at++]);
  }
}

std::optional<ExpertStore::Piece> ExpertStore::NextPiece() {
  const bool guess = needed_.empty();
  std::deque<Entry*>& queue = guess ? guesses_ : needed_;
  // Half of the reads are left for what may be needed at any moment.
  if (queue.empty() || (guess && guesses_flying_ >= std::max(1, options_.depth / 2))) return std::nullopt;
  Entry& entry = *queue.front();
  const bool first = entry.run == 0 && entry.offset == 0;
  const Run& run = entry.runs[entry.run];
  const std::byte* from = run.from + entry.offset;
  const Piece piece = {&entry, from, std::min(kPiece - Odd(from), run.bytes - entry.offset),
                       run.to + (Down(from) - Down(run.from)), guess};
  entry.offset += piece.bytes;
  if (entry.offset == run.bytes) {
    entry.offset = 0;
    ++entry.run;
  }
  if (entry.run == entry.run_count) queue.pop_front();
  ++entry.flying;
  if (flying_++ == 0) flying_since_ = std::chrono::steady_clock::now();
  if (guess) ++guesses_flying_;
  if (guess && first) {
    entry.guessed = true;
    ++counts_.prefetched;
  }
  return piece;
}

void ExpertStore::Finish(const Piece& piece, const Status& status) {
  Entry& entry = *piece.entry;
  if (--flying_ == 0) {
    counts_.reading_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - flying_since_).count();
  }
  if (piece.guess) --guesses_flying_;
  --entry.flying;
  counts_.bytes_read += static_cast<std::int64_t>(piece.bytes);
  if (!status && !entry.error) entry.error = status.error();
  const bool all = entry.run == entry.run_count;
  if (entry.flying == 0 && (all || entry.given_up)) {
    const bool needed = entry.needed_at == now_;
    if (entry.given_up || (entry.error && !needed)) {
      Release(entry);
    } else {
      entry.place = Place::kMemory;
      entry.failed = entry.error.has_value();
      if (entry.failed) {
        std::memset(entry.buffer.data(), 0, entry.buffer.bytes());
        if (!error_) error_ = std::move(entry.error);
      }
      in_memory_.push_back(&entry);
    }
  }
  done_.notify_all();
}

void ExpertStore::ReadWithThread() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const std::optional<Piece> piece = NextPiece();
    if (!piece) {
      work_.wait(lock);
      continue;
    }
    lock.unlock();
    const Status status = files_->Read(piece->from, piece->bytes, piece->to);
    lock.lock();
    Finish(*piece, status);
  }
}

void ExpertStore::ReadWithRing(DiskRing& ring) {
  std::vector<Piece> slots(static_cast<std::size_t>(options_.depth));
  std::vector<std::uint64_t> idle;
  for (std::size_t i = 0; i < slots.size(); ++i) idle.push_back(i);
  std::vector<std::pair<Piece, Status>> done;
  std::unique_lock lock(mutex_);
  while (true) {
    while (!stopping_ && !idle.empty()) {
      const std::optional<Piece> piece = NextPiece();
      if (!piece) break;
      const io::WeightReader::Place place = files_->DirectPlace(piece->from);
      if (place.descriptor < 0) {
        lock.unlock();
        const Status status = files_->Read(piece->from, piece->bytes, piece->to);
        lock.lock();
        Finish(*piece, status);
        continue;
      }
      const std::size_t whole = Up(piece->from + piece->bytes) - Down(piece->from);
      slots[idle.back()] = *piece;
      ring.Push(place.descriptor, piece->to, static_cast<std::uint32_t>(whole), place.offset, idle.back());
      idle.pop_back();
    }
    if (idle.size() == slots.size()) {
      if (stopping_) return;
      work_.wait(lock);
      continue;
    }
    lock.unlock();
    ring.Submit();
    done.clear();
    while (const std::optional<DiskRing::Done> read = ring.Take()) {
      const Piece& piece = slots[read->tag];
      idle.push_back(read->tag);
      // Less than asked for, or an error: reading it again tells which.
      const bool whole = read->result >= 0 && static_cast<std::size_t>(read->result) >= Odd(piece.from) + piece.bytes;
      done.emplace_back(piece, whole ? Status() : files_->Read(piece.from, piece.bytes, piece.to));
    }
    lock.lock();
    for (const auto& [piece, status] : done) Finish(piece, status);
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

}  // namespace galley::backend
