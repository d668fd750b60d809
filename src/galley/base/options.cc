// SPDX-License-Identifier: Apache-2.0
// Values: turning text into typed values, limits, and the result that commands read.
#include "galley/base/options.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>
#include <utility>

#include "galley/base/check.h"
#include "galley/base/nearest.h"
#include "galley/base/options_internal.h"
#include "galley/base/utf8_cut.h"

namespace galley::options {
namespace {

struct Unit {
  std::string_view suffix;
  std::int64_t bytes;  // or whatever is counted
};

constexpr Unit kUnits[] = {
    {"", 1},
    {"B", 1},
    {"KiB", std::int64_t{1} << 10},
    {"MiB", std::int64_t{1} << 20},
    {"GiB", std::int64_t{1} << 30},
    {"TiB", std::int64_t{1} << 40},
    {"KB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
};

struct BoolWord {
  std::string_view word;
  bool value;
};

// As vLLM reads lengths: small letters are thousands, capital ones 1024s.
constexpr Unit kMultiples[] = {{"", 1}, {"k", 1'000}, {"K", 1'024}, {"m", 1'000'000}, {"M", 1'048'576}};

constexpr BoolWord kBoolWords[] = {{"true", true}, {"false", false}, {"1", true},   {"0", false},
                                   {"on", true},   {"off", false},   {"yes", true}, {"no", false}};

// What the option takes, for the end of an error message: "a whole number from 0 to 20".
std::string Wanted(const Spec& spec) {
  std::string limits = internal::Limits(spec);
  const std::string_view gap = limits.empty() ? "" : " ";
  switch (spec.type) {
    case Type::kBool:
      return "true or false";
    case Type::kInt:
      return fmt::format("a whole number{}{}{}", gap, limits,
                         spec.multiples ? ", also as 32k (32000) or 32K (32768)" : "");
    case Type::kFloat:
      return fmt::format("a number{}{}", gap, limits);
    case Type::kBytes:
      return fmt::format("a size such as 4096, 512MiB or 4GB{}{}", gap, limits);
    case Type::kEnum:
      return limits;
    case Type::kString:
    case Type::kPath:
      return "text";
    case Type::kList:
      return "text or a list of texts";
  }
  return {};
}

tl::unexpected<Error> Reject(const Spec& spec, std::string_view what, std::string_view where) {
  return Err(ErrorCode::kInvalidArgument, fmt::format("{}; give {}", what, Wanted(spec)), std::string(where));
}

// Messages quote what was given, but not megabytes of it.
std::string Quoted(std::string_view text) {
  constexpr std::size_t kQuotedMax = 80;
  if (text.size() <= kQuotedMax) return fmt::format("\"{}\"", text);
  return fmt::format("\"{}…\" ({} bytes)", CutUtf8(text, kQuotedMax), text.size());
}

Result<Value> ParseInt(const Spec& spec, std::string_view text, std::string_view where) {
  std::int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code == std::errc::result_out_of_range) return Reject(spec, Quoted(text) + " is out of range", where);
  const std::string_view suffix = text.substr(static_cast<std::size_t>(end - text.data()));
  const auto* multiple =
      std::find_if(std::begin(kMultiples), std::end(kMultiples), [&](const Unit& u) { return u.suffix == suffix; });
  if (code != std::errc() || multiple == std::end(kMultiples) || (!suffix.empty() && !spec.multiples)) {
    return Reject(spec, Quoted(text) + " is not a whole number", where);
  }
  if (__builtin_mul_overflow(number, multiple->bytes, &number)) {
    return Reject(spec, Quoted(text) + " is out of range", where);
  }
  return Value(number);
}

Result<Value> ParseFloat(const Spec& spec, std::string_view text, std::string_view where) {
  double number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code == std::errc::result_out_of_range) return Reject(spec, Quoted(text) + " is out of range", where);
  if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) {
    return Reject(spec, Quoted(text) + " is not a number", where);
  }
  return Value(number);
}

