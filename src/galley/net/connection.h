// SPDX-License-Identifier: Apache-2.0
// One client's connection: reads requests one after the other, hands each to the handler and writes its answer before
// the next is looked at. Belongs to a shard, that is one event loop's thread; the functions under "any thread" are what
// the request's Responder calls.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "galley/net/cors.h"
#include "galley/net/event_loop.h"
#include "galley/net/handler_pool.h"
#include "galley/net/http_parser.h"
#include "galley/net/http_server.h"
#include "galley/net/tls.h"

namespace galley::net {

class Connection;

// Sums of ServerStats as threads count them.
struct ServerCounters {
  std::atomic<std::int64_t> connections{0}, accepted{0}, refused{0}, requests{0}, rejected{0}, streams{0}, timed_out{0},
      disconnects{0}, slow_readers{0}, bytes_in{0}, bytes_out{0};
  std::atomic<std::int64_t> arriving_body_bytes{0};
};

// What all connections of a server share. Outlives the server while responders are held.
struct ServerCore {
  ServerCore(const ServerOptions& server_options, Handler server_handler)
      : options(server_options),
        handler(std::move(server_handler)),
        cors(server_options.cors_origins),
        pool(server_options.handler_threads) {}

  const ServerOptions options;
  const Handler handler;
  const CorsPolicy cors;
  std::shared_ptr<const TlsContext> tls;
  HandlerPool pool;
  ServerCounters counters;
  std::atomic<bool> draining{false};
  // Signalled when a connection ends; `counters.connections` is what is waited for.
  std::mutex mutex;
  std::condition_variable connection_ended;
};

// One event loop and the connections that live on it.
struct Shard {
  EventLoop loop;
  // The loop's thread only:
  std::unordered_set<std::shared_ptr<Connection>> connections;
  std::vector<char> read_buffer = std::vector<char>(64 << 10);
  bool stopping = false;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;

  // `secure`: TLS by the core's context.
  Connection(std::shared_ptr<ServerCore> core, std::shared_ptr<Shard> shard, int descriptor, std::string peer,
             bool secure);
  ~Connection();

  // The loop's thread. Start joins the shard; `refused` answers 503 to whatever comes.
  void Start(bool refused);
  void Tick(Clock::time_point now);  // deadlines and heartbeats
  void CloseIfIdle();
  void Close(bool reset);

  // Any thread. `exchange` numbers the connection's requests; calls for one that is over do nothing.
  void Send(std::int64_t exchange, HttpResponse response);
  void StartStream(std::int64_t exchange, int status, Headers headers);
  bool Write(std::int64_t exchange, std::string_view bytes);
  void Finish(std::int64_t exchange);
  void Abandon(std::int64_t exchange);
  void OnClosed(std::int64_t exchange, std::function<void()> callback);
  [[nodiscard]] bool closed(std::int64_t exchange) const;

 private:
  enum class Phase { kIdle, kHead, kBody, kHandling, kRejecting, kLinger, kClosed };
  enum class Answer { kNone, kDue, kStream, kDone };

  // The request being answered; guarded by mutex_.
  struct Exchange {
    std::int64_t id = 0;
    Answer answer = Answer::kNone;
    bool head_only = false;  // HEAD, or a status without a body
    bool chunked = true;     // of a stream; not for HTTP/1.0
    bool keep_alive = false;
    bool events = false;       // heartbeats are wanted
    bool lost = false;         // the client went away before the end
    bool half_closed = false;  // it sends no more, and may have gone away
    Headers extra;             // CORS
    std::function<void()> on_closed;
  };

  // Reading; the loop's thread.
  void OnReadable();
  void WaitReadable();
  [[nodiscard]] bool WantsInput() const;
  void OnBytes(std::string_view bytes);
  void OnPlain(std::string_view bytes);
  void Consume(std::string_view bytes);
  [[nodiscard]] bool Advance();
  void AllowBody();
  void Dispatch();
  void Reject(int status, std::string_view message);
  void NoteRejection(int status, std::string_view reason);
  void OnReadEnd();
  void OnEnd();
  void CloseUnlessOver(std::int64_t exchange);

  // Writing; the loop's thread.
  void Pump();
  [[nodiscard]] bool Refill();
  void OnAllSent();
  void OnResponseComplete();
  void BeginLinger();

  void CheckDeadline(Clock::time_point now);
  void Heartbeat(Clock::time_point now);
  void ReleaseBody();

  // With mutex_ held.
  void AppendLocked(std::string_view bytes);
  void PostFlushLocked();
  void EndLocked();

  const std::shared_ptr<ServerCore> core_;
  const std::shared_ptr<Shard> shard_;  // before the socket, which needs the loop when it goes
  const std::string peer_;

  // The loop's thread only.
  Socket socket_;
  std::unique_ptr<TlsSession> tls_;
  RequestParser parser_;
  std::string in_;  // arrived and not yet taken by the parser
  std::string wire_;
  std::size_t wire_sent_ = 0;
  std::size_t tls_batch_ = 0;  // plain bytes that wire_ stands for
  Phase phase_ = Phase::kIdle;
  Clock::time_point began_;  // of this phase's deadline
  Clock::time_point deadline_;
  Clock::time_point accepted_;
  std::size_t body_counted_ = 0;
  bool served_one_ = false;
  bool continue_sent_ = false;
  bool reading_ = false;
  bool waiting_writable_ = false;
  Clock::time_point blocked_since_;
  std::size_t blocked_moved_ = 0;

  mutable std::mutex mutex_;
  Exchange exchange_;
  std::string outbox_;
  std::size_t pending_ = 0;  // accepted from the handler and not yet given to the system
  bool closed_ = false;
  bool flush_posted_ = false;
  Clock::time_point last_append_;
};

}  // namespace galley::net
