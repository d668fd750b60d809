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

// Rounds whose true chance at place i is sigmoid(confidence / temperature + shift).
std::vector<DraftRound> Rounds(const std::vector<PlaceCalibration>& places, int count, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto uniform = [&random] { return (static_cast<double>(random()) + 0.5) / 4294967296.0; };
  std::vector<DraftRound> rounds(static_cast<std::size_t>(count));
  for (DraftRound& round : rounds) {
    bool alive = true;
    for (const PlaceCalibration& place : places) {
      round.confidences.push_back(static_cast<float>(6 * uniform() - 2));
      const double logit = static_cast<double>(round.confidences.back()) / place.temperature + place.shift;
      alive = alive && uniform() < 1 / (1 + std::exp(-logit));
      round.accepted += alive ? 1 : 0;
    }
  }
  return rounds;
}

TEST(Calibration, FindsTemperatureAndShiftOfEachPlace) {
  const std::vector<PlaceCalibration> places = {{2.0, -0.5}, {0.5, 0}, {3.0, 1}};
  const Calibration fitted = FitCalibration(Rounds(places, 20'000, 1));
  ASSERT_EQ(fitted.places.size(), 3u);
  // Later places see fewer survivors; about 6,000 reach the last.
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(std::log(fitted.places[i].temperature / places[i].temperature), 0, 0.2) << i;
    EXPECT_NEAR(fitted.places[i].shift, places[i].shift, 0.15) << i;
  }
  const std::vector<DraftRound> held_out = Rounds(places, 20'000, 2);
  EXPECT_GT(CalibrationError(held_out, {}), 0.03);
  EXPECT_LT(CalibrationError(held_out, fitted), 0.015);
}

// Three rounds say little, and a place whose drafts are all accepted, or none, has no likeliest line of its own.
TEST(Calibration, FewOrOneSidedRoundsMoveLittle) {
  const auto fit = [](int count, int accepted, float confidence) {
    const DraftRound round{.confidences = {confidence}, .accepted = accepted};
    return FitCalibration(std::vector<DraftRound>(static_cast<std::size_t>(count), round)).places[0];
  };
  EXPECT_NEAR(fit(3, 0, 0).shift, -0.880, 0.001);  // where 3 · sigmoid(shift) = -shift
  EXPECT_EQ(fit(3, 0, 0).temperature, 1);
  for (const int accepted : {0, 1}) {
    for (const float confidence : {-80.0f, -1.0f, 0.0f, 1.0f, 80.0f}) {
      const PlaceCalibration place = fit(10'000, accepted, confidence);
      EXPECT_TRUE(place.temperature >= 0.1 && place.temperature <= 10) << place.temperature;
      EXPECT_TRUE(place.shift >= -10 && place.shift <= 10) << place.shift;
    }
  }
  EXPECT_TRUE(FitCalibration({}).places.empty());
}

// The more confident, the less is accepted: no temperature says that, so the largest one is taken, and the shift alone
// makes the shares agree.
TEST(Calibration, ConfidencesThatSayTheOppositeAreAlmostIgnored) {
  std::vector<DraftRound> rounds;
  for (int i = 0; i < 4000; ++i) {
    const bool high = i % 2 == 0;
    rounds.push_back({.confidences = {high ? 2.0f : -2.0f}, .accepted = (i / 2) % 10 < (high ? 2 : 6) ? 1 : 0});
  }
  const Calibration fitted = FitCalibration(rounds);
  EXPECT_EQ(fitted.places[0].temperature, 10);
  EXPECT_NEAR((fitted.Chance(2, 0) + fitted.Chance(-2, 0)) / 2, 0.4, 0.005);  // (0.2 + 0.6) / 2
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
  const Calibration calibration{.places = {{1.5, -0.25}, {0.25, 3}}};
  const auto back = ParseCalibration(ToJson(calibration), "f");
  ASSERT_TRUE(back) << back.error().ToString();
  EXPECT_EQ(back->places, calibration.places);
  const auto refused = [](std::string_view confidences) {
    return !ParseCalibration(R"({"version": 2, "confidences": )" + std::string(confidences) + "}", "f");
  };
  EXPECT_FALSE(refused("[]"));
  EXPECT_FALSE(refused(R"([{"temperature": 1, "shift": 0}])"));
  for (const std::string_view bad :
       {"0", "[0]", "[{}]", R"([{"temperature": 1}])", R"([{"shift": 1}])", R"([{"temperature": 0, "shift": 0}])",
        R"([{"temperature": "1", "shift": 0}])", R"([{"temperature": 1e99, "shift": 0}])",
        R"([{"temperature": 1, "shift": 10.5}])"}) {
    EXPECT_TRUE(refused(bad)) << bad;
  }
  for (const std::string_view bad : {"", "[]", R"({"version": 1, "confidences": []})", R"({"version": 2})"}) {
    EXPECT_FALSE(ParseCalibration(bad, "f")) << bad;
  }
  EXPECT_TRUE(LoadCalibration("/nonexistent")->places.empty());
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
