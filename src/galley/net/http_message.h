// SPDX-License-Identifier: Apache-2.0
// Requests and answers of HTTP/1.1 as plain data. Values, copied freely, no thread of their own. Bodies are whole: the
// server hands a request over once all of it has arrived.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace galley::net {

// Names compare without regard to ASCII case; order and repetition are kept, since some fields are lists.
class Headers {
 public:
  using Field = std::pair<std::string, std::string>;

  Headers() = default;
  Headers(std::initializer_list<Field> fields) : fields_(fields) {}

  void Add(std::string name, std::string value) { fields_.emplace_back(std::move(name), std::move(value)); }
  void Append(const Headers& more) { fields_.insert(fields_.end(), more.fields_.begin(), more.fields_.end()); }
  // Replaces every field of that name by one.
  void Set(std::string_view name, std::string value);
  // The first value, or nullopt.
  [[nodiscard]] std::optional<std::string_view> Find(std::string_view name) const;
  [[nodiscard]] std::string_view Get(std::string_view name) const { return Find(name).value_or(std::string_view{}); }
  [[nodiscard]] int Count(std::string_view name) const;

  [[nodiscard]] const std::vector<Field>& fields() const { return fields_; }

 private:
  std::vector<Field> fields_;
};

struct HttpRequest {
  std::string method;  // as sent: methods are case-sensitive
  std::string path;    // begins with '/', neither decoded nor normalised; "*" for OPTIONS *
  std::string query;   // behind the first '?', without it
  Headers headers;
  std::string body;
  std::string peer;  // "127.0.0.1:50211", "[::1]:50211" or "unix"
  bool secure = false;
  // When the connection was accepted, or for a later request of the connection, when its first byte was there.
  std::chrono::steady_clock::time_point accepted;
};

struct HttpResponse {
  int status = 200;
  Headers headers;
  std::string body;
};

// The reason phrase of RFC 9110 for a status that this project uses; "Unknown" for others.
[[nodiscard]] std::string_view ReasonPhrase(int status);

// ASCII only, as field names and hosts are.
[[nodiscard]] bool EqualsIgnoreCase(std::string_view a, std::string_view b);

// The error shape that clients of the OpenAI API expect; `message` is escaped for JSON.
[[nodiscard]] HttpResponse ErrorResponse(int status, std::string_view message);

}  // namespace galley::net
