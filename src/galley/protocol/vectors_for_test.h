// SPDX-License-Identifier: Apache-2.0
// The committed codec vectors (tests/cases/recipe), for tests only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "galley/protocol/json.h"

namespace galley::protocol {

// The unpacked text of tests/cases/recipe/<name>.jsonl.xz; a failed CHECK when it cannot be read.
[[nodiscard]] std::string ReadVectorText(std::string_view name);
// Its lines as JSON values.
[[nodiscard]] std::vector<Json> ReadVectors(std::string_view name);

// `value` at a path of keys, null when absent: At(row, {"expect", "conversation"}).
[[nodiscard]] Json At(const Json& value, std::initializer_list<std::string_view> path);
[[nodiscard]] std::string TextAt(const Json& value, std::initializer_list<std::string_view> path);

}  // namespace galley::protocol
