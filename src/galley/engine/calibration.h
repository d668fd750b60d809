// SPDX-License-Identifier: Apache-2.0
// Calibrated confidences of drafts. A drafter's confidence is the logit of the chance that a draft is accepted if those
// before it are; a temperature and a shift of its place make the running product of chances, the survival, agree with
// what is accepted. The temperature alone is not enough: heads learn the overlap of two distributions, and drafts that
// share the request's noise are accepted somewhat less often than that. Pure but for reading the file beside the model.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/error.h"

namespace galley::engine {

// One round in which every draft was verified.
struct DraftRound {
  std::vector<float> confidences;  // logits, by place
  int accepted = 0;
};

struct PlaceCalibration {
  double temperature = 1;  // 0.1 … 10
  double shift = 0;        // -10 … 10, of the logit

  friend bool operator==(const PlaceCalibration&, const PlaceCalibration&) = default;
};

struct Calibration {
  std::vector<PlaceCalibration> places;  // those beyond are taken as they are

  // Chance that the draft at `place` is accepted if those before it are.
  [[nodiscard]] double Chance(float confidence, std::size_t place) const;
};

// Expected calibration error of survivals at `place` in 15 bins of equal width: the mean distance of predicted and true
// share, weighted by the bins' sizes. Rounds without a draft there are left out.
[[nodiscard]] double CalibrationError(std::span<const DraftRound> rounds, const Calibration& calibration,
                                      std::size_t place);
// The mean over the places of the longest round.
[[nodiscard]] double CalibrationError(std::span<const DraftRound> rounds, const Calibration& calibration);

// Place after place the temperature and shift under which what was accepted is likeliest, over the rounds whose earlier
// drafts were accepted: logistic regression, with a slight pull towards 1 and 0 that decides where rounds are few.
[[nodiscard]] Calibration FitCalibration(std::span<const DraftRound> rounds);

// The file beside a model.
inline constexpr std::string_view kCalibrationFile = "galley-speculation.json";
[[nodiscard]] std::string ToJson(const Calibration& calibration);
// Errors: kCorrupt naming file, value and limit.
[[nodiscard]] Result<Calibration> ParseCalibration(std::string_view json, std::string_view where);
// Without the file: confidences as they are. Errors: kIo; those of ParseCalibration.
[[nodiscard]] Result<Calibration> LoadCalibration(const std::filesystem::path& model_dir);

}  // namespace galley::engine
