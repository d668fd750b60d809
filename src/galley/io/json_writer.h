// SPDX-License-Identifier: Apache-2.0
// Writes one indented JSON document piece by piece: for reports whose members must keep their order. Used by one
// thread; the caller opens and closes in pairs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace galley::io {

class JsonWriter {
 public:
  // Inside an object every value needs its key; inside an array and at the top it has none.
  JsonWriter& Key(std::string_view key);
  JsonWriter& BeginObject();
  JsonWriter& EndObject();
  JsonWriter& BeginArray();
  JsonWriter& EndArray();
  JsonWriter& String(std::string_view value);  // malformed UTF-8 becomes U+FFFD
  JsonWriter& Int(std::int64_t value);
  JsonWriter& Double(double value);  // shortest text that reads back equal; null when not finite
  JsonWriter& Bool(bool value);
  JsonWriter& Null();

  // The document with a final line end. Every object and array must be closed.
  [[nodiscard]] std::string Take();

 private:
  void Place(std::string_view text);  // a value or an opening bracket, after comma, line end and indentation
  void Close(char bracket);

  struct Level {
    bool empty = true;
  };
  std::string out_;
  std::vector<Level> levels_;
  bool after_key_ = false;
};

}  // namespace galley::io
