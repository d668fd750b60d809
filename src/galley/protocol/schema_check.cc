// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/schema_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "galley/protocol/shape.h"

namespace galley::protocol {
namespace {

tl::unexpected<Error> Bad(std::string message) {
  return Err(ErrorCode::kInvalidArgument, std::move(message));
}

// What the value of a keyword must be.
enum class Rule {
  kSchema,
  kSchemaList,    // at least one
  kSchemaMap,     // any names
  kPatternMap,    // names are regular expressions
  kDependencies,  // name → schema or list of strings
  kRequirements,  // name → list of distinct strings
  kTypes,         // a type name or a list of distinct ones
  kString,
  kRegex,
  kBoolean,
  kArray,
  kNumber,
  kExclusive,
  kPositive,
  kCount,    // an integer from 0
  kStrings,  // list of distinct strings
  kReference,
};

struct Keyword {
  std::string_view name;
  Rule rule;
};

constexpr std::array kKeywords = {
    Keyword{"$id", Rule::kString},
    Keyword{"$schema", Rule::kString},
    Keyword{"$ref", Rule::kReference},
    Keyword{"$dynamicRef", Rule::kString},
    Keyword{"$anchor", Rule::kString},
    Keyword{"$dynamicAnchor", Rule::kString},
    Keyword{"$comment", Rule::kString},
    Keyword{"$defs", Rule::kSchemaMap},
    Keyword{"definitions", Rule::kSchemaMap},
    Keyword{"prefixItems", Rule::kSchemaList},
    Keyword{"items", Rule::kSchema},
    Keyword{"contains", Rule::kSchema},
    Keyword{"additionalProperties", Rule::kSchema},
    Keyword{"properties", Rule::kSchemaMap},
    Keyword{"patternProperties", Rule::kPatternMap},
    Keyword{"dependentSchemas", Rule::kSchemaMap},
    Keyword{"dependencies", Rule::kDependencies},
    Keyword{"propertyNames", Rule::kSchema},
    Keyword{"if", Rule::kSchema},
    Keyword{"then", Rule::kSchema},
    Keyword{"else", Rule::kSchema},
    Keyword{"allOf", Rule::kSchemaList},
    Keyword{"anyOf", Rule::kSchemaList},
    Keyword{"oneOf", Rule::kSchemaList},
    Keyword{"not", Rule::kSchema},
    Keyword{"unevaluatedItems", Rule::kSchema},
    Keyword{"unevaluatedProperties", Rule::kSchema},
    Keyword{"type", Rule::kTypes},
    Keyword{"enum", Rule::kArray},
    Keyword{"multipleOf", Rule::kPositive},
    Keyword{"maximum", Rule::kNumber},
    Keyword{"exclusiveMaximum", Rule::kExclusive},
    Keyword{"minimum", Rule::kNumber},
    Keyword{"exclusiveMinimum", Rule::kExclusive},
    Keyword{"maxLength", Rule::kCount},
    Keyword{"minLength", Rule::kCount},
    Keyword{"pattern", Rule::kRegex},
    Keyword{"maxItems", Rule::kCount},
    Keyword{"minItems", Rule::kCount},
    Keyword{"uniqueItems", Rule::kBoolean},
    Keyword{"maxContains", Rule::kCount},
    Keyword{"minContains", Rule::kCount},
    Keyword{"maxProperties", Rule::kCount},
    Keyword{"minProperties", Rule::kCount},
    Keyword{"required", Rule::kStrings},
    Keyword{"dependentRequired", Rule::kRequirements},
    Keyword{"title", Rule::kString},
    Keyword{"description", Rule::kString},
    Keyword{"deprecated", Rule::kBoolean},
    Keyword{"readOnly", Rule::kBoolean},
    Keyword{"writeOnly", Rule::kBoolean},
    Keyword{"examples", Rule::kArray},
    Keyword{"format", Rule::kString},
    Keyword{"contentEncoding", Rule::kString},
    Keyword{"contentMediaType", Rule::kString},
    Keyword{"contentSchema", Rule::kSchema},
};

constexpr std::array<std::string_view, 7> kTypeNames = {"array",  "boolean", "integer", "null",
                                                        "number", "object",  "string"};

Status NotOfType(const Json& value, std::string_view type) {
  return Bad(fmt::format("{} is not of type \"{}\"", DumpJson(value), type));
}

bool IsTypeName(const Json& value) {
  return std::find(kTypeNames.begin(), kTypeNames.end(), Text(value)) != kTypeNames.end();
}

bool Distinct(std::span<const Json> values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    for (std::size_t k = i + 1; k < values.size(); ++k)
      if (values[i] == values[k]) return false;
  return true;
}

class SchemaChecker {
 public:
  explicit SchemaChecker(const Json& root)
      : root_(root), draft4_(Text(root, "$schema").find("draft-04") != std::string_view::npos) {}

