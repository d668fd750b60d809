// SPDX-License-Identifier: Apache-2.0
// JSON as read from files of a model directory: an immutable tree that keeps the order of members. The parser bounds
// bytes, depth and the number of values, refuses repeated keys and text that is not UTF-8, and never recurses, so a
// hostile file costs bounded memory. Values are plain data. The library behind it is used in json.cc only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "galley/base/error.h"

namespace galley::io {

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;
  // An integer that does not fit std::int64_t is held as the nearest double.
  using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object>;

  Json() = default;
  explicit Json(Value value) : value_(std::move(value)) {}

  [[nodiscard]] bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  // Null when the value is of another kind.
  [[nodiscard]] const bool* boolean() const { return std::get_if<bool>(&value_); }
  [[nodiscard]] const std::int64_t* integer() const { return std::get_if<std::int64_t>(&value_); }
  [[nodiscard]] const std::string* string() const { return std::get_if<std::string>(&value_); }
  [[nodiscard]] const Array* array() const { return std::get_if<Array>(&value_); }
  [[nodiscard]] const Object* object() const { return std::get_if<Object>(&value_); }
  [[nodiscard]] const double* floating() const { return std::get_if<double>(&value_); }
  // The member of that name, or null when there is none or this is no object. Linear in the number of members.
  [[nodiscard]] const Json* Find(std::string_view key) const;

  // Compact JSON text of the value, cut to about `max_bytes` with "…": what error messages show.
  [[nodiscard]] std::string Show(std::size_t max_bytes = 100) const;

 private:
  friend class JsonBuilder;
  Value value_;
};

struct JsonLimits {
  std::size_t max_bytes = std::size_t{1} << 20;
  std::size_t max_depth = 32;
  std::size_t max_values = 100'000;  // members and elements in all
};

// kCorrupt (not JSON, repeated key, not UTF-8, a number beyond double) or kResourceExhausted (beyond a limit).
[[nodiscard]] Result<Json> ParseJson(std::string_view text, std::string_view where, const JsonLimits& limits = {});

}  // namespace galley::io
