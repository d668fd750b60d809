// SPDX-License-Identifier: Apache-2.0
#include "galley/net/connection.h"

#include <exception>
#include <optional>
#include <utility>

#include "galley/base/check.h"
#include "galley/base/log.h"
#include "galley/net/http_format.h"

namespace galley::net {
namespace {

constexpr std::size_t kPipelinedBytesMax = 64 << 10;  // beyond, reading rests until the request is answered
constexpr std::size_t kKeptBufferBytes = 4 << 10;     // an idle connection holds no larger buffers
constexpr std::size_t kTlsBatchBytes = 64 << 10;
constexpr int kReadsInARow = 8;  // then other connections have their turn
constexpr std::chrono::milliseconds kLingerTime{1000};
constexpr std::string_view kHeartbeat = ": keep-alive\n\n";
constexpr auto kNever = Connection::Clock::time_point::max();

class ConnectionResponder final : public Responder {
 public:
  ConnectionResponder(std::shared_ptr<Connection> connection, std::int64_t exchange)
      : connection_(std::move(connection)), exchange_(exchange) {}
  ~ConnectionResponder() override { connection_->Abandon(exchange_); }

  void Send(HttpResponse response) override { connection_->Send(exchange_, std::move(response)); }
  void StartStream(int status, Headers headers) override {
    connection_->StartStream(exchange_, status, std::move(headers));
  }
  bool Write(std::string bytes) override { return connection_->Write(exchange_, bytes); }
  void Finish() override { connection_->Finish(exchange_); }
  void OnClosed(std::function<void()> callback) override { connection_->OnClosed(exchange_, std::move(callback)); }
  [[nodiscard]] bool closed() const override { return connection_->closed(exchange_); }

