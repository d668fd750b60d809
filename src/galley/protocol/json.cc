// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_map>

#include "galley/base/check.h"
#include "galley/base/utf8_cut.h"

namespace galley::protocol {
namespace {

namespace od = simdjson::ondemand;

// Objects up to this many members look for duplicates by scanning.
constexpr std::size_t kScanMembers = 16;
constexpr std::string_view kBrokenText = "a string with an unknown escape or half a surrogate pair";

struct Reader {
  const JsonParseOptions& options;
  std::string error{};  // set when Read fails
  ErrorCode code = ErrorCode::kInvalidArgument;

  bool Fail(std::string_view why) {
    if (error.empty()) error = why;
    return false;
  }

  bool ReadNumber(od::value& value, Json& out);
  bool ReadObject(od::value& value, Json& out, int depth);
  bool ReadArray(od::value& value, Json& out, int depth);
  bool Read(od::value& value, Json& out, int depth);
};

std::string_view TrimRight(std::string_view token) {
  while (!token.empty() &&
         (token.back() == ' ' || token.back() == '\n' || token.back() == '\r' || token.back() == '\t'))
    token.remove_suffix(1);
  return token;
}

// As much of a text as an error shows.
std::string_view Start(std::string_view text) {
  return CutUtf8(text, 40);
}

bool Reader::ReadNumber(od::value& value, Json& out) {
  const std::string_view token = TrimRight(value.raw_json_token());
  const bool integral = token.find_first_of(".eE") == std::string_view::npos;
  if (integral && token != "-0") {
    std::int64_t as_int = 0;
    if (value.get_int64().get(as_int) == simdjson::SUCCESS) {
      out = Json(as_int);
      return true;
    }
    std::uint64_t as_uint = 0;
    if (value.get_uint64().get(as_uint) == simdjson::SUCCESS) {
      out = Json(as_uint);
      return true;
    }
  }
  // simdjson has checked the grammar; this release of it misreads some long fractions, so the value comes from
  // from_chars, which reports both overflow (refused) and underflow (zero) as out of range.
  double checked = 0, as_double = 0;
  bool ok = value.get_double().get(checked) == simdjson::SUCCESS;
  if (ok && std::from_chars(token.data(), token.data() + token.size(), as_double).ec != std::errc()) {
    as_double = std::copysign(0.0, checked);
    ok = std::fabs(checked) < 1;
  }
  if (!ok) return Fail(fmt::format("'{}' is no number, or none that a double can hold", Start(token)));
  out = Json(as_double);
  return true;
}

bool Reader::ReadObject(od::value& value, Json& out, int depth) {
  od::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) return Fail("broken object");
  Json::Object members;
  std::unordered_map<std::string, std::size_t> index;
  for (auto item : object) {
    od::field field;
    std::string_view key_view;
    if (std::move(item).get(field) != simdjson::SUCCESS) return Fail("broken object");
    if (field.unescaped_key().get(key_view) != simdjson::SUCCESS) return Fail(kBrokenText);
    std::string key(key_view);
    Json member;
    if (!Read(field.value(), member, depth)) return false;
    std::optional<std::size_t> seen;
    if (members.size() < kScanMembers) {
      for (std::size_t i = 0; i < members.size() && !seen; ++i)
        if (members[i].key == key) seen = i;
    } else {
      if (index.empty())
        for (std::size_t i = 0; i < members.size(); ++i) index.emplace(members[i].key, i);
      if (auto it = index.find(key); it != index.end()) seen = it->second;
    }
    if (seen) {
      if (options.refuse_duplicates) {
        code = ErrorCode::kCorrupt;
        return Fail(fmt::format("the key \"{}\" stands twice in one object", Start(key)));
      }
      members[*seen].value = std::move(member);
      continue;
    }
    if (!index.empty()) index.emplace(key, members.size());
    members.push_back({std::move(key), std::move(member)});
  }
  out = Json(std::move(members));
  return true;
}

bool Reader::ReadArray(od::value& value, Json& out, int depth) {
  od::array array;
  if (value.get_array().get(array) != simdjson::SUCCESS) return Fail("broken array");
  Json::Array elements;
  for (auto item : array) {
    if (item.error() != simdjson::SUCCESS) return Fail("broken array");
    od::value element = item.value_unsafe();
    Json out_element;
    if (!Read(element, out_element, depth)) return false;
    elements.push_back(std::move(out_element));
  }
  out = Json(std::move(elements));
  return true;
}

bool Reader::Read(od::value& value, Json& out, int depth) {
  od::json_type type{};
  if (value.type().get(type) != simdjson::SUCCESS) return Fail("not a JSON value");
  if (type == od::json_type::object || type == od::json_type::array) {
    if (depth >= options.depth_max)
      return Fail(fmt::format("nested deeper than {} arrays and objects", options.depth_max));
    return type == od::json_type::object ? ReadObject(value, out, depth + 1) : ReadArray(value, out, depth + 1);
  }
  if (type == od::json_type::number) return ReadNumber(value, out);
  if (type == od::json_type::string) {
    std::string_view text;
    if (value.get_string().get(text) != simdjson::SUCCESS) return Fail(kBrokenText);
    out = Json(text);
    return true;
  }
  const std::string_view token = TrimRight(value.raw_json_token());
  if (type == od::json_type::boolean) {
    bool flag = false;
    if (value.get_bool().get(flag) != simdjson::SUCCESS) return Fail("not a JSON value");
    out = Json(flag);
    return true;
  }
  bool null = false;
  if (token != "null" || value.is_null().get(null) != simdjson::SUCCESS || !null) return Fail("not a JSON value");
  out = Json();
  return true;
}

// Shortest decimal digits of |value| and the power of ten of the first one.
struct Decimal {
  std::string digits;
  int exponent = 0;
};

Decimal ShortestDigits(double value) {
  std::array<char, 32> buffer{};
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), std::fabs(value), std::chars_format::scientific).ptr;
  const std::string_view text(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  const std::size_t e = text.find('e');
  Decimal decimal;
  for (char c : text.substr(0, e))
    if (c != '.') decimal.digits += c;
  const std::string_view exponent = text.substr(e + 1);
  const std::size_t skip = exponent.front() == '+' ? 1 : 0;
  std::from_chars(exponent.data() + skip, exponent.data() + exponent.size(), decimal.exponent);
  return decimal;
}

