// SPDX-License-Identifier: Apache-2.0
#include "loading.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gate.h"

namespace galley::app {
namespace {

using protocol::Json;
using testing::HasSubstr;

constexpr std::uint64_t kGiga = 1'000'000'000;

TEST(LoadMeter, SaysNothingInTheFirstSecondAndThenOnceASecond) {
  LoadMeter meter;
  EXPECT_FALSE(meter.Note(0, 0, 90));  // the checkpoint is being opened
  EXPECT_FALSE(meter.Note(0, 340 * kGiga, 100));
  EXPECT_FALSE(meter.Note(6 * kGiga, 340 * kGiga, 100.9));
  auto state = meter.Note(7 * kGiga, 340 * kGiga, 101);
  ASSERT_TRUE(state);
  EXPECT_DOUBLE_EQ(state->bytes_per_second(), 7e9);
  EXPECT_EQ(ToLine(*state), "loading weights: 7.0 of 340.0 GB (2 %), 7.00 GB/s, 48 s left");  // 333 / 7 = 47.6
  EXPECT_FALSE(meter.Note(13 * kGiga, 340 * kGiga, 101.9));
  state = meter.Note(14 * kGiga, 340 * kGiga, 102.25);  // after 2.25 s, and a stall counts
  ASSERT_TRUE(state);
  EXPECT_EQ(DumpJson(ToJson(*state, Json::MakeObject({{"event", "loading"}}))),
            R"({"event":"loading","bytes":14000000000,"bytes_total":340000000000,"bytes_per_second":6222222222.0,)"
            R"("seconds_left":53.0})");  // 326 / 6.2222 = 52.4
  EXPECT_FALSE(meter.Note(340 * kGiga, 340 * kGiga, 103));
  EXPECT_EQ(meter.state().done, 340 * kGiga);

  LoadMeter stuck;
  EXPECT_FALSE(stuck.Note(0, kGiga, 5));
  state = stuck.Note(0, kGiga, 7);
  ASSERT_TRUE(state);
  EXPECT_EQ(ToLine(*state), "loading weights: 0.0 of 1.0 GB (0 %)");
  EXPECT_THAT(DumpJson(ToJson(*state, Json::MakeObject({}))), HasSubstr(R"("seconds_left":null)"));
}

TEST(Gate, TellsProbesHowFarLoadingIs) {
  Gate gate;
  EXPECT_EQ(gate.Answer("/live").status, 200);
  EXPECT_THAT(gate.Answer("/v1/models").body, HasSubstr("the model is being loaded"));
  (void)gate.Note(kGiga, 4 * kGiga);
  for (const char* probe : {"/health", "/ready"}) {
    const net::HttpResponse answer = gate.Answer(probe);
    EXPECT_EQ(answer.status, 503);
    EXPECT_THAT(answer.body, HasSubstr(R"("status":"loading","bytes":1000000000,"bytes_total":4000000000)"));
  }
  const net::HttpResponse answer = gate.Answer("/v1/models");
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.body, HasSubstr("loading weights: 1.0 of 4.0 GB (25 %)"));
}

}  // namespace
}  // namespace galley::app
