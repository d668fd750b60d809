// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/constraint.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "galley/protocol/shape.h"

namespace galley::serve {
namespace {

// Members of vLLM's and SGLang's bodies that constrain an answer.
constexpr std::string_view kForeign[] = {"structured_outputs", "guided_json", "guided_regex", "guided_choice",
                                         "guided_grammar",     "json_schema", "regex",        "ebnf"};

tl::unexpected<ApiError> CannotEnforce(std::string what, std::string param) {
  return Refuse({.status = 400,
                 .message = what + " cannot be enforced by this server yet, so it is refused rather than ignored",
                 .param = std::move(param),
                 .code = "unsupported"});
}

}  // namespace

ApiResult<void> CheckConstraint(const protocol::ParsedRequest& request, const protocol::Json& body) {
  for (const std::string_view name : kForeign)
    if (!protocol::Get(body, name).is_null()) return CannotEnforce(std::string(name), std::string(name));
  if (!request.inference.constraint) return {};
  const protocol::Constraint& constraint = *request.inference.constraint;
  if (constraint.kind == "json" || constraint.kind == "regex" || !constraint.otherwise_kind.empty())
    return CannotEnforce("a response format", "response_format");
  if (constraint.kind == "tool_call_required") return CannotEnforce("a demanded tool call", "tool_choice");
  const auto& tools = request.conversation.tools;
  if (std::any_of(tools.begin(), tools.end(), [](const protocol::Tool& tool) { return tool.strict.value_or(false); }))
    return CannotEnforce("a strict tool", "tools");
  return {};
}

}  // namespace galley::serve