 private:
  const std::shared_ptr<Connection> connection_;
  const std::int64_t exchange_;
};

ParserLimits LimitsOf(const ServerOptions& options) {
  return {.target_bytes_max = options.target_bytes_max,
          .head_bytes_max = options.head_bytes_max,
          .header_fields_max = options.header_fields_max,
          .body_bytes_max = options.body_bytes_max};
}

// The time that moving `bytes` may take beyond the fixed allowance.
std::chrono::milliseconds Allowance(std::size_t bytes, const ServerOptions& options) {
  return std::chrono::milliseconds(bytes * 1000 / options.transfer_bytes_per_second_min);
}

void ReleaseBuffer(std::string* buffer) {
  if (buffer->capacity() > kKeptBufferBytes) {
    std::string().swap(*buffer);
  } else {
    buffer->clear();
  }
}

}  // namespace

Connection::Connection(std::shared_ptr<ServerCore> core, std::shared_ptr<Shard> shard, int descriptor, std::string peer,
                       bool secure)
    : core_(std::move(core)),
      shard_(std::move(shard)),
      peer_(std::move(peer)),
      socket_(shard_->loop, descriptor),
      tls_(secure ? std::make_unique<TlsSession>(core_->tls) : nullptr),
      parser_(LimitsOf(core_->options)),
      accepted_(Clock::now()) {}

Connection::~Connection() = default;

void Connection::Start(bool refused) {
  if (!socket_.open() || shard_->stopping) {
    phase_ = Phase::kLinger;  // nothing to tell anyone
    return Close(true);
  }
  shard_->connections.insert(shared_from_this());
  deadline_ = accepted_ + core_->options.head_timeout;
  WaitReadable();
  if (refused) Reject(503, "too many connections; try again later");
}

// ---- Reading ----

bool Connection::WantsInput() const {
  if (phase_ == Phase::kClosed) return false;
  return phase_ != Phase::kHandling || in_.size() < kPipelinedBytesMax;
}

void Connection::WaitReadable() {
  if (reading_ || !WantsInput()) return;
  reading_ = true;
  socket_.WhenReadable([self = shared_from_this()] {
    self->reading_ = false;
    self->OnReadable();
  });
}

void Connection::OnReadable() {
  const auto self = shared_from_this();  // closing drops the shard's reference
  for (int i = 0; i < kReadsInARow && WantsInput(); ++i) {
    const Socket::Transfer read = socket_.Read(shard_->read_buffer);
    if (read.outcome == Socket::Outcome::kWouldBlock) break;
    if (read.outcome == Socket::Outcome::kEnded) return OnReadEnd();
    core_->counters.bytes_in += static_cast<std::int64_t>(read.bytes);
    OnBytes({shard_->read_buffer.data(), read.bytes});
  }
  WaitReadable();
}

void Connection::OnBytes(std::string_view bytes) {
  if (tls_ == nullptr) return OnPlain(bytes);
  const Status received = tls_->Receive(bytes);
  if (!received && tls_->met_plain_http()) {
    // Whoever left the "s" out of the address is told in words that it understands.
    tls_.reset();
    return Reject(400, "this port speaks HTTPS: begin the address with https://");
  }
  if (!received && !tls_->ready()) NoteRejection(400, received.error().message);
  wire_ += tls_->TakeWire();  // handshake, alert
  const std::string plain = tls_->TakePlain();
  if (!plain.empty()) OnPlain(plain);
  if (phase_ == Phase::kClosed) return;
  Pump();
  if (phase_ != Phase::kClosed && (!received || tls_->peer_closed())) OnEnd();
}

void Connection::OnPlain(std::string_view bytes) {
  switch (phase_) {
    case Phase::kIdle:
    case Phase::kHead:
    case Phase::kBody:
      return Consume(bytes);
    case Phase::kHandling:
      in_.append(bytes);
      return;
    case Phase::kRejecting:
    case Phase::kLinger:
    case Phase::kClosed:
      return;
  }
}

// Feeds the parser with what is left from before and `bytes`, and keeps what it did not take.
void Connection::Consume(std::string_view bytes) {
  const bool joined = !in_.empty();
  if (joined) in_.append(bytes);
  std::string_view rest = joined ? std::string_view(in_) : bytes;
  while (!rest.empty()) {
    if (phase_ == Phase::kIdle) {
      // Empty lines between requests are no request yet, or an idle connection would get 408 for them.
      while (rest.starts_with("\r\n")) rest.remove_prefix(2);
      if (rest.empty()) break;
      phase_ = Phase::kHead;
      if (served_one_) accepted_ = Clock::now();
      deadline_ = Clock::now() + core_->options.head_timeout;
    }
    const std::size_t taken = parser_.Feed(rest);
    rest.remove_prefix(taken);
    if (!Advance()) return;
    if (phase_ == Phase::kHandling || taken == 0) break;
  }
  if (joined) {
    in_.erase(0, in_.size() - rest.size());
  } else {
    in_.assign(rest);
  }
  if (in_.empty()) ReleaseBuffer(&in_);
}

// Acts on what the parser knows now. False: the connection is on its way out.
bool Connection::Advance() {
  switch (parser_.state()) {
    case ParserState::kFailed:
      Reject(parser_.failure().status, parser_.failure().message);
      return false;
    case ParserState::kHead:
      return true;
    case ParserState::kBody:
    case ParserState::kDone:
      break;
  }
  const std::size_t arrived = parser_.request().body.size();
  const auto fresh = static_cast<std::int64_t>(arrived - body_counted_);
  body_counted_ = arrived;
  const std::int64_t total = core_->counters.arriving_body_bytes += fresh;
  if (total > static_cast<std::int64_t>(core_->options.body_bytes_total_max)) {
    Reject(503, "too many large requests are arriving at once; try again later");
    return false;
  }
  if (parser_.state() == ParserState::kDone) {
    Dispatch();
    return phase_ == Phase::kHandling;
  }
  if (phase_ == Phase::kHead) {
    phase_ = Phase::kBody;
    began_ = Clock::now();
  }
  deadline_ = began_ + core_->options.body_timeout + Allowance(arrived, core_->options);
  if (arrived == 0) AllowBody();
  return phase_ == Phase::kBody;
}

// A client that asked whether its body is welcome waits for this line.
void Connection::AllowBody() {
  if (continue_sent_ || !parser_.expects_continue()) return;
  continue_sent_ = true;
  {
    const std::lock_guard lock(mutex_);
    AppendLocked("HTTP/1.1 100 Continue\r\n\r\n");
  }
  Pump();
}

void Connection::Dispatch() {
  const bool keep_alive = parser_.keep_alive();
  const bool chunked = parser_.http_version() >= 11;
  auto request = std::make_shared<HttpRequest>(parser_.Take());
  request->peer = peer_;
  request->secure = tls_ != nullptr;
  request->accepted = accepted_;
  ReleaseBody();
  phase_ = Phase::kHandling;
  deadline_ = kNever;
  served_one_ = true;
  continue_sent_ = false;

  CorsPolicy::Decision cors = core_->cors.Decide(*request);
  std::int64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    id = ++exchange_.id;
    exchange_.answer = Answer::kDue;
    exchange_.head_only = request->method == "HEAD";
    exchange_.chunked = chunked;
    exchange_.keep_alive = keep_alive;
    exchange_.events = false;
    exchange_.half_closed = false;
    exchange_.extra = std::move(cors.headers);
  }
  if (cors.answer) {
    if (cors.answer->status >= 400) NoteRejection(cors.answer->status, "the page's origin is not listed");
    return Send(id, std::move(*cors.answer));
  }
  ++core_->counters.requests;
  std::shared_ptr<Responder> responder = std::make_shared<ConnectionResponder>(shared_from_this(), id);
  if (core_->options.handler_threads > 0) {
    return core_->pool.Submit([core = core_, request = std::move(request), responder = std::move(responder)] {
      core->handler(request, responder);
    });
  }
  try {
    core_->handler(std::move(request), std::move(responder));
  } catch (const std::exception& error) {
    log::Error("a request's handler failed: {}", error.what());  // its responder answers 500 as it goes
  }
}

