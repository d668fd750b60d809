// SPDX-License-Identifier: Apache-2.0
// JSON values of requests, schemas and tool arguments. Key order is kept, integers stay exact over the whole range of
// int64 and uint64, and depth is bounded, so that a value may be copied, compared and destroyed without care for the
// stack. Plain data, no threads, no global state. simdjson reads the text and stays inside json.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "galley/base/error.h"

namespace galley::protocol {

class Json {
 public:
  struct Member;
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;

  Json() = default;
  Json(std::nullptr_t);          // NOLINT: literals read as JSON
  Json(bool value);              // NOLINT
  Json(int value);               // NOLINT
  Json(std::int64_t value);      // NOLINT
  Json(std::uint64_t value);     // NOLINT
  Json(double value);            // NOLINT
  Json(std::string value);       // NOLINT
  Json(std::string_view value);  // NOLINT
  Json(const char* value);       // NOLINT
  Json(Array value);             // NOLINT
  Json(Object value);            // NOLINT
  // JsonObject({{"type", "object"}, …}) reads better than nested braces that could also mean an array.
  [[nodiscard]] static Json MakeObject(std::vector<std::pair<std::string_view, Json>>&& members);

  [[nodiscard]] bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  [[nodiscard]] bool is_bool() const { return std::holds_alternative<bool>(value_); }
  [[nodiscard]] bool is_string() const { return std::holds_alternative<std::string>(value_); }
  [[nodiscard]] bool is_array() const { return std::holds_alternative<Array>(value_); }
  [[nodiscard]] bool is_object() const { return std::holds_alternative<Object>(value_); }
  [[nodiscard]] bool is_integer() const {
    return std::holds_alternative<std::int64_t>(value_) || std::holds_alternative<std::uint64_t>(value_);
  }
  [[nodiscard]] bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }

  // Null when the value is of another kind.
  [[nodiscard]] const bool* if_bool() const { return std::get_if<bool>(&value_); }
  [[nodiscard]] const std::int64_t* if_int() const { return std::get_if<std::int64_t>(&value_); }
  [[nodiscard]] const std::uint64_t* if_uint() const { return std::get_if<std::uint64_t>(&value_); }
  [[nodiscard]] const double* if_double() const { return std::get_if<double>(&value_); }
  [[nodiscard]] const std::string* if_string() const { return std::get_if<std::string>(&value_); }
  [[nodiscard]] const Array* if_array() const { return std::get_if<Array>(&value_); }
  [[nodiscard]] const Object* if_object() const { return std::get_if<Object>(&value_); }
  [[nodiscard]] Array* if_array() { return std::get_if<Array>(&value_); }
  [[nodiscard]] Object* if_object() { return std::get_if<Object>(&value_); }
  // The number as a double; only for is_number().
  [[nodiscard]] double AsDouble() const;

  // The member `key` of an object; null when absent or when this is not an object.
  [[nodiscard]] const Json* Find(std::string_view key) const;
  [[nodiscard]] Json* Find(std::string_view key);
  // Makes a null into an object or array first; the value must be null or of that kind.
  Json& Set(std::string_view key, Json value);  // replaces the member or adds it at the end; returns *this
  void Push(Json value);

  // "null", "boolean", "integer", "number", "string", "array" or "object", as JSON Schema names them.
  [[nodiscard]] std::string_view type_name() const;

  friend bool operator==(const Json& a, const Json& b);

 private:
  // A uint64 is held only where an int64 cannot hold the number.
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array, Object> value_;
};

struct Json::Member {
  std::string key;
  Json value;
};

// Here and not in the class, because Clang instantiates std::variant in them, which needs the whole Member.
inline Json::Json(std::nullptr_t) {}
inline Json::Json(bool value) : value_(value) {}
inline Json::Json(int value) : value_(std::int64_t{value}) {}
inline Json::Json(std::int64_t value) : value_(value) {}
inline Json::Json(double value) : value_(value) {}
inline Json::Json(std::string value) : value_(std::move(value)) {}
inline Json::Json(std::string_view value) : value_(std::string(value)) {}
inline Json::Json(const char* value) : value_(std::string(value)) {}
inline Json::Json(Array value) : value_(std::move(value)) {}
inline Json::Json(Object value) : value_(std::move(value)) {}

struct JsonParseOptions {
  int depth_max = 127;             // arrays and objects inside each other
  bool refuse_duplicates = false;  // otherwise the last value stands at the place of the first
};

// Reads exactly one JSON text (RFC 8259: UTF-8, no lone surrogates, blanks around it allowed). Integers outside
// int64/uint64 and "-0" become doubles. kCorrupt for a refused duplicate; kInvalidArgument for anything else that is
// wrong, numbers beyond a double included.
[[nodiscard]] Result<Json> ParseJson(std::string_view text, const JsonParseOptions& options = {});

enum class JsonStyle {
  kCompact,    // no blanks; floats as in kPromptV4
  kPromptV4,   // ", " and ": "; small floats as 0.00001 and 1e-7
  kPromptV41,  // as Python's json.dumps(ensure_ascii=False): 1e-05, 1e-07
};
// Serialised text; doubles are written with the fewest digits that read back the same. Not-a-number and infinities,
// which no JSON text can hold, are written as null.
[[nodiscard]] std::string DumpJson(const Json& value, JsonStyle style = JsonStyle::kCompact);
void AppendJson(std::string& out, const Json& value, JsonStyle style = JsonStyle::kCompact);
// The inside of a JSON string: quotes, backslashes and control characters escaped, no quotes around it. Escaping byte
// runs one after the other gives the same as escaping them together.
void AppendEscaped(std::string& out, std::string_view text);

}  // namespace galley::protocol
