// SPDX-License-Identifier: Apache-2.0
// The store on a file of its own: what it keeps, what it lets go, that the bytes are the file's, and errors of the
// disk.
#include "galley/backend/expert_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "galley/base/rng.h"

namespace galley::backend {
namespace {

constexpr std::int64_t kRows = 64, kCols = 512;
constexpr std::size_t kMatrix = kRows * kCols / 2, kScales = kRows * kCols / 32;
constexpr std::size_t kExpert = 3 * (kMatrix + kScales);  // 52,224 bytes
constexpr std::size_t kRoom = ExpertRoom(kExpert);        // 13 + 12 units
constexpr int kExperts = 12;

// Experts in a mapped file, each beginning on a page.
class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "experts.XXXXXX";
    descriptor_ = mkstemp(path.data());
    ASSERT_GE(descriptor_, 0);
    path_ = path;
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    stride_ = (kExpert + page - 1) / page * page;
    std::vector<std::uint8_t> bytes(stride_ * kExperts);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 31 + i / 4096);
    ASSERT_EQ(write(descriptor_, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    ASSERT_EQ(fsync(descriptor_), 0);
    file_ = mmap(nullptr, bytes.size(), PROT_READ, MAP_SHARED, descriptor_, 0);
    ASSERT_NE(file_, MAP_FAILED);
    for (int e = 0; e < kExperts; ++e) {
      const auto* at = static_cast<const std::uint8_t*>(file_) + stride_ * static_cast<std::size_t>(e);
      ExpertWeights expert;
      for (Weight* w : {&expert.w1, &expert.w2, &expert.w3}) {
        *w = {WeightFormat::kMxfp4, kRows, kCols, at, at + kMatrix};
        at += kMatrix + kScales;
      }
      experts_.push_back(expert);
    }
  }
  void TearDown() override {
    munmap(file_, stride_ * kExperts);
    close(descriptor_);
    unlink(path_.c_str());
  }
  [[nodiscard]] std::unique_ptr<io::WeightReader> Reader(io::WeightReader::ReadCall call) const {
    const io::WeightFile file = {{static_cast<const std::byte*>(file_), stride_ * kExperts}, path_};
    return std::make_unique<io::WeightReader>(std::span(&file, 1), call);
  }
  [[nodiscard]] std::vector<const ExpertWeights*> Pick(std::initializer_list<int> list) const {
    std::vector<const ExpertWeights*> picked;
    for (const int e : list) picked.push_back(&experts_[static_cast<std::size_t>(e)]);
    return picked;
  }
  // Whether all six arrays are those of the file.
  [[nodiscard]] static bool Same(const ExpertWeights& loaded, const ExpertWeights& expert) {
    const auto same = [](const Weight& a, const Weight& b) {
      return a.data != b.data && std::memcmp(a.data, b.data, kMatrix) == 0 &&
             std::memcmp(a.scales, b.scales, kScales) == 0;
    };
    return same(loaded.w1, expert.w1) && same(loaded.w2, expert.w2) && same(loaded.w3, expert.w3);
  }

  std::string path_;
  int descriptor_ = -1;
  void* file_ = nullptr;
  std::size_t stride_ = 0;
  std::vector<ExpertWeights> experts_;
};

TEST_F(StoreTest, CountsWhatItHoldsAndKeepsTheBudget) {
  EXPECT_EQ(BytesOf(experts_[0]), kExpert);
  ExpertStore store({.budget = 3 * kRoom, .depth = 2});
  const auto use = [&](std::initializer_list<int> list) {
    const auto needed = Pick(list);
    store.Start(needed);
    store.Wait(needed);
    EXPECT_LE(store.held(), store.budget());
  };
  use({0, 1});
  use({0, 2});
  EXPECT_EQ(store.counts().misses, 3);
  EXPECT_EQ(store.counts().evicted, 0);
  EXPECT_EQ(store.held(), 3 * kRoom);
  use({3});  // 1 and 2 were used once, 1 longer ago: it goes; 0 was used twice
  EXPECT_EQ(store.counts().evicted, 1);
  use({0, 2, 3});
  EXPECT_EQ(store.counts().misses, 4);
  use({1});
  EXPECT_EQ(store.counts().misses, 5);
  EXPECT_EQ(store.counts().uses, 9);
  EXPECT_EQ(store.counts().bytes_read, static_cast<std::int64_t>(5 * kExpert));
}

// By threads and by a ring, through direct reads, and from memory where there is no file.
TEST_F(StoreTest, LoadedExpertsAreThoseOfTheFile) {
  for (const Reading reading : {Reading::kThreads, Reading::kRing}) {
    for (const bool from_file : {true, false}) {
      ExpertStore store({.budget = 2 * kRoom, .depth = 2, .reading = reading}, from_file ? Reader(nullptr) : nullptr);
      for (int e = 0; e < kExperts; ++e) {
        const auto needed = Pick({e});
        store.Start(needed);
        store.Wait(needed);
        EXPECT_TRUE(Same(store.Loaded(*needed[0]), *needed[0])) << e;
      }
      EXPECT_TRUE(store.TakeError());
    }
  }
}

// Memory that another, the driver of a device say, has prepared: taken once, reused, and given back.
TEST_F(StoreTest, TakesMemoryFromWhereItIsTold) {
  int taken = 0, given_back = 0;
  const auto allocate = [&](std::size_t bytes) {
    ++taken;
    return Buffer(static_cast<std::byte*>(std::aligned_alloc(io::kReadUnit, bytes)), bytes, [&](std::byte* p) {
      ++given_back;
      std::free(p);
    });
  };
  {
    ExpertStore store({.budget = 2 * kRoom, .depth = 2, .allocate = allocate}, Reader(nullptr));
    for (int e = 0; e < kExperts; ++e) {
      const auto needed = Pick({e});
      store.Start(needed);
      store.Wait(needed);
      EXPECT_TRUE(Same(store.Loaded(*needed[0]), *needed[0])) << e;
    }
    EXPECT_EQ(taken, 2);
    EXPECT_EQ(given_back, 0);
  }
  EXPECT_EQ(given_back, 2);
}

TEST_F(StoreTest, ARingTellsThatAFileBecameShorter) {
  ExpertStore store({.budget = 2 * kRoom, .depth = 2, .reading = Reading::kRing}, Reader(nullptr));
  ASSERT_EQ(truncate(path_.c_str(), static_cast<off_t>(stride_ * 3 + kExpert / 2)), 0);
  for (const int e : {2, 3}) {
    const auto needed = Pick({e});
    store.Start(needed);
    store.Wait(needed);
    const Status status = store.TakeError();
    ASSERT_EQ(status.has_value(), e == 2);
    if (!status) {
      EXPECT_EQ(status.error().code, ErrorCode::kCorrupt) << status.error().ToString();
    }
  }
}

// A read that stops until the test lets it go on, and which places were read.
std::mutex gate;
std::vector<off_t> places_read;
std::atomic<bool> at_the_gate{false};
ssize_t GatedRead(int descriptor, void* to, std::size_t bytes, off_t offset) {
  at_the_gate = true;
  const std::lock_guard lock(gate);
  places_read.push_back(offset);
  return pread(descriptor, to, bytes, offset);
}
TEST_F(StoreTest, WhatIsNeededIsReadBeforeGuessesAndWrongOnesAreGivenUp) {
  places_read.clear();
  std::unique_lock closed(gate);
  {
    ExpertStore store({.budget = 8 * kRoom, .depth = 1}, Reader(GatedRead));
    store.Start({});
    store.Prefetch(Pick({1, 2, 3, 4}));
    while (!at_the_gate) std::this_thread::yield();  // 1 is being read
    store.Prefetch(Pick({5, 2}));                    // a better guess
    const auto needed = Pick({6, 5});                // 5 has been waiting, 6 is new; 2 was wrong
    store.Start(needed);
    closed.unlock();
    store.Wait(needed);
    EXPECT_EQ(store.counts().prefetched, 1);  // only 1 began to be read
    EXPECT_EQ(store.counts().guessed, 0);
    EXPECT_EQ(store.counts().misses, 2);
    EXPECT_TRUE(store.Ready(*needed[0]));
  }
  const auto stride = static_cast<off_t>(stride_);
  EXPECT_EQ(places_read, (std::vector<off_t>{stride, 5 * stride, 6 * stride}));
}

std::atomic<int> faults_left{0};
ssize_t FailingRead(int descriptor, void* to, std::size_t bytes, off_t offset) {
  if (faults_left.fetch_sub(1) > 0) {
    errno = EIO;
    return -1;
  }
  return pread(descriptor, to, bytes, offset);
}
TEST_F(StoreTest, AnUnreadableExpertIsZerosAnErrorAndReadAnew) {
  ExpertStore store({.budget = 4 * kRoom, .depth = 1}, Reader(FailingRead));
  const auto needed = Pick({3});
  faults_left = 1;
  store.Start(needed);
  store.Wait(needed);
  const auto* codes = static_cast<const std::uint8_t*>(store.Loaded(*needed[0]).w1.data);
  for (std::size_t i = 0; i < kMatrix; ++i) ASSERT_EQ(codes[i], 0);
  const Status failed = store.TakeError();
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kIo);
  EXPECT_TRUE(store.TakeError());  // told once
  store.Start(needed);
  store.Wait(needed);
  EXPECT_TRUE(Same(store.Loaded(*needed[0]), *needed[0]));
  EXPECT_TRUE(store.TakeError());
  EXPECT_EQ(store.counts().misses, 2);
}