void Connection::NoteRejection(int status, std::string_view reason) {
  ++core_->counters.rejected;
  if (core_->options.on_rejected) core_->options.on_rejected(peer_, status, reason);
}

// Answers with an error and ends the connection, since where the next request begins is not known.
void Connection::Reject(int status, std::string_view message) {
  if (phase_ == Phase::kRejecting || phase_ == Phase::kLinger || phase_ == Phase::kClosed) return;
  NoteRejection(status, message);
  phase_ = Phase::kRejecting;
  deadline_ = Clock::now() + core_->options.write_timeout;
  ReleaseBody();
  std::string().swap(in_);
  HttpResponse response = ErrorResponse(status, message);
  if (status == 503) response.headers.Add("Retry-After", "1");
  {
    const std::lock_guard lock(mutex_);
    ++exchange_.id;
    exchange_.answer = Answer::kDone;
    exchange_.keep_alive = false;
    AppendLocked(FormatHead(status, response.headers,
                            {.keep_alive = false,
                             .chunked = false,
                             .content_length = response.body.size(),
                             .date = std::chrono::system_clock::now()}));
    AppendLocked(response.body);
  }
  Pump();
}

// The peer sends no more. Who asked for something short may close its sending side at once and still read. But where
// the handler wants to know of clients that go away, it counts as gone: those look the same.
void Connection::OnReadEnd() {
  bool waits = false;
  if (phase_ == Phase::kHandling && tls_ == nullptr) {
    const std::lock_guard lock(mutex_);
    exchange_.half_closed = true;
    waits = exchange_.answer == Answer::kDone || (exchange_.answer == Answer::kDue && !exchange_.on_closed);
  }
  // Behind the answer reading begins again, and ends here.
  if (!waits) OnEnd();
}

void Connection::OnEnd() {
  if (phase_ == Phase::kHandling) ++core_->counters.disconnects;
  Close(phase_ == Phase::kHandling);
}

