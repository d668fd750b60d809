// SPDX-License-Identifier: Apache-2.0
// A small JSON reader for schemas and grammar requests. It keeps what the compiler needs and common readers drop: the
// spelling of numbers (so 1e400 and 18446744073709551617 stay exact), the order of members, and repeated names as
// errors. Plain values, no sharing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "galley/grammar/compile_error.h"

namespace galley::grammar {

struct JsonValue {
  enum class Type { kNull, kBool, kNumber, kString, kArray, kObject };

  Type type = Type::kNull;
  bool boolean = false;
  std::string text;  // decoded string (UTF-8), or the number as written
  std::vector<JsonValue> items;
  std::vector<std::pair<std::string, JsonValue>> members;

  // Written out because clang 14 wants to know JsonValue's size when it makes them itself.
  JsonValue();
  ~JsonValue();
  JsonValue(const JsonValue& other);
  JsonValue(JsonValue&& other) noexcept;
  JsonValue& operator=(const JsonValue& other);
  JsonValue& operator=(JsonValue&& other) noexcept;

  [[nodiscard]] bool is(Type t) const { return type == t; }
  // Member of an object by name, or null.
  [[nodiscard]] const JsonValue* Find(std::string_view name) const;
};

// Reads one JSON text. Lone surrogate escapes become U+FFFD-free WTF-8 bytes, as ECMA-262 strings would hold them.
// Errors: kBadJson with the byte position; kTooComplex with it beyond `values_max` values, of which each takes about
// 100 bytes.
inline constexpr std::size_t kJsonValuesMax = 250'000;
[[nodiscard]] Compiled<JsonValue> ParseJson(std::string_view text, int nesting_max = 256,
                                            std::size_t values_max = kJsonValuesMax);

// Quotes and escapes `text` as a JSON string, leaving UTF-8 as it is; bytes that are not UTF-8 become U+FFFD.
[[nodiscard]] std::string JsonQuote(std::string_view text);

// Compact JSON text of a value, numbers as written.
[[nodiscard]] std::string JsonText(const JsonValue& value);

// The number `value`, when it is one that is written as an integer and fits; null is none.
[[nodiscard]] std::optional<std::int64_t> IntegerOf(const JsonValue* value);

// Appends the UTF-8 (or, for surrogates, WTF-8) form of `code_point`.
void AppendUtf8(std::uint32_t code_point, std::string& out);

// Whether the text, UTF-8 or WTF-8, holds half of a surrogate pair. No answer of a model can: it is UTF-8, and the
// escape of a half is read differently by different parsers, so grammars never allow it.
[[nodiscard]] bool HoldsLoneSurrogate(std::string_view text);

// Code points of UTF-8 text; bytes that do not decode count as U+FFFD each.
[[nodiscard]] std::vector<std::uint32_t> DecodeUtf8(std::string_view text);

}  // namespace galley::grammar