  // The error tells where: a JSON Pointer into the schema, and for regular expressions why.
  Status Check() {
    Status status = Schema(root_);
    if (status) return status;
    std::string place = fmt::format("at {}", path_.empty() ? "the top" : Pointer());
    if (!reason_.empty()) place += ": " + reason_;
    return Err(status.error().code, status.error().message, std::move(place));
  }

 private:
  Status Schema(const Json& schema) {
    if (schema.is_bool()) return {};
    if (!schema.is_object()) return Bad(fmt::format("{} is not of types \"boolean\", \"object\"", DumpJson(schema)));
    for (const Keyword& keyword : kKeywords) {
      if (const Json* value = schema.Find(keyword.name))
        RETURN_IF_ERROR(At(keyword.name, [&] { return Value(*value, keyword.rule); }));
    }
    return {};
  }

  // Runs `check` one step deeper. The path stays where a check failed.
  template <typename Check>
  Status At(std::string_view step, Check check) {
    path_.emplace_back(step);
    RETURN_IF_ERROR(check());
    path_.pop_back();
    return {};
  }

  [[nodiscard]] std::string Pointer() const {
    std::string pointer;
    for (const std::string& step : path_) {
      pointer += '/';
      for (const char c : step) {
        if (c == '~' || c == '/')
          pointer += c == '~' ? "~0" : "~1";
        else
          pointer += c;
      }
    }
    return pointer;
  }

  Status Value(const Json& value, Rule rule) {
    switch (rule) {
      case Rule::kSchema:
        return Schema(value);
      case Rule::kSchemaList:
        return SchemaList(value);
      case Rule::kSchemaMap:
      case Rule::kPatternMap:
      case Rule::kDependencies:
      case Rule::kRequirements:
        return Map(value, rule);
      case Rule::kTypes:
        return Types(value);
      case Rule::kString:
        return value.is_string() ? Status{} : NotOfType(value, "string");
      case Rule::kRegex:
        if (!value.is_string()) return NotOfType(value, "string");
        return Regex(value);
      case Rule::kBoolean:
        return value.is_bool() ? Status{} : NotOfType(value, "boolean");
      case Rule::kArray:
        return value.is_array() ? Status{} : NotOfType(value, "array");
      case Rule::kExclusive:
        // Draft 4 had a flag beside the bound where later drafts have a bound of its own.
        if (draft4_) return value.is_bool() ? Status{} : NotOfType(value, "boolean");
        return value.is_number() ? Status{} : NotOfType(value, "number");
      case Rule::kNumber:
        return value.is_number() ? Status{} : NotOfType(value, "number");
      case Rule::kPositive:
        if (!value.is_number()) return NotOfType(value, "number");
        if (value.AsDouble() > 0) return {};
        return Bad(fmt::format("{} is less than or equal to the minimum of 0", DumpJson(value)));
      case Rule::kCount:
        return Count(value);
      case Rule::kStrings:
        return Strings(value);
      case Rule::kReference:
        return Reference(value);
    }
    return {};
  }

  Status SchemaList(const Json& value) {
    if (!value.is_array()) return NotOfType(value, "array");
    if (Elements(value).empty()) return Bad("[] has less than 1 item");
    std::size_t index = 0;
    for (const Json& element : Elements(value))
      RETURN_IF_ERROR(At(std::to_string(index++), [&] { return Schema(element); }));
    return {};
  }

