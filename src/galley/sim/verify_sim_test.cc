// SPDX-License-Identifier: Apache-2.0
// The promise of verify-length planning at a few loads; verify_sim_slow_test.cc has all of them.
#include "galley/sim/verify_sim.h"

#include <gtest/gtest.h>

namespace galley::sim {
namespace {

TEST(VerifySim, NeverSlowerThanWithoutAndNearlyTheBestLengthInHindsight) {
  for (const DeviceModel& device : VerifyDevices()) {
    for (const TrafficModel& traffic : VerifyTraffic()) {
      for (const int load : {1, 32}) {
        const VerifyOutcome outcome = CompareVerify(
            {.device = device, .traffic = traffic, .sequences = load, .steps = load == 1 ? 2000 : 1000, .seed = 1});
        SCOPED_TRACE(testing::Message() << device.name << ", " << traffic.name << ", " << load << " sequences");
        EXPECT_GE(outcome.over_none(), 0.98);
        EXPECT_GE(outcome.over_best(), 0.95) << "best: " << outcome.best_length;
      }
    }
  }
}

// The comparison means something: lengths differ, the best one depends on the load, and planning beats it where
// sequences are unlike each other.
TEST(VerifySim, LengthsMatter) {
  const VerifyCase few{.device = VerifyDevices()[3], .traffic = VerifyTraffic()[1], .sequences = 4, .steps = 500};
  VerifyCase many = few;
  many.sequences = 64;
  EXPECT_GT(CompareVerify(few).best_length, CompareVerify(many).best_length);
  EXPECT_GT(VerifyThroughput(few, 5), 1.5 * VerifyThroughput(few, 0));
  EXPECT_LT(VerifyThroughput(many, 5), VerifyThroughput(many, 0));
  EXPECT_GT(CompareVerify(many).over_best(), 1.05);
}

TEST(VerifySim, EqualSeedsGiveEqualResults) {
  const VerifyCase setting{.device = VerifyDevices()[0], .traffic = VerifyTraffic()[1], .sequences = 8, .steps = 300};
  EXPECT_EQ(VerifyThroughput(setting, kPlanned), VerifyThroughput(setting, kPlanned));
  VerifyCase other = setting;
  other.seed = 2;
  EXPECT_NE(VerifyThroughput(setting, kPlanned), VerifyThroughput(other, kPlanned));
}

}  // namespace
}  // namespace galley::sim
