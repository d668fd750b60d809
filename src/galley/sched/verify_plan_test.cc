// SPDX-License-Identifier: Apache-2.0
#include "galley/sched/verify_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace galley::sched {
namespace {

// A step takes 1000 us and 100 us for each row beyond the first, at every size; drafting takes 50 us and 10 a sequence.
class VerifyPlan : public testing::Test {
 protected:
  CostCurve curve_{{.base_us = 1000, .row_us = 100}};
  VerifyCost cost_{curve_, {.base_us = 50, .row_us = 10}};
  std::vector<float> scratch;
};

TEST_F(VerifyPlan, SurvivalsAreRunningProducts) {
  float values[] = {0.5F, 0.5F, 1.0F, 0.8F};
  ToSurvivals(values);
  EXPECT_FLOAT_EQ(values[0], 0.5F);
  EXPECT_FLOAT_EQ(values[1], 0.25F);
  EXPECT_FLOAT_EQ(values[2], 0.25F);
  EXPECT_FLOAT_EQ(values[3], 0.2F);
  float broken[] = {0.5F, std::numeric_limits<float>::quiet_NaN(), 0.9F, 2.0F};
  ToSurvivals(broken);
  EXPECT_FLOAT_EQ(broken[0], 0.5F);
  for (int i = 1; i < 4; ++i) EXPECT_EQ(broken[i], 0);
}

TEST_F(VerifyPlan, BestSurvivalsFirstWhateverTheSequence) {
  const float survivals[] = {0.9F, 0.8F, 0.1F, 0.5F, 0.4F, 0.3F, 0.95F, 0.2F, 0.1F};
  std::vector<int> lengths(3);
  ChooseRows(survivals, 3, 4, lengths, scratch);  // 0.95, 0.9, 0.8, 0.5
  EXPECT_EQ(lengths, (std::vector<int>{2, 1, 1}));
  ChooseRows(survivals, 3, 0, lengths, scratch);
  EXPECT_EQ(lengths, (std::vector<int>{0, 0, 0}));
  ChooseRows(survivals, 3, 100, lengths, scratch);
  EXPECT_EQ(lengths, (std::vector<int>{3, 3, 3}));
  ChooseRows({}, 3, 5, {}, scratch);
}

TEST_F(VerifyPlan, TiesGoToTheFront) {
  const std::vector<float> equal(12, 0.5F);
  std::vector<int> lengths(4);
  ChooseRows(equal, 3, 5, lengths, scratch);
  EXPECT_EQ(lengths, (std::vector<int>{3, 2, 0, 0}));
}

// Whatever is chosen: exactly the budget, and no draft left out is likelier than one that is taken.
TEST_F(VerifyPlan, ChoosesTheBestForEveryBudget) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> survivals;
    for (int i = 0; i < 7; ++i) {
      float confidences[5];
      for (float& c : confidences) c = static_cast<float>(random() % 9) / 8;  // many ties
      ToSurvivals(confidences);
      survivals.insert(survivals.end(), std::begin(confidences), std::end(confidences));
    }
    std::vector<int> lengths(7);
    const int budget = static_cast<int>(random() % 36);
    ChooseRows(survivals, 5, budget, lengths, scratch);
    EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), 0), budget);
    float least_in = 1, most_out = 0;
    for (std::size_t i = 0; i < survivals.size(); ++i) {
      const bool in = static_cast<int>(i % 5) < lengths[i / 5];
      (in ? least_in : most_out) = in ? std::min(least_in, survivals[i]) : std::max(most_out, survivals[i]);
    }
    EXPECT_LE(most_out, least_in);
  }
}

TEST_F(VerifyPlan, TheCurveSaysWhatTheBestPartBrings) {
  const float survivals[] = {0.9F, 0.5F, 0.8F, 0.1F};  // two sequences
  const SurvivalCurve curve = SurvivalCurve::Of(survivals, 2);
  EXPECT_EQ(curve.Gain(0), 0);
  EXPECT_NEAR(curve.Gain(0.25), 0.9 / 2, 1e-3);
  EXPECT_NEAR(curve.Gain(0.5), 1.7 / 2, 1e-3);
  EXPECT_NEAR(curve.Gain(0.75), 2.2 / 2, 1e-3);
  EXPECT_NEAR(curve.Gain(1), 2.3 / 2, 1e-3);
  EXPECT_NEAR(curve.Gain(0.375), (0.9 + 0.4) / 2, 1e-2);
  SurvivalCurve average;
  EXPECT_TRUE(average.empty());
  average.Blend(curve, 0.1);  // the first is taken whole
  EXPECT_EQ(average.Gain(1), curve.Gain(1));
  const float poor[] = {0.0F, 0.0F};
  average.Blend(SurvivalCurve::Of(poor, 2), 0.5);
  EXPECT_NEAR(average.Gain(1), 2.3 / 4, 1e-3);
}

