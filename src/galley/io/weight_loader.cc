// SPDX-License-Identifier: Apache-2.0
#include "galley/io/weight_loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "galley/base/check.h"
#include "galley/base/log.h"
#include "galley/io/weight_reader.h"

namespace galley::io {
namespace {

// Reading what nobody wants is cheaper than a second read up to about this.
constexpr std::size_t kGapMax = std::size_t{64} << 10;
constexpr std::chrono::milliseconds kSilenceMax{100};

std::size_t Odd(const std::byte* p) {
  return reinterpret_cast<std::uintptr_t>(p) % kReadUnit;
}

// The most of what is left from `done` on that fits.
std::size_t Cut(const WantedBytes& wanted, std::size_t done, std::size_t room) {
  const std::size_t left = wanted.bytes - done;
  return left <= room ? left : room / wanted.grain * wanted.grain;
}

// A read that grows part by part.
class Planner {
 public:
  Planner(ReadPlan& plan, std::size_t buffer_bytes) : plan_(plan), buffer_bytes_(buffer_bytes) {}

  // In ascending order of `file`, and of addresses within one; no file: it is read by itself.
  void Add(const WantedBytes& wanted, std::size_t index, std::optional<std::size_t> file) {
    for (std::size_t done = 0; done < wanted.bytes;) {
      const std::byte* from = wanted.data + done;
      std::size_t bytes = file.has_value() && file == file_ ? Cut(wanted, done, RoomBehind(from)) : 0;
      if (bytes == 0) {
        if (!file.has_value() || file != file_) turn_ = 0;
        plan_.reads.push_back({.data = from, .bytes = 0, .first_part = plan_.parts.size(), .parts = 0});
        turns_.push_back(turn_++);
        file_ = file;
        bytes = Cut(wanted, done, buffer_bytes_ - Odd(from));
        CHECK(bytes > 0) << "a grain of " << wanted.grain << " bytes in a buffer of " << buffer_bytes_;
      }
      PlannedRead& read = plan_.reads.back();
      const auto at = static_cast<std::size_t>(from - read.data);
      plan_.parts.push_back({.index = index, .offset = done, .bytes = bytes, .at = Odd(read.data) + at});
      read.bytes = std::max(read.bytes, at + bytes);
      ++read.parts;
      done += bytes;
    }
    plan_.bytes += wanted.bytes;
  }

  // The first reads of all files, then the second ones.
  void Finish() {
    std::vector<std::size_t> order(plan_.reads.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return turns_[i]; });
    std::vector<PlannedRead> reads;
    reads.reserve(order.size());
    for (const std::size_t i : order) reads.push_back(plan_.reads[i]);
    plan_.reads = std::move(reads);
  }

 private:
  // Of the last read, for bytes that begin at `from`.
  [[nodiscard]] std::size_t RoomBehind(const std::byte* from) const {
    const PlannedRead& read = plan_.reads.back();
    const std::byte* limit = read.data - Odd(read.data) + buffer_bytes_;
    if (from < read.data || from > read.data + read.bytes + kGapMax || from >= limit) return 0;
    return static_cast<std::size_t>(limit - from);
  }

  ReadPlan& plan_;
  const std::size_t buffer_bytes_;
  std::vector<std::size_t> turns_;  // of each read among those of its file
  std::size_t turn_ = 0;
  std::optional<std::size_t> file_;  // of the last read
};

}  // namespace

std::size_t BufferBytesFor(std::span<const WantedBytes> wanted, std::size_t usual) {
  std::size_t least = usual;
  // It may begin in the middle of a unit.
  for (const WantedBytes& w : wanted) least = std::max(least, std::min(w.grain, w.bytes) + kReadUnit);
  return (least + kReadUnit - 1) / kReadUnit * kReadUnit;
}

ReadPlan PlanReads(std::span<const WantedBytes> wanted, std::span<const WeightFile> files, std::size_t buffer_bytes) {
  CHECK(buffer_bytes % kReadUnit == 0) << buffer_bytes;
  std::vector<std::size_t> order(wanted.size()), by_address(files.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::iota(by_address.begin(), by_address.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return wanted[i].data; });
  std::ranges::stable_sort(by_address, {}, [&](std::size_t i) { return files[i].mapped.data(); });
  ReadPlan plan;
  Planner planner(plan, buffer_bytes);
  auto file = by_address.begin();
  for (const std::size_t i : order) {
    const std::byte* data = wanted[i].data;
    const auto end = [&] { return files[*file].mapped.data() + files[*file].mapped.size(); };
    while (file != by_address.end() && end() <= data) ++file;
    const bool inside = file != by_address.end() && files[*file].mapped.data() <= data;
    planner.Add(wanted[i], i, inside ? std::optional(*file) : std::nullopt);
  }
  planner.Finish();
  return plan;
}

MemorySink::MemorySink(std::span<std::byte* const> places, std::size_t buffers, std::size_t buffer_bytes)
    : places_(places) {
  for (std::size_t i = 0; i < buffers; ++i) addresses_.push_back(memory_.emplace_back(buffer_bytes).data());
}

Status MemorySink::Take(std::size_t buffer, std::span<const ReadPart> parts) {
  for (const ReadPart& part : parts)
    std::memcpy(places_[part.index] + part.offset, addresses_[buffer] + part.at, part.bytes);
  return {};
}

namespace {

// One call of ReadWeights. Each buffer is free, being read to, filled, or with the sink.
class Loading {
 public:
  Loading(const ReadPlan& plan, const WeightReader& files, WeightSink& sink)
      : plan_(plan), files_(files), sink_(sink), buffers_(sink.buffers()) {
    for (std::size_t i = 0; i < buffers_.size(); ++i) free_.push_back(i);
  }

