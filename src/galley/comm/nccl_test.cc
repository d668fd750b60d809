// SPDX-License-Identifier: Apache-2.0
// NCCL's calls against a library of the same functions on the host (fake_nccl.cc). The real one is run on GPUs by
// `galley bench kernels --only collectives`, which checks what it gets.
#include "galley/comm/nccl.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>

namespace galley::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<const Nccl> Fake() {
  auto nccl = Nccl::Open(FAKE_NCCL);
  EXPECT_TRUE(nccl) << nccl.error().ToString();
  return nccl ? *nccl : nullptr;
}
template <typename F>
F FakeFunction(const char* name) {
  void* library = dlopen(FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<F>(dlsym(library, name));
}

TEST(Nccl, SaysItsVersion) {
  EXPECT_EQ(Fake()->Version(), "2.28.9");
}

TEST(Nccl, RefusesWhatIsNotThere) {
  const auto nccl = Nccl::Open("libno-such-nccl.so.2");
  ASSERT_FALSE(nccl);
  EXPECT_EQ(nccl.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(nccl.error().ToString(), HasSubstr("libno-such-nccl.so.2"));
  EXPECT_THAT(nccl.error().ToString(), HasSubstr("LD_LIBRARY_PATH"));
  EXPECT_THAT(Nccl::Open("").error().message, HasSubstr("name a file"));
  EXPECT_THAT(Nccl::Open(std::string(FAKE_NCCL) + '\0' + "x").error().message, HasSubstr("a zero in it"));
}

TEST(Nccl, RefusesALibraryWithoutItsFunctions) {
  const auto nccl = Nccl::Open(FAKE_NCCL_WITHOUT_SEND);
  ASSERT_FALSE(nccl);
  EXPECT_EQ(nccl.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(nccl.error().message, HasSubstr("lacks ncclSend;"));
}

TEST(Nccl, RefusesAnOldOne) {
  const auto nccl = Nccl::Open(FAKE_NCCL_OLD);
  ASSERT_FALSE(nccl);
  EXPECT_THAT(nccl.error().message, HasSubstr("is NCCL 2.8.3; 2.18 or newer"));
}

TEST(Nccl, RefusesDevicesThatCannotBeRanks) {
  const auto none = MakeLocalRanks(Fake(), {});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument);
  const int twice[] = {0, 3, 0};
  const auto ranks = MakeLocalRanks(Fake(), twice);
  ASSERT_FALSE(ranks);
  EXPECT_THAT(ranks.error().message, HasSubstr("device 0 is named twice"));
  EXPECT_FALSE(JoinRanks(Fake(), {}, 2, 2));
  EXPECT_FALSE(JoinRanks(Fake(), {}, -1, 2));
}

class Ranks : public testing::Test {
 protected:
  static constexpr std::size_t kSize = 3;
  void SetUp() override {
    const int devices[kSize] = {0, 1, 2};
    auto ranks = MakeLocalRanks(nccl_, devices);
    ASSERT_TRUE(ranks) << ranks.error().ToString();
    ranks_ = std::make_unique<std::vector<NcclRank>>(std::move(*ranks));
  }
  // `call` by every rank.
  template <typename Call>
  [[nodiscard]] Status Each(Call&& call) {
    return nccl_->Together([&]() -> Status {
      for (std::size_t r = 0; r < kSize; ++r) RETURN_IF_ERROR(call((*ranks_)[r], r));
      return {};
    });
  }
  std::shared_ptr<const Nccl> nccl_ = Fake();
  std::unique_ptr<std::vector<NcclRank>> ranks_;
};

TEST_F(Ranks, KnowTheirNumbers) {
  for (std::size_t r = 0; r < kSize; ++r) {
    EXPECT_EQ((*ranks_)[r].rank(), static_cast<int>(r));
    EXPECT_EQ((*ranks_)[r].size(), static_cast<int>(kSize));
  }
}

TEST_F(Ranks, AllReduceAddsInPlace) {
  std::vector<float> values[kSize] = {{1, 2.5F}, {10, 20}, {100, 200}};
  ASSERT_TRUE(Each([&](const NcclRank& rank, std::size_t r) {
    return rank.AllReduceSum(values[r].data(), values[r].data(), 2, ElementType::kFloat, nullptr);
  }));
  for (const auto& sums : values) EXPECT_THAT(sums, ElementsAre(111, 222.5F));
}

TEST_F(Ranks, AllReduceOfEveryTypeCountsItsBytes) {
  std::int64_t wide[kSize][2] = {{1LL << 40, -1}, {5, 6}, {7, 8}};
  ASSERT_TRUE(Each([&](const NcclRank& rank, std::size_t r) {
    return rank.AllReduceSum(wide[r], wide[r], 2, ElementType::kInt64, nullptr);
  }));
  EXPECT_THAT(wide[2], ElementsAre((1LL << 40) + 12, 13));
  std::int32_t narrow[kSize][2] = {{-1, 2}, {3, 4}, {5, 6}};
  ASSERT_TRUE(Each([&](const NcclRank& rank, std::size_t r) {
    return rank.AllReduceSum(narrow[r], narrow[r], 2, ElementType::kInt32, nullptr);
  }));
  EXPECT_THAT(narrow[0], ElementsAre(7, 12));
  std::uint8_t bytes[kSize][3] = {{250, 1, 9}, {10, 2, 9}, {0, 3, 9}};
  ASSERT_TRUE(Each([&](const NcclRank& rank, std::size_t r) {
    return rank.AllReduceSum(bytes[r], bytes[r], 2, ElementType::kByte, nullptr);
  }));
  EXPECT_THAT(bytes[1], ElementsAre(4, 6, 9)) << "modulo 256, and no more than two";
}

TEST_F(Ranks, AllGatherKeepsTheOrderOfRanks) {
  std::uint16_t own[kSize][2] = {{1, 2}, {3, 4}, {5, 6}}, all[kSize][6] = {};
  ASSERT_TRUE(Each([&](const NcclRank& rank, std::size_t r) {
    return rank.AllGather(own[r], all[r], 2, ElementType::kBFloat16, nullptr);
  }));
  for (const auto& row : all) EXPECT_THAT(row, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(Ranks, ReduceScatterGivesEachItsPart) {
  float in[kSize][6] = {}, out[kSize][2] = {};
  for (std::size_t r = 0; r < kSize; ++r) std::iota(in[r], in[r] + 6, 10.0F * static_cast<float>(r));
  ASSERT_TRUE(Each([&](const NcclRank& rank, std::size_t r) {
    return rank.ReduceScatterSum(in[r], out[r], 2, ElementType::kFloat, nullptr);
  }));
  EXPECT_THAT(out[0], ElementsAre(30, 33));
  EXPECT_THAT(out[1], ElementsAre(36, 39));
  EXPECT_THAT(out[2], ElementsAre(42, 45));
}

TEST_F(Ranks, AllToAllTransposes) {
  std::int32_t in[kSize][6], out[kSize][6] = {};
  for (std::size_t r = 0; r < kSize; ++r) std::iota(in[r], in[r] + 6, static_cast<std::int32_t>(100 * r));
  ASSERT_TRUE(Each([&](const NcclRank& rank, std::size_t r) {
    return rank.AllToAll(in[r], out[r], 2, ElementType::kInt32, nullptr);
  }));
  EXPECT_THAT(out[0], ElementsAre(0, 1, 100, 101, 200, 201));
  EXPECT_THAT(out[1], ElementsAre(2, 3, 102, 103, 202, 203));
  EXPECT_THAT(out[2], ElementsAre(4, 5, 104, 105, 204, 205));
}

TEST_F(Ranks, ErrorsSayWhatFailed) {
  const auto fail_next = FakeFunction<void (*)(int)>("fakeNcclFailNext");
  float value = 1;
  fail_next(3);
  const Status status = Each([&](const NcclRank& rank, std::size_t) {
    return rank.AllReduceSum(&value, &value, 1, ElementType::kFloat, nullptr);
  });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kDevice);
  EXPECT_EQ(status.error().message, "an all-reduce failed: internal error (NCCL code 3); NCCL_DEBUG=WARN says more");
  // The group has ended, or this one would never start.
  std::int32_t in[kSize][3] = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}, out[kSize][3] = {};
  ASSERT_TRUE(Each([&](const NcclRank& rank, std::size_t r) {
    return rank.AllToAll(in[r], out[r], 1, ElementType::kInt32, nullptr);
  }));
  EXPECT_THAT(out[1], ElementsAre(2, 5, 8));
}

TEST_F(Ranks, AGroupThatThrowsHasEnded) {
  EXPECT_THROW(static_cast<void>(nccl_->Together([]() -> Status { throw 1; })), int);
  const auto rank = JoinRanks(nccl_, *MakeNcclId(*nccl_), 0, 1);
  float value = 3, out = 0;
  ASSERT_TRUE(rank->AllReduceSum(&value, &out, 1, ElementType::kFloat, nullptr));
  EXPECT_EQ(out, 3);
}

TEST_F(Ranks, TheirNumbersDecideNotTheOrderOfCalls) {
  std::uint16_t own[kSize] = {1, 2, 3}, all[kSize][kSize] = {};
  ASSERT_TRUE(nccl_->Together([&]() -> Status {
    for (const std::size_t r : {2U, 0U, 1U}) {
      RETURN_IF_ERROR((*ranks_)[r].AllGather(&own[r], all[r], 1, ElementType::kBFloat16, nullptr));
    }
    return {};
  }));
  EXPECT_THAT(all[1], ElementsAre(1, 2, 3));
}

TEST_F(Ranks, BothErrorsOfAGroupAreTold) {
  float value = 1;
  const Status status = nccl_->Together([&]() -> Status {
    RETURN_IF_ERROR((*ranks_)[0].AllReduceSum(&value, &value, 1, ElementType::kFloat, nullptr));
    return Err(ErrorCode::kInternal, "mine");
  });
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("mine; then starting a group of calls failed: invalid usage"));
}

TEST_F(Ranks, ACallThatNotAllRanksMakeIsAnError) {
  float value = 1;
  const Status status =
      nccl_->Together([&] { return (*ranks_)[0].AllReduceSum(&value, &value, 1, ElementType::kFloat, nullptr); });
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("starting a group of calls failed: invalid usage"));
}

