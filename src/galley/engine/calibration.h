// SPDX-License-Identifier: Apache-2.0
// Calibrated confidences of drafts: sequential temperature scaling. A drafter's confidence is the logit of the chance
// that a draft is accepted if those before it are; dividing it by a temperature of its place makes the running product
// of chances, the survival, agree with what is accepted. Pure but for reading the file beside the model.
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

struct Calibration {
  std::vector<double> temperatures;  // by place; places without one have 1

  // Chance that the draft at `place` is accepted if those before it are.
  [[nodiscard]] double Chance(float confidence, std::size_t place) const;
};

// Expected calibration error of survivals at `place` in 15 bins of equal width: the mean distance of predicted and true
// share, weighted by the bins' sizes. Rounds without a draft there are left out.
[[nodiscard]] double CalibrationError(std::span<const DraftRound> rounds, const Calibration& calibration,
                                      std::size_t place);
// The mean over the places of the longest round.
[[nodiscard]] double CalibrationError(std::span<const DraftRound> rounds, const Calibration& calibration);

// Places from the first on, each with the temperature of 0.1 … 10 that makes the error of its survivals least, given
// the temperatures before it.
[[nodiscard]] Calibration FitCalibration(std::span<const DraftRound> rounds);

// The file beside a model.
inline constexpr std::string_view kCalibrationFile = "galley-speculation.json";
[[nodiscard]] std::string ToJson(const Calibration& calibration);
// Errors: kCorrupt naming file, value and limit.
[[nodiscard]] Result<Calibration> ParseCalibration(std::string_view json, std::string_view where);
// Without the file: temperatures of 1. Errors: kIo; those of ParseCalibration.
[[nodiscard]] Result<Calibration> LoadCalibration(const std::filesystem::path& model_dir);

}  // namespace galley::engine
