// SPDX-License-Identifier: Apache-2.0
#include "galley/net/http_message.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

namespace galley::net {
namespace {

char Lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

struct StatusRow {
  int status;
  std::string_view phrase;
  std::string_view type;  // of the error object; empty for what is no error
};

constexpr StatusRow kStatuses[] = {
    {100, "Continue", ""},
    {200, "OK", ""},
    {201, "Created", ""},
    {202, "Accepted", ""},
    {204, "No Content", ""},
    {304, "Not Modified", ""},
    {400, "Bad Request", "invalid_request_error"},
    {401, "Unauthorized", "authentication_error"},
    {403, "Forbidden", "permission_error"},
    {404, "Not Found", "not_found_error"},
    {405, "Method Not Allowed", "invalid_request_error"},
    {408, "Request Timeout", "timeout_error"},
    {409, "Conflict", "conflict_error"},
    {413, "Content Too Large", "request_too_large"},
    {414, "URI Too Long", "invalid_request_error"},
    {415, "Unsupported Media Type", "invalid_request_error"},
    {417, "Expectation Failed", "invalid_request_error"},
    {422, "Unprocessable Content", "invalid_request_error"},
    {429, "Too Many Requests", "rate_limit_error"},
    {431, "Request Header Fields Too Large", "invalid_request_error"},
    {499, "Client Closed Request", "cancelled"},
    {500, "Internal Server Error", "server_error"},
    {501, "Not Implemented", "invalid_request_error"},
    {502, "Bad Gateway", "server_error"},
    {503, "Service Unavailable", "overloaded_error"},
    {504, "Gateway Timeout", "timeout_error"},
    {505, "HTTP Version Not Supported", "invalid_request_error"},
};

const StatusRow* FindStatus(int status) {
  const auto* row = std::find_if(std::begin(kStatuses), std::end(kStatuses),
                                 [status](const StatusRow& entry) { return entry.status == status; });
  return row == std::end(kStatuses) ? nullptr : row;
}

std::string JsonEscape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out;
}

// "content_too_large" of "Content Too Large".
std::string CodeOf(int status) {
  std::string code(ReasonPhrase(status));
  for (char& c : code) c = c == ' ' ? '_' : Lower(c);
  return code;
}

}  // namespace

bool EqualsIgnoreCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return Lower(x) == Lower(y); });
}

void Headers::Set(std::string_view name, std::string value) {
  std::erase_if(fields_, [name](const Field& field) { return EqualsIgnoreCase(field.first, name); });
  fields_.emplace_back(name, std::move(value));
}

std::optional<std::string_view> Headers::Find(std::string_view name) const {
  for (const Field& field : fields_) {
    if (EqualsIgnoreCase(field.first, name)) return field.second;
  }
  return std::nullopt;
}

int Headers::Count(std::string_view name) const {
  return static_cast<int>(std::count_if(fields_.begin(), fields_.end(),
                                        [name](const Field& field) { return EqualsIgnoreCase(field.first, name); }));
}

std::string_view ReasonPhrase(int status) {
  const StatusRow* row = FindStatus(status);
  return row == nullptr ? "Unknown" : row->phrase;
}

HttpResponse ErrorResponse(int status, std::string_view message) {
  const StatusRow* row = FindStatus(status);
  const std::string_view type = row == nullptr || row->type.empty() ? "server_error" : row->type;
  return {.status = status,
          .headers = {{"Content-Type", "application/json"}},
          .body = fmt::format(R"({{"type":"error","error":{{"message":"{}","type":"{}","param":null,"code":"{}"}}}})",
                              JsonEscape(message), type, CodeOf(status))};
}

}  // namespace galley::net
