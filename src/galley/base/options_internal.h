// SPDX-License-Identifier: Apache-2.0
// Pieces that the files of the option table share; nothing outside base includes this.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "galley/base/options.h"

namespace galley::options::internal {

// "from 0 to 20", "low|high|max", or "" where every value of the type is allowed.
[[nodiscard]] std::string Limits(const Spec& spec);

[[nodiscard]] Status CheckLimits(const Spec& spec, const Value& value, std::string_view where);

// The parsed `initial`; a default that breaks its own limits is our bug.
[[nodiscard]] Value DefaultOf(const Spec& spec);

// A value as the file's types gave it, made into the option's type.
[[nodiscard]] Result<Value> FromFile(const Spec& spec, const Value& given, std::string_view where);

}  // namespace galley::options::internal
