// SPDX-License-Identifier: Apache-2.0
#include "galley/model/dsv4/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "galley/model/test_configs.h"

namespace galley::model {
namespace {

Config RealConfig() {
  return *ParseConfig(FlashConfigJson(), "config.json");
}

// The specification's table for the real model; YaRN's ramp runs from dimension 15 to 25.
TEST(Rope, YarnTableOfTheRealModel) {
  const std::vector<float> f = RopeFrequencies(RealConfig(), true);
  ASSERT_EQ(f.size(), 32u);
  const std::vector<std::pair<std::size_t, float>> known = {
      {0, 1.0f},           {1, .687656022f},      {8, .05f},
      {15, .00363553858f}, {16, .002265625f},     {20, .000296977778f},
      {24, 1.953125e-05f}, {25, 5.37231267e-06f}, {31, 5.68052904e-07f}};
  for (const auto& [i, want] : known) EXPECT_NEAR(f[i] / want, 1.0, 5e-7) << "dimension " << i;
}

TEST(Rope, WindowOnlyLayersHaveNoYarn) {
  const std::vector<float> f = RopeFrequencies(RealConfig(), false);
  for (std::size_t i = 0; i < f.size(); ++i) {
    EXPECT_NEAR(f[i] / std::pow(10000.0, -2.0 * static_cast<double>(i) / 64), 1.0, 5e-7) << "dimension " << i;
  }
}

}  // namespace
}  // namespace galley::model
