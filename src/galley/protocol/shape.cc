// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

namespace galley::protocol {
namespace {

tl::unexpected<Error> Wrong(std::string message, std::string where) {
  return Err(ErrorCode::kInvalidArgument, std::move(message), std::move(where));
}

tl::unexpected<Error> Expected(std::string_view what, const Json& value, std::string where) {
  return Wrong(fmt::format("expected {}, found {}", what, value.type_name()), std::move(where));
}

// The JSON type that a shape wants, to choose among alternatives.
bool TypeFits(const Json& value, ShapeKind kind) {
  switch (kind) {
    case ShapeKind::kAny:
      return true;
    case ShapeKind::kBool:
      return value.is_bool();
    case ShapeKind::kString:
    case ShapeKind::kEnum:
      return value.is_string();
    case ShapeKind::kUnsigned:
    case ShapeKind::kNumber:
      return value.is_number();
    case ShapeKind::kObject:
    case ShapeKind::kMap:
    case ShapeKind::kTagged:
      return value.is_object();
    case ShapeKind::kList:
      return value.is_array();
    case ShapeKind::kEither:
      return true;
  }
  return false;
}

std::string_view KindName(ShapeKind kind) {
  static constexpr std::string_view kNames[] = {"a value",  "a boolean", "a string",    "a whole number",
                                                "a number", "an object", "an object",   "a list",
                                                "a string", "an object", "another type"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string Join(const std::string& where, std::string_view key) {
  return where.empty() ? std::string(key) : fmt::format("{}.{}", where, key);
}

Status Check(const Json& value, const Shape& shape, const std::string& where);

Status CheckFields(const Json& value, const Shape& shape, const std::string& where) {
  for (const Field& field : shape.fields) {
    const Json* member = value.Find(field.name);
    if (member == nullptr) {
      if (field.presence == Presence::kRequired) return Wrong(fmt::format("missing field `{}`", field.name), where);
      continue;
    }
    if (member->is_null() && field.presence == Presence::kOptional) continue;
    RETURN_IF_ERROR(Check(*member, *field.shape, Join(where, field.name)));
  }
  return {};
}

Status CheckTagged(const Json& value, const Shape& shape, const std::string& where) {
  const Json* tag = value.Find(shape.tag);
  if (tag == nullptr && shape.untagged != nullptr) return Check(value, *shape.untagged, where);
  if (tag == nullptr) return Wrong(fmt::format("missing field `{}`", shape.tag), where);
  const std::string* name = tag->if_string();
  if (name == nullptr) return Expected("a string", *tag, Join(where, shape.tag));
  std::vector<std::string_view> known;
  for (const Variant& variant : shape.variants) {
    if (variant.tag == *name) return Check(value, *variant.shape, where);
    known.push_back(variant.tag);
  }
  if (shape.open_tags) return {};
  return Wrong(fmt::format("`{}` is not one of {}", *name, fmt::join(known, ", ")), Join(where, shape.tag));
}

Status CheckUnsigned(const Json& value, const Shape& shape, const std::string& where) {
  if (const double* d = value.if_double()) {
    // Beyond 2^53 a float no longer says which integer was meant, so 64-bit fields take integers only.
    constexpr double kExactMax = 9007199254740992.0;
    if (*d != std::floor(*d) || *d < 0 || *d > kExactMax || static_cast<double>(shape.max) > kExactMax)
      return Wrong(fmt::format("{} is not a whole number within [0, {}]", DumpJson(value), shape.max), where);
  } else if (const auto* i = value.if_int(); i != nullptr && *i < 0) {
    return Wrong(fmt::format("{} is below 0", *i), where);
  }
  if (Unsigned(value) > shape.max)
    return Wrong(fmt::format("{} is above the largest value, {}", DumpJson(value), shape.max), where);
  return {};
}

Status Check(const Json& value, const Shape& shape, const std::string& where) {
  if (!TypeFits(value, shape.kind)) return Expected(KindName(shape.kind), value, where);
  switch (shape.kind) {
    case ShapeKind::kUnsigned:
      return CheckUnsigned(value, shape, where);
    case ShapeKind::kObject:
      return CheckFields(value, shape, where);
    case ShapeKind::kTagged:
      return CheckTagged(value, shape, where);
    case ShapeKind::kList: {
      std::size_t index = 0;
      for (const Json& element : Elements(value))
        RETURN_IF_ERROR(Check(element, *shape.element, fmt::format("{}[{}]", where, index++)));
      return {};
    }
    case ShapeKind::kEnum:
      for (std::string_view name : shape.names)
        if (name == Text(value)) return {};
      return Wrong(fmt::format("`{}` is not one of {}", Text(value), fmt::join(shape.names, ", ")), where);
    case ShapeKind::kEither: {
      std::vector<std::string_view> wanted;
      for (const Shape* alternative : shape.alternatives) {
        if (TypeFits(value, alternative->kind)) return Check(value, *alternative, where);
        wanted.push_back(KindName(alternative->kind));
      }
      return Expected(fmt::format("{}", fmt::join(wanted, " or ")), value, where);
    }
    default:
      return {};
  }
}

}  // namespace

Status CheckShape(const Json& value, const Shape& shape) {
  return Check(value, shape, "");
}

const Json& Get(const Json& object, std::string_view key) {
  static const Json null;
  const Json* member = object.Find(key);
  return member == nullptr ? null : *member;
}

std::string_view Text(const Json& value) {
  const std::string* text = value.if_string();
  return text == nullptr ? std::string_view() : std::string_view(*text);
}

std::string_view Text(const Json& object, std::string_view key) {
  return Text(Get(object, key));
}

bool IsTrue(const Json& value) {
  const bool* flag = value.if_bool();
  return flag != nullptr && *flag;
}

std::span<const Json> Elements(const Json& value) {
  const Json::Array* array = value.if_array();
  return array == nullptr ? std::span<const Json>() : std::span<const Json>(*array);
}

std::uint64_t Unsigned(const Json& value) {
  if (const auto* i = value.if_int()) return static_cast<std::uint64_t>(*i);
  if (const auto* u = value.if_uint()) return *u;
  if (const double* d = value.if_double()) return static_cast<std::uint64_t>(*d);
  return 0;
}

}  // namespace galley::protocol
