// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/constraint.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "galley/protocol/shape.h"
#include "galley/serve/foreign_members.h"

namespace galley::serve {
namespace {

using protocol::Get;
using protocol::Json;
using protocol::Text;

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
    {"", "guided_json_object", "json_object"},
    {"", "guided_regex", "regex"},
    {"", "guided_choice", "choice"},
    {"", "guided_grammar", "ebnf"},
    {"", "json_schema", "json_schema"},
    {"", "regex", "regex"},
    {"", "ebnf", "ebnf"},
    {"", "structural_tag", "structural_tag"},
};

// As the client wrote it.
std::string NameOf(const ForeignRow& row) {
  return row.holder == "so_args" ? "so_args.schema" : std::string(row.name);
}

ApiError WrongType(std::string name, std::string_view wanted, const Json& value) {
  return {.status = 400,
          .message = fmt::format("{} must be {}, not of type {}", name, wanted, value.type_name()),
          .param = std::move(name)};
}

// Schemas and tags may come as an object or as its text; the others are strings or lists.
ApiResult<std::string> SpecText(const ForeignRow& row, const Json& value) {
  const bool is_json = row.kind == "json_schema" || row.kind == "structural_tag";
  const bool fits = is_json                ? value.is_object() || value.is_bool() || value.is_string()
                    : row.kind == "choice" ? value.is_array()
                                           : value.is_string();
  if (!fits)
    return Refuse(WrongType(NameOf(row),
                            is_json                ? "a JSON object or its text"
                            : row.kind == "choice" ? "a list of strings"
                                                   : "a string",
                            value));
  if (is_json && value.is_string()) return *value.if_string();
  return DumpJson(value);
}

// The member that DeepInfer's {"schema_type", "schema"} stands for: its types are not written down, so these are the
// names that others have for the same.
ApiResult<std::optional<ForeignRow>> RowOfSoArgs(const Json& args) {
  if (args.is_null()) return std::nullopt;
  const std::string_view type = Text(args, "schema_type");
  for (const ForeignRow& row : kForeign)
    if (row.holder == "structured_outputs" && (row.name == type || row.kind == type))
      return ForeignRow{"so_args", "schema", row.kind};
  return Refuse({.status = 400,
                 .message = "so_args must be an object with schema, and schema_type: json_schema, json_object, regex, "
                            "choice, ebnf or structural_tag",
                 .param = "so_args"});
}

// What vLLM takes beside the form itself. Blanks are at most one behind "," and ":", so a wish for fewer is no demand,
// and there is one engine, which falls back on nothing.
ApiResult<void> CheckHolder(const Json& holder) {
  static constexpr std::string_view kHolder = "structured_outputs";
  if (holder.is_null()) return {};
  if (!holder.is_object()) return Refuse(WrongType(std::string(kHolder), "an object", holder));
  bool any = false;
  for (const Json::Member& member : *holder.if_object()) {
    const std::string_view name = member.key;
    const Json& value = member.value;
    if (value.is_null()) continue;
    const bool known = std::any_of(std::begin(kForeign), std::end(kForeign),
                                   [&](const ForeignRow& row) { return row.holder == kHolder && row.name == name; });
    any = any || known;
    if (known || name == "disable_any_whitespace" || name == "disable_fallback" || name == "backend" ||
        name.starts_with('_'))
      continue;
    if (value.is_bool() && !protocol::IsTrue(value)) continue;
    return Refuse({.status = 400,
                   .message = fmt::format("structured_outputs.{} is not supported: {}", name,
                                          name == "whitespace_pattern" ? "blanks in JSON are what its grammar allows"
                                          : name == "disable_additional_properties"
                                              ? "write additionalProperties into the schema"
                                              : "it is no form of an answer that Galley knows"),
                   .param = std::string(kHolder),
                   .code = "unsupported_parameter"});
  }
  if (!any)
    return Refuse(
        {.status = 400,
         .message = "structured_outputs has none of json, json_object, regex, choice, grammar, structural_tag",
         .param = std::string(kHolder)});
  return {};
}

ApiResult<std::optional<ConstraintSpec>> ForeignConstraint(const Json& body) {
  const Json& holder = Get(body, "structured_outputs");
  if (auto checked = CheckHolder(holder); !checked) return Refuse(checked.error());
  // Of a response_format in other words the errors speak in the client's.
  const std::string asked_as(Text(holder, kAskedAs));
  auto so_args = RowOfSoArgs(Get(body, "so_args"));
  if (!so_args) return Refuse(so_args.error());
  std::vector<ForeignRow> rows(std::begin(kForeign), std::end(kForeign));
  if (*so_args) rows.push_back(**so_args);
  std::optional<ConstraintSpec> found;
  for (const ForeignRow& row : rows) {
    const bool is_so = row.holder == "so_args";
    const Json& value = Get(row.holder.empty() ? body : Get(body, row.holder), row.name);
    if (value.is_null() && !is_so) continue;
    const std::string name = is_so                                    ? std::string(row.holder)
                             : row.holder.empty() || asked_as.empty() ? std::string(row.name)
                                                                      : asked_as;
    if (found)
      return Refuse({.status = 400,
                     .message = found->param + " and " + name + " both constrain the answer; give one",
                     .param = name});
    if (row.kind == "json_object") {
      if (!is_so && !value.is_bool()) return Refuse(WrongType(name, "true or false", value));
      if (is_so || protocol::IsTrue(value)) found = ConstraintSpec{"json_schema", std::string(kAnyObject), false, name};
      continue;
    }
    auto spec = SpecText(row, value);
    if (!spec) return Refuse(spec.error());
    found = ConstraintSpec{std::string(row.kind), std::move(*spec), false, name};
  }
  return found;
}

// Whether the tool asked for strictness: the codec says so, except of Messages, whose tools carry it as their own
// member and are held to their schema as it is.
bool IsStrict(const protocol::Tool& tool, const Json& body) {
  const std::span<const Json> rows = protocol::Elements(Get(body, "tools"));
  return tool.strict.value_or(false) || std::any_of(rows.begin(), rows.end(), [&](const Json& row) {
           return Text(row, "name") == tool.name && protocol::IsTrue(Get(row, "strict"));
         });
}

// The codec's list of tools as the grammar of calls takes it. `otherwise`: what an answer that is no call must be, null
// for anything. Where a call is the model's choice, tools that did not ask for strictness keep only the block's form:
// any arguments, each name once.
ConstraintSpec DsmlConstraint(const protocol::ParsedRequest& request, const Json& body, std::string_view mode,
                              bool single_call, Json otherwise) {
  Json tools(Json::Array{});
  for (const protocol::Tool& tool : request.conversation.tools) {
    const bool strict = IsStrict(tool, body);
    const Json& declared = tool.declared.is_null() ? tool.parameters : tool.declared;
    tools.Push(Json::MakeObject(
        {{"name", tool.name}, {"parameters", strict || mode != "auto" ? declared : Json()}, {"strict", strict}}));
  }
  Json spec = Json::MakeObject(
      {{"spelling", Name(request.version)}, {"mode", mode}, {"parallel", !single_call}, {"tools", std::move(tools)}});
  if (!otherwise.is_null()) spec.Set("otherwise", std::move(otherwise));
  return {"dsml", DumpJson(spec), false, "tools"};
}

// The form that the codec's own members demand of the answer.
std::optional<ConstraintSpec> FormatConstraint(const protocol::ParsedRequest& request) {
  if (!request.inference.constraint) return std::nullopt;
  const protocol::Constraint& constraint = *request.inference.constraint;
  const bool beside_tools = !constraint.otherwise_kind.empty();
  const std::string& kind = beside_tools ? constraint.otherwise_kind : constraint.kind;
  const std::string& schema = beside_tools ? constraint.otherwise_schema : constraint.schema;
  const std::string member = request.protocol == protocol::Protocol::kResponses  ? "text.format"
                             : request.protocol == protocol::Protocol::kMessages ? "output_config.format"
                                                                                 : "response_format";
  // The schema as the client gave it: what the codec's strict form leaves out, the grammar enforces.
  if (kind == "json" && request.conversation.response_format == protocol::ResponseFormat::kJsonSchema)
    return ConstraintSpec{"json_schema", DumpJson(request.conversation.response_schema), false, member};
  if (kind == "json")
    return ConstraintSpec{"json_schema", schema.empty() ? std::string(kAnyObject) : schema, false, member};
  if (kind == "regex") return ConstraintSpec{"regex", DumpJson(Json(schema)), false, member};
  return std::nullopt;
}

// A format beside tools that the model may call as it likes: the answer is calls, or has the format. Grammars that the
// client wrote itself stand alone: they say whether there may be calls.
ApiResult<ConstraintSpec> CallsOr(const protocol::ParsedRequest& request, const Json& body, bool single_call,
                                  ConstraintSpec format) {
  if (format.kind != "json_schema" && format.kind != "regex") return format;
  auto spec = protocol::ParseJson(format.spec);
  if (!spec)
    return Refuse({.status = 400, .message = format.param + ": " + spec.error().message, .param = format.param});
  ConstraintSpec either = DsmlConstraint(request, body, "auto", single_call,
                                         Json::MakeObject({{"kind", format.kind}, {"spec", std::move(*spec)}}));
  either.format_param = std::move(format.param);
  return either;
}

ApiError BothConstrain(std::string_view one, std::string_view other) {
  return {.status = 400,
          .message = fmt::format("{} and {} both constrain the answer; give one", one, other),
          .param = std::string(one)};
}

// What tools add to a format that the answer must have, if there is one.
ApiResult<std::optional<ConstraintSpec>> WithTools(const protocol::ParsedRequest& request, const Json& body,
                                                   bool single_call, std::optional<ConstraintSpec> format,
                                                   bool foreign) {
  if (!request.conversation.tools_active()) return format;
  const auto& tools = request.conversation.tools;
  const bool strict =
      std::any_of(tools.begin(), tools.end(), [&](const protocol::Tool& tool) { return IsStrict(tool, body); });
  // Messages demands a call while the model thinks too, which the conversation's choice cannot say.
  const bool demanded = request.inference.constraint && request.inference.constraint->kind == "tool_call_required";
  const bool may_join = format && (format->kind == "json_schema" || format->kind == "regex");
  if (foreign && (demanded || (strict && !may_join))) return Refuse(BothConstrain(format->param, "tools"));
  // A demanded call leaves no room for an answer of the response format.
  if (demanded)
    return DsmlConstraint(request, body, request.parsing.starts_in_tool_calls ? "inside" : "block", single_call,
                          Json());
  if (format) return CallsOr(request, body, single_call, std::move(*format));
  ConstraintSpec calls = DsmlConstraint(request, body, "auto", single_call, Json());
  calls.optional = !strict;
  return calls;
}

}  // namespace

ApiResult<std::optional<ConstraintSpec>> ConstraintOf(const protocol::ParsedRequest& request, const Json& body,
                                                      bool single_call) {
  auto foreign = ForeignConstraint(body);
  if (!foreign) return foreign;
  std::optional<ConstraintSpec> format = FormatConstraint(request);
  if (*foreign && format) return Refuse(BothConstrain((*foreign)->param, format->param));
  const bool is_foreign = foreign->has_value();
  if (is_foreign) format = std::move(*foreign);
  auto spec = WithTools(request, body, single_call, std::move(format), is_foreign);
  if (!spec) return spec;
  using protocol::ThinkingStage;
  const ThinkingStage stage = request.parsing.stage;
  if (*spec)
    (*spec)->after_thinking = stage == ThinkingStage::kReasoningStart || stage == ThinkingStage::kReasoningContinuation;
  return spec;
}

}  // namespace galley::serve
