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

// The codec's list of tools as the grammar of calls takes it. Where a call is the model's choice, tools that did not
// ask for strictness keep only the block's form: any arguments, each name once. `otherwise`, unless null: what an
// answer that is not a call must be.
std::string DsmlSpec(const protocol::ParsedRequest& request, std::string_view mode, bool single_call,
                     const ConstraintSpec* otherwise) {
  Json tools(Json::Array{});
  for (const protocol::Tool& tool : request.conversation.tools) {
    const bool strict = tool.strict.value_or(false);
    const Json& declared = tool.declared.is_null() ? tool.parameters : tool.declared;
    tools.Push(Json::MakeObject(
        {{"name", tool.name}, {"parameters", strict || mode != "auto" ? declared : Json()}, {"strict", strict}}));
  }
  Json spec = Json::MakeObject(
      {{"spelling", Name(request.version)}, {"mode", mode}, {"parallel", !single_call}, {"tools", std::move(tools)}});
  std::string text = DumpJson(spec);
  // The other form stands as its own text, so that numbers keep their spelling.
  if (otherwise != nullptr) {
    text.pop_back();
    text += ",\"otherwise\":{\"kind\":\"" + otherwise->kind + "\",\"spec\":" + otherwise->spec + "}}";
  }
  return text;
}

// What the body's response format demands, the codec's `kind` and `schema`.
ConstraintSpec FormatConstraint(const protocol::ParsedRequest& request, std::string_view kind,
                                const std::string& schema) {
  if (kind == "regex") return {"regex", DumpJson(Json(schema)), false, "response_format"};
  // The schema as the client gave it: what the codec's strict form leaves out, the grammar enforces.
  if (request.conversation.response_format == protocol::ResponseFormat::kJsonSchema)
    return {"json_schema", DumpJson(request.conversation.response_schema), false, "response_format"};
  return {"json_schema", schema.empty() ? std::string(kAnyObject) : schema, false, "response_format"};
}

// `foreign`: what a foreign member of the body demands, or null.
ApiResult<std::optional<ConstraintSpec>> CodecConstraint(const protocol::ParsedRequest& request, bool single_call,
                                                         const ConstraintSpec* foreign) {
  if (!request.inference.constraint) return std::nullopt;
  const protocol::Constraint& constraint = *request.inference.constraint;
  const auto both = [](const ConstraintSpec& a, std::string_view b) {
    return Refuse({.status = 400,
                   .message = a.param + " and " + std::string(b) + " both constrain the answer; give one",
                   .param = a.param});
  };
  if (constraint.kind == "json" || constraint.kind == "regex") {
    if (foreign != nullptr) return both(*foreign, "response_format");
    return FormatConstraint(request, constraint.kind, constraint.schema);
  }
  // A demanded call leaves no answer for another form to hold.
  if (constraint.kind == "tool_call_required") {
    if (foreign != nullptr) return both(*foreign, "tools");
    const std::string_view mode = request.parsing.starts_in_tool_calls ? "inside" : "block";
    return ConstraintSpec{"dsml", DsmlSpec(request, mode, single_call, nullptr), false, "tools"};
  }
  std::optional<ConstraintSpec> answer;
  if (!constraint.otherwise_kind.empty())
    answer = FormatConstraint(request, constraint.otherwise_kind, constraint.otherwise_schema);
  if (foreign != nullptr && answer) return both(*foreign, answer->param);
  const bool strict = std::ranges::any_of(request.conversation.tools,
                                          [](const protocol::Tool& tool) { return tool.strict.value_or(false); });
  if (foreign != nullptr) {
    const bool joins = foreign->kind == "json_schema" || foreign->kind == "regex";
    // Grammars and tags speak of calls themselves.
    if (!joins && !strict) return std::nullopt;
    if (!joins) return both(*foreign, "tools");
    answer = *foreign;
  }
  return ConstraintSpec{"dsml", DsmlSpec(request, "auto", single_call, answer ? &*answer : nullptr), false,
                        answer ? answer->param : "tools", !strict && !answer};
}

}  // namespace

ApiResult<std::optional<ConstraintSpec>> ConstraintOf(const protocol::ParsedRequest& request, const Json& body,
                                                      bool single_call) {
  auto foreign = ForeignConstraint(body);
  if (!foreign) return foreign;
  auto own = CodecConstraint(request, single_call, *foreign ? &**foreign : nullptr);
  if (!own) return own;
  auto& spec = *own ? own : foreign;
  using protocol::ThinkingStage;
  const ThinkingStage stage = request.parsing.stage;
  if (*spec)
    (*spec)->after_thinking = stage == ThinkingStage::kReasoningStart || stage == ThinkingStage::kReasoningContinuation;
  return spec;
}

}  // namespace galley::serve