Result<Value> ParseBytes(const Spec& spec, std::string_view text, std::string_view where) {
  std::int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view suffix = text.substr(static_cast<std::size_t>(end - text.data()));
  const auto* unit =
      std::find_if(std::begin(kUnits), std::end(kUnits), [&](const Unit& u) { return u.suffix == suffix; });
  if (code == std::errc::invalid_argument || unit == std::end(kUnits)) {
    return Reject(spec, Quoted(text) + " is not a size in bytes", where);
  }
  std::int64_t bytes = 0;
  if (code == std::errc::result_out_of_range || __builtin_mul_overflow(number, unit->bytes, &bytes)) {
    return Reject(spec, Quoted(text) + " is out of range", where);
  }
  return Value(bytes);
}

Result<Value> ParseBool(const Spec& spec, std::string_view text, std::string_view where) {
  for (const BoolWord& row : kBoolWords) {
    if (row.word == text) return Value(row.value);
  }
  return Reject(spec, Quoted(text) + " is neither true nor false", where);
}

}  // namespace

std::vector<std::string_view> Words(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (end > 0) words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

namespace internal {

std::string Limits(const Spec& spec) {
  constexpr IntRange kAnyInt;
  constexpr FloatRange kAnyFloat;
  if (spec.type == Type::kEnum) {
    std::string list;
    for (const std::string_view word : Words(spec.choices)) list += (list.empty() ? "" : "|") + std::string(word);
    return list;
  }
  if (spec.type == Type::kInt || spec.type == Type::kBytes) {
    const bool low = spec.ints.low != kAnyInt.low, high = spec.ints.high != kAnyInt.high;
    if (low && high) return fmt::format("from {} to {}", spec.ints.low, spec.ints.high);
    if (low) return fmt::format("of at least {}", spec.ints.low);
    return high ? fmt::format("of at most {}", spec.ints.high) : "";
  }
  if (spec.type == Type::kFloat) {
    const bool low = spec.floats.low != kAnyFloat.low, high = spec.floats.high != kAnyFloat.high;
    const std::string above = spec.floats.low_open ? fmt::format("above {}", spec.floats.low) : "";
    if (low && high) {
      return above.empty() ? fmt::format("from {} to {}", spec.floats.low, spec.floats.high)
                           : fmt::format("{} and up to {}", above, spec.floats.high);
    }
    if (low) return above.empty() ? fmt::format("of at least {}", spec.floats.low) : above;
    return high ? fmt::format("of at most {}", spec.floats.high) : "";
  }
  return {};
}

Status CheckLimits(const Spec& spec, const Value& value, std::string_view where) {
  if (const auto* number = std::get_if<std::int64_t>(&value)) {
    if (spec.type == Type::kBytes && *number < 0) {
      return Reject(spec, fmt::format("{} bytes are less than none", *number), where);
    }
    if (*number < spec.ints.low) return Reject(spec, fmt::format("{} is too small", *number), where);
    if (*number > spec.ints.high) return Reject(spec, fmt::format("{} is too large", *number), where);
  }
  if (const auto* number = std::get_if<double>(&value)) {
    const bool small = spec.floats.low_open ? *number <= spec.floats.low : *number < spec.floats.low;
    if (small) return Reject(spec, fmt::format("{} is too small", *number), where);
    if (*number > spec.floats.high) return Reject(spec, fmt::format("{} is too large", *number), where);
  }
  const auto* text = std::get_if<std::string>(&value);
  if (spec.type == Type::kEnum && text != nullptr) {
    const std::vector<std::string_view> words = Words(spec.choices);
    if (std::find(words.begin(), words.end(), *text) == words.end()) {
      return Reject(spec, fmt::format("{} is not one of its values{}", Quoted(*text), Suggestion(*text, words)), where);
    }
  }
  return {};
}

Value DefaultOf(const Spec& spec) {
  if (spec.type == Type::kList) return std::vector<std::string>();
  if (spec.type == Type::kBool && spec.initial.empty()) return false;
  if (spec.initial.empty()) return std::monostate();
  Result<Value> value = ParseValue(spec, spec.initial, spec.name);
  CHECK(value.has_value()) << "default of option " << spec.name << ": " << value.error().ToString();
  return std::move(*value);
}

Result<Value> FromFile(const Spec& spec, const Value& given, std::string_view where) {
  const auto* text = std::get_if<std::string>(&given);
  const auto* number = std::get_if<std::int64_t>(&given);
  Value value = given;
  bool fits = false;
  switch (spec.type) {
    case Type::kBool:
      fits = std::holds_alternative<bool>(given);
      break;
    case Type::kInt:
      fits = number != nullptr;
      break;
    case Type::kFloat:
      if (number != nullptr) value = static_cast<double>(*number);
      fits = std::holds_alternative<double>(value) && std::isfinite(std::get<double>(value));
      break;
    case Type::kBytes:
      if (text != nullptr) return ParseValue(spec, *text, where);
      fits = number != nullptr;
      break;
    case Type::kString:
    case Type::kPath:
    case Type::kEnum:
      fits = text != nullptr;
      break;
    case Type::kList:
      if (text != nullptr) value = std::vector<std::string>{*text};
      fits = std::holds_alternative<std::vector<std::string>>(value);
      break;
  }
  if (!fits) return Reject(spec, "the value has the wrong type", where);
  RETURN_IF_ERROR(CheckLimits(spec, value, where));
  return value;
}

}  // namespace internal

std::string Spec::EnvironmentName() const {
  std::string name_upper = "GALLEY_";
  for (const char c : name) name_upper += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name_upper;
}

bool Spec::TakenBy(std::string_view command) const {
  const std::vector<std::string_view> words = Words(commands);
  return commands == "*" || std::find(words.begin(), words.end(), command) != words.end();
}

const Spec* Find(Table table, std::string_view name) {
  for (const Spec& spec : table) {
    const std::vector<std::string_view> aliases = Words(spec.aliases);
    if (spec.name == name || std::find(aliases.begin(), aliases.end(), name) != aliases.end()) return &spec;
  }
  return nullptr;
}

Result<Value> ParseValue(const Spec& spec, std::string_view text, std::string_view where) {
  Result<Value> value = Value(std::string(text));
  switch (spec.type) {
    case Type::kBool:
      value = ParseBool(spec, text, where);
      break;
    case Type::kInt:
      value = ParseInt(spec, text, where);
      break;
    case Type::kFloat:
      value = ParseFloat(spec, text, where);
      break;
    case Type::kBytes:
      value = ParseBytes(spec, text, where);
      break;
    case Type::kList:
      value = Value(std::vector<std::string>{std::string(text)});
      break;
    case Type::kString:
    case Type::kPath:
    case Type::kEnum:
      break;
  }
  if (value) RETURN_IF_ERROR(internal::CheckLimits(spec, *value, where));
  return value;
}

const Values::Entry& Values::At(std::string_view name) const {
  const auto found = entries_.find(name);
  CHECK(found != entries_.end()) << "no option is called " << name;
  return found->second;
}

bool Values::Has(std::string_view name) const {
  return !std::holds_alternative<std::monostate>(At(name).value);
}

bool Values::Bool(std::string_view name) const {
  const auto* value = std::get_if<bool>(&At(name).value);
  CHECK(value != nullptr) << name << " is no bool";
  return *value;
}

std::int64_t Values::Int(std::string_view name) const {
  const auto* value = std::get_if<std::int64_t>(&At(name).value);
  CHECK(value != nullptr) << name << " is no integer or not set";
  return *value;
}

double Values::Float(std::string_view name) const {
  const auto* value = std::get_if<double>(&At(name).value);
  CHECK(value != nullptr) << name << " is no float or not set";
  return *value;
}

const std::string& Values::String(std::string_view name) const {
  static const std::string unset;
  const Value& value = At(name).value;
  if (std::holds_alternative<std::monostate>(value)) return unset;
  const auto* text = std::get_if<std::string>(&value);
  CHECK(text != nullptr) << name << " is no string";
  return *text;
}

const std::vector<std::string>& Values::List(std::string_view name) const {
  const auto* value = std::get_if<std::vector<std::string>>(&At(name).value);
  CHECK(value != nullptr) << name << " is no list";
  return *value;
}

Source Values::source(std::string_view name) const {
  return At(name).source;
}

}  // namespace galley::options
