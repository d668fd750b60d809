// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/calibration.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "galley/io/file.h"
#include "galley/io/json.h"
#include "galley/io/json_writer.h"

namespace galley::engine {
namespace {

constexpr int kBins = 15;
constexpr double kTemperatureLow = 0.1, kTemperatureHigh = 10, kShiftMax = 10;
constexpr int kStepsMax = 50;  // of Newton's method; a fit takes about six
constexpr double kPull = 1;    // towards temperature 1 and shift 0, as strong as a few rounds
constexpr std::size_t kFileBytesMax = 64 << 10;
constexpr int kFileVersion = 2;  // 1 had temperatures only

std::size_t Places(std::span<const DraftRound> rounds) {
  std::size_t places = 0;
  for (const DraftRound& round : rounds) places = std::max(places, round.confidences.size());
  return places;
}

double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

std::optional<double> Number(const io::Json& json) {
  if (json.floating() != nullptr) return *json.floating();
  if (json.integer() != nullptr) return static_cast<double>(*json.integer());
  return std::nullopt;
}

// log-odds = slope · confidence + shift.
struct Line {
  double slope = 1, shift = 0;
};

// One step of Newton's method towards the likeliest line; true when it is reached. Because of the pull the function is
// strictly concave, so the step exists.
bool Improve(std::span<const DraftRound> rounds, std::size_t place, bool fixed_slope, Line& line) {
  double by_slope = kPull * (1 - line.slope), by_shift = -kPull * line.shift;
  double slope2 = kPull, both = 0, shift2 = kPull;
  for (const DraftRound& round : rounds) {
    if (round.confidences.size() <= place || round.accepted < static_cast<int>(place)) continue;
    const auto x = static_cast<double>(round.confidences[place]);
    const double chance = Sigmoid(line.slope * x + line.shift), weight = chance * (1 - chance);
    const double miss = (round.accepted > static_cast<int>(place) ? 1 : 0) - chance;
    by_slope += miss * x;
    by_shift += miss;
    slope2 += weight * x * x;
    both += weight * x;
    shift2 += weight;
  }
  Line step;
  if (fixed_slope) {
    step = {.slope = 0, .shift = by_shift / shift2};
  } else {
    const double determinant = slope2 * shift2 - both * both;
    step = {.slope = (by_slope * shift2 - by_shift * both) / determinant,
            .shift = (by_shift * slope2 - by_slope * both) / determinant};
  }
  // Far from the optimum a full step may overshoot.
  const double length = std::max(std::abs(step.slope), std::abs(step.shift));
  const double scale = length > 2 ? 2 / length : 1;
  line.slope += scale * step.slope;
  line.shift += scale * step.shift;
  return length < 1e-9;
}

PlaceCalibration Fit(std::span<const DraftRound> rounds, std::size_t place) {
  Line line;
  for (int i = 0; i < kStepsMax && !Improve(rounds, place, /*fixed_slope=*/false, line); ++i) {
  }
  const double slope = std::clamp(line.slope, 1 / kTemperatureHigh, 1 / kTemperatureLow);
  if (slope != line.slope) {
    line.slope = slope;
    for (int i = 0; i < kStepsMax && !Improve(rounds, place, /*fixed_slope=*/true, line); ++i) {
    }
  }
  return {.temperature = 1 / slope, .shift = std::clamp(line.shift, -kShiftMax, kShiftMax)};
}

}  // namespace

double Calibration::Chance(float confidence, std::size_t place) const {
  const PlaceCalibration own = place < places.size() ? places[place] : PlaceCalibration{};
  return Sigmoid(static_cast<double>(confidence) / own.temperature + own.shift);
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
  const std::size_t places = Places(rounds);
  for (std::size_t place = 0; place < places; ++place) calibration.places.push_back(Fit(rounds, place));
  return calibration;
}

std::string ToJson(const Calibration& calibration) {
  io::JsonWriter json;
  json.BeginObject().Key("version").Int(kFileVersion).Key("confidences").BeginArray();
  for (const PlaceCalibration& place : calibration.places) {
    json.BeginObject().Key("temperature").Double(place.temperature).Key("shift").Double(place.shift).EndObject();
  }
  return json.EndArray().EndObject().Take();
}

Result<Calibration> ParseCalibration(std::string_view text, std::string_view where) {
  ASSIGN_OR_RETURN(const io::Json json, io::ParseJson(text, where));
  const auto corrupt = [&](std::string_view what) {
    return Err(ErrorCode::kCorrupt, std::string(what) + "; make it again with `galley calibrate`", std::string(where));
  };
  const io::Json* version = json.Find("version");
  const io::Json* list = json.Find("confidences");
  if (version == nullptr || version->integer() == nullptr || *version->integer() != kFileVersion) {
    return corrupt(fmt::format("version must be {}", kFileVersion));
  }
  if (list == nullptr || list->array() == nullptr) return corrupt("confidences must be an array");
  struct Member {
    std::string_view name;
    double low, high;
    double PlaceCalibration::*field;
  };
  constexpr Member kMembers[] = {{"temperature", kTemperatureLow, kTemperatureHigh, &PlaceCalibration::temperature},
                                 {"shift", -kShiftMax, kShiftMax, &PlaceCalibration::shift}};
  Calibration calibration;
  for (const io::Json& entry : *list->array()) {
    PlaceCalibration place;
    for (const Member& member : kMembers) {
      const io::Json* value = entry.Find(member.name);
      const std::optional<double> number = value == nullptr ? std::nullopt : Number(*value);
      if (!number || !(*number >= member.low && *number <= member.high)) {
        return corrupt(fmt::format("confidences: {} of place {} is {}; it must be a number from {} to {}", member.name,
                                   calibration.places.size() + 1, value == nullptr ? "missing" : value->Show(),
                                   member.low, member.high));
      }
      place.*member.field = *number;
    }
    calibration.places.push_back(place);
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
