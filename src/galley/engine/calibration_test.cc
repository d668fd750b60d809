// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "galley/engine/draft_rounds.h"
#include "galley/engine/engine_for_test.h"

namespace galley::engine {
namespace {

// Rounds whose true chance at place i is sigmoid(confidence / temperatures[i]).
std::vector<DraftRound> Rounds(const std::vector<double>& temperatures, int count, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto uniform = [&random] { return (static_cast<double>(random()) + 0.5) / 4294967296.0; };
  std::vector<DraftRound> rounds(static_cast<std::size_t>(count));
  for (DraftRound& round : rounds) {
    bool alive = true;
    for (const double temperature : temperatures) {
      round.confidences.push_back(static_cast<float>(6 * uniform() - 2));
      alive = alive && uniform() < 1 / (1 + std::exp(-static_cast<double>(round.confidences.back()) / temperature));
      round.accepted += alive ? 1 : 0;
    }
  }
  return rounds;
}

TEST(Calibration, FindsTheTemperaturesOfEachPlace) {
  const std::vector<double> temperatures = {2.0, 0.5, 3.0};
  const Calibration fitted = FitCalibration(Rounds(temperatures, 20'000, 1));
  ASSERT_EQ(fitted.temperatures.size(), 3u);
  // The grid's ratio is 10^(1/40) = 1.06; later places see fewer survivors.
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(std::log(fitted.temperatures[i] / temperatures[i]), 0, 0.35) << i;
  const std::vector<DraftRound> held_out = Rounds(temperatures, 20'000, 2);
  EXPECT_GT(CalibrationError(held_out, {}), 0.03);
  EXPECT_LT(CalibrationError(held_out, fitted), 0.015);
}

// Four rounds at one place with chance 1/2 (confidence 0), three survive: |4 * 0.5 - 3| / 4 = 0.25.
TEST(Calibration, TheErrorIsTheDistanceOfSharesInBins) {
  std::vector<DraftRound> rounds(4, {.confidences = {0.0f}, .accepted = 1});
  rounds[3].accepted = 0;
  EXPECT_DOUBLE_EQ(CalibrationError(rounds, {}, 0), 0.25);
  EXPECT_DOUBLE_EQ(CalibrationError(rounds, {}, 1), 0);  // no round has a second draft
  EXPECT_DOUBLE_EQ(CalibrationError({}, {}), 0);
}

TEST(Calibration, TheFileReadsBackAndBadOnesAreRefused) {
  const Calibration calibration{.temperatures = {1.5, 0.25}};
  const auto back = ParseCalibration(ToJson(calibration), "f");
  ASSERT_TRUE(back) << back.error().ToString();
  EXPECT_EQ(back->temperatures, calibration.temperatures);
  for (const std::string_view bad :
       {"", "[]", R"({"version": 2, "confidence_temperatures": []})", R"({"version": 1})",
        R"({"version": 1, "confidence_temperatures": [0]})", R"({"version": 1, "confidence_temperatures": ["1"]})",
        R"({"version": 1, "confidence_temperatures": [1e99]})"}) {
    EXPECT_FALSE(ParseCalibration(bad, "f")) << bad;
  }
  EXPECT_TRUE(LoadCalibration("/nonexistent")->temperatures.empty());
}

// Only who plans with it reads it, so that `galley calibrate` can make it again.
TEST(Calibration, ABrokenFileStopsNobodyButTheOneWhoPlansWithIt) {
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "galley_broken_calibration";
  std::filesystem::remove_all(dir);
  std::filesystem::copy(kProbe, dir);
  std::ofstream(dir / kCalibrationFile) << "{";
  EngineOptions options = Options();
  options.model_dir = dir;
  EXPECT_TRUE(Engine::Create(options)) << "without drafts";
  const auto rounds = CollectRounds(options, {.prompts = {{5, 6, 7}}, .tokens = 4, .temperature = 0, .seed = 1});
  EXPECT_TRUE(rounds) << rounds.error().ToString();
  options.speculation.mode = SpeculationMode::kDspark;
  const auto planned = Engine::Create(options);
  ASSERT_FALSE(planned);
  EXPECT_NE(planned.error().ToString().find(kCalibrationFile), std::string::npos) << planned.error().ToString();
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace galley::engine
