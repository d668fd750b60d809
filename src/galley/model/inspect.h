// SPDX-License-Identifier: Apache-2.0
// What a model directory holds and whether it is whole: the report behind `galley inspect`. It works on damaged
// directories too and lists everything that is wrong. Opens files read-only; touches headers, never weights.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "galley/base/error.h"
#include "galley/model/config.h"
#include "galley/model/kv_cost.h"
#include "galley/model/tensor_list.h"

namespace galley::model {

struct PartSize {
  std::int64_t tensors = 0;
  std::int64_t parameters = 0;
  std::int64_t bytes = 0;
  std::int64_t active = 0;  // parameters that one decoded token uses; table rows and embedding rows count as read
};

struct ModelSize {
  std::array<PartSize, static_cast<std::size_t>(kParts)> parts;  // by Part
  PartSize total;
  // Parameters used by a prompt token outside the decoder tail: the encoder, and the decoder start's compressor and
  // index keys.
  std::int64_t encoder_active = 0;
};
[[nodiscard]] ModelSize ComputeModelSize(const Config& config);

struct InspectReport {
  std::filesystem::path dir;
  std::vector<std::string> config_files;    // that were read, relative to dir
  std::vector<std::string> unknown_fields;  // "file: field"
  std::optional<Config> config;             // absent when it could not be read; then so are the sizes
  std::optional<ModelSize> size;            // that the config implies
  std::optional<KvCost> kv;
  std::int64_t files = 0;  // tensor files that could be read, with what they hold
  std::int64_t file_bytes = 0;
  std::int64_t tensors = 0;
  std::string weights_digest;   // of every byte of those files, in hex; empty: not asked for
  std::vector<Error> problems;  // empty: Checkpoint::Open succeeds

  [[nodiscard]] bool ok() const { return problems.empty(); }
};

[[nodiscard]] InspectReport Inspect(const std::filesystem::path& dir);

// For people: aligned columns, a final line end, no colour.
[[nodiscard]] std::string ToText(const InspectReport& report);
// One JSON object; sizes in bytes, counts as integers. Its members are listed in docs/checkpoint.md.
[[nodiscard]] std::string ToJson(const InspectReport& report);

}  // namespace galley::model
