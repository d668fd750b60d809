// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/calibration.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "galley/io/file.h"
#include "galley/io/json.h"
#include "galley/io/json_writer.h"

namespace galley::engine {
namespace {

constexpr int kBins = 15;
constexpr double kLow = 0.1, kHigh = 10;
constexpr int kGrid = 81;  // temperatures tried, 40 a decade
constexpr std::size_t kFileBytesMax = 64 << 10;

std::size_t Places(std::span<const DraftRound> rounds) {
  std::size_t places = 0;
  for (const DraftRound& round : rounds) places = std::max(places, round.confidences.size());
  return places;
}

double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

}  // namespace

double Calibration::Chance(float confidence, std::size_t place) const {
  const double temperature = place < temperatures.size() ? temperatures[place] : 1;
  return Sigmoid(static_cast<double>(confidence) / temperature);
}

double CalibrationError(std::span<const DraftRound> rounds, const Calibration& calibration, std::size_t place) {
  struct Bin {
    double predicted = 0, survived = 0;
  };
  std::array<Bin, kBins> bins;
  double count = 0;
  for (const DraftRound& round : rounds) {
    if (round.confidences.size() <= place) continue;
    double survival = 1;
    for (std::size_t i = 0; i <= place; ++i) survival *= calibration.Chance(round.confidences[i], i);
    Bin& bin = bins[std::min(static_cast<std::size_t>(survival * kBins), bins.size() - 1)];
    bin.predicted += survival;
    bin.survived += round.accepted > static_cast<int>(place) ? 1 : 0;
    ++count;
  }
  double distance = 0;
  for (const Bin& bin : bins) distance += std::abs(bin.predicted - bin.survived);
  return count > 0 ? distance / count : 0;
}

double CalibrationError(std::span<const DraftRound> rounds, const Calibration& calibration) {
  const std::size_t places = Places(rounds);
  double sum = 0;
  for (std::size_t place = 0; place < places; ++place) sum += CalibrationError(rounds, calibration, place);
  return places > 0 ? sum / static_cast<double>(places) : 0;
}

Calibration FitCalibration(std::span<const DraftRound> rounds) {
  Calibration calibration;
  for (std::size_t place = 0; place < Places(rounds); ++place) {
    calibration.temperatures.push_back(1);
    double best = 1, least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kGrid; ++i) {
      calibration.temperatures.back() = kLow * std::pow(kHigh / kLow, static_cast<double>(i) / (kGrid - 1));
      const double error = CalibrationError(rounds, calibration, place);
      if (error >= least) continue;
      least = error;
      best = calibration.temperatures.back();
    }
    calibration.temperatures.back() = best;
  }
  return calibration;
}

std::string ToJson(const Calibration& calibration) {
  io::JsonWriter json;
  json.BeginObject().Key("version").Int(1).Key("confidence_temperatures").BeginArray();
  for (const double temperature : calibration.temperatures) json.Double(temperature);
  return json.EndArray().EndObject().Take();
}

Result<Calibration> ParseCalibration(std::string_view text, std::string_view where) {
  ASSIGN_OR_RETURN(const io::Json json, io::ParseJson(text, where));
  const auto corrupt = [&](std::string_view what) {
    return Err(ErrorCode::kCorrupt, std::string(what) + "; make it again with `galley calibrate`", std::string(where));
  };
  const io::Json* version = json.Find("version");
  const io::Json* list = json.Find("confidence_temperatures");
  if (version == nullptr || version->integer() == nullptr || *version->integer() != 1) {
    return corrupt("version must be 1");
  }
  if (list == nullptr || list->array() == nullptr) return corrupt("confidence_temperatures must be an array");
  Calibration calibration;
  for (const io::Json& value : *list->array()) {
    const double temperature = value.floating() != nullptr  ? *value.floating()
                               : value.integer() != nullptr ? static_cast<double>(*value.integer())
                                                            : 0;
    if (!(temperature >= kLow && temperature <= kHigh)) {
      return corrupt(
          fmt::format("confidence_temperatures: {} must be a number from {} to {}", value.Show(), kLow, kHigh));
    }
    calibration.temperatures.push_back(temperature);
  }
  return calibration;
}

Result<Calibration> LoadCalibration(const std::filesystem::path& model_dir) {
  const std::filesystem::path file = model_dir / kCalibrationFile;
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return Calibration{};
  ASSIGN_OR_RETURN(const std::string text, io::ReadFile(file, kFileBytesMax));
  return ParseCalibration(text, file.string());
}

}  // namespace galley::engine