TEST_F(Ranks, ADeviceThatFailsMakesNoRanks) {
  FakeFunction<void (*)(int)>("fakeNcclFailNext")(3);
  const int devices[] = {0};
  const auto ranks = MakeLocalRanks(nccl_, devices);
  ASSERT_FALSE(ranks);
  EXPECT_THAT(ranks.error().message, HasSubstr("making a communicator failed: internal error"));
}

TEST_F(Ranks, AreDestroyedOnceEach) {
  const auto alive = FakeFunction<int (*)()>("fakeNcclAlive");
  const int before = alive();
  NcclRank moved = std::move((*ranks_)[1]);
  EXPECT_EQ(alive(), before);
  ranks_.reset();
  EXPECT_EQ(alive(), before - static_cast<int>(kSize) + 1);
}

TEST(Nccl, ARankOfAnotherProcessJoinsById) {
  const auto nccl = Fake();
  const auto id = MakeNcclId(*nccl);
  ASSERT_TRUE(id);
  const auto rank = JoinRanks(nccl, *id, 0, 1);
  ASSERT_TRUE(rank) << rank.error().ToString();
  float value = 3, out = 0;
  ASSERT_TRUE(rank->AllReduceSum(&value, &out, 1, ElementType::kFloat, nullptr));
  EXPECT_EQ(out, 3);
  EXPECT_FALSE(JoinRanks(nccl, NcclId{}, 0, 1)) << "an id that nobody made";
}

}  // namespace
}  // namespace galley::comm
