// SPDX-License-Identifier: Apache-2.0
// A JSON Schema as addressable subschemas: JSON Pointers, anchors, base URIs and what a $ref leads to. Built once per
// compile; the values it points to must outlive it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "galley/grammar/json_value.h"

namespace galley::grammar {

using SchemaId = std::uint32_t;

enum class Draft { k4, k6, k7, k2019, k2020 };

// A subschema or its negation.
struct Literal {
  SchemaId schema = 0;
  bool negated = false;
  auto operator<=>(const Literal&) const = default;
};

struct SubSchema {
  const JsonValue* value = nullptr;
  std::string pointer;          // JSON Pointer from the root of the document
  std::string base;             // base URI without fragment
  std::vector<Literal> any_of;  // not from the document: any of these
};

class SchemaDocument {
 public:
  // Pointers and base URIs are long where names are; `meter` counts them.
  SchemaDocument(const JsonValue& root, std::shared_ptr<Meter> meter);

  [[nodiscard]] Draft draft() const { return draft_; }
  [[nodiscard]] SchemaId root() const { return 0; }
  [[nodiscard]] const SubSchema& schema(SchemaId id) const { return schemas_[id]; }
  // The subschema behind one member of `parent`, for example Child(id, "/items").
  [[nodiscard]] SchemaId Child(SchemaId parent, const JsonValue& value, std::string_view path);
  // What a reference in `from` leads to; nothing when the target is not in the document.
  [[nodiscard]] std::optional<SchemaId> Resolve(SchemaId from, std::string_view reference);
  // A dynamic reference, where no other dynamic anchor of its name can take over.
  [[nodiscard]] std::optional<SchemaId> ResolveDynamic(SchemaId from, std::string_view reference);
  // A schema made up by the compiler. `value` is kept.
  SchemaId Synthetic(JsonValue value, std::string pointer);
  SchemaId AnyOf(std::vector<Literal> literals, std::string pointer);

 private:
  SchemaId Intern(const JsonValue& value, std::string pointer, std::string base);
  void Scan(const JsonValue& value, std::vector<std::string_view>& path, const std::string& base);
  std::optional<SchemaId> Follow(const JsonValue& from, std::string pointer, std::string base, std::string_view path);

  struct Resource {
    const JsonValue* value;
    std::string pointer;
  };
  std::shared_ptr<Meter> meter_;
  Draft draft_ = Draft::k2020;
  std::deque<SubSchema> schemas_;
  std::unordered_map<const JsonValue*, SchemaId> ids_;
  std::map<std::string, Resource> resources_;   // by absolute URI
  std::map<std::string, Resource> anchors_;     // by URI#name
  std::map<std::string, int> dynamic_anchors_;  // uses of each name
  std::deque<JsonValue> made_up_;
};

// Escapes a member name as a JSON Pointer token.
[[nodiscard]] std::string PointerToken(std::string_view name);
// JSON Pointer from a schema to what one of its keywords holds: "/items", "/allOf/2", "/properties/a~1b".
[[nodiscard]] std::string Path(std::string_view keyword);
[[nodiscard]] std::string Path(std::string_view keyword, std::size_t index);
[[nodiscard]] std::string Path(std::string_view keyword, std::string_view name);

}  // namespace galley::grammar
