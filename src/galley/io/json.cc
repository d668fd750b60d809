// SPDX-License-Identifier: Apache-2.0
#include "galley/io/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>

#include "galley/io/text.h"

namespace galley::io {

// Receives the parser's events and builds the tree. Returning false stops the parser; failure() then says why.
class JsonBuilder {
 public:
  explicit JsonBuilder(const JsonLimits& limits) : limits_(limits) {}

  // The names and signatures of these members are the parser's.
  bool null() { return Add({}); }
  bool boolean(bool value) { return Add(value); }
  bool number_integer(std::int64_t value) { return Add(value); }
  bool number_unsigned(std::uint64_t value) {
    if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return Add(static_cast<std::int64_t>(value));
    }
    return Add(static_cast<double>(value));
  }
  bool number_float(double value, const std::string& /*text*/) { return Add(value); }
  bool string(std::string& value) { return Add(std::move(value)); }
  bool binary(std::vector<std::uint8_t>& /*value*/) { return Fail(ErrorCode::kCorrupt, "binary value"); }
  bool start_object(std::size_t /*size*/) { return Open(Json::Object{}); }
  bool start_array(std::size_t /*size*/) { return Open(Json::Array{}); }
  bool key(std::string& value) {
    key_ = std::move(value);
    return true;
  }
  bool end_array() {
    open_.pop_back();
    return true;
  }
  bool end_object();
  template <typename Exception>
  bool parse_error(std::size_t position, const std::string& /*token*/, const Exception& exception) {
    std::string_view what = exception.what();
    if (const std::size_t end = what.find("] "); what.starts_with('[') && end != what.npos) what.remove_prefix(end + 2);
    return Fail(ErrorCode::kCorrupt, fmt::format("not valid JSON near byte {}: {}", position, Printable(what)));
  }

  [[nodiscard]] const Error& failure() const { return failure_; }
  [[nodiscard]] Json Take() { return std::move(root_); }

 private:
  bool Fail(ErrorCode code, std::string message) {
    failure_ = Error{code, std::move(message), {}};
    return false;
  }
  bool Add(Json::Value value) { return Insert(std::move(value)) != nullptr; }
  bool Open(Json::Value value) {
    if (open_.size() >= limits_.max_depth) {
      return Fail(ErrorCode::kResourceExhausted,
                  fmt::format("JSON nested deeper than {} levels; no such file needs that", limits_.max_depth));
    }
    Json* const json = Insert(std::move(value));
    if (json != nullptr) open_.push_back(json);
    return json != nullptr;
  }
  Json* Insert(Json::Value value);

  const JsonLimits limits_;
  Json root_;
  // Path from the root to the container being filled. A container does not grow while one of its elements is open, so
  // the pointers stay valid.
  std::vector<Json*> open_;
  std::string key_;
  std::size_t values_ = 0;
  Error failure_;
};

Json* JsonBuilder::Insert(Json::Value value) {
  if (++values_ > limits_.max_values) {
    Fail(ErrorCode::kResourceExhausted, fmt::format("JSON with more than {} values", limits_.max_values));
    return nullptr;
  }
  if (open_.empty()) {
    root_.value_ = std::move(value);
    return &root_;
  }
  Json::Value& parent = open_.back()->value_;
  if (auto* array = std::get_if<Json::Array>(&parent)) return &array->emplace_back(std::move(value));
  return &std::get<Json::Object>(parent).emplace_back(std::move(key_), Json(std::move(value))).second;
}

bool JsonBuilder::end_object() {
  const auto& object = std::get<Json::Object>(open_.back()->value_);
  std::vector<std::string_view> keys;
  keys.reserve(object.size());
  for (const auto& [key, value] : object) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  if (const auto twice = std::adjacent_find(keys.begin(), keys.end()); twice != keys.end()) {
    return Fail(ErrorCode::kCorrupt, fmt::format("the key \"{}\" appears twice in one object", Printable(*twice)));
  }
  open_.pop_back();
  return true;
}

namespace {

void ShowValue(const Json& json, std::size_t max_bytes, std::string& out) {
  if (out.size() > max_bytes) return;
  if (const auto* array = json.array()) {
    out += '[';
    for (std::size_t i = 0; i < array->size() && out.size() <= max_bytes; ++i) {
      if (i > 0) out += ", ";
      ShowValue((*array)[i], max_bytes, out);
    }
    out += ']';
  } else if (const auto* object = json.object()) {
    out += '{';
    for (std::size_t i = 0; i < object->size() && out.size() <= max_bytes; ++i) {
      if (i > 0) out += ", ";
      out += JsonQuote((*object)[i].first) + ": ";
      ShowValue((*object)[i].second, max_bytes, out);
    }
    out += '}';
  } else if (const auto* string = json.string()) {
    out += JsonQuote(*string);
  } else if (const auto* integer = json.integer()) {
    out += fmt::format("{}", *integer);
  } else if (const auto* floating = json.floating()) {
    const std::string text = fmt::format("{}", *floating);
    out += text.find_first_of(".en") == text.npos ? text + ".0" : text;  // 4.0 is not the integer 4
  } else if (const auto* boolean = json.boolean()) {
    out += *boolean ? "true" : "false";
  } else {
    out += "null";
  }
}

}  // namespace

const Json* Json::Find(std::string_view key) const {
  const Object* members = object();
  if (members == nullptr) return nullptr;
  const auto found =
      std::find_if(members->begin(), members->end(), [&](const auto& member) { return member.first == key; });
  return found == members->end() ? nullptr : &found->second;
}

std::string Json::Show(std::size_t max_bytes) const {
  std::string out;
  ShowValue(*this, max_bytes, out);
  return Printable(out, max_bytes);
}

Result<Json> ParseJson(std::string_view text, std::string_view where, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return Err(ErrorCode::kResourceExhausted,
               fmt::format("{} bytes of JSON; the limit is {}", text.size(), limits.max_bytes), std::string(where));
  }
  JsonBuilder builder(limits);
  // The library throws only from its own error paths, which the builder's parse_error replaces; memory can still run
  // out, and that is an error of the file and not of the process.
  try {
    if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
      Error error = builder.failure();
      error.where = where;
      return Err(std::move(error));
    }
  } catch (const std::exception& exception) {
    return Err(ErrorCode::kCorrupt, Printable(exception.what()), std::string(where));
  }
  return builder.Take();
}

}  // namespace galley::io