// Guesses fill the whole budget; what is needed then gets their room, those being read included.
TEST_F(StoreTest, WhatIsNeededTakesTheRoomOfGuesses) {
  ExpertStore store({.budget = 3 * kRoom, .depth = 1}, Reader(pread));
  store.Start(Pick({0}));
  store.Prefetch(Pick({1, 2, 3}));
  const auto needed = Pick({5, 6, 7});
  store.Start(needed);
  EXPECT_LE(store.held(), store.budget());
  store.Wait(needed);
  for (const ExpertWeights* expert : needed) EXPECT_TRUE(Same(store.Loaded(*expert), *expert));
}

TEST_F(StoreTest, GuessesDoNotPushOutWhatIsUsedMore) {
  ExpertStore store({.budget = 2 * kRoom, .depth = 1});
  for (int round = 0; round < 4; ++round) {
    const auto needed = Pick({0, 1});
    store.Start(needed);
    store.Prefetch(Pick({2, 3}));
    store.Wait(needed);
  }
  EXPECT_EQ(store.counts().misses, 2);
  EXPECT_EQ(store.counts().prefetched, 0);
  // Room that nobody holds is used for guesses, and a guess that comes true is no miss.
  ExpertStore roomy({.budget = 4 * kRoom, .depth = 1});
  roomy.Start(Pick({0}));
  roomy.Prefetch(Pick({5}));
  while (roomy.counts().prefetched == 0) std::this_thread::yield();
  const auto next = Pick({5});
  roomy.Start(next);
  roomy.Wait(next);
  EXPECT_EQ(roomy.counts().misses, 1);
  EXPECT_EQ(roomy.counts().prefetched, 1);
}

// Random traffic: the budget holds at every moment, and waiting always ends with the bytes of the file.
TEST_F(StoreTest, RandomTraffic) {
  constexpr std::uint64_t kSeed = 5;
  for (const Reading reading : {Reading::kThreads, Reading::kRing}) {
    ExpertStore store({.budget = 5 * kRoom, .depth = 3, .reading = reading}, Reader(nullptr));
    for (std::uint32_t step = 0; step < 300; ++step) {
      const auto words = Philox4x32({step, 0, 0, 0}, {kSeed, 0});
      const auto needed = Pick({static_cast<int>(words[0] % kExperts), static_cast<int>(words[1] % 4)});
      store.Start(needed);
      store.Prefetch(Pick({static_cast<int>(words[2] % kExperts)}));
      store.Wait(needed);
      ASSERT_LE(store.held(), store.budget()) << "seed " << kSeed << ", step " << step;
      for (const ExpertWeights* expert : needed) {
        ASSERT_TRUE(Same(store.Loaded(*expert), *expert)) << "seed " << kSeed << ", step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace galley::backend
