// SPDX-License-Identifier: Apache-2.0
// A few seeds for every change; simulator_slow_test.cc runs many.
#include "galley/sim/simulator.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "galley/sim/fake_device.h"

namespace galley::sim {
namespace {

SimReport Simulated(const SimOptions& options) {
  Result<SimReport> report = Simulate(options);
  EXPECT_TRUE(report);
  EXPECT_TRUE(report->violations.empty()) << "seed " << options.seed << "\n" << report->ToString();
  return std::move(*report);
}

// K2, K21, K25: whatever is shared, no output shows another session's history or a window that was not rebuilt.
TEST(Simulator, K2_K21_K25_FixedSeedsReachEveryMechanism) {
  SimReport sum;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const SimReport report = Simulated({.seed = seed, .steps = 3000, .ranks = 1, .steps_per_world = 500});
    sum.outputs_checked += report.outputs_checked;
    sum.ended_stop += report.ended_stop;
    sum.ended_cancelled += report.ended_cancelled;
    sum.failed_steps += report.failed_steps;
    sum.preemptions += report.preemptions;
    sum.forks += report.forks;
    sum.shared_waits += report.shared_waits;
    sum.snapshot_restores += report.snapshot_restores;
    sum.evictions += report.evictions;
    sum.cached_tokens += report.cached_tokens;
    sum.replayed_tokens += report.replayed_tokens;
  }
  // A check that never meets its case proves nothing.
  EXPECT_GT(sum.outputs_checked, 1000);
  EXPECT_GT(sum.ended_stop, 100);
  EXPECT_GT(sum.ended_cancelled, 50);
  EXPECT_GT(sum.failed_steps, 20);
  EXPECT_GT(sum.preemptions, 50);
  EXPECT_GT(sum.forks, 100);
  EXPECT_GT(sum.shared_waits, 20);
  EXPECT_GT(sum.snapshot_restores, 20);
  EXPECT_GT(sum.evictions, 1000);
  EXPECT_GT(sum.cached_tokens, 10'000);
  EXPECT_GT(sum.replayed_tokens, 1000);
}

TEST(Simulator, SeveralRanksWithVotes) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    EXPECT_GT(Simulated({.seed = seed, .steps = 800, .ranks = 4, .steps_per_world = 400}).outputs_checked, 100);
  }
}

// Faults included: half of the configurations have failing steps.
TEST(Simulator, FreshSeedsEveryTime) {
  const std::uint64_t first = std::random_device{}();
  SimReport sum;
  for (std::uint64_t i = 0; i < 24; ++i) {
    const SimOptions options{.seed = first + i, .steps = 600, .ranks = i % 4 == 3 ? 3 : 1, .steps_per_world = 200};
    SCOPED_TRACE(ReplayCommand(options));
    sum.Add(Simulated(options));
  }
  EXPECT_GT(sum.outputs_checked, 500) << first;
  EXPECT_GT(sum.failed_steps, 0) << first;
}

TEST(Simulator, TheSameSeedReplaysExactly) {
  const SimOptions options{.seed = 11, .steps = 1500, .ranks = 2, .steps_per_world = 300};
  const SimReport first = Simulated(options), second = Simulated(options);
  EXPECT_EQ(first.digest, second.digest);
  EXPECT_EQ(first.steps, second.steps);
  SimOptions other = options;
  other.seed = 12;
  EXPECT_NE(Simulated(other).digest, first.digest);
}

// The checks see one wrong token among tens of thousands, the same one in every repetition, and say how to repeat it.
TEST(Simulator, AMistakeIsFoundAndReplaysExactly) {
  const SimOptions options{.seed = 5, .steps = 1000, .ranks = 2, .steps_per_world = 500, .corrupt_step = 123};
  const Result<SimReport> first = Simulate(options), second = Simulate(options);
  ASSERT_TRUE(first && second);
  ASSERT_FALSE(first->violations.empty());
  EXPECT_NE(first->violations[0].find("they differ at"), std::string::npos) << first->violations[0];
  EXPECT_EQ(first->violations, second->violations);
  EXPECT_EQ(ReplayCommand(options), "galley sim --seed 5 --steps 1000 --ranks 2 --steps-per-world 500");
}