  Status Map(const Json& value, Rule rule) {
    if (!value.is_object()) return NotOfType(value, "object");
    for (const Json::Member& member : *value.if_object())
      RETURN_IF_ERROR(At(member.key, [&] { return MapMember(member, rule); }));
    return {};
  }

  Status MapMember(const Json::Member& member, Rule rule) {
    if (rule == Rule::kPatternMap) RETURN_IF_ERROR(Regex(Json(member.key)));
    const bool strings = rule == Rule::kRequirements || (rule == Rule::kDependencies && member.value.is_array());
    return strings ? Strings(member.value) : Schema(member.value);
  }

  Status Regex(const Json& value) {
    const Status status = CheckRegexSyntax(Text(value));
    if (status) return {};
    reason_ = fmt::format("{} {}", status.error().message, status.error().where);
    return Bad(fmt::format("{} is not a \"regex\"", DumpJson(value)));
  }

  static Status Types(const Json& value) {
    const std::span<const Json> names = Elements(value);
    const bool list =
        value.is_array() && !names.empty() && std::all_of(names.begin(), names.end(), IsTypeName) && Distinct(names);
    if (list || IsTypeName(value)) return {};
    return Bad(fmt::format("{} is not valid under any of the schemas listed in the 'anyOf' keyword", DumpJson(value)));
  }

  static Status Count(const Json& value) {
    const bool whole = value.is_integer() || (value.is_number() && value.AsDouble() == std::floor(value.AsDouble()));
    if (!whole) return NotOfType(value, "integer");
    if (value.AsDouble() >= 0) return {};
    return Bad(fmt::format("{} is less than the minimum of 0", DumpJson(value)));
  }

  static Status Strings(const Json& value) {
    if (!value.is_array()) return NotOfType(value, "array");
    for (const Json& element : Elements(value))
      if (!element.is_string()) return NotOfType(element, "string");
    if (Distinct(Elements(value))) return {};
    return Bad(fmt::format("{} has non-unique elements", DumpJson(value)));
  }

  // References stay inside the document, since nothing is ever fetched; "#/a/b" must exist.
  Status Reference(const Json& value) {
    if (!value.is_string()) return NotOfType(value, "string");
    const std::string_view target = Text(value);
    if (!target.starts_with("#")) {
      if (target.find("://") == std::string_view::npos) return {};
      const std::string_view resource = target.substr(0, target.find('#'));
      return Bad(
          fmt::format("Resource '{0}' is not present in a registry and retrieving it failed: Retrieval is disabled, "
                      "cannot fetch {0}",
                      resource));
    }
    if (!target.starts_with("#/")) return {};
    const Json* at = &root_;
    std::string_view rest = target.substr(1);
    while (at != nullptr && !rest.empty()) {
      rest.remove_prefix(1);
      const std::string_view token = rest.substr(0, rest.find('/'));
      rest.remove_prefix(token.size());
      at = Step(*at, token);
    }
    if (at != nullptr) return {};
    return Bad(fmt::format("Pointer '{}' does not exist", target.substr(1)));
  }

  static const Json* Step(const Json& at, std::string_view token) {
    std::string key;
    for (std::size_t i = 0; i < token.size(); ++i) {
      const bool escape = token[i] == '~' && i + 1 < token.size();
      key += escape ? (token[++i] == '1' ? '/' : '~') : token[i];
    }
    if (at.is_object()) return at.Find(key);
    const std::span<const Json> elements = Elements(at);
    std::size_t index = 0;
    for (char c : key) {
      if (c < '0' || c > '9' || index > elements.size()) return nullptr;
      index = index * 10 + static_cast<std::size_t>(c - '0');
    }
    return !key.empty() && index < elements.size() ? &elements[index] : nullptr;
  }