  Status Run(int readers, const Progress& progress) {
    std::vector<std::thread> threads;
    const auto most = std::min(buffers_.size(), plan_.reads.size());
    for (std::size_t i = 0; i < std::min(most, static_cast<std::size_t>(readers)); ++i)
      threads.emplace_back([this] { ReadOn(); });
    Status status = PlaceAll(progress);
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    free_again_.notify_all();
    for (std::thread& thread : threads) thread.join();
    while (!with_sink_.empty()) {
      Status released = ReleaseOldest();
      if (status) status = std::move(released);
    }
    return status;
  }

 private:
  struct Filled {
    std::size_t buffer, read;
    Status status;
  };

  void ReadOn() {
    std::unique_lock lock(mutex_);
    while (true) {
      free_again_.wait(lock, [this] { return stopping_ || next_ == plan_.reads.size() || !free_.empty(); });
      if (stopping_ || next_ == plan_.reads.size()) return;
      const std::size_t buffer = free_.front(), read = next_++;
      free_.pop_front();
      lock.unlock();
      const PlannedRead& planned = plan_.reads[read];
      Status status = files_.Read(planned.data, planned.bytes, buffers_[buffer]);
      lock.lock();
      filled_.push_back({buffer, read, std::move(status)});
      filled_one_.notify_one();
    }
  }

  Status PlaceAll(const Progress& progress) {
    const auto go_on = [&](std::uint64_t done) -> Status {
      if (!progress || progress(done, plan_.bytes)) return {};
      return Err(ErrorCode::kCancelled, "the weights were not loaded to the end");
    };
    std::uint64_t done = 0;
    RETURN_IF_ERROR(go_on(done));
    for (std::size_t placed = 0; placed < plan_.reads.size();) {
      std::optional<Filled> filled = Next();
      if (filled) {
        RETURN_IF_ERROR(std::move(filled->status));
        const PlannedRead& read = plan_.reads[filled->read];
        const auto parts = std::span(plan_.parts).subspan(read.first_part, read.parts);
        with_sink_.push_back(filled->buffer);
        RETURN_IF_ERROR(sink_.Take(filled->buffer, parts));
        for (const ReadPart& part : parts) done += part.bytes;
        ++placed;
      }
      // Half of the buffers are for the readers; while none is filled there is time to wait for a sink.
      if (!with_sink_.empty() && (!filled || with_sink_.size() > buffers_.size() / 2)) RETURN_IF_ERROR(ReleaseOldest());
      RETURN_IF_ERROR(go_on(done));
    }
    return {};
  }

  // Nothing: none is filled, and either the sink has one or some time has passed.
  std::optional<Filled> Next() {
    std::unique_lock lock(mutex_);
    if (with_sink_.empty()) filled_one_.wait_for(lock, kSilenceMax, [this] { return !filled_.empty(); });
    if (filled_.empty()) return std::nullopt;
    Filled filled = std::move(filled_.front());
    filled_.pop_front();
    return filled;
  }

  Status ReleaseOldest() {
    const std::size_t buffer = with_sink_.front();
    with_sink_.pop_front();
    RETURN_IF_ERROR(sink_.Release(buffer));
    {
      const std::lock_guard lock(mutex_);
      free_.push_back(buffer);
    }
    free_again_.notify_one();
    return {};
  }

  const ReadPlan& plan_;
  const WeightReader& files_;
  WeightSink& sink_;
  const std::span<std::byte* const> buffers_;
  std::deque<std::size_t> with_sink_;  // oldest first; of the caller's thread
  std::mutex mutex_;                   // guards everything below
  std::condition_variable free_again_, filled_one_;
  std::deque<std::size_t> free_;
  std::deque<Filled> filled_;
  std::size_t next_ = 0;  // of plan_.reads
  bool stopping_ = false;
};

}  // namespace

Status ReadWeights(const ReadPlan& plan, const WeightReader& files, WeightSink& sink, int readers,
                   const Progress& progress) {
  if (plan.reads.empty()) return {};
  CHECK(readers >= 1 && !sink.buffers().empty()) << readers << " readers";
  RETURN_IF_ERROR(files.CheckSizes());
  RETURN_IF_ERROR(Loading(plan, files, sink).Run(readers, progress));
  return files.CheckSizes();
}

void WantedWeights::UseFiles(std::span<const WeightFile> files, Progress progress) {
  files_.assign(files.begin(), files.end());
  progress_ = std::move(progress);
}

bool WantedWeights::Add(const std::byte* data, std::size_t bytes, std::size_t grain) {
  const bool inside = std::ranges::any_of(files_, [&](const WeightFile& file) {
    return data >= file.mapped.data() && data + bytes <= file.mapped.data() + file.mapped.size();
  });
  if (inside) wanted_.push_back({.data = data, .bytes = bytes, .grain = grain});
  return inside;
}

Status WantedWeights::Load(const LoadShape& shape, const MakeSink& make) {
  const std::vector<WantedBytes> wanted = std::exchange(wanted_, {});
  if (wanted.empty()) return {};
  const std::size_t buffer_bytes = BufferBytesFor(wanted, shape.buffer_bytes);
  const ReadPlan plan = PlanReads(wanted, files_, buffer_bytes);
  ASSIGN_OR_RETURN(const auto sink, make(std::min(shape.buffers, plan.reads.size()), buffer_bytes));
  const WeightReader reader(files_);
  const auto begin = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(ReadWeights(plan, reader, *sink, shape.readers, progress_));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double gb = static_cast<double>(plan.bytes) / 1e9;
  log::Info("{:.2f} GB of weights in {:.2f} s, {:.2f} GB/s, by {} reads", gb, seconds, gb / seconds, plan.reads.size());
  return {};
}

}  // namespace galley::io