void Connection::ReleaseBody() {
  core_->counters.arriving_body_bytes -= static_cast<std::int64_t>(body_counted_);
  body_counted_ = 0;
}

// ---- Writing ----

// Moves bytes from the outbox over the wire buffer to the system until nothing is left or the system takes no more.
void Connection::Pump() {
  const auto self = shared_from_this();
  while (phase_ != Phase::kClosed && !waiting_writable_) {
    if (wire_sent_ == wire_.size() && !Refill()) return OnAllSent();
    const Socket::Transfer sent = socket_.Write(std::string_view(wire_).substr(wire_sent_));
    if (sent.outcome == Socket::Outcome::kEnded) return OnEnd();
    if (sent.outcome == Socket::Outcome::kWouldBlock) {
      if (blocked_since_ == Clock::time_point{}) blocked_since_ = Clock::now();
      waiting_writable_ = true;
      socket_.WhenWritable([this, self] {
        waiting_writable_ = false;
        Pump();
      });
      return;
    }
    wire_sent_ += sent.bytes;
    blocked_moved_ += sent.bytes;
    core_->counters.bytes_out += static_cast<std::int64_t>(sent.bytes);
    if (tls_ == nullptr) {
      const std::lock_guard lock(mutex_);
      pending_ -= sent.bytes;
    }
  }
}

// The wire buffer is sent; takes the next bytes into it. False: there are none.
bool Connection::Refill() {
  wire_.clear();
  wire_sent_ = 0;
  if (tls_ == nullptr) {
    const std::lock_guard lock(mutex_);
    wire_.swap(outbox_);
    return !wire_.empty();
  }
  std::string plain;
  {
    const std::lock_guard lock(mutex_);
    pending_ -= std::exchange(tls_batch_, 0);
    if (tls_->ready()) {
      plain = outbox_.substr(0, kTlsBatchBytes);
      outbox_.erase(0, plain.size());
      tls_batch_ = plain.size();
    }
  }
  // A failure shows when the peer's side of it is read; what was encrypted until then still goes out.
  if (const Status encrypted = tls_->Encrypt(plain); !encrypted) log::Debug("{}", encrypted.error().message);
  wire_ = tls_->TakeWire();
  return !wire_.empty();
}

void Connection::OnAllSent() {
  ReleaseBuffer(&wire_);
  blocked_since_ = {};
  blocked_moved_ = 0;
  bool complete = false;
  {
    const std::lock_guard lock(mutex_);
    if (outbox_.empty()) {
      ReleaseBuffer(&outbox_);
      complete = exchange_.answer == Answer::kDone;
      if (complete) exchange_.answer = Answer::kNone;
    }
  }
  if (complete) OnResponseComplete();
}

void Connection::OnResponseComplete() {
  bool keep_alive = false;
  {
    const std::lock_guard lock(mutex_);
    keep_alive = exchange_.keep_alive;
  }
  if (!keep_alive || core_->draining) return BeginLinger();
  phase_ = Phase::kIdle;
  deadline_ = Clock::now() + core_->options.idle_timeout;
  if (!in_.empty()) {  // a pipelined request
    const std::string next = std::exchange(in_, {});
    Consume(next);
  }
  if (phase_ != Phase::kClosed) WaitReadable();
}

// Closing at once while the client still sends would make its system throw away our last answer. So only the sending
// side is closed, and what comes is read for a moment.
void Connection::BeginLinger() {
  phase_ = Phase::kLinger;
  deadline_ = Clock::now() + kLingerTime;
  std::string().swap(in_);
  if (tls_ != nullptr) {
    tls_->Close();
    wire_ = tls_->TakeWire();
    wire_sent_ = 0;
    (void)socket_.Write(wire_);
    wire_.clear();
  }
  socket_.ShutdownSend();
  WaitReadable();
}

