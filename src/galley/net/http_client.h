// SPDX-License-Identifier: Apache-2.0
// A small blocking HTTP/1.1 client: one server, one connection at a time, every wait with a deadline. For tests,
// benchmarks and calls between our own processes. An object belongs to one thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "galley/base/error.h"
#include "galley/net/http_message.h"
#include "galley/net/sse.h"

namespace galley::net {

struct ClientOptions {
  std::chrono::milliseconds connect_timeout{5'000};  // with the TLS handshake
  std::chrono::milliseconds idle_timeout{60'000};    // without a byte in either direction
  std::size_t body_bytes_max = 256 << 20;
  std::string authorities_file;  // PEM, for https; empty: the system's
};

// A response whose body is read as it comes. Breaking off: destroy it.
class HttpStream {
 public:
  HttpStream(HttpStream&&) noexcept;
  HttpStream& operator=(HttpStream&&) noexcept;
  ~HttpStream();

  [[nodiscard]] int status() const;
  [[nodiscard]] const Headers& headers() const;

  // The next bytes of the body, at least one; empty: the end. Errors: kDeadline, kUnavailable (the connection broke),
  // kCorrupt (not HTTP).
  [[nodiscard]] Result<std::string> Read();
  // The next event of a text/event-stream; nullopt: the end. Not to be mixed with Read.
  [[nodiscard]] Result<std::optional<SseEvent>> NextEvent();
  [[nodiscard]] std::size_t comments() const;  // heartbeats so far

 private:
  friend class HttpClient;
  class Impl;
  explicit HttpStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class HttpClient {
 public:
  // "http://127.0.0.1:8000", "https://host", "unix:/run/galley.sock"; nothing is connected yet. Errors:
  // kInvalidArgument (not such an address), kIo (authorities cannot be read).
  [[nodiscard]] static Result<HttpClient> Create(const std::string& server, const ClientOptions& options = {});
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) noexcept;
  ~HttpClient();

  // Sends a request and reads the whole response, over the connection of the call before where that is still open. Host
  // and Content-Length are added. A kept connection that the server closed meanwhile is replaced once, which is safe as
  // nothing of an answer had come. Errors: kUnavailable (refused, broken), kDeadline, kCorrupt.
  [[nodiscard]] Result<HttpResponse> Send(const HttpRequest& request);
  [[nodiscard]] Result<HttpResponse> Get(std::string_view path_and_query);
  [[nodiscard]] Result<HttpResponse> PostJson(std::string_view path, std::string body);

  // Sends a request over a connection of its own and returns when the response's head is there.
  [[nodiscard]] Result<HttpStream> Open(const HttpRequest& request);

 private:
  class Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace galley::net