void AppendDouble(std::string& out, double value, JsonStyle style) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  if (std::signbit(value)) out += '-';
  if (value == 0) {
    out += "0.0";
    return;
  }
  const Decimal d = ShortestDigits(value);
  const int count = static_cast<int>(d.digits.size());
  // Python changes to an exponent below 1e-4, the V4 encoder below 1e-5; both from 1e16 on.
  const int smallest = style == JsonStyle::kPromptV41 ? -4 : -5;
  if (d.exponent < smallest || d.exponent >= 16) {
    out += d.digits[0];
    if (count > 1) out.append(".").append(d.digits, 1);
    const int magnitude = std::abs(d.exponent);
    out += d.exponent < 0 ? "e-" : "e+";
    if (style == JsonStyle::kPromptV41 && magnitude < 10) out += '0';
    out += fmt::format_int(magnitude).str();
    return;
  }
  if (d.exponent < 0) {
    out.append("0.").append(static_cast<std::size_t>(-d.exponent - 1), '0').append(d.digits);
  } else if (count <= d.exponent + 1) {
    out.append(d.digits).append(static_cast<std::size_t>(d.exponent + 1 - count), '0').append(".0");
  } else {
    const auto point = static_cast<std::size_t>(d.exponent + 1);
    out.append(d.digits, 0, point).append(".").append(d.digits, point);
  }
}

}  // namespace

Json::Json(std::uint64_t value) {
  if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    value_ = static_cast<std::int64_t>(value);
  else
    value_ = value;
}

Json Json::MakeObject(std::vector<std::pair<std::string_view, Json>>&& members) {
  Object object;
  object.reserve(members.size());
  for (auto& [key, value] : members) object.push_back({std::string(key), std::move(value)});
  return Json(std::move(object));
}

double Json::AsDouble() const {
  if (const auto* i = if_int()) return static_cast<double>(*i);
  if (const auto* u = if_uint()) return static_cast<double>(*u);
  const auto* d = if_double();
  CHECK(d != nullptr) << "AsDouble of a " << type_name();
  return *d;
}

const Json* Json::Find(std::string_view key) const {
  const Object* object = if_object();
  if (object == nullptr) return nullptr;
  for (const Member& member : *object)
    if (member.key == key) return &member.value;
  return nullptr;
}

Json* Json::Find(std::string_view key) {
  return const_cast<Json*>(std::as_const(*this).Find(key));
}

Json& Json::Set(std::string_view key, Json value) {
  if (is_null()) value_ = Object{};
  CHECK(is_object()) << "Set on a " << type_name();
  if (Json* old = Find(key))
    *old = std::move(value);
  else
    if_object()->push_back({std::string(key), std::move(value)});
  return *this;
}

