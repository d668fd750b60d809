// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/constraint.h"

#include <algorithm>
#include <string_view>

#include "galley/protocol/shape.h"

namespace galley::serve {
namespace {

using protocol::Get;
using protocol::Json;

constexpr std::string_view kAnyObject = R"({"type":"object"})";

// A member of a foreign body that constrains the answer.
struct ForeignRow {
  std::string_view holder;  // object that it stands in; "" for the body itself
  std::string_view name;
  std::string_view kind;
};
constexpr ForeignRow kForeign[] = {
    {"structured_outputs", "json", "json_schema"},
    {"structured_outputs", "json_object", "json_object"},
    {"structured_outputs", "regex", "regex"},
    {"structured_outputs", "choice", "choice"},
    {"structured_outputs", "grammar", "ebnf"},
    {"structured_outputs", "structural_tag", "structural_tag"},
    {"", "guided_json", "json_schema"},
    {"", "guided_regex", "regex"},
    {"", "guided_choice", "choice"},
    {"", "guided_grammar", "ebnf"},
    {"", "json_schema", "json_schema"},
    {"", "regex", "regex"},
    {"", "ebnf", "ebnf"},
    {"", "structural_tag", "structural_tag"},
};

// Schemas and tags may come as an object or as its text; the others are strings or lists.
ApiResult<std::string> SpecText(const ForeignRow& row, const Json& value) {
  const bool is_json = row.kind == "json_schema" || row.kind == "structural_tag";
  const bool fits = is_json                ? value.is_object() || value.is_bool() || value.is_string()
                    : row.kind == "choice" ? value.is_array()
                                           : value.is_string();
  if (!fits)
    return Refuse({.status = 400,
                   .message = std::string(row.name) + " must not be of type " + std::string(value.type_name()),
                   .param = std::string(row.name)});
  if (is_json && value.is_string()) return *value.if_string();
  return DumpJson(value);
}

ApiResult<std::optional<ConstraintSpec>> ForeignConstraint(const Json& body) {
  std::optional<ConstraintSpec> found;
  for (const ForeignRow& row : kForeign) {
    const Json& value = Get(row.holder.empty() ? body : Get(body, row.holder), row.name);
    if (value.is_null()) continue;
    if (found)
      return Refuse({.status = 400,
                     .message = found->param + " and " + std::string(row.name) + " both constrain the answer; give one",
                     .param = std::string(row.name)});
    if (row.kind == "json_object") {
      if (protocol::IsTrue(value)) found = ConstraintSpec{"json_schema", std::string(kAnyObject), false, "json_object"};
      continue;
    }
    auto spec = SpecText(row, value);
    if (!spec) return Refuse(spec.error());
    found = ConstraintSpec{std::string(row.kind), std::move(*spec), false, std::string(row.name)};
  }
  return found;
}

// The codec's list of tools as the grammar of calls takes it.
std::string DsmlSpec(const protocol::ParsedRequest& request, std::string_view mode, bool single_call) {
  Json tools(Json::Array{});
  for (const protocol::Tool& tool : request.conversation.tools)
    tools.Push(Json::MakeObject(
        {{"name", tool.name}, {"parameters", tool.parameters}, {"strict", tool.strict.value_or(false)}}));
  return DumpJson(Json::MakeObject(
      {{"spelling", Name(request.version)}, {"mode", mode}, {"parallel", !single_call}, {"tools", std::move(tools)}}));
}

ApiResult<std::optional<ConstraintSpec>> CodecConstraint(const protocol::ParsedRequest& request, bool single_call) {
  if (!request.inference.constraint) return std::nullopt;
  const protocol::Constraint& constraint = *request.inference.constraint;
  if (!constraint.otherwise_kind.empty())
    return Refuse({.status = 400,
                   .message = "a response format together with tools cannot be enforced; leave out one of them, or set "
                              "tool_choice to none",
                   .param = "response_format",
                   .code = "unsupported"});
  if (constraint.kind == "json")
    return ConstraintSpec{"json_schema", constraint.schema.empty() ? std::string(kAnyObject) : constraint.schema, false,
                          "response_format"};
  if (constraint.kind == "regex")
    return ConstraintSpec{"regex", DumpJson(Json(constraint.schema)), false, "response_format"};
  const bool demanded = constraint.kind == "tool_call_required";
  const auto& tools = request.conversation.tools;
  const bool strict =
      std::any_of(tools.begin(), tools.end(), [](const protocol::Tool& tool) { return tool.strict.value_or(false); });
  // Tools that the model may call as it likes need no masks; what is not a call comes back as text.
  if (!demanded && !strict) return std::nullopt;
  const std::string_view mode = !demanded ? "auto" : request.parsing.starts_in_tool_calls ? "inside" : "block";
  return ConstraintSpec{"dsml", DsmlSpec(request, mode, single_call), false, "tools"};
}

}  // namespace

ApiResult<std::optional<ConstraintSpec>> ConstraintOf(const protocol::ParsedRequest& request, const Json& body,
                                                      bool single_call) {
  auto foreign = ForeignConstraint(body);
  if (!foreign) return foreign;
  auto own = CodecConstraint(request, single_call);
  if (!own) return own;
  if (*foreign && *own)
    return Refuse({.status = 400,
                   .message = (*foreign)->param + " and " + (*own)->param + " both constrain the answer; give one",
                   .param = (*foreign)->param});
  auto& spec = *foreign ? foreign : own;
  using protocol::ThinkingStage;
  const ThinkingStage stage = request.parsing.stage;
  if (*spec)
    (*spec)->after_thinking = stage == ThinkingStage::kReasoningStart || stage == ThinkingStage::kReasoningContinuation;
  return spec;
}

}  // namespace galley::serve