TEST(Simulator, ProgressCanStopTheRunAndChangesNothingElse) {
  SimOptions options{.seed = 6, .steps = 1000, .ranks = 1, .steps_per_world = 500};
  const std::uint64_t digest = Simulated(options).digest;
  std::vector<std::int64_t> seen;
  options.on_progress = [&](std::int64_t steps) {
    seen.push_back(steps);
    return true;
  };
  EXPECT_EQ(Simulated(options).digest, digest);
  EXPECT_GE(seen.size(), 3u);
  options.on_progress = [](std::int64_t) { return false; };
  const SimReport stopped = Simulated(options);
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(stopped.steps, seen.front());
}

TEST(Simulator, OptionsOutOfRangeAreRefused) {
  EXPECT_EQ(Simulate({.seed = 1, .steps = 0}).error().ToString(), "steps: is 0; must be at least 1");
  EXPECT_EQ(Simulate({.seed = 1, .steps = 1, .ranks = 65}).error().ToString(), "ranks: is 65; must be 1 to 64");
}

// The device that everything rests on must notice a plan that is wrong.
class FakeDeviceTest : public testing::Test {
 protected:
  FakeDeviceTest() {
    options_.blocks = 16;
    options_.slots = 2;
    scheduler_ = std::move(*sched::Scheduler::Create(options_));
    device_ = std::make_unique<FakeDevice>(options_, 0.5, 1, [this](std::string what) { complaints_.push_back(what); });
    sched::Request request;
    request.id = RequestId(1);
    request.prompt = std::vector<TokenId>(300, 5);
    request.keys = kv::MakeKeyChain({}, request.prompt);
    request.max_tokens = 10;
    scheduler_->Arrive(std::move(request), 0);
    plan_ = *scheduler_->Next(0);
  }
  void Run() {
    (void)device_->Run(plan_, *scheduler_, [](RequestId) { return Script{.seed = 3}; });
  }
  bool Complained(std::string_view about) const {
    for (const std::string& complaint : complaints_) {
      if (complaint.find(about) != std::string::npos) return true;
    }
    return false;
  }

  sched::SchedulerOptions options_;
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::unique_ptr<FakeDevice> device_;
  std::vector<std::string> complaints_;
  sched::StepPlan plan_;
};

TEST_F(FakeDeviceTest, ARightPlanPasses) {
  Run();
  EXPECT_TRUE(complaints_.empty());
}

TEST_F(FakeDeviceTest, MissingBlocksAreNoticed) {
  plan_.tables[0].count = 1;
  Run();
  EXPECT_TRUE(Complained("has no block for position 128"));
}

TEST_F(FakeDeviceTest, WindowRowsThatWereNeverComputedAreNoticed) {
  plan_.prefill[0].begin = 10;
  plan_.prefill[0].rows -= 10;
  Run();
  EXPECT_TRUE(Complained("encoder row 10"));
}

TEST_F(FakeDeviceTest, ATooShortReplayIsNoticed) {
  plan_.prefill[0].begin = plan_.prefill[0].encoder_floor = 10;
  plan_.prefill[0].rows -= 10;
  Run();
  EXPECT_TRUE(Complained("exact only from 2550"));  // 10 + 127 * 20
}

TEST_F(FakeDeviceTest, AShortTailIsNoticed) {
  plan_.prefill[0].tail_from = plan_.prefill[0].decoder_floor = 200;  // recorded: 300 - 140
  Run();
  EXPECT_TRUE(Complained("draws from row 299"));
}

TEST_F(FakeDeviceTest, ReplayedRowsMustFindTheirOwnPrefix) {
  plan_.prefill[0].write_from = 128;  // nobody has computed those
  Run();
  EXPECT_TRUE(Complained("finds another prefix"));
}

}  // namespace
}  // namespace galley::sim
