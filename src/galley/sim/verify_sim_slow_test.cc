// SPDX-License-Identifier: Apache-2.0
// Every device, traffic and load of the table in docs/scheduler.md.
#include <gtest/gtest.h>

#include "galley/sim/verify_sim.h"

namespace galley::sim {
namespace {

TEST(VerifySimSlow, AtEveryLoadNeverSlowerThanWithoutAndNearlyTheBestLengthInHindsight) {
  for (const std::uint64_t seed : {1, 2}) {
    for (const DeviceModel& device : VerifyDevices()) {
      for (const TrafficModel& traffic : VerifyTraffic()) {
        for (const int load : VerifyLoads()) {
          const VerifyOutcome outcome = CompareVerify(VerifyCaseOf(device, traffic, load, seed));
          SCOPED_TRACE(testing::Message()
                       << device.name << ", " << traffic.name << ", " << load << " sequences, seed " << seed);
          EXPECT_GE(outcome.over_none(), 0.98);
          EXPECT_GE(outcome.over_best(), 0.95) << "best: " << outcome.best_length;
        }
      }
    }
  }
}

}  // namespace
}  // namespace galley::sim