// Four sequences, survivals 0.9 and 0.3 each: the first drafts bring 0.9 tokens for 100 us, the second 0.3. Without any
// the rate is 4 / 1300 = 3.08 a ms. With the first: 7.6 / (1700 + 80) = 4.27. With all: 8.8 / (2100 + 80) = 4.04.
TEST_F(VerifyPlan, VerifiesAsLongAsADraftIsWorthItsRow) {
  std::vector<float> survivals;
  for (int i = 0; i < 4; ++i) survivals.insert(survivals.end(), {0.9F, 0.3F});
  const SurvivalCurve curve = SurvivalCurve::Of(survivals, 2);
  const VerifyBudget budget = PlanBudget(curve, 4, 4, 2, 100, cost_);
  EXPECT_EQ(budget.drafts, 4);
  EXPECT_NEAR(budget.expected_tokens, 4 + 4 * 0.9, 1e-3);
  EXPECT_DOUBLE_EQ(budget.predicted_us, 1000 + 100 * 7 + 50 + 10 * 3);
  EXPECT_EQ(PlanBudget(curve, 4, 4, 2, 3, cost_).drafts, 3);  // no room for more
  EXPECT_EQ(PlanBudget(curve, 4, 0, 2, 100, cost_).drafts, 0);
  // Where rows are free, all are verified.
  CostCurve flat({.base_us = 1000, .row_us = 0});
  const VerifyCost free(flat, {.base_us = 50, .row_us = 0});
  EXPECT_EQ(PlanBudget(curve, 4, 4, 2, 100, free).drafts, 8);
}

// Beyond a tile's end the next rows cost a whole tile: the best budget fills one, though fewer and more rows look
// alike.
TEST_F(VerifyPlan, FindsTheEdgeOfATile) {
  CostCurve tiles({.base_us = 1000, .row_us = 0});
  VerifyCost cost(tiles, {.base_us = 1, .row_us = 0});
  for (int round = 0; round < 60; ++round) {
    for (const int rows : {40, 48, 56, 64}) cost.Observe({.rows = rows, .forward_us = 1000});
    for (const int rows : {80, 96, 112, 128, 160, 192}) cost.Observe({.rows = rows, .forward_us = 3000});
  }
  std::vector<float> survivals;
  for (int i = 0; i < 32; ++i) survivals.insert(survivals.end(), {0.6F, 0.4F, 0.3F, 0.25F, 0.2F});
  EXPECT_EQ(PlanBudget(SurvivalCurve::Of(survivals, 5), 32, 32, 5, 160, cost).drafts, 32);
}

// One sequence, drafts of survival 0.95 or 0.25 by turns, the second 0.9 and 0.05. A row costs 100 us beside 1000, so
// a draft is worth verifying from about 0.15 on: the likely ones are, and of the others the first. Drafting takes 50 us
// and 10 a row. Tokens of two drafts: 1 + 0.6 + 0.45; rows 1 + 1.5.
TEST_F(VerifyPlan, SurvivalDecidesWhatIsVerifiedAndHowDeepItDrafts) {
  SurvivalClasses classes;
  EXPECT_TRUE(classes.empty());
  const float steps[] = {0.95F, 0.9F, 0.25F, 0.05F};
  classes.Blend(SurvivalClasses::Of(steps, 2), 0.5);  // the first is taken whole
  const VerifyBudget both = PlanDepth(classes, {1, 1, 2}, 2, cost_);
  EXPECT_EQ(both.depth, 2);
  EXPECT_GT(both.least, 0.05F);
  EXPECT_LE(both.least, 0.25F);
  EXPECT_NEAR(both.expected_rows, 1.5, 1e-6);
  EXPECT_NEAR(both.expected_tokens, 1 + 0.6 + 0.45, 1e-6);
  EXPECT_NEAR(both.predicted_us, 1000 + 150 + 50 + 10, 1e-6);
  std::vector<int> lengths(2);
  ChooseRows(steps, 2, 4, lengths, scratch, both.least);
  EXPECT_EQ(lengths, (std::vector<int>{2, 1}));
  EXPECT_EQ(PlanDepth(classes, {1, 1, 1}, 2, cost_).drafts, 1);  // no room for more
  EXPECT_EQ(PlanDepth(classes, {1, 0, 2}, 2, cost_).drafts, 0);
  // Where a second row of the draft pass takes longer than a step, one is drafted.
  VerifyCost dear(curve_, {.base_us = 50, .row_us = 2000});
  EXPECT_EQ(PlanDepth(classes, {1, 1, 2}, 2, dear).depth, 1);
}

