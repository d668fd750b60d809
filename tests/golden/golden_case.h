// SPDX-License-Identifier: Apache-2.0
// Golden files as test cases: where they are, and how far a dump may be from them.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "galley/engine/dump.h"
#include "galley/engine/tensor_compare.h"

// The backends that a build of these tests runs.
#ifndef GALLEY_TEST_BACKENDS
#define GALLEY_TEST_BACKENDS "ref", "cpu"
#endif

namespace galley::golden {

// Name of the limits of a kind of case: a GPU adds in an order of its own.
[[nodiscard]] inline std::string LimitSet(const std::string& name, const std::string& backend) {
  return backend == "cuda" ? name + "_other_order" : name;
}

// limits.json: kinds of tensors, and for each named set the worst value allowed per kind.
class Limits {
 public:
  [[nodiscard]] static Limits Load(const std::filesystem::path& file);

  // Complaints about every difference that is over its limit in `set`; empty when all is well.
  [[nodiscard]] std::vector<std::string> Violations(const std::vector<engine::Difference>& differences,
                                                    const std::string& set) const;
  [[nodiscard]] double At(const std::string& set, const std::string& kind) const { return sets_.at(set).at(kind); }

 private:
  [[nodiscard]] std::string KindOf(const std::string& tensor) const;

  std::map<std::string, std::string> kind_of_;  // last part of a tensor's name to its kind
  std::map<std::string, std::map<std::string, double>> sets_;
};

// Options that make a dump hold what `golden` holds.
[[nodiscard]] engine::DumpOptions OptionsFor(const std::filesystem::path& model_dir, const engine::TensorMap& golden);

// The golden_*.safetensors of a checkpoint directory whose tensors this version can make, by name; image cases are left
// out because they need the vision tower.
[[nodiscard]] std::vector<std::filesystem::path> GoldenFiles(const std::filesystem::path& dir);

}  // namespace galley::golden