void Connection::Close(bool reset) {
  const auto self = shared_from_this();
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  ReleaseBody();
  std::function<void()> on_closed;
  bool was_stream = false;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    exchange_.lost = exchange_.answer == Answer::kDue || exchange_.answer == Answer::kStream;
    if (exchange_.lost) on_closed.swap(exchange_.on_closed);
    was_stream = exchange_.answer == Answer::kStream;
    exchange_.answer = Answer::kNone;
    std::string().swap(outbox_);
    pending_ = 0;
  }
  if (was_stream) --core_->counters.streams;
  if (reset) {
    socket_.Reset();
  } else {
    socket_.Close();
  }
  shard_->connections.erase(self);
  {
    const std::lock_guard lock(core_->mutex);
    --core_->counters.connections;
  }
  core_->connection_ended.notify_all();
  if (on_closed) on_closed();
}

void Connection::CloseUnlessOver(std::int64_t exchange) {
  {
    const std::lock_guard lock(mutex_);
    const bool open = exchange_.answer == Answer::kDue || exchange_.answer == Answer::kStream;
    if (exchange != exchange_.id || !open) return;
  }
  Close(true);
}

void Connection::CloseIfIdle() {
  if (phase_ == Phase::kIdle && in_.empty()) Close(false);
}

// ---- Time ----

void Connection::Tick(Clock::time_point now) {
  CheckDeadline(now);
  if (phase_ == Phase::kHandling) Heartbeat(now);
}

void Connection::CheckDeadline(Clock::time_point now) {
  const ServerOptions& options = core_->options;
  if (blocked_since_ != Clock::time_point{} &&
      now > blocked_since_ + options.write_timeout + Allowance(blocked_moved_, options)) {
    ++core_->counters.timed_out;
    return Close(true);
  }
  if (now < deadline_) return;
  switch (phase_) {
    case Phase::kIdle:
    case Phase::kLinger:
      return Close(false);
    case Phase::kHead:
      ++core_->counters.timed_out;
      return Reject(408, "the request's head did not arrive in time");
    case Phase::kBody:
      ++core_->counters.timed_out;
      return Reject(408, "the request's body did not arrive in time");
    case Phase::kRejecting:
      ++core_->counters.timed_out;
      return Close(true);
    case Phase::kHandling:
    case Phase::kClosed:
      return;
  }
}

void Connection::Heartbeat(Clock::time_point now) {
  if (core_->options.heartbeat.count() == 0) return;
  {
    const std::lock_guard lock(mutex_);
    if (exchange_.answer != Answer::kStream || !exchange_.events || pending_ != 0) return;
    if (now - last_append_ < core_->options.heartbeat) return;
    std::string bytes;
    if (exchange_.chunked) {
      AppendChunk(&bytes, kHeartbeat);
    } else {
      bytes = kHeartbeat;
    }
    AppendLocked(bytes);
  }
  Pump();
}

// ---- Any thread ----

void Connection::AppendLocked(std::string_view bytes) {
  outbox_.append(bytes);
  pending_ += bytes.size();
  last_append_ = Clock::now();
}

void Connection::PostFlushLocked() {
  if (flush_posted_) return;
  flush_posted_ = true;
  shard_->loop.Post([self = shared_from_this()] {
    {
      const std::lock_guard lock(self->mutex_);
      self->flush_posted_ = false;
    }
    self->Pump();
  });
}

void Connection::EndLocked() {
  exchange_.answer = Answer::kDone;
  PostFlushLocked();
}

void Connection::Send(std::int64_t exchange, HttpResponse response) {
  std::function<void()> dropped;  // goes when the lock is gone
  const std::lock_guard lock(mutex_);
  if (closed_ || exchange != exchange_.id || exchange_.answer != Answer::kDue) return;
  dropped.swap(exchange_.on_closed);
  exchange_.keep_alive = exchange_.keep_alive && !core_->draining;
  for (const auto& [name, value] : exchange_.extra.fields()) response.headers.Add(name, value);
  HeadOptions options{.keep_alive = exchange_.keep_alive,
                      .chunked = false,
                      .content_length = response.body.size(),
                      .date = std::chrono::system_clock::now()};
  if (!MayHaveBody(response.status)) options.content_length.reset();
  AppendLocked(FormatHead(response.status, response.headers, options));
  if (!exchange_.head_only && MayHaveBody(response.status)) AppendLocked(response.body);
  EndLocked();
}