// Of 800 drafts that should survive by 0.9 one in two does, so they count little more than half: (400 e + 8) / (720 e +
// 8), where e is what is left of them, (1 - (1 - 1/512)^800) * 512 / 800 = 0.506. Others are believed.
TEST_F(VerifyPlan, ConfidencesThatDoNotComeTrueCountLess) {
  SurvivalClasses classes;
  const float steps[] = {0.9F, 0.5F};
  classes.Blend(SurvivalClasses::Of(steps, 1), 1);
  const auto mean = [&] {
    double sum = 0;
    for (int at = 0; at < SurvivalClasses::kClasses; ++at) sum += classes.Gain(0, at);
    return sum;
  };
  EXPECT_NEAR(mean(), 0.7, 1e-6);
  for (int i = 0; i < 800; ++i) classes.Verified(0.9F, i % 2 == 0);
  EXPECT_NEAR(mean(), 0.25 + 0.45 * (400 * 0.506 + 8) / (720 * 0.506 + 8), 0.01);
  classes.Verified(std::numeric_limits<float>::quiet_NaN(), true);
  EXPECT_TRUE(std::isfinite(mean()));
}

// Predictions say that drafts pay, and steps with them take five times as long as predicted for what they bring: they
// wait, though now and then they are tried.
TEST(PlannerJudges, DraftsThatAreSeenToLoseWait) {
  CostCurve curve({.base_us = 1000, .row_us = 10});
  VerifyPlanner planner(AnySize({.drafts = 2}), curve);
  int drafted = 0;
  for (StepId step = 0; step < 2000; ++step) {
    const VerifyBudget budget = planner.Next(step, 1, 1, 3);
    const std::vector<float> survivals(static_cast<std::size_t>(budget.drafting * budget.depth), 0.9F);
    const VerifyCost::Measured measured{.rows = 1 + budget.drafts,
                                        .drafting = budget.draft_size,
                                        .forward_us = 1000,
                                        .sampler_us = 0,
                                        .draft_us = budget.drafts > 0 ? 100.0 : 0};
    planner.Report(step, survivals, budget.depth, measured);
    planner.Judge(1, budget.drafting, 0, 1, measured);  // nothing is ever accepted
    if (step >= 1000 && budget.drafts > 0) ++drafted;
  }
  EXPECT_GE(drafted, 1);
  EXPECT_LE(drafted, 60);
}

// Drafts that lose for a while, because something else disturbs them, come back in a few trials once they gain: 2
// tokens for 1.3 times the time. The first two steps of each trial, which the caches make slow, do not speak against
// them.
TEST(PlannerJudges, DraftsThatGainAgainComeBackThoughTheirFirstStepsAreSlow) {
  CostCurve curve({.base_us = 1000, .row_us = 10});
  VerifyPlanner planner(AnySize({.drafts = 2}), curve);
  int late = 0, in_row = 0;
  for (StepId step = 0; step < 8000; ++step) {
    const VerifyBudget budget = planner.Next(step, 1, 1, 3);
    in_row = budget.drafts > 0 ? in_row + 1 : 0;
    const bool disturbed = step < 1000, cold = in_row <= 2;
    const std::vector<float> survivals(static_cast<std::size_t>(budget.drafting * budget.depth), 0.5F);
    const VerifyCost::Measured measured{
        .rows = 1 + budget.drafts,
        .drafting = budget.draft_size,
        .forward_us = budget.drafts == 0 ? 1000.0 : 1100.0,
        .sampler_us = 0,
        .draft_us = budget.drafts == 0 ? 0.0 : (cold ? 1500.0 : (disturbed ? 1200.0 : 200.0))};
    planner.Report(step, survivals, budget.depth, measured);
    planner.Judge(1, budget.drafting, 0, budget.drafts > 0 ? 2 : 1, measured);
    if (step >= 6000 && budget.drafts > 0) ++late;
  }
  EXPECT_GE(late, 1800);  // of 2,000
}

