// SPDX-License-Identifier: Apache-2.0
#include "galley/sched/vote.h"

#include <gtest/gtest.h>

namespace galley::sched {
namespace {

RankSummary Rank(bool work, int waited = 0, std::int64_t step = 8) {
  return {.step = step, .prefill_work = work, .prefill_waited_steps = waited};
}

TEST(Vote, AllPointsNeedEveryRank) {
  const VoteOptions options{.all_period = 4, .any_wait_steps = 16};
  const RankSummary all[] = {Rank(true), Rank(true), Rank(true)};
  EXPECT_EQ(Vote(all, options)->point, VotePoint::kAll);
  const RankSummary two[] = {Rank(true), Rank(false), Rank(true)};
  EXPECT_FALSE(Vote(two, options)->prefill);
  const RankSummary between[] = {Rank(true, 0, 9), Rank(true, 0, 9)};  // 9 is no multiple of 4
  EXPECT_FALSE(Vote(between, options)->prefill);
}

TEST(Vote, AnyPointBoundsTheWaitOfALonelyRank) {
  const VoteOptions options{.all_period = 4, .any_wait_steps = 16};
  const RankSummary patient[] = {Rank(true, 15), Rank(false)};
  EXPECT_FALSE(Vote(patient, options)->prefill);
  const RankSummary waited[] = {Rank(true, 16), Rank(false)};
  EXPECT_EQ(Vote(waited, options)->point, VotePoint::kAny);
  const RankSummary nothing_left[] = {Rank(false, 16), Rank(false)};
  EXPECT_FALSE(Vote(nothing_left, options)->prefill);
}

TEST(Vote, RefusesMixedSteps) {
  const RankSummary mixed[] = {Rank(true, 0, 8), Rank(true, 0, 9)};
  EXPECT_EQ(Vote(mixed, {}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(Vote({}, {}));
}

TEST(Vote, ShapesArePaddedToTheSameSizesOnAllRanks) {
  const RankRows rows[] = {{.decode = 3, .prefill = 0}, {.decode = 9, .prefill = 130}, {.decode = 0, .prefill = 0}};
  const StepShape shape = AgreeOnShape(rows, {});
  EXPECT_EQ(shape.decode_rows, 16);
  EXPECT_EQ(shape.prefill_rows, 256);  // two times 128
  EXPECT_TRUE(shape.prefilled);
  const RankRows big[] = {{.decode = 257, .prefill = 0}};
  EXPECT_EQ(AgreeOnShape(big, {}).decode_rows, 512);
}

// Permission does not mean work: when every rank turns out to be full, no prefill launch is padded in, decodes go on,
// and the counters that led to the permission do not start over.
TEST(Vote, TheSecondRoundSaysWhetherAnyRankReallyPrefilled) {
  const RankRows rows[] = {{.decode = 4, .prefill = 0}, {.decode = 4, .prefill = 0}};
  const StepShape shape = AgreeOnShape(rows, {});
  EXPECT_EQ(shape.prefill_rows, 0);
  EXPECT_FALSE(shape.prefilled);
  EXPECT_EQ(shape.decode_rows, 4);
}

}  // namespace
}  // namespace galley::sched
