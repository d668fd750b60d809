// SPDX-License-Identifier: Apache-2.0
#include "galley/net/http_server.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "galley/base/check.h"
#include "galley/base/log.h"
#include "galley/net/connection.h"

namespace galley::net {
namespace {

// Connections over the limit that are told so; beyond these, they are closed without a word.
constexpr std::int64_t kRefusedAtOnce = 64;
constexpr std::chrono::milliseconds kAcceptPause{100};  // when the process has no descriptor left

struct IntLimit {
  std::string_view name;
  std::int64_t value;
  std::int64_t low;
  std::int64_t high;
};

// Deadlines are looked at this often.
std::chrono::milliseconds TickOf(const ServerOptions& options) {
  auto shortest = std::min({options.idle_timeout, options.head_timeout, options.body_timeout, options.write_timeout});
  if (options.heartbeat.count() > 0) shortest = std::min(shortest, options.heartbeat);
  return std::clamp(shortest / 4, std::chrono::milliseconds(5), std::chrono::milliseconds(250));
}

}  // namespace

Status ServerOptions::Validate() const {
  constexpr std::int64_t kBytesMax = std::int64_t{1} << 40;
  constexpr std::int64_t kMsMax = 24 * 3600 * 1000;
  const auto size = [](std::size_t value) {
    return static_cast<std::int64_t>(std::min<std::size_t>(value, std::numeric_limits<std::int64_t>::max()));
  };
  const std::array limits = {
      IntLimit{"io_threads", io_threads, 1, 64},
      IntLimit{"handler_threads", handler_threads, 0, 256},
      IntLimit{"connections_max", connections_max, 1, 1 << 20},
      IntLimit{"target_bytes_max", size(target_bytes_max), 16, 1 << 20},
      IntLimit{"head_bytes_max", size(head_bytes_max), 256, 1 << 24},
      IntLimit{"header_fields_max", header_fields_max, 1, 10'000},
      IntLimit{"body_bytes_max", size(body_bytes_max), 0, kBytesMax},
      IntLimit{"body_bytes_total_max", size(body_bytes_total_max), 0, kBytesMax},
      IntLimit{"write_buffer_max", size(write_buffer_max), 4096, kBytesMax},
      IntLimit{"idle_timeout", idle_timeout.count(), 1, kMsMax},
      IntLimit{"head_timeout", head_timeout.count(), 1, kMsMax},
      IntLimit{"body_timeout", body_timeout.count(), 1, kMsMax},
      IntLimit{"write_timeout", write_timeout.count(), 1, kMsMax},
      IntLimit{"transfer_bytes_per_second_min", size(transfer_bytes_per_second_min), 1, kBytesMax},
      IntLimit{"heartbeat", heartbeat.count(), 0, kMsMax},
  };
  for (const IntLimit& limit : limits) {
    if (limit.value >= limit.low && limit.value <= limit.high) continue;
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("{} is out of range; give {} to {}", limit.value, limit.low, limit.high),
               std::string(limit.name));
  }
  // Browsers send an origin without a path, so one with it would never match.
  for (const std::string& origin : cors_origins) {
    const std::size_t host = origin.find("://");
    const bool whole = host != std::string::npos && host > 0 && host + 3 < origin.size() &&
                       origin.find_first_of("/ ?#@,", host + 3) == std::string::npos;
    if (origin == "*" || origin == "null" || whole) continue;
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("\"{}\" is no origin; write https://chat.example.org, without a path, or *", origin),
               "cors_origins");
  }
  if (listen.empty()) return Err(ErrorCode::kInvalidArgument, "is empty; give an address to listen on", "listen");
  if (tls.certificate.empty() != tls.key.empty()) {
    return Err(ErrorCode::kInvalidArgument, "needs both a certificate and a key, or neither", "tls");
  }
  return {};
}

class HttpServer::Impl {
 public:
  Impl(const ServerOptions& options, Handler handler)
      : core_(std::make_shared<ServerCore>(options, std::move(handler))) {}
  ~Impl() { Stop(); }

  Status Start();
  bool Drain(std::chrono::milliseconds timeout);
  void Stop();

  [[nodiscard]] int port() const { return listening_.front().port; }
  [[nodiscard]] const std::vector<std::string>& addresses() const { return addresses_; }
  [[nodiscard]] ServerStats stats() const;

 private:
  Status OpenListeners();
  void WaitForClients(std::size_t listener);
  void AcceptWaiting(std::size_t listener);
  void Open(Accepted accepted, bool unix_socket);
  void CloseListeners();

  const std::shared_ptr<ServerCore> core_;
  std::vector<std::shared_ptr<Shard>> shards_;
  std::vector<Listener> listening_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<Socket>> listeners_;  // on the first shard's thread
  std::size_t next_shard_ = 0;                      // there too
  bool accept_paused_ = false;                      // there too
  bool scarcity_told_ = false;                      // there too
  bool started_ = false;
};

Status HttpServer::Impl::Start() {
  const ServerOptions& options = core_->options;
  if (!options.tls.certificate.empty()) {
    ASSIGN_OR_RETURN(core_->tls, TlsContext::ForServer(options.tls.certificate, options.tls.key));
  }
  for (int i = 0; i < options.io_threads; ++i) shards_.push_back(std::make_shared<Shard>());
  RETURN_IF_ERROR(OpenListeners());
  for (const auto& shard : shards_) {
    shard->loop.Every(TickOf(options), [shard = shard.get()] {
      const std::vector<std::shared_ptr<Connection>> all(shard->connections.begin(), shard->connections.end());
      const auto now = Connection::Clock::now();
      for (const auto& connection : all) connection->Tick(now);
    });
  }
  shards_.front()->loop.Every(kAcceptPause, [this] {
    if (!std::exchange(accept_paused_, false)) return;
    for (std::size_t i = 0; i < listeners_.size(); ++i) AcceptWaiting(i);
  });
  for (std::size_t i = 0; i < listeners_.size(); ++i) WaitForClients(i);
  for (const auto& shard : shards_) shard->loop.Start();
  started_ = true;
  return {};
}