// What one load showed says nothing of another: drafts lose with 64 sequences, and one sequence drafts all the same.
TEST(PlannerJudges, EachLoadByItself) {
  CostCurve curve({.base_us = 1000, .row_us = 10});
  VerifyPlanner planner(AnySize({.drafts = 2}), curve);
  int drafted = 0;
  for (StepId step = 0; step < 1200; ++step) {
    const int sequences = step < 600 ? 64 : 1;
    const VerifyBudget budget = planner.Next(step, sequences, sequences, 3 * sequences);
    const std::vector<float> survivals(static_cast<std::size_t>(budget.drafting * budget.depth), 0.9F);
    const VerifyCost::Measured measured{.rows = sequences + budget.drafts,
                                        .drafting = budget.draft_size,
                                        .forward_us = 1000,
                                        .sampler_us = 0,
                                        .draft_us = budget.drafts > 0 ? 100.0 : 0};
    planner.Report(step, survivals, budget.depth, measured);
    planner.Judge(sequences, budget.drafting, 0, sequences == 1 && budget.drafts > 0 ? 2 : sequences, measured);
    if (step >= 600 && budget.drafts > 0) ++drafted;
  }
  EXPECT_GE(drafted, 500);
}

// Of what is found those rows are verified that pay: a row costs a tenth of a step, so at one sequence drafts of 0.9
// and 0.5 pay and one of 0.05 does not; a class is 1/32 wide.
TEST(PlannerFinds, RowsThatPay) {
  CostCurve curve({.base_us = 1000, .row_us = 100});
  VerifyPlanner planner(AnySize({.drafts = 5}), curve);
  const float found[] = {0.9F, 0.5F, 0.05F, 0, std::numeric_limits<float>::quiet_NaN()};
  const VerifyBudget budget = planner.Next(0, 1, 0, 6, found);
  EXPECT_EQ(budget.drafting, 0);
  EXPECT_EQ(budget.draft_size, 0);
  EXPECT_EQ(budget.drafts, 3);
  EXPECT_GT(budget.least, 0.05F);
  EXPECT_LE(budget.least, 0.5F);
  EXPECT_NEAR(budget.expected_rows, 2, 1e-9);
  EXPECT_NEAR(budget.expected_tokens, 1 + 0.9 + 0.5, 1e-5);
  EXPECT_EQ(planner.Next(1, 1, 0, 1, found).drafts, 0) << "no room";
  EXPECT_EQ(planner.Next(2, 1, 0, 6, std::span(found).subspan(3)).drafts, 0);
  const float poor[] = {0.05F};
  EXPECT_EQ(planner.Next(3, 1, 0, 6, poor).drafts, 0);
}

// With rows that cost as much as a step, nothing found pays however likely; and where found drafts that should pay are
// seen to lose, they wait, but for one step of 32.
TEST(PlannerFinds, WhatLosesWaits) {
  CostCurve curve({.base_us = 1000, .row_us = 100});
  VerifyPlanner planner(AnySize({.drafts = 5}), curve);
  const float found[] = {0.9F, 0.8F};
  int verified = 0;
  for (StepId step = 0; step < 2000; ++step) {
    const VerifyBudget budget = planner.Next(step, 8, 0, 10, found);
    const VerifyCost::Measured measured{
        .rows = 8 + budget.drafts, .drafting = 0, .forward_us = 1700.0 + 100 * budget.drafts, .draft_us = 0};
    planner.Report(step, {}, 1, measured);
    planner.Judge(8, 0, budget.drafts, 8, measured);  // none is ever accepted
    if (step >= 1000 && budget.drafts > 0) ++verified;
  }
  EXPECT_GE(verified, 20);
  EXPECT_LE(verified, 40);  // 1000 / 32 = 31
  CostCurve dear({.base_us = 1000, .row_us = 1000});
  EXPECT_EQ(VerifyPlanner(AnySize({.drafts = 5}), dear).Next(0, 8, 0, 10, found).drafts, 0);
}

