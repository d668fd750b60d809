// SPDX-License-Identifier: Apache-2.0
// Names of requests: their own ids, those that clients and proxies send along, and the trace they belong to. Pure
// functions and a generator that any thread may use.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "galley/net/http_message.h"

namespace galley::serve {

// Ids that nobody can guess from others: 32 hexadecimal digits of a keyed counter.
class IdSource {
 public:
  explicit IdSource(std::uint64_t seed) : seed_(seed) {}
  [[nodiscard]] std::string Next();
  [[nodiscard]] std::uint64_t NextSeed();

 private:
  std::uint64_t seed_;
  std::atomic<std::uint32_t> count_ = 0;
};

struct Trace {
  std::string request_id;   // the client's x-request-id when it is harmless, else our own
  std::string traceparent;  // W3C, "" when the request had none or a malformed one
  std::string tracestate;
};
[[nodiscard]] Trace TraceOf(const net::Headers& headers, IdSource& ids);
// Whether `value` has the form of a W3C traceparent header of version 00.
[[nodiscard]] bool IsTraceparent(std::string_view value);

}  // namespace galley::serve