void Json::Push(Json value) {
  if (is_null()) value_ = Array{};
  CHECK(is_array()) << "Push on a " << type_name();
  if_array()->push_back(std::move(value));
}

std::string_view Json::type_name() const {
  static constexpr std::array<std::string_view, 8> kNames = {"null",   "boolean", "integer", "integer",
                                                             "number", "string",  "array",   "object"};
  return kNames[value_.index()];
}

static bool operator==(const Json::Member& a, const Json::Member& b) {
  return a.key == b.key && a.value == b.value;
}
bool operator==(const Json& a, const Json& b) {
  return a.value_ == b.value_;
}

Result<Json> ParseJson(std::string_view text, const JsonParseOptions& options) {
  // The text is read as the only element of an array: on-demand parsing treats bare scalars as a special case.
  simdjson::padded_string padded;
  {
    std::string wrapped;
    wrapped.reserve(text.size() + 2);
    wrapped.append("[").append(text).append("]");
    padded = simdjson::padded_string(wrapped);
  }
  od::parser parser;
  od::document document;
  od::array outer;
  // Where reading stands; the bracket in front is ours.
  const auto place = [&]() -> std::string {
    const char* at = nullptr;
    if (document.current_location().get(at) != simdjson::SUCCESS || at <= padded.data()) return "";
    return fmt::format(", near byte {}",
                       std::min<std::size_t>(static_cast<std::size_t>(at - padded.data() - 1), text.size()));
  };
  const auto fail = [&place](std::string_view why) {
    return Err(ErrorCode::kInvalidArgument, fmt::format("not JSON: {}{}", why, place()));
  };
  if (auto code = parser.iterate(padded).get(document); code != simdjson::SUCCESS)
    return Err(ErrorCode::kInvalidArgument, fmt::format("not JSON: {}", simdjson::error_message(code)));
  if (document.get_array().get(outer) != simdjson::SUCCESS) return fail("not a JSON value");
  Reader reader{options};
  Json result;
  int count = 0;
  for (auto item : outer) {
    if (item.error() != simdjson::SUCCESS) return fail(count == 0 ? "not a JSON value" : "text after the value");
    od::value value = item.value_unsafe();
    if (++count > 1) return fail("text after the value");
    if (!reader.Read(value, result, 0)) return Err(reader.code, fmt::format("not JSON: {}{}", reader.error, place()));
  }
  if (count == 0) return fail("empty text");
  // Only a document that was read to its end has no current location.
  if (document.current_location().error() != simdjson::OUT_OF_BOUNDS) return fail("text after the value");
  return result;
}

void AppendEscaped(std::string& out, std::string_view text) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  std::size_t start = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out.append(text, start, i - start);
    start = i + 1;
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        out.append("\\u00").append(1, kHex[c >> 4]).append(1, kHex[c & 15]);
    }
  }
  out.append(text, start);
}

void AppendJson(std::string& out, const Json& value, JsonStyle style) {
  const std::string_view comma = style == JsonStyle::kCompact ? "," : ", ";
  const std::string_view colon = style == JsonStyle::kCompact ? ":" : ": ";
  if (value.is_null()) {
    out += "null";
  } else if (const bool* b = value.if_bool()) {
    out += *b ? "true" : "false";
  } else if (const auto* i = value.if_int()) {
    out += fmt::format_int(*i).str();
  } else if (const auto* u = value.if_uint()) {
    out += fmt::format_int(*u).str();
  } else if (const double* d = value.if_double()) {
    AppendDouble(out, *d, style);
  } else if (const std::string* s = value.if_string()) {
    out += '"';
    AppendEscaped(out, *s);
    out += '"';
  } else if (const Json::Array* array = value.if_array()) {
    out += '[';
    bool first = true;
    for (const Json& element : *array) {
      if (!std::exchange(first, false)) out += comma;
      AppendJson(out, element, style);
    }
    out += ']';
  } else {
    out += '{';
    bool first = true;
    for (const Json::Member& member : *value.if_object()) {
      if (!std::exchange(first, false)) out += comma;
      out += '"';
      AppendEscaped(out, member.key);
      out.append("\"").append(colon);
      AppendJson(out, member.value, style);
    }
    out += '}';
  }
}

std::string DumpJson(const Json& value, JsonStyle style) {
  std::string out;
  AppendJson(out, value, style);
  return out;
}

}  // namespace galley::protocol
