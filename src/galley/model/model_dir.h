// SPDX-License-Identifier: Apache-2.0
// A model directory looked at as a whole: its config files, its tensor files and how the two agree. Unlike
// Checkpoint::Open it does not stop at the first problem, so inspect can describe a damaged model. Internal to `model`.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "galley/base/error.h"
#include "galley/io/shard_set.h"
#include "galley/model/config.h"
#include "galley/model/tensor_list.h"
#include "galley/tensor/tensor_view.h"

namespace galley::model {

// Whether `dir` is a directory that can be read. kNotFound says what a model directory contains.
[[nodiscard]] Status CheckModelDir(const std::filesystem::path& dir);

struct LoadedConfig {
  Config config;
  std::vector<std::string> files;    // that it came from, relative to the directory
  std::vector<std::string> unknown;  // "file: field" that the engine does not know
};
// From config.json, inference/config.json, or both where they agree.
[[nodiscard]] Result<LoadedConfig> LoadConfig(const std::filesystem::path& dir);

// Transparent so that a string_view finds a name without a copy.
struct NameHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view name) const { return std::hash<std::string_view>{}(name); }
};
using TensorMap = std::unordered_map<std::string, TensorView, NameHash, std::equal_to<>>;

// Compares the tensors of `shards` with the implied ones: missing, not part of the model, of another dtype or shape,
// or misaligned. One problem per kind, which lists up to 20 names and patterns with counts. Tensors that agree go into
// `tensors`.
struct TensorCheck {
  TensorMap tensors;
  std::vector<Error> problems;
};
[[nodiscard]] TensorCheck CheckTensors(const std::vector<ImpliedTensor>& implied, const io::ShardSet& shards,
                                       const std::filesystem::path& dir);

// Lists up to 20 names; of more, the patterns that numbers leave ("layers.*.ffn_norm.weight (40)").
[[nodiscard]] std::string SummariseNames(const std::vector<std::string>& names);

}  // namespace galley::model
