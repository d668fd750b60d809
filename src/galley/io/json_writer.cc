// SPDX-License-Identifier: Apache-2.0
#include "galley/io/json_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "galley/base/check.h"
#include "galley/io/text.h"

namespace galley::io {

void JsonWriter::Place(std::string_view text) {
  if (!after_key_ && !levels_.empty()) {
    out_ += levels_.back().empty ? "\n" : ",\n";
    out_.append(levels_.size() * 2, ' ');
    levels_.back().empty = false;
  }
  after_key_ = false;
  out_ += text;
}

void JsonWriter::Close(char bracket) {
  CHECK(!levels_.empty() && !after_key_) << "nothing to close with " << bracket;
  const bool empty = levels_.back().empty;
  levels_.pop_back();
  if (!empty) {
    out_ += '\n';
    out_.append(levels_.size() * 2, ' ');
  }
  out_ += bracket;
}

JsonWriter& JsonWriter::Key(std::string_view key) {
  Place(JsonQuote(key) + ": ");
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::BeginObject() {
  Place("{");
  levels_.push_back({});
  return *this;
}

JsonWriter& JsonWriter::EndObject() {
  Close('}');
  return *this;
}

JsonWriter& JsonWriter::BeginArray() {
  Place("[");
  levels_.push_back({});
  return *this;
}

JsonWriter& JsonWriter::EndArray() {
  Close(']');
  return *this;
}

JsonWriter& JsonWriter::String(std::string_view value) {
  Place(JsonQuote(value));
  return *this;
}

JsonWriter& JsonWriter::Int(std::int64_t value) {
  Place(fmt::format("{}", value));
  return *this;
}

JsonWriter& JsonWriter::Double(double value) {
  Place(std::isfinite(value) ? fmt::format("{}", value) : "null");
  return *this;
}

JsonWriter& JsonWriter::Bool(bool value) {
  Place(value ? "true" : "false");
  return *this;
}

JsonWriter& JsonWriter::Null() {
  Place("null");
  return *this;
}

std::string JsonWriter::Take() {
  CHECK(levels_.empty()) << levels_.size() << " objects or arrays are open";
  return std::exchange(out_, {}) + '\n';
}

}  // namespace galley::io
