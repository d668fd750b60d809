// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 server: whole requests in, whole responses or streams of events out. It owns its sockets and a small fixed
// number of threads: I/O threads, each with its own share of the connections, and handler threads, which run the
// Handler. Everything is bounded: connections, heads, bodies, time, and what may wait to be written to a client.
//
// What a client sees without the handler's doing: JSON errors for malformed or oversized requests (400, 408, 413, 414,
// 417, 431, 501, 503, 505), 100 Continue, heartbeats in event streams, CORS answers for origins on the list, and 403
// for a browser's request from another site that is not on the list.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/error.h"
#include "galley/net/http_message.h"

namespace galley::net {

struct TlsFiles {
  std::string certificate;  // PEM, the server's own first, then intermediates
  std::string key;          // PEM, not encrypted
};

struct ServerOptions {
  // "127.0.0.1:8000", "[::1]:0", "localhost:8000" (the first address of the name), "unix:/run/galley.sock". Port 0 lets
  // the system choose.
  std::vector<std::string> listen = {"127.0.0.1:8000"};
  TlsFiles tls{};  // both empty: plain HTTP. Not used on unix sockets.
  int io_threads = 1;
  int handler_threads = 2;  // 0 runs the handler on the I/O thread, which suits only handlers that never wait

  int connections_max = 4096;
  std::size_t target_bytes_max = 8 << 10;
  std::size_t head_bytes_max = 32 << 10;  // request line and all fields
  int header_fields_max = 100;
  std::size_t body_bytes_max = 64 << 20;         // of one request
  std::size_t body_bytes_total_max = 512 << 20;  // of all requests that are still arriving; beyond: 503
  // What may wait for one client. A stream whose client reads too slowly for it is ended: Write returns false, OnClosed
  // runs, the connection is reset. Whole responses are not limited by it.
  std::size_t write_buffer_max = 1 << 20;

  std::chrono::milliseconds idle_timeout{75'000};  // between requests
  std::chrono::milliseconds head_timeout{10'000};  // from the first byte of a request to the end of its head
  // Bodies and responses may take this long plus one second per `transfer_bytes_per_second_min` moved, so that neither
  // a stalled nor a trickling client holds a connection.
  std::chrono::milliseconds body_timeout{30'000};
  std::chrono::milliseconds write_timeout{30'000};
  std::size_t transfer_bytes_per_second_min = 4 << 10;
  std::chrono::milliseconds heartbeat{15'000};  // silence of an event stream before ": keep-alive"; 0: none

  // Origins that browsers may call from ("https://chat.example.org"); "*" is all. A page that the server itself
  // delivered may always call.
  std::vector<std::string> cors_origins{};

  // Told of each answer that the server gives without the handler, for logs; none: nobody. Runs on I/O threads.
  std::function<void(std::string_view peer, int status, std::string_view reason)> on_rejected{};

  [[nodiscard]] Status Validate() const;
};

// Sums since the start, and the present state where marked.
struct ServerStats {
  std::int64_t connections = 0;  // present
  std::int64_t accepted = 0;
  std::int64_t refused = 0;      // over connections_max
  std::int64_t requests = 0;     // whole ones, handed to the handler
  std::int64_t rejected = 0;     // answered here with an error
  std::int64_t streams = 0;      // present
  std::int64_t timed_out = 0;    // connections ended by a time-out
  std::int64_t disconnects = 0;  // clients that went away before their response was complete
  std::int64_t slow_readers = 0;
  std::int64_t bytes_in = 0;
  std::int64_t bytes_out = 0;
};

// The answer to one request. Every function may be called from any thread. A request is answered by exactly one Send,
// or by StartStream, any number of Writes, Finish. Whatever comes after the end, or after the client went away, is
// ignored. When the last reference goes without an end, the client gets 500, or a stream that visibly breaks off.
class Responder {
 public:
  virtual ~Responder() = default;

  // Content-Length, Date, Connection and CORS fields are added. For HEAD the body is left out, its length stated.
  virtual void Send(HttpResponse response) = 0;
  // Starts a chunked response (HTTP/1.0: until close). With Content-Type text/event-stream heartbeat comments are put
  // between Writes after silence, so each Write has to carry whole events.
  virtual void StartStream(int status, Headers headers) = 0;
  // False: the client is gone, or what waits for it would exceed write_buffer_max, which ends the stream.
  [[nodiscard]] virtual bool Write(std::string bytes) = 0;
  virtual void Finish() = 0;
  // `callback` runs once if the client goes away, or is cut off, before the end; normally on the I/O thread, and at
  // once on this thread if it has happened already. It must not wait. One callback per request: a second replaces the
  // first. It is dropped at the end of the response.
  virtual void OnClosed(std::function<void()> callback) = 0;
  // Whether the client went away before the end.
  [[nodiscard]] virtual bool closed() const = 0;
};

// Runs on a handler thread. It may keep both pointers for as long as it likes, and should return soon: other requests
// wait for the thread. A handler that throws is answered with 500.
using Handler = std::function<void(std::shared_ptr<const HttpRequest>, std::shared_ptr<Responder>)>;

class HttpServer {
 public:
  // Listens and serves when it returns. Errors: kInvalidArgument (options), kIo (address in use, no permission,
  // unreadable certificate), kNotFound (no such certificate or key), kCorrupt (they are none, or do not fit).
  [[nodiscard]] static Result<std::unique_ptr<HttpServer>> Create(const ServerOptions& options, Handler handler);
  ~HttpServer();  // stops
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] int port() const;  // of the first address; 0 for a unix socket
  // Where it listens, with the ports that the system chose: "http://127.0.0.1:8000", "unix:/run/galley.sock".
  [[nodiscard]] const std::vector<std::string>& addresses() const;

  // Stops listening, closes idle connections, lets running requests end (with "Connection: close") and returns true
  // when none is left, false at the deadline. Then call Stop.
  bool Drain(std::chrono::milliseconds timeout);
  // Resets whatever is open, runs OnClosed of unfinished requests, joins the threads. Not from a handler.
  void Stop();

  [[nodiscard]] ServerStats stats() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace galley::net