class PlannerTest : public testing::Test {
 protected:
  CostCurve curve_{{.base_us = 1000, .row_us = 10}};
  VerifyPlanner planner_{
      {.drafts = 2, .trial_steps = 1 << 20, .trial_steps_most = 1 << 20, .draft_cost = {.base_us = 20, .row_us = 0}},
      curve_};
  void Report(StepId step, float first, float second) {
    const float survivals[] = {first, second};
    planner_.Report(step, survivals, 2, {});
  }
};

// With one draft of ten that is ever right, trials go on, but rarely, and for one sequence of eight: what drafting
// costs where it does not pay. 400 steps: 2 before the first report counts, then after 8, 16, 32, 64, 128 steps and so
// on.
TEST(PlannerTrials, WhereDraftsDoNotPayOnlyAFewSequencesTryThemNowAndThen) {
  CostCurve curve({.base_us = 1000, .row_us = 1000});
  VerifyPlanner planner({.drafts = 5, .draft_cost = {.base_us = 2000, .row_us = 2000}}, curve);
  int trials = 0, drafting = 0;
  for (StepId step = 0; step < 400; ++step) {
    const VerifyBudget budget = planner.Next(step, 16, 16, 96);
    EXPECT_EQ(budget.drafting > 0, budget.drafts > 0);
    const std::vector<float> survivals(static_cast<std::size_t>(budget.drafting) * 5, 0.1F);
    const double draft_us = budget.drafting > 0 ? 2000.0 * budget.drafting : 0;
    planner.Report(step, survivals, 5,
                   {.rows = 16 + budget.drafts,
                    .drafting = budget.drafting,
                    .forward_us = 1000.0 * (16 + budget.drafts),
                    .sampler_us = 0,
                    .draft_us = draft_us});
    if (budget.drafts == 0) continue;
    ++trials;
    drafting += budget.drafting;
    EXPECT_LE(budget.drafting, 2);
    EXPECT_LE(budget.drafts, budget.drafting * 5);
  }
  EXPECT_GE(trials, 3);
  EXPECT_LE(trials, 12);
  EXPECT_LE(drafting, 24);  // of the 6,400 that could have drafted
}

// A draft head's rings cost something in each step, so they are kept only when a trial is near: for its last 48 steps,
// and in each of the first ones. A planner that nobody may draft for comes to its trial all the same.
TEST(PlannerTrials, AreMadeReadyForAndNothingElseIs) {
  CostCurve curve({.base_us = 1000, .row_us = 1000});
  VerifyPlanner planner({.drafts = 5, .draft_cost = {.base_us = 2000, .row_us = 2000}}, curve);
  int ready = 0, ready_before_trial = 0, trials = 0;
  for (StepId step = 0; step < 2000; ++step) {
    const int drafting = step < 600 || planner.DraftsSoon() ? 1 : 0;
    const VerifyBudget budget = planner.Next(step, 1, drafting, 6);
    const std::vector<float> survivals(budget.drafts > 0 ? 5 : 0, 0.1F);
    planner.Report(step, survivals, 5,
                   {.rows = 1 + budget.drafts,
                    .drafting = budget.drafting,
                    .forward_us = 1000.0 * (1 + budget.drafts),
                    .sampler_us = 0,
                    .draft_us = budget.drafts > 0 ? 4000.0 : 0});
    if (step >= 600) {
      if (budget.drafts > 0) {
        ++trials;
        EXPECT_TRUE(ready_before_trial >= VerifyPlanner::kReadyBefore - 1 || trials == 1) << ready_before_trial;
      }
      ready_before_trial = planner.DraftsSoon() ? ready_before_trial + 1 : 0;
      ready += planner.DraftsSoon() ? 1 : 0;
    }
  }
  EXPECT_GE(trials, 5);  // 1400 / 256
  EXPECT_LE(ready, (trials + 1) * (VerifyPlanner::kReadyBefore + 2));
  EXPECT_TRUE(VerifyPlanner::DraftsSoon(QuenchState{}));
  EXPECT_FALSE(VerifyPlanner::DraftsSoon(QuenchState{.rest = VerifyPlanner::kReadyBefore + 1}));
}