void Connection::StartStream(std::int64_t exchange, int status, Headers headers) {
  const std::lock_guard lock(mutex_);
  if (closed_ || exchange != exchange_.id || exchange_.answer != Answer::kDue) return;
  exchange_.answer = Answer::kStream;
  exchange_.events = headers.Get("Content-Type").starts_with("text/event-stream") && !exchange_.head_only;
  // Without chunks only the connection's end tells where the body ends.
  exchange_.keep_alive = exchange_.keep_alive && exchange_.chunked && !core_->draining;
  for (const auto& [name, value] : exchange_.extra.fields()) headers.Add(name, value);
  AppendLocked(FormatHead(status, headers,
                          {.keep_alive = exchange_.keep_alive,
                           .chunked = exchange_.chunked,
                           .content_length = std::nullopt,
                           .date = std::chrono::system_clock::now()}));
  ++core_->counters.streams;
  PostFlushLocked();
}

bool Connection::Write(std::int64_t exchange, std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (closed_ || exchange != exchange_.id || exchange_.answer != Answer::kStream) return false;
  if (bytes.empty() || exchange_.head_only) return true;
  if (pending_ + bytes.size() > core_->options.write_buffer_max) {
    ++core_->counters.slow_readers;
    closed_ = true;  // no more Writes; the loop does the rest
    shard_->loop.Post([self = shared_from_this()] { self->Close(true); });
    return false;
  }
  if (exchange_.chunked) {
    const std::size_t before = outbox_.size();
    AppendChunk(&outbox_, bytes);
    pending_ += outbox_.size() - before;
    last_append_ = Clock::now();
  } else {
    AppendLocked(bytes);
  }
  PostFlushLocked();
  return true;
}

void Connection::Finish(std::int64_t exchange) {
  std::function<void()> dropped;
  const std::lock_guard lock(mutex_);
  if (closed_ || exchange != exchange_.id || exchange_.answer != Answer::kStream) return;
  dropped.swap(exchange_.on_closed);
  --core_->counters.streams;
  if (exchange_.chunked && !exchange_.head_only) AppendLocked(kLastChunk);
  EndLocked();
}

// The handler's side let go of the request without an end.
void Connection::Abandon(std::int64_t exchange) {
  std::function<void()> dropped;
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || exchange != exchange_.id) return;
    dropped.swap(exchange_.on_closed);
    if (exchange_.answer == Answer::kStream) {
      // Without its end the client would take the stream for complete or wait for ever.
      shard_->loop.Post([self = shared_from_this()] { self->Close(true); });
      return;
    }
    if (exchange_.answer != Answer::kDue) return;
  }
  Send(exchange, ErrorResponse(500, "the request was dropped without an answer"));
}

void Connection::OnClosed(std::int64_t exchange, std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (exchange != exchange_.id) return;
    if (exchange_.answer == Answer::kDue || exchange_.answer == Answer::kStream) {
      exchange_.on_closed.swap(callback);
      if (!exchange_.half_closed) return;
      ++core_->counters.disconnects;
      shard_->loop.Post([self = shared_from_this(), exchange] { self->CloseUnlessOver(exchange); });
      return;
    }
    if (!exchange_.lost) return;
  }
  callback();
}

bool Connection::closed(std::int64_t exchange) const {
  const std::lock_guard lock(mutex_);
  if (exchange != exchange_.id) return false;
  return exchange_.lost || (closed_ && exchange_.answer == Answer::kStream);  // the latter: to be cut off in a moment
}

}  // namespace galley::net
