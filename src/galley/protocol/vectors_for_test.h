// SPDX-License-Identifier: Apache-2.0
// The committed codec vectors (tests/cases/recipe), for tests only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "galley/protocol/json.h"
#include "galley/text/tokenizer.h"

namespace galley::protocol {

// The unpacked text of tests/cases/recipe/<name>.jsonl.xz; a failed CHECK when it cannot be read.
[[nodiscard]] std::string ReadVectorText(std::string_view name);
// Its lines as JSON values.
[[nodiscard]] std::vector<Json> ReadVectors(std::string_view name);

// `value` at a path of keys, null when absent: At(row, {"expect", "conversation"}).
[[nodiscard]] Json At(const Json& value, std::initializer_list<std::string_view> path);
[[nodiscard]] std::string TextAt(const Json& value, std::initializer_list<std::string_view> path);

// Bytes of an xz file; empty when it does not exist.
[[nodiscard]] std::string ReadXz(const std::string& path);

// DeepSeek's tokenizer from the material beside the checkout; null when it is absent.
[[nodiscard]] const text::Tokenizer* SharedTokenizer();

// Equal but for the order of members, which JSON gives no meaning to.
[[nodiscard]] bool SameJson(const Json& a, const Json& b);

}  // namespace galley::protocol
