// SPDX-License-Identifier: Apache-2.0
#include "galley/sched/survival_classes.h"

#include <algorithm>

namespace galley::sched {

int SurvivalClasses::ClassOf(float survival) {
  return survival >= 0 && survival <= 1 ? std::min(static_cast<int>(survival * kClasses), kClasses - 1) : 0;
}

double SurvivalClasses::Truth(int survival_class) const {
  constexpr double kBelieved = 8;  // accepted drafts that confidences are worth against what is seen
  const auto at = static_cast<std::size_t>(survival_class / kClassesTogether);
  return (accepted_[at] + kBelieved) / (expected_[at] + kBelieved);
}

void SurvivalClasses::Verified(float survival, bool accepted) {
  constexpr double kKept = 1 - 1.0 / 512;
  const auto at = static_cast<std::size_t>(ClassOf(survival) / kClassesTogether);
  expected_[at] = expected_[at] * kKept + (survival >= 0 && survival <= 1 ? static_cast<double>(survival) : 0);
  accepted_[at] = accepted_[at] * kKept + (accepted ? 1 : 0);
}

SurvivalClasses SurvivalClasses::Of(std::span<const float> survivals, int per_sequence) {
  SurvivalClasses classes;
  if (survivals.empty() || per_sequence < 1) return classes;
  classes.places_ = std::min(per_sequence, kPlaces);
  const double share = per_sequence / static_cast<double>(survivals.size());
  for (std::size_t i = 0; i < survivals.size(); ++i) {
    const int place = static_cast<int>(i % static_cast<std::size_t>(per_sequence));
    if (place >= kPlaces) continue;
    const float survival = survivals[i] >= 0 && survivals[i] <= 1 ? survivals[i] : 0;  // NaN has no class
    const std::size_t at = Index(place, ClassOf(survival));
    classes.rows_[at] += share;
    classes.gain_[at] += share * static_cast<double>(survival);
  }
  return classes;
}

void SurvivalClasses::Blend(const SurvivalClasses& newer, double part) {
  for (int place = 0; place < newer.places_; ++place) {
    const double own = place < places_ ? part : 1;
    for (std::size_t at = Index(place, 0); at < Index(place + 1, 0); ++at) {
      rows_[at] += own * (newer.rows_[at] - rows_[at]);
      gain_[at] += own * (newer.gain_[at] - gain_[at]);
    }
  }
  places_ = std::max(places_, newer.places_);
}

}  // namespace galley::sched
