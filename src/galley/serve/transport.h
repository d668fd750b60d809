// SPDX-License-Identifier: Apache-2.0
// What the service sees of HTTP: a request that was read whole, and a reply that is sent once or streamed. The
// transport (http_adapter.h) implements Reply over a connection; tests implement it in memory. A Reply may be called
// from any thread; a request is immutable and shared.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace galley::serve {

using Headers = std::vector<std::pair<std::string, std::string>>;

// The value of the first header called `name`, in any case; "" when there is none.
[[nodiscard]] std::string_view FindHeader(const Headers& headers, std::string_view name);

struct Request {
  std::string method;  // "GET", …
  std::string path;    // "/v1/chat/completions", without the query
  std::string query;   // behind the question mark
  Headers headers;
  std::string body;
  std::string peer;  // address of the client, for the log
  std::chrono::steady_clock::time_point accepted = std::chrono::steady_clock::now();
};

struct Response {
  int status = 200;
  Headers headers;
  std::string body;
};

// Exactly one Send, or one StartStream, any number of Writes and one Finish.
class Reply {
 public:
  virtual ~Reply() = default;
  virtual void Send(Response response) = 0;
  virtual void StartStream(int status, Headers headers) = 0;
  // False: the client is gone, or it reads so slowly that the transport gave up on it.
  [[nodiscard]] virtual bool Write(std::string bytes) = 0;
  virtual void Finish() = 0;
  // `closed` runs once if the client goes away before the end; at once when it has gone already.
  virtual void OnClosed(std::function<void()> closed) = 0;
};

}  // namespace galley::serve
