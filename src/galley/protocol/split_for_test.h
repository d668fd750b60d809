// SPDX-License-Identifier: Apache-2.0
// Cutting the output of a vector anywhere must not change what the client gets. For tests only.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "galley/protocol/json.h"

namespace galley::protocol {

// The stream vectors whose output is one text chunk.
[[nodiscard]] std::vector<Json> WholeCases();
// Offsets of the character boundaries inside the text of such a case, without both ends.
[[nodiscard]] std::vector<std::size_t> Boundaries(const Json& row);
// The case with its text cut at `at`.
[[nodiscard]] Json CutAt(const Json& row, std::size_t at);
// The text of the case.
[[nodiscard]] std::string WholeText(const Json& row);

}  // namespace galley::protocol
