// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 messages from bytes that arrive in any pieces, by Boost.Beast's parser. Pure: no sockets, no clock. One
// parser belongs to one connection and is used by one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "galley/net/http_message.h"

namespace galley::net {

struct ParserLimits {
  std::size_t target_bytes_max = 8 << 10;
  std::size_t head_bytes_max = 32 << 10;
  int header_fields_max = 100;
  std::size_t body_bytes_max = 64 << 20;
};

enum class ParserState { kHead, kBody, kDone, kFailed };

struct ParseFailure {
  int status = 400;  // for the answer
  std::string message;
};

class RequestParser {
 public:
  explicit RequestParser(const ParserLimits& limits);
  ~RequestParser();
  RequestParser(RequestParser&&) noexcept;
  RequestParser& operator=(RequestParser&&) noexcept;

  // Takes bytes from the front of `input` and returns how many. Bytes that were not taken have to be offered again with
  // what follows them (a head is taken as a whole, a body piece by piece). After kDone nothing is taken: they belong to
  // the next request.
  std::size_t Feed(std::string_view input);
  [[nodiscard]] ParserState state() const;
  [[nodiscard]] const ParseFailure& failure() const;  // in kFailed

  // From the end of the head on.
  [[nodiscard]] bool expects_continue() const;
  [[nodiscard]] bool keep_alive() const;
  [[nodiscard]] int http_version() const;  // 10 or 11
  [[nodiscard]] const HttpRequest& request() const;
  // In kDone; afterwards the parser waits for the next head.
  [[nodiscard]] HttpRequest Take();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace galley::net
