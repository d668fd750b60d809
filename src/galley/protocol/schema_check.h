// SPDX-License-Identifier: Apache-2.0
// Checks on the JSON Schemas that requests carry: whether a schema is one (against the rules of JSON Schema draft
// 2020-12, references within the document only) and the rewriting that "strict" asks for. What a schema then allows is
// the grammar layer's business. Pure.
#pragma once

#include <string_view>

#include "galley/base/error.h"
#include "galley/protocol/json.h"

namespace galley::protocol {

// kInvalidArgument with the words of the original codec for the first rule that `schema` breaks; `where` says at which
// JSON Pointer, and for a regular expression why.
[[nodiscard]] Status CheckJsonSchema(const Json& schema);

// kInvalidArgument unless `pattern` is written like a regular expression: balanced groups and classes, no dangling
// repetition or escape; `where` says at which byte. The grammar layer compiles it later and may refuse more.
[[nodiscard]] Status CheckRegexSyntax(std::string_view pattern);

inline constexpr std::string_view kStrictToolError = "Invalid tool parameters schema : ";

// The strict form: every object closed and every property required, keywords in a fixed order, unknown keywords
// dropped. Keywords that would change the meaning if dropped are refused by name. Constants, lengths, counts and
// $defs are kept, since the constraint engine knows them. Errors say in `where` at which JSON Pointer; some begin with
// kStrictToolError, as the original's do.
[[nodiscard]] Result<Json> MakeStrict(const Json& schema);

}  // namespace galley::protocol