Status HttpServer::Impl::OpenListeners() {
  for (const std::string& address : core_->options.listen) {
    ASSIGN_OR_RETURN(Listener listener, Listen(address));
    const bool plain = core_->tls == nullptr;
    const bool is_unix = !listener.unix_path.empty();
    addresses_.push_back(is_unix ? listener.address : (plain ? "http://" : "https://") + listener.address);
    listening_.push_back(listener);
    listeners_.push_back(std::make_unique<Socket>(shards_.front()->loop, listener.descriptor));
    if (!listeners_.back()->open()) return Err(ErrorCode::kIo, "cannot wait for connections", address);
  }
  return {};
}

void HttpServer::Impl::WaitForClients(std::size_t listener) {
  listeners_[listener]->WhenReadable([this, listener] { AcceptWaiting(listener); });
}

void HttpServer::Impl::AcceptWaiting(std::size_t listener) {
  if (!listeners_[listener]->open()) return;
  for (;;) {
    Accepted accepted = Accept(listeners_[listener]->descriptor());
    if (accepted.exhausted) {
      // Waiting would return at once, again and again. The kAcceptPause tick goes on.
      if (!std::exchange(scarcity_told_, true)) {
        log::Warning("no descriptor left for another connection; raise the limit on open files");
      }
      accept_paused_ = true;
      return;
    }
    if (accepted.descriptor < 0) break;
    scarcity_told_ = false;
    Open(std::move(accepted), !listening_[listener].unix_path.empty());
  }
  WaitForClients(listener);
}

void HttpServer::Impl::Open(Accepted accepted, bool unix_socket) {
  ServerCounters& counters = core_->counters;
  const bool secure = core_->tls != nullptr && !unix_socket;
  const std::int64_t open = counters.connections++;
  const bool refused = open >= core_->options.connections_max;
  ++counters.accepted;
  if (refused) {
    ++counters.refused;
    // A handshake only to say no would cost more than it is worth.
    if (secure || open >= core_->options.connections_max + kRefusedAtOnce) {
      close(accepted.descriptor);
      --counters.connections;
      return;
    }
  }
  const std::shared_ptr<Shard>& shard = shards_[next_shard_++ % shards_.size()];
  auto connection = std::make_shared<Connection>(core_, shard, accepted.descriptor, std::move(accepted.peer), secure);
  shard->loop.Post([connection = std::move(connection), refused] { connection->Start(refused); });
}

void HttpServer::Impl::CloseListeners() {
  for (const auto& listener : listeners_) listener->Close();
}

bool HttpServer::Impl::Drain(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  core_->draining = true;
  shards_.front()->loop.Post([this] { CloseListeners(); });
  for (const auto& shard : shards_) {
    shard->loop.Post([shard = shard.get()] {
      const std::vector<std::shared_ptr<Connection>> all(shard->connections.begin(), shard->connections.end());
      for (const auto& connection : all) connection->CloseIfIdle();
    });
  }
  std::unique_lock lock(core_->mutex);
  return core_->connection_ended.wait_until(lock, deadline, [this] { return core_->counters.connections == 0; });
}

void HttpServer::Impl::Stop() {
  if (!std::exchange(started_, false)) return;
  core_->draining = true;
  shards_.front()->loop.Post([this] { CloseListeners(); });
  for (const auto& shard : shards_) {
    shard->loop.Post([shard = shard.get()] {
      shard->stopping = true;
      const std::vector<std::shared_ptr<Connection>> all(shard->connections.begin(), shard->connections.end());
      for (const auto& connection : all) connection->Close(true);
    });
  }
  for (const auto& shard : shards_) shard->loop.Stop();
  core_->pool.Stop();
  for (const Listener& listener : listening_) {
    if (!listener.unix_path.empty()) unlink(listener.unix_path.c_str());
  }
}

ServerStats HttpServer::Impl::stats() const {
  const ServerCounters& from = core_->counters;
  return {.connections = from.connections,
          .accepted = from.accepted,
          .refused = from.refused,
          .requests = from.requests,
          .rejected = from.rejected,
          .streams = from.streams,
          .timed_out = from.timed_out,
          .disconnects = from.disconnects,
          .slow_readers = from.slow_readers,
          .bytes_in = from.bytes_in,
          .bytes_out = from.bytes_out};
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::Create(const ServerOptions& options, Handler handler) {
  RETURN_IF_ERROR(options.Validate());
  CHECK(handler != nullptr);
  auto impl = std::make_unique<Impl>(options, std::move(handler));
  RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

int HttpServer::port() const {
  return impl_->port();
}
const std::vector<std::string>& HttpServer::addresses() const {
  return impl_->addresses();
}
bool HttpServer::Drain(std::chrono::milliseconds timeout) {
  return impl_->Drain(timeout);
}
void HttpServer::Stop() {
  impl_->Stop();
}
ServerStats HttpServer::stats() const {
  return impl_->stats();
}

}  // namespace galley::net
