// SPDX-License-Identifier: Apache-2.0
// Compares a dump with a golden file, tensor by tensor, each with the measure that fits what it is. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "galley/engine/dump.h"

namespace galley::engine {

enum class Measure {
  kRelativeL2,     // |a - b| / |b| over the whole tensor: streams, logits, KV
  kAbsolute,       // largest |a - b|: coefficients, weights
  kDifferent,      // share of elements that differ: integers that must be exact
  kSetOverlap,     // mean over rows of |a ∩ b| / |b|: top-k lists; 1 is perfect
  kDifferentSets,  // share of rows whose sets differ: router choices
  kGreedy,         // margin of the golden at the first step where the ids differ; 0: all equal
};
[[nodiscard]] std::string_view MeasureName(Measure measure);

// The measure of a golden tensor, by the last part of its name.
[[nodiscard]] Measure MeasureOf(std::string_view name);

struct Difference {
  std::string name;
  Measure measure = Measure::kAbsolute;
  double value = 0;
  std::string note;  // why there is no value: absent here, another shape
};

// One row per tensor of `golden`, in name order. Router weights are compared where the chosen experts are the same.
[[nodiscard]] std::vector<Difference> CompareTensors(const TensorMap& ours, const TensorMap& golden);

// Aligned text, one line per tensor.
[[nodiscard]] std::string DifferenceTable(const std::vector<Difference>& differences);

// Values of any numeric tensor as double.
[[nodiscard]] std::vector<double> Values(const HostTensor& tensor);

}  // namespace galley::engine
