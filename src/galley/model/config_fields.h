// SPDX-License-Identifier: Apache-2.0
// The fields of config.json as a table: both spellings, when a field must be there, its range and where it goes.
// Reading, comparing two files and error messages all work from it. Internal to `model`; pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "galley/model/config.h"

namespace galley::model {

enum class Spelling { kFlat, kNested };  // inference/config.json; the Hugging Face file with text_config

enum class Presence { kRequired, kOptional, kEngram, kDraft, kVision };  // the last three: required with that part

using FieldTarget = std::variant<int& (*)(Config&), std::int64_t& (*)(Config&), double& (*)(Config&),
                                 std::vector<int>& (*)(Config&), std::vector<std::int64_t>& (*)(Config&)>;

struct Field {
  std::string_view flat;
  std::string_view nested;  // path from the root, parts separated by dots
  Presence presence;
  double min, max;  // of the value, or of every element of a list
  FieldTarget target;
};
[[nodiscard]] std::span<const Field> Fields();

// A field whose value is not read because only one is supported. `expected` is its JSON text as Json::Show gives it.
struct FixedField {
  std::string_view flat;  // empty: not in that spelling
  std::string_view nested;
  std::string_view expected;
};
[[nodiscard]] std::span<const FixedField> FixedFields();

// Fields of the official files that carry nothing the engine needs; not reported as unknown.
[[nodiscard]] bool IsIgnoredField(std::string_view path);

// Name of the field in a spelling, from its flat name.
[[nodiscard]] std::string_view FieldName(std::string_view flat, Spelling spelling);

// The value of a field of `config`, as text for messages and for comparison.
[[nodiscard]] std::string FieldText(const Field& field, const Config& config);

}  // namespace galley::model
