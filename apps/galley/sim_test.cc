// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app_fixture.h"
#include "galley/protocol/json.h"

namespace galley::app {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

RunOutcome Sim(std::vector<std::string> arguments) {
  FakeModel model;
  arguments.insert(arguments.begin(), "sim");
  RunOutcome outcome = RunApp(model, {.arguments = std::move(arguments)});
  EXPECT_TRUE(model.created.empty()) << "no model is needed";
  return outcome;
}

std::int64_t Member(const std::string& json, std::string_view name) {
  const Result<protocol::Json> object = protocol::ParseJson(json);
  EXPECT_TRUE(object) << json;
  const protocol::Json* member = object->Find(name);
  EXPECT_NE(member, nullptr) << name;
  return member == nullptr ? -1 : *member->if_int();
}

std::string DigestOf(const std::string& json) {
  return *protocol::ParseJson(json)->Find("digest")->if_string();
}

TEST(Sim, PrintsAReportAndTheCommandThatRepeatsIt) {
  const RunOutcome outcome = Sim({"--seed", "7", "--steps", "600", "--ranks", "2", "--steps-per-world", "200"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("command     galley sim --seed 7 --steps 600 --ranks 2 --steps-per-world 200\n"));
  EXPECT_THAT(outcome.out, ContainsRegex("\nsteps +[0-9]+ in [0-9]+ configurations"));
  EXPECT_THAT(outcome.out, HasSubstr("\nviolations  0\n"));
  EXPECT_EQ(outcome.err, "");  // no progress where nobody watches
}

TEST(Sim, JsonHoldsTheSameRun) {
  const RunOutcome first = Sim({"--json", "--seed", "3", "--steps", "500"});
  EXPECT_EQ(Member(first.out, "seed"), 3);
  EXPECT_GE(Member(first.out, "steps"), 500);
  EXPECT_GT(Member(first.out, "outputs_checked"), 0);
  EXPECT_EQ(DigestOf(Sim({"--json", "--seed", "3", "--steps", "500"}).out), DigestOf(first.out));
  EXPECT_NE(DigestOf(Sim({"--json", "--seed", "4", "--steps", "500"}).out), DigestOf(first.out));
}

TEST(Sim, WithoutASeedEachRunDrawsOneAndSaysWhich) {
  const RunOutcome outcome = Sim({"--json", "--steps", "100"});
  const std::string seed = std::to_string(Member(outcome.out, "seed"));
  EXPECT_EQ(DigestOf(Sim({"--json", "--steps", "100", "--seed", seed}).out), DigestOf(outcome.out)) << seed;
}

TEST(Sim, CountsSeedsUp) {
  const RunOutcome outcome = Sim({"--json", "--seed", "9223372036854775807", "--seeds", "3", "--steps", "200"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(Member(outcome.out, "seeds"), 3);
  EXPECT_EQ(Member(outcome.out, "seed"), 1);  // after the largest comes 0
  EXPECT_GE(Member(outcome.out, "steps"), 600);
}

TEST(Sim, RefusesWhatCannotBe) {
  EXPECT_EQ(Sim({"--ranks", "65"}).exit_code, 2);
  EXPECT_EQ(Sim({"--steps", "0"}).exit_code, 2);
  EXPECT_EQ(Sim({"traffic"}).exit_code, 2);
}

}  // namespace
}  // namespace galley::app
