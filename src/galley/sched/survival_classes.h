// SPDX-License-Identifier: Apache-2.0
// How likely drafts at each place are, pooled over steps: what decides how deep to draft and from which survival on a
// row is worth verifying, where steps may have any number of rows. Pure values, owned by a verify planner.
#pragma once

#include <array>
#include <span>

namespace galley::sched {

class SurvivalClasses {
 public:
  static constexpr int kClasses = 32;
  static constexpr int kPlaces = 8;  // more drafts of a sequence count as none

  // Of one step; `per_sequence` survivals for each sequence that drafted.
  [[nodiscard]] static SurvivalClasses Of(std::span<const float> survivals, int per_sequence);
  // Moves the places that `newer` has towards it by `part`; those that were empty take it over.
  void Blend(const SurvivalClasses& newer, double part);

  [[nodiscard]] bool empty() const { return places_ == 0; }
  [[nodiscard]] int places() const { return places_; }
  // Of a drafting sequence's draft at `place`: the chance that its survival is in the class, and that survival's share
  // of the mean.
  [[nodiscard]] double Rows(int place, int survival_class) const { return rows_[Index(place, survival_class)]; }
  [[nodiscard]] double Gain(int place, int survival_class) const {
    return gain_[Index(place, survival_class)] * Truth(survival_class);
  }
  // What became of a verified draft: such survivals count as much more or less as they came true so far. Confidences of
  // a model that nobody calibrated, or of texts unlike those, are put right that way.
  void Verified(float survival, bool accepted);
  [[nodiscard]] static int ClassOf(float survival);
  // The lowest survival of a class.
  [[nodiscard]] static float Lowest(int survival_class) { return static_cast<float>(survival_class) / kClasses; }

 private:
  [[nodiscard]] static std::size_t Index(int place, int survival_class) {
    return static_cast<std::size_t>(place) * kClasses + static_cast<std::size_t>(survival_class);
  }
  [[nodiscard]] double Truth(int survival_class) const;

  static constexpr int kClassesTogether = 4;  // that truth is known of
  std::array<double, kPlaces * kClasses> rows_{}, gain_{};
  std::array<double, kClasses / kClassesTogether> expected_{}, accepted_{};
  int places_ = 0;
};

}  // namespace galley::sched
