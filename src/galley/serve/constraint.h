// SPDX-License-Identifier: Apache-2.0
// What a request demands of the form of its answer: JSON, a schema, a regular expression, a grammar, a call of a tool.
// The one place that turns the codec's Constraint and the members of vLLM's and SGLang's bodies into what the grammar
// layer compiles (grammar/compile.h). What cannot be enforced is refused, never promised in silence. Pure.
#pragma once

#include <optional>
#include <string>

#include "galley/protocol/request.h"
#include "galley/serve/api_error.h"

namespace galley::serve {

struct ConstraintSpec {
  std::string kind;             // json_schema, regex, ebnf, choice, structural_tag, dsml
  std::string spec;             // JSON text, as grammar::CompileKind takes it
  bool after_thinking = false;  // the text is free up to the end of the reasoning
  std::string param{};          // member of the body that demanded it, for errors
  std::string format_param{};   // the same for the form of an answer that is no call, "/otherwise" in the spec
  bool optional = false;        // nobody demanded it: left out where the model has no marker of calls
};

// Nothing, when every text will do.
[[nodiscard]] ApiResult<std::optional<ConstraintSpec>> ConstraintOf(const protocol::ParsedRequest& request,
                                                                    const protocol::Json& body, bool single_call);

}  // namespace galley::serve