// A trial says what it itself comes to, not what the best budget would: 4 tokens and some in the time of its own rows.
TEST(PlannerTrials, AreTrueToTheirOwnSize) {
  CostCurve curve({.base_us = 1000, .row_us = 100});
  const VerifyOptions options{.drafts = 2, .trial_steps = 4, .trial_steps_most = 4, .draft_cost = {50, 10}};
  VerifyPlanner planner(options, curve);
  bool none = false, more = false;
  for (StepId step = 0; step < 40; ++step) {
    const VerifyBudget budget = planner.Next(step, 4, 3, 100);
    const std::vector<float> survivals = {0.9F, 0.3F, 0.9F, 0.3F, 0.9F, 0.3F};
    planner.Report(step, survivals, 2, {});
    EXPECT_DOUBLE_EQ(budget.predicted_us,
                     1000 + 100 * (3 + budget.drafts) + (budget.drafting > 0 ? 50 + 10 * (budget.drafting - 1) : 0));
    EXPECT_GE(budget.expected_tokens, 4);
    if (budget.drafts == 0) {
      none = true;
      EXPECT_EQ(budget.expected_tokens, 4);
    }
    if (step > 2 && budget.drafts == 6) {
      more = true;
      EXPECT_NEAR(budget.expected_tokens, 4 + 3 * 1.2, 0.01);
    }
  }
  EXPECT_TRUE(none && more) << "not every kind of trial came";
}

// Nine tokens of two sequences stand for 4.5 plain steps of 1010 us each.
TEST_F(PlannerTest, SavedTimeIsThatOfThePlainStepsItStoodFor) {
  EXPECT_NEAR(planner_.Saved(2, 9, {.rows = 8, .drafting = 2, .forward_us = 600, .sampler_us = 0, .draft_us = 100}),
              4.5 * 1010 - 700, 1e-6);
  EXPECT_EQ(planner_.Saved(0, 0, {}), 0);
}

// Whatever it is told, a budget stays within what there is.
TEST(PlannerFuzz, OddInputsGiveBudgetsWithinBounds) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const double times[] = {0, -1, nan, inf, -inf, 1e-300, 1e300, 1, 500, 20'000};
  const float chances[] = {
      0, 1, -1, 2, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 0.5F, 0.99F};
  const auto time = [&] { return times[random() % std::size(times)]; };
  for (int round = 0; round < 300; ++round) {
    CostCurve curve({.base_us = random() % 4 == 0 ? 0.0 : 1000, .row_us = random() % 2 == 0 ? 0.0 : 50});
    const int depth = 1 + static_cast<int>(random() % 5);
    VerifyPlanner planner({.drafts = depth, .draft_cost = {.base_us = 0, .row_us = 0}}, curve);
    QuenchState quench;
    StepId step = 0;
    for (int i = 0; i < 60; ++i) {
      step += static_cast<StepId>(random() % 3);  // the same one twice, and gaps
      const int sequences = static_cast<int>(random() % 70);
      const int drafting = sequences == 0 ? 0 : static_cast<int>(random() % static_cast<unsigned>(sequences + 1));
      const int rows_most = static_cast<int>(random() % 500);
      const VerifyBudget budget = planner.Next(step, sequences, drafting, rows_most);
      ASSERT_GE(budget.drafts, 0);
      ASSERT_LE(budget.drafting, drafting);
      ASSERT_LE(budget.drafts, budget.drafting * depth);
      ASSERT_LE(budget.drafts, std::max(0, rows_most - sequences));
      ASSERT_EQ(budget.drafts > 0, budget.drafting > 0);
      std::vector<float> survivals(static_cast<std::size_t>(budget.drafting * depth));
      for (float& s : survivals) s = chances[random() % std::size(chances)];
      if (random() % 2 == 0) {
        for (std::size_t at = 0; at < survivals.size(); at += static_cast<std::size_t>(depth))
          ToSurvivals(std::span(survivals).subspan(at, static_cast<std::size_t>(depth)));
      }
      planner.Report(step, survivals, depth,
                     {.rows = sequences + budget.drafts,
                      .drafting = budget.drafting,
                      .forward_us = time(),
                      .sampler_us = time(),
                      .draft_us = time()});
      if (planner.Drafts(quench)) planner.Accepted(quench, depth, static_cast<int>(random() % (depth + 1u)));
      ASSERT_GE(quench.rest, 0);
      ASSERT_LE(quench.rest, 512);
    }
  }
}

