// SPDX-License-Identifier: Apache-2.0
// The bytes of HTTP/1.1 messages that this side sends. Pure functions; the clock's value is passed in.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "galley/net/http_message.h"

namespace galley::net {

struct HeadOptions {
  bool keep_alive = true;
  bool chunked = false;
  std::optional<std::size_t> content_length;  // nullopt: not stated
  std::chrono::system_clock::time_point date;
};

// Status line, `headers`, and the fields that follow from `options`. Fields of `headers` that frame the message
// (Content-Length, Transfer-Encoding, Connection, Date) are left out; control characters in values become spaces, and
// fields whose name is no token are dropped, so that no value can begin another field.
[[nodiscard]] std::string FormatHead(int status, const Headers& headers, const HeadOptions& options);

// One chunk of a chunked body; `bytes` is not empty. The last chunk is kLastChunk.
void AppendChunk(std::string* out, std::string_view bytes);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

// "Sun, 06 Nov 1994 08:49:37 GMT".
[[nodiscard]] std::string FormatDate(std::chrono::system_clock::time_point time);

// Whether a response of this status can have a body at all.
[[nodiscard]] bool MayHaveBody(int status);

// `name: value` as it goes over the wire, made harmless as above; empty if the name is no token.
[[nodiscard]] std::string FormatField(std::string_view name, std::string_view value);

}  // namespace galley::net
