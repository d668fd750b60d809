// SPDX-License-Identifier: Apache-2.0
// The store on a file of its own: what it keeps, what it lets go, and that the page cache follows.
#include "galley/backend/cpu/expert_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "galley/base/rng.h"

namespace galley::backend::cpu {
namespace {

constexpr std::int64_t kRows = 64, kCols = 512;
constexpr std::size_t kMatrix = kRows * kCols / 2, kScales = kRows * kCols / 32;
constexpr std::size_t kExpert = 3 * (kMatrix + kScales);  // 52,224 bytes
constexpr int kExperts = 12;

// Experts in a mapped file, each beginning on a page.
class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "experts.XXXXXX";
    descriptor_ = mkstemp(path.data());
    ASSERT_GE(descriptor_, 0);
    unlink(path.c_str());
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    stride_ = (kExpert + page - 1) / page * page;
    std::vector<std::uint8_t> bytes(stride_ * kExperts);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 31 + i / 4096);
    ASSERT_EQ(write(descriptor_, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    ASSERT_EQ(fsync(descriptor_), 0);  // dirty pages cannot be let go
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
  }
  [[nodiscard]] std::vector<const ExpertWeights*> Pick(std::initializer_list<int> list) const {
    std::vector<const ExpertWeights*> picked;
    for (const int e : list) picked.push_back(&experts_[static_cast<std::size_t>(e)]);
    return picked;
  }
  // Share of an expert's pages that are in the page cache.
  [[nodiscard]] double Resident(int e) const {
    std::vector<unsigned char> pages(stride_ / static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
    mincore(static_cast<std::byte*>(file_) + stride_ * static_cast<std::size_t>(e), stride_, pages.data());
    double count = 0;
    for (const unsigned char page : pages) count += page & 1;
    return count / static_cast<double>(pages.size());
  }

  int descriptor_ = -1;
  void* file_ = nullptr;
  std::size_t stride_ = 0;
  std::vector<ExpertWeights> experts_;
};

TEST_F(StoreTest, CountsWhatItHoldsAndKeepsTheBudget) {
  EXPECT_EQ(BytesOf(experts_[0]), kExpert);
  ExpertStore store(3 * kExpert, 2);
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
  EXPECT_EQ(store.held(), 3 * kExpert);
  use({3});  // 1 and 2 were used once, 1 longer ago: it goes; 0 was used twice
  EXPECT_EQ(store.counts().evicted, 1);
  use({0, 2, 3});
  EXPECT_EQ(store.counts().misses, 4);
  use({1});
  EXPECT_EQ(store.counts().misses, 5);
  EXPECT_EQ(store.counts().uses, 9);
  EXPECT_EQ(store.counts().bytes_read, static_cast<std::int64_t>(5 * kExpert));
}

TEST_F(StoreTest, WhatIsNeededIsInMemoryAndWhatWasLetGoIsNot) {
  ExpertStore store(2 * kExpert, 2);
  for (int e = 0; e < kExperts; ++e) {
    const auto needed = Pick({e});
    store.Start(needed);
    store.Wait(needed);
    EXPECT_EQ(Resident(e), 1.0) << e;
  }
  // Some file systems keep everything in memory; there the counts of the other test have to do.
  if (Resident(0) == 1.0) GTEST_SKIP() << "this file system does not let pages go";
  double in_memory = 0;
  for (int e = 0; e < kExperts; ++e) in_memory += Resident(e);
  EXPECT_LE(in_memory, 3.0);
}

TEST_F(StoreTest, GuessesDoNotPushOutWhatIsUsedMore) {
  ExpertStore store(2 * kExpert, 1);
  for (int round = 0; round < 4; ++round) {
    const auto needed = Pick({0, 1});
    store.Start(needed);
    store.Prefetch(Pick({2, 3}));
    store.Wait(needed);
  }
  EXPECT_EQ(store.counts().misses, 2);
  EXPECT_EQ(store.counts().prefetched, 0);
  // Room that nobody holds is used for guesses, and a guess that comes true is no miss.
  ExpertStore roomy(4 * kExpert, 1);
  roomy.Start(Pick({0}));
  roomy.Prefetch(Pick({5}));
  const auto next = Pick({5});
  roomy.Start(next);
  roomy.Wait(next);
  EXPECT_EQ(roomy.counts().misses, 1);
  EXPECT_EQ(roomy.counts().prefetched, 1);
}

// Random traffic: the budget holds at every moment, and waiting always ends with the bytes of the file.
TEST_F(StoreTest, RandomTraffic) {
  constexpr std::uint64_t kSeed = 5;
  ExpertStore store(5 * kExpert, 3);
  for (std::uint32_t step = 0; step < 300; ++step) {
    const auto words = Philox4x32({step, 0, 0, 0}, {kSeed, 0});
    const auto needed = Pick({static_cast<int>(words[0] % kExperts), static_cast<int>(words[1] % 4)});
    store.Start(needed);
    store.Prefetch(Pick({static_cast<int>(words[2] % kExperts)}));
    store.Wait(needed);
    ASSERT_LE(store.held(), store.budget()) << "seed " << kSeed << ", step " << step;
    for (const ExpertWeights* expert : needed) {
      const auto* byte = static_cast<const std::uint8_t*>(expert->w1.data);
      const auto offset = static_cast<std::size_t>(byte - static_cast<const std::uint8_t*>(file_));
      ASSERT_EQ(*byte, static_cast<std::uint8_t>(offset * 31 + offset / 4096));
    }
  }
}

}  // namespace
}  // namespace galley::backend::cpu
