// SPDX-License-Identifier: Apache-2.0
// One config.json as read, before two of them become a model's Config, and the rules that its values must keep.
// Internal to `model`; pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/error.h"
#include "galley/model/config.h"
#include "galley/model/config_fields.h"

namespace galley::model {

struct ConfigFile {
  Config config;
  Spelling spelling = Spelling::kFlat;
  std::string where;
  std::vector<bool> stated;          // per row of Fields(): the file has the field
  std::vector<std::string> unknown;  // paths of fields that the engine does not know
};

// As ParseConfig.
[[nodiscard]] Result<ConfigFile> ParseConfigFile(std::string_view json, std::string_view where);

// The config of a model that has two files: `first`, completed by what only `second` states. kCorrupt lists every field
// on which they disagree, with both names and both values.
[[nodiscard]] Result<Config> MergeConfigs(const ConfigFile& first, const ConfigFile& second);

// Every rule that the values break, each as "field: what is wrong", with names in `spelling`. `usable` says per row of
// Fields() whether the value was read; rules about others are left out.
[[nodiscard]] std::vector<std::string> BrokenRules(const Config& config, const std::vector<bool>& usable,
                                                   Spelling spelling);

// Text of one error about several problems: the problem alone, or a count and one line each.
[[nodiscard]] std::string JoinProblems(const std::vector<std::string>& problems);

}  // namespace galley::model
