// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <iostream>

#include "galley/protocol/codec_serve.h"
#include "galley/protocol/split_for_test.h"
#include "galley/protocol/vectors_for_test.h"

namespace galley::protocol {
namespace {

TEST(SplitSlow, EveryCutOfEveryWholeCaseGivesTheSameResponse) {
  std::size_t cuts = 0;
  for (const Json& row : WholeCases()) {
    const Json want = At(RunCodecCase(row, {}), {"expect", "response"});
    for (const std::size_t at : Boundaries(row)) {
      ASSERT_TRUE(SameJson(At(RunCodecCase(CutAt(row, at), {}), {"expect", "response"}), want))
          << TextAt(row, {"id"}) << " " << TextAt(row, {"name"}) << " cut at byte " << at;
      ++cuts;
    }
  }
  std::cout << "split: " << cuts << " cuts\n";
  EXPECT_GT(cuts, 50000u);
}

}  // namespace
}  // namespace galley::protocol