  const Json& root_;
  const bool draft4_;
  std::vector<std::string> path_;
  std::string reason_;
};

// Strict form ------------------------------------------------------------------------------------------------------

constexpr std::array<std::string_view, 20> kRefusedInStrict = {"patternProperties",
                                                               "propertyNames",
                                                               "dependentSchemas",
                                                               "dependentRequired",
                                                               "dependencies",
                                                               "if",
                                                               "then",
                                                               "else",
                                                               "not",
                                                               "contains",
                                                               "minContains",
                                                               "maxContains",
                                                               "uniqueItems",
                                                               "prefixItems",
                                                               "minProperties",
                                                               "maxProperties",
                                                               "unevaluatedItems",
                                                               "$dynamicRef",
                                                               "unevaluatedProperties",
                                                               "contentSchema"};
// Copied as they stand, in this order, after the members that are rewritten.
constexpr std::array<std::string_view, 17> kCopiedInStrict = {
    "enum",      "const",    "description",      "default",          "pattern",    "format",
    "minimum",   "maximum",  "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "minItems", "maxItems",         "$anchor",          "$comment"};
constexpr std::array<std::string_view, 5> kStrictFormats = {"email", "hostname", "ipv4", "ipv6", "uuid"};

bool HasType(const Json& schema, std::string_view name) {
  const Json& type = Get(schema, "type");
  if (Text(type) == name) return true;
  return std::any_of(Elements(type).begin(), Elements(type).end(), [&](const Json& t) { return Text(t) == name; });
}

Result<Json> Strict(const Json& schema);

// A schema inside the one at hand; `step` leads there, for errors.
Result<Json> StrictAt(const Json& schema, std::string_view step) {
  Result<Json> inner = Strict(schema);
  if (!inner) return Err(inner.error().code, inner.error().message, fmt::format("/{}{}", step, inner.error().where));
  return inner;
}

Result<Json> StrictMap(const Json& map, std::string_view step) {
  Json out(Json::Object{});
  if (const Json::Object* members = map.if_object()) {
    for (const Json::Member& member : *members) {
      ASSIGN_OR_RETURN(Json value, StrictAt(member.value, fmt::format("{}/{}", step, member.key)));
      out.if_object()->push_back({member.key, std::move(value)});
    }
  }
  return out;
}

Status AddObjectMembers(const Json& schema, Json& out) {
  ASSIGN_OR_RETURN(Json properties, StrictMap(Get(schema, "properties"), "properties"));
  const Json& additional = Get(schema, "additionalProperties");
  if (!additional.is_null() && !(additional.is_bool() && !IsTrue(additional)))
    return Bad("additionalProperties should not be true");
  const Json& given = Get(schema, "required");
  Json required(Json::Array{});
  for (const Json::Member& member : *properties.if_object()) required.Push(Json(member.key));
  for (const Json& name : Elements(given)) {
    if (properties.Find(Text(name)) == nullptr)
      return Bad(fmt::format("Required property '{}' not found in object", Text(name)));
  }
  if (given.is_array()) {
    if (Elements(given).size() != Elements(required).size())
      return Bad("Required properties must match all properties in the object");
    required = given;
  }
  out.Set("properties", std::move(properties));
  out.Set("additionalProperties", Json(false));
  out.Set("required", std::move(required));
  return {};
}

Status CheckStrictKeywords(const Json& schema) {
  for (std::string_view name : kRefusedInStrict) {
    if (schema.Find(name) != nullptr)
      return Bad(fmt::format("{}`{}` is not supported in strict mode", kStrictToolError, name));
  }
  const bool choice = schema.Find("anyOf") != nullptr || schema.Find("$ref") != nullptr;
  const bool values = schema.Find("enum") != nullptr || schema.Find("const") != nullptr;
  if (schema.Find("type") == nullptr && !choice && !values)
    return Bad(fmt::format("{}one of `type`, `anyOf`, `$ref` field is required", kStrictToolError));
  for (std::string_view name : {"oneOf", "allOf"}) {
    if (schema.Find(name) != nullptr)
      return Bad(fmt::format("{}`{}` is not supported in strict mode", kStrictToolError, name));
  }
  if (const Json* format = schema.Find("format")) {
    if (std::find(kStrictFormats.begin(), kStrictFormats.end(), Text(*format)) == kStrictFormats.end())
      return Bad(fmt::format("{}unknown variant `{}`, expected one of `email`, `hostname`, `ipv4`, `ipv6`, `uuid`",
                             kStrictToolError, Text(*format)));
  }
  if (HasType(schema, "array") && schema.Find("items") == nullptr)
    return Bad(fmt::format("{}missing field `items`", kStrictToolError));
  return {};
}

Result<Json> Strict(const Json& schema) {
  if (!schema.is_object())
    return Bad(fmt::format("{}expected an object, found {}", kStrictToolError, schema.type_name()));
  RETURN_IF_ERROR(CheckStrictKeywords(schema));
  Json out(Json::Object{});
  for (std::string_view name : {"$ref", "type"})
    if (const Json* value = schema.Find(name)) out.Set(name, *value);
  for (std::string_view name : kCopiedInStrict)
    if (const Json* value = schema.Find(name)) out.Set(name, *value);
  if (const Json* anyof = schema.Find("anyOf")) {
    Json list(Json::Array{});
    std::size_t index = 0;
    for (const Json& element : Elements(*anyof)) {
      ASSIGN_OR_RETURN(Json value, StrictAt(element, fmt::format("anyOf/{}", index++)));
      list.Push(std::move(value));
    }
    out.Set("anyOf", std::move(list));
  }
  if (const Json* items = schema.Find("items")) {
    ASSIGN_OR_RETURN(Json value, StrictAt(*items, "items"));
    out.Set("items", std::move(value));
  }
  if (HasType(schema, "object")) RETURN_IF_ERROR(AddObjectMembers(schema, out));
  for (std::string_view name : {"$defs", "definitions"}) {
    if (const Json* defs = schema.Find(name)) {
      ASSIGN_OR_RETURN(Json value, StrictMap(*defs, name));
      out.Set(name, std::move(value));
    }
  }
  return out;
}

}  // namespace

Status CheckJsonSchema(const Json& schema) {
  return SchemaChecker(schema).Check();
}

Status CheckRegexSyntax(std::string_view pattern) {
  const auto bad = [](std::string message, std::size_t at) {
    return Err(ErrorCode::kInvalidArgument, std::move(message), fmt::format("at byte {}", at));
  };
  std::vector<std::size_t> groups;  // where the open ones begin
  bool can_repeat = false;          // whether a repetition may follow
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    switch (c) {
      case '\\':
        if (++i == pattern.size()) return bad("the pattern ends in a lone backslash", i - 1);
        can_repeat = true;
        break;
      case '[': {
        std::size_t end = i + 1;
        if (end < pattern.size() && pattern[end] == '^') ++end;
        if (end < pattern.size() && pattern[end] == ']') ++end;
        while (end < pattern.size() && pattern[end] != ']') end += pattern[end] == '\\' ? 2 : 1;
        if (end >= pattern.size()) return bad("a character class is not closed", i);
        i = end;
        can_repeat = true;
        break;
      }
      case '(':
        groups.push_back(i);
        can_repeat = false;
        if (i + 1 < pattern.size() && pattern[i + 1] == '?') ++i;
        break;
      case ')':
        if (groups.empty()) return bad("a group is closed that was not opened", i);
        groups.pop_back();
        can_repeat = true;
        break;
      case '*':
      case '+':
      case '?':
        if (!can_repeat) return bad(fmt::format("nothing to repeat before '{}'", c), i);
        can_repeat = false;
        // A lazy or possessive mark belongs to the repetition.
        if (i + 1 < pattern.size() && (pattern[i + 1] == '?' || pattern[i + 1] == '+')) ++i;
        break;
      case '|':
        can_repeat = false;
        break;
      default:
        can_repeat = true;
    }
  }
  if (!groups.empty()) return bad("a group is not closed", groups.back());
  return {};
}

Result<Json> MakeStrict(const Json& schema) {
  Result<Json> strict = Strict(schema);
  if (!strict && !strict.error().where.empty())
    return Err(strict.error().code, strict.error().message, "at " + strict.error().where);
  return strict;
}

}  // namespace galley::protocol