// After nonsense the curves are still numbers: true reports bring a paying budget back.
TEST(PlannerFuzz, NonsenseDoesNotStay) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  CostCurve curve({.base_us = 1000, .row_us = 10});
  VerifyPlanner planner({.drafts = 2, .draft_cost = {.base_us = 20, .row_us = 0}}, curve);
  const std::vector<float> bad(2, std::numeric_limits<float>::quiet_NaN()), good = {0.9F, 0.8F};
  StepId step = 0;
  for (const double odd : {nan, inf, -inf, 1e300, 0.0}) {
    for (int i = 0; i < 5; ++i, ++step)
      planner.Report(step, bad, 2, {.rows = 3, .drafting = 1, .forward_us = odd, .sampler_us = odd, .draft_us = odd});
  }
  int paying = 0;
  for (int i = 0; i < 600; ++i, ++step) {
    const VerifyBudget budget = planner.Next(step, 1, 1, 100);
    if (i >= 500 && budget.drafts > 0) ++paying;
    planner.Report(step, budget.drafts > 0 ? std::span<const float>(good) : std::span<const float>(), 2,
                   {.rows = 1 + budget.drafts,
                    .drafting = budget.drafting,
                    .forward_us = 1000 + 10.0 * budget.drafts,
                    .sampler_us = 1,
                    .draft_us = budget.drafting > 0 ? 20.0 : 0});
  }
  EXPECT_GT(paying, 90);
}

// The budget cannot see its own step's drafts nor those of the step before, whether or not they are there already.
TEST_F(PlannerTest, UsesReportsThatAreTwoStepsOld) {
  Report(0, 0.9F, 0.8F);
  const double expected = planner_.Next(2, 1, 1, 100).expected_tokens;
  EXPECT_NEAR(expected, 2.7, 0.01);
  Report(1, 0, 0);
  Report(2, 0, 0);
  EXPECT_EQ(planner_.Next(2, 1, 1, 100).expected_tokens, expected);
  EXPECT_LT(planner_.Next(3, 1, 1, 100).expected_tokens, expected);
}

TEST_F(PlannerTest, WithoutConfidencesItProposesDraftsToGetSome) {
  EXPECT_GT(planner_.Next(0, 4, 4, 100).drafts, 0);
  EXPECT_EQ(planner_.Next(1, 4, 0, 100).drafts, 0);  // nobody drafts
  EXPECT_EQ(planner_.Next(2, 4, 4, 4).drafts, 0);    // no room in the step
}

TEST_F(PlannerTest, HopelessDraftsAreNotProposed) {
  for (StepId step = 0; step < 30; ++step) {
    (void)planner_.Next(step, 1, 1, 100);
    Report(step, 0.001F, 0);
  }
  EXPECT_EQ(planner_.Next(40, 1, 1, 100).drafts, 0);
}

TEST_F(PlannerTest, ASequenceWhoseDraftsNeverPayRestsAndTriesAgain) {
  for (StepId step = 0; step < 10; ++step) {
    (void)planner_.Next(step, 1, 1, 100);
    Report(step, 0.9F, 0.8F);
  }
  QuenchState good, poor;
  int poor_drafts = 0;
  for (int step = 0; step < 400; ++step) {
    ASSERT_TRUE(planner_.Drafts(good)) << step;
    planner_.Accepted(good, 2, 1);
    if (!planner_.Drafts(poor)) continue;
    ++poor_drafts;
    planner_.Accepted(poor, 2, 0);
  }
  // 12 steps to decide, then rests of 16, 32, 64, … with three steps between them.
  EXPECT_GE(poor_drafts, 12);
  EXPECT_LE(poor_drafts, 30);
  poor.rest = 0;
  for (int step = 0; step < 8; ++step) planner_.Accepted(poor, 2, 2);
  EXPECT_EQ(poor.next_rest, 16);  // it has got better
}

}  // namespace
}  // namespace galley::sched
