// SPDX-License-Identifier: Apache-2.0
// Plans cover every wanted byte once; what is loaded equals the mapped files, whatever the order, the readers and the
// disk's mishaps; errors and cancelling leave nothing behind.
#include "galley/io/weight_loader.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "galley/io/mapped_file.h"
#include "galley/io/test_files.h"
#include "galley/io/weight_reader.h"

namespace galley::io {
namespace {

using testing::HasSubstr;
using Random = std::mt19937_64;

std::size_t Below(Random& random, std::size_t end) {
  return std::uniform_int_distribution<std::size_t>(0, end - 1)(random);
}

// Files of random bytes, mapped, and of each some pieces that are wanted.
struct Model {
  explicit Model(std::span<const std::size_t> sizes, std::uint64_t seed) : random(seed) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::string bytes(sizes[i], '\0');
      for (char& c : bytes) c = static_cast<char>(random());
      const std::filesystem::path path = dir / fmt::format("{}.safetensors", i);
      WriteBytes(path, bytes);
      Map(path);
    }
  }
  void Map(const std::filesystem::path& path) {
    auto file = MappedFile::Open(path);
    ASSERT_TRUE(file) << file.error().ToString();
    files.push_back({file->bytes(), path});
    mapped.push_back(std::move(*file));
  }
  // Pieces that follow each other, with gaps, in a random order and some of them twice.
  void WantPieces(std::size_t piece_max) {
    for (const WeightFile& file : files) {
      for (std::size_t at = Below(random, 200); at < file.mapped.size();) {
        const std::size_t bytes = std::min(file.mapped.size() - at, 1 + Below(random, piece_max));
        constexpr std::size_t kGrains[] = {1, 16, 80, 4096, 5000, 1 << 20};
        wanted.push_back({file.mapped.data() + at, bytes, kGrains[Below(random, std::size(kGrains))]});
        if (Below(random, 20) == 0) wanted.push_back(wanted.back());
        at += bytes + (Below(random, 3) == 0 ? Below(random, 100'000) : 0);
      }
    }
    std::shuffle(wanted.begin(), wanted.end(), random);
  }

  TempDir dir;
  std::vector<MappedFile> mapped;
  std::vector<WeightFile> files;
  std::vector<WantedBytes> wanted;
  Random random;
};

// Checks that buffers are used as agreed, and may fail.
class WatchfulSink final : public WeightSink {
 public:
  WatchfulSink(std::span<const WantedBytes> wanted, std::size_t buffers, std::size_t buffer_bytes)
      : buffer_bytes_(buffer_bytes) {
    for (const WantedBytes& w : wanted) places_.push_back(&copies_.emplace_back(w.bytes, std::byte{0xEE}));
    for (std::size_t i = 0; i < buffers; ++i) {
      memory_.emplace_back(buffer_bytes + kReadUnit);  // what lies behind a buffer is not its own
      std::fill_n(memory_.back().data(), memory_.back().size(), std::byte{0xCC});
      addresses_.push_back(memory_.back().data());
    }
  }
  [[nodiscard]] std::span<std::byte* const> buffers() const override { return addresses_; }
  [[nodiscard]] Status Take(std::size_t buffer, std::span<const ReadPart> parts) override {
    EXPECT_TRUE(held_.insert(buffer).second) << "buffer " << buffer << " was taken and not released";
    if (takes_ == fail_at) return Err(ErrorCode::kDevice, "the device is gone");
    ++takes_;
    taken_.emplace_back(buffer, std::vector(parts.begin(), parts.end()));
    return {};
  }
  // As a device does, it reads the buffer long after Take.
  [[nodiscard]] Status Release(std::size_t buffer) override {
    EXPECT_EQ(held_.erase(buffer), 1u);
    for (auto taken = taken_.begin(); taken != taken_.end(); ++taken) {
      if (taken->first != buffer) continue;
      for (const ReadPart& part : taken->second)
        std::copy_n(addresses_[buffer] + part.at, part.bytes,
                    places_[part.index]->begin() + std::ptrdiff_t(part.offset));
      taken_.erase(taken);
      break;
    }
    return {};
  }
  void ExpectEverythingReleased() const {
    EXPECT_TRUE(held_.empty());
    for (const AlignedBytes& memory : memory_) {
      EXPECT_TRUE(std::all_of(memory.data() + buffer_bytes_, memory.data() + memory.size(),
                              [](std::byte b) { return b == std::byte{0xCC}; }));
    }
  }
  void ExpectCopies(std::span<const WantedBytes> wanted) const {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_TRUE(std::equal(places_[i]->begin(), places_[i]->end(), wanted[i].data))
          << "wanted " << i << ", " << wanted[i].bytes << " bytes";
    }
  }

  int fail_at = -1;

 private:
  const std::size_t buffer_bytes_;
  std::vector<AlignedBytes> memory_;
  std::vector<std::byte*> addresses_;
  std::deque<std::vector<std::byte>> copies_;
  std::vector<std::vector<std::byte>*> places_;
  std::vector<std::pair<std::size_t, std::vector<ReadPart>>> taken_;
  std::set<std::size_t> held_;
  int takes_ = 0;
};

TEST(WeightPlan, CoversEveryWantedByteOnceInGrains) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  const std::size_t sizes[] = {700'001, 1, 250'000};
  Model model(sizes, seed);
  model.WantPieces(90'000);
  model.wanted.push_back({model.files[0].mapped.data() + 3, 0, 1});
  const std::byte outside[3] = {};
  model.wanted.push_back({outside, 3, 1});
  const std::size_t buffer = BufferBytesFor(model.wanted, 128 << 10);
  const ReadPlan plan = PlanReads(model.wanted, model.files, buffer);

  std::vector<std::size_t> next(model.wanted.size());  // the parts of each come in order
  std::uint64_t bytes = 0;
  std::size_t parts = 0;
  std::vector<std::pair<std::size_t, const PlannedRead*>> by_part;
  for (const PlannedRead& read : plan.reads) by_part.emplace_back(read.first_part, &read);
  std::ranges::sort(by_part);
  for (const auto& [first, read] : by_part) {
    ASSERT_EQ(first, parts);
    const std::size_t odd = reinterpret_cast<std::uintptr_t>(read->data) % kReadUnit;
    EXPECT_LE((odd + read->bytes + kReadUnit - 1) / kReadUnit * kReadUnit, buffer);
    for (const ReadPart& part : std::span(plan.parts).subspan(first, read->parts)) {
      const WantedBytes& wanted = model.wanted[part.index];
      EXPECT_EQ(part.offset, next[part.index]);
      next[part.index] += part.bytes;
      EXPECT_TRUE(next[part.index] == wanted.bytes || part.bytes % wanted.grain == 0) << part.bytes;
      EXPECT_EQ(read->data + (part.at - odd), wanted.data + part.offset);
      EXPECT_LE(part.at - odd + part.bytes, read->bytes);
      bytes += part.bytes;
    }
    parts += read->parts;
  }
  EXPECT_EQ(parts, plan.parts.size());
  EXPECT_EQ(bytes, plan.bytes);
  for (std::size_t i = 0; i < next.size(); ++i) EXPECT_EQ(next[i], model.wanted[i].bytes);
}

TEST(WeightPlan, ReadsOfSeveralFilesTakeTurnsAndNeighboursComeTogether) {
  const std::byte* base = nullptr;
  base += 1 << 24;
  const WeightFile files[] = {{{base, 40'000}, "a"}, {{base + (1 << 20), 40'000}, "b"}};
  // 20,000 bytes of b fill two buffers of 8,192 and part of a third.
  const WantedBytes wanted[] = {{base + (1 << 20), 20'000, 1}, {base + 100, 50, 1}, {base + 150, 8'000, 1}};
  const ReadPlan plan = PlanReads(wanted, files, 8'192);
  ASSERT_EQ(plan.reads.size(), 4u);
  EXPECT_EQ(plan.reads[0].data, base + 100);  // 50 + 8,000 bytes, which end at 8,150
  EXPECT_EQ(plan.reads[0].bytes, 8'050u);
  EXPECT_EQ(plan.reads[0].parts, 2u);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(plan.reads[i].data, base + (1 << 20) + (i - 1) * 8'192);
  EXPECT_EQ(plan.reads[3].bytes, 20'000u - 2 * 8'192u);
  EXPECT_EQ(plan.bytes, 28'050u);

  const WantedBytes more[] = {{base + (1 << 20) + 20'000, 100, 1}, wanted[0], wanted[1]};
  const ReadPlan turns = PlanReads(more, files, 8'192);  // b's remaining read takes the neighbour in
  ASSERT_EQ(turns.reads.size(), 4u);
  EXPECT_EQ(turns.reads[0].data, base + 100);
  EXPECT_EQ(turns.reads[1].data, base + (1 << 20));
  EXPECT_EQ(turns.reads[3].parts, 2u);
}

ssize_t InSmallPieces(int descriptor, void* to, std::size_t bytes, off_t offset) {
  static std::atomic<int> calls{0};
  const int call = ++calls;
  if (call % 5 == 0) {
    errno = EINTR;
    return -1;
  }
  return pread(descriptor, to, std::min<std::size_t>(bytes, call % 3 == 0 ? 5'000 : 60'000), offset);
}
ssize_t NotDirect(int descriptor, void* to, std::size_t bytes, off_t offset) {
  const int flags = fcntl(descriptor, F_GETFL);
  if ((flags & O_DIRECT) == 0) return pread(descriptor, to, bytes, offset);
  errno = EINVAL;
  return -1;
}

TEST(ReadWeights, BringsTheBytesOfTheFiles) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  const std::size_t sizes[] = {3'000'017, 4'096, 999, 1'500'000};
  Model model(sizes, seed);
  // And one with holes, as copies of sparse files have.
  WriteBytes(model.dir / "holes", "begin");
  ASSERT_EQ(truncate((model.dir / "holes").c_str(), 2'345'678), 0);
  model.Map(model.dir / "holes");
  model.WantPieces(400'000);
  const std::size_t buffer = BufferBytesFor(model.wanted, 256 << 10);
  const ReadPlan plan = PlanReads(model.wanted, model.files, buffer);
  for (const auto& [readers, buffers] : {std::pair(1, 1), std::pair(1, 3), std::pair(3, 2), std::pair(5, 8)}) {
    for (const WeightReader::ReadCall call :
         {WeightReader::ReadCall(pread), WeightReader::ReadCall(InSmallPieces), WeightReader::ReadCall(NotDirect)}) {
      const WeightReader files(model.files, call);
      WatchfulSink sink(model.wanted, static_cast<std::size_t>(buffers), buffer);
      std::vector<std::uint64_t> told;
      const Status read = ReadWeights(plan, files, sink, readers, [&](std::uint64_t done, std::uint64_t total) {
        EXPECT_EQ(total, plan.bytes);
        told.push_back(done);
        return true;
      });
      ASSERT_TRUE(read) << read.error().ToString();
      sink.ExpectEverythingReleased();
      sink.ExpectCopies(model.wanted);
      EXPECT_TRUE(std::ranges::is_sorted(told));
      EXPECT_EQ(told.front(), 0u);
      EXPECT_EQ(told.back(), plan.bytes);
    }
  }
}

// A small model for what goes wrong: 40 reads of 64 KiB.
class FailingLoad : public testing::Test {
 protected:
  FailingLoad() { model_.wanted.push_back({model_.files[0].mapped.data(), kBytes, 1}); }
  Status Load(WeightReader::ReadCall call, const Progress& progress = {}) {
    const WeightReader files(model_.files, call);
    Status status = ReadWeights(PlanReads(model_.wanted, model_.files, kBuffer), files, sink_, 3, progress);
    sink_.ExpectEverythingReleased();
    return status;
  }
  static constexpr std::size_t kBuffer = 64 << 10, kBytes = 40 * kBuffer;
  Model model_{std::array{kBytes}, 1};
  WatchfulSink sink_{std::array{WantedBytes{nullptr, kBytes, 1}}, 4, kBuffer};
};

TEST_F(FailingLoad, DiskErrorNamesFileAndPlace) {
  const Status status = Load([](int descriptor, void* to, std::size_t bytes, off_t offset) {
    if (offset == off_t{20 * kBuffer}) {
      errno = EIO;
      return ssize_t{-1};
    }
    return pread(descriptor, to, bytes, offset);
  });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_THAT(status.error().ToString(), HasSubstr(model_.files[0].path.string() + " at byte 1310720"));  // 20 × 64 KiB
  EXPECT_THAT(status.error().ToString(), HasSubstr("Input/output error"));
}

TEST_F(FailingLoad, SinkErrorEndsIt) {
  sink_.fail_at = 7;
  const Status status = Load(pread);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kDevice);
}

TEST_F(FailingLoad, FilesThatChangeAreRefused) {
  ASSERT_EQ(truncate(model_.files[0].path.c_str(), kBytes + 1), 0);
  Status status = Load(pread);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(status.error().message, HasSubstr("has 2621441 bytes and had 2621440"));  // 40 × 64 KiB
  // In the middle of reading.
  ASSERT_EQ(truncate(model_.files[0].path.c_str(), kBytes), 0);
  const Progress shorten = [this](std::uint64_t done, std::uint64_t) {
    const std::size_t left = done > 0 ? kBytes - 1 : kBytes;
    return truncate(model_.files[0].path.c_str(), static_cast<off_t>(left)) == 0;
  };
  status = Load(pread, shorten);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
}

std::atomic<bool> disk_hangs{false};

TEST_F(FailingLoad, IsCancelledAlsoWhileTheDiskSaysNothing) {
  int told = 0;
  Status status = Load(pread, [&](std::uint64_t, std::uint64_t) { return ++told < 5; });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(told, 5);

  // No read ends before loading is cancelled, so the question is asked again without one.
  disk_hangs = true;
  told = 0;
  status = Load(
      [](int descriptor, void* to, std::size_t bytes, off_t offset) {
        disk_hangs.wait(true);
        return pread(descriptor, to, bytes, offset);
      },
      [&](std::uint64_t done, std::uint64_t) {
        EXPECT_EQ(done, 0u);
        if (++told < 3) return true;
        disk_hangs = false;
        disk_hangs.notify_all();
        return false;
      });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
}

TEST(WantedWeights, TakesWhatLiesInAFileAndFewBuffers) {
  const std::size_t sizes[] = {100'000};
  Model model(sizes, 2);
  const std::byte* data = model.files[0].mapped.data();
  WantedWeights wanted;
  EXPECT_FALSE(wanted.Add(data, 10, 1));  // of no file that is known
  std::uint64_t last = 0;
  wanted.UseFiles(model.files, [&](std::uint64_t done, std::uint64_t) {
    last = done;
    return true;
  });
  EXPECT_FALSE(wanted.Add(data + 99'999, 2, 1));
  EXPECT_TRUE(wanted.Add(data + 99'998, 2, 1));
  EXPECT_TRUE(wanted.Add(data + 1, 5, 1));
  std::vector<std::byte> first(2), second(5);
  std::byte* const places[] = {first.data(), second.data()};
  for (int turn = 0; turn < 2; ++turn) {  // the second time there is nothing to do
    const Status loaded =
        wanted.Load({.readers = 2, .buffers = 8, .buffer_bytes = 1 << 20}, [&](std::size_t buffers, std::size_t bytes) {
          EXPECT_EQ(turn, 0);
          EXPECT_EQ(buffers, 2u);  // as many as reads, since they lie far apart
          return Result<std::unique_ptr<WeightSink>>(std::make_unique<MemorySink>(places, buffers, bytes));
        });
    ASSERT_TRUE(loaded) << loaded.error().ToString();
    EXPECT_TRUE(wanted.empty());
  }
  EXPECT_EQ(last, 7u);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), data + 99'998));
  EXPECT_TRUE(std::equal(second.begin(), second.end(), data + 1));
}

}  // namespace
}  // namespace galley::io
