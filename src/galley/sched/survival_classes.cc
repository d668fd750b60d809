// SPDX-License-Identifier: Apache-2.0
#include "galley/sched/survival_classes.h"

#include <algorithm>

namespace galley::sched {

SurvivalClasses SurvivalClasses::Of(std::span<const float> survivals, int per_sequence) {
  SurvivalClasses classes;
  if (survivals.empty() || per_sequence < 1) return classes;
  classes.places_ = std::min(per_sequence, kPlaces);
  const double share = per_sequence / static_cast<double>(survivals.size());
  for (std::size_t i = 0; i < survivals.size(); ++i) {
    const int place = static_cast<int>(i % static_cast<std::size_t>(per_sequence));
    if (place >= kPlaces) continue;
    const float survival = survivals[i] >= 0 && survivals[i] <= 1 ? survivals[i] : 0;  // NaN has no class
    const std::size_t at = Index(place, std::min(static_cast<int>(survival * kClasses), kClasses - 1));
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
