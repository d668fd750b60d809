// SPDX-License-Identifier: Apache-2.0
#include "galley/net/http_client.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "galley/net/http_format.h"
#include "galley/net/http_parser.h"
#include "galley/net/tls.h"

namespace galley::net {
namespace {

using Clock = std::chrono::steady_clock;

struct Server {
  std::string host;  // as it is connected to
  std::string port;
  std::string unix_path;
  std::string host_field;
  std::shared_ptr<const TlsContext> tls;
};

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

// A connected descriptor with or without TLS.
class Wire {
 public:
  explicit Wire(int descriptor) : descriptor_(descriptor) {}
  ~Wire() { close(descriptor_); }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  Status StartTls(const Server& server, Clock::time_point deadline) {
    tls_ = std::make_unique<TlsSession>(server.tls, server.host);
    while (!tls_->ready()) {
      RETURN_IF_ERROR(WriteRaw(tls_->TakeWire(), deadline));
      if (tls_->ready()) break;
      ASSIGN_OR_RETURN(const std::string bytes, ReadRaw(deadline));
      if (bytes.empty()) return Err(ErrorCode::kUnavailable, "the server closed during the TLS handshake");
      Status received = tls_->Receive(bytes);
      if (!received) {
        (void)WriteRaw(tls_->TakeWire(), deadline);
        return received;
      }
    }
    return WriteRaw(tls_->TakeWire(), deadline);
  }

  Status Write(std::string_view bytes, Clock::time_point deadline) {
    if (tls_ == nullptr) return WriteRaw(bytes, deadline);
    RETURN_IF_ERROR(tls_->Encrypt(bytes));
    return WriteRaw(tls_->TakeWire(), deadline);
  }

  // Empty: the server closed.
  Result<std::string> Read(Clock::time_point deadline) {
    if (tls_ == nullptr) return ReadRaw(deadline);
    for (;;) {
      std::string plain = tls_->TakePlain();
      if (!plain.empty() || tls_->peer_closed()) return plain;
      ASSIGN_OR_RETURN(const std::string bytes, ReadRaw(deadline));
      if (bytes.empty()) return Err(ErrorCode::kUnavailable, "the connection broke off without TLS's goodbye");
      RETURN_IF_ERROR(tls_->Receive(bytes));
    }
  }

  // Whether the server closed a connection that is not in use.
  [[nodiscard]] bool Ended() const {
    pollfd waiting{descriptor_, POLLIN, 0};
    return poll(&waiting, 1, 0) != 0;
  }

 private:
  Status Wait(short events, Clock::time_point deadline) const {
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left < 0) return Err(ErrorCode::kDeadline, "the server did not answer in time");
      pollfd waiting{descriptor_, events, 0};
      const int count = poll(&waiting, 1, static_cast<int>(std::min<std::int64_t>(left + 1, 1 << 30)));
      if (count > 0) return {};
      if (count < 0 && errno != EINTR) return Err(ErrorCode::kUnavailable, std::strerror(errno));
    }
  }

  Status WriteRaw(std::string_view bytes, Clock::time_point deadline) {
    while (!bytes.empty()) {
      const ssize_t count = send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count >= 0) {
        bytes.remove_prefix(static_cast<std::size_t>(count));
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        RETURN_IF_ERROR(Wait(POLLOUT, deadline));
      } else if (errno != EINTR) {
        return Err(ErrorCode::kUnavailable, fmt::format("the connection broke: {}", std::strerror(errno)));
      }
    }
    return {};
  }

  Result<std::string> ReadRaw(Clock::time_point deadline) {
    std::array<char, 64 << 10> piece;
    for (;;) {
      const ssize_t count = recv(descriptor_, piece.data(), piece.size(), 0);
      if (count >= 0) return std::string(piece.data(), static_cast<std::size_t>(count));
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        RETURN_IF_ERROR(Wait(POLLIN, deadline));
      } else if (errno != EINTR) {
        return Err(ErrorCode::kUnavailable, fmt::format("the connection broke: {}", std::strerror(errno)));
      }
    }
  }

  friend Result<std::unique_ptr<Wire>> ConnectTo(const sockaddr* address, socklen_t length, Clock::time_point deadline);
  const int descriptor_;
  std::unique_ptr<TlsSession> tls_;
};

Result<std::unique_ptr<Wire>> ConnectTo(const sockaddr* address, socklen_t length, Clock::time_point deadline) {
  const int descriptor = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return Err(ErrorCode::kIo, fmt::format("cannot make a socket: {}", std::strerror(errno)));
  auto wire = std::make_unique<Wire>(descriptor);
  const int on = 1;
  if (address->sa_family != AF_UNIX) setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (connect(descriptor, address, length) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) {
      return Err(ErrorCode::kUnavailable, fmt::format("cannot connect: {}", std::strerror(errno)));
    }
    RETURN_IF_ERROR(wire->Wait(POLLOUT, deadline));
    int failure = 0;
    socklen_t size = sizeof failure;
    getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &failure, &size);
    if (failure != 0) return Err(ErrorCode::kUnavailable, fmt::format("cannot connect: {}", std::strerror(failure)));
  }
  return wire;
}

Result<std::unique_ptr<Wire>> ConnectUnix(const std::string& path, Clock::time_point deadline) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof name.sun_path) {
    return Err(ErrorCode::kInvalidArgument, "is no path for a unix socket", path);
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  return ConnectTo(reinterpret_cast<const sockaddr*>(&name), sizeof name, deadline);
}

// Tries the host's addresses in the system's order.
Result<std::unique_ptr<Wire>> Connect(const Server& server, Clock::time_point deadline) {
  if (!server.unix_path.empty()) return ConnectUnix(server.unix_path, deadline);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(server.host.c_str(), server.port.c_str(), &hints, &found); code != 0) {
    return Err(ErrorCode::kUnavailable, fmt::format("cannot find the host: {}", gai_strerror(code)), server.host);
  }
  const std::unique_ptr<addrinfo, FreeAddresses> list(found);
  Error last{ErrorCode::kUnavailable, "has no address", server.host};
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    auto wire = ConnectTo(entry->ai_addr, entry->ai_addrlen, deadline);
    if (wire && server.tls != nullptr) RETURN_IF_ERROR((*wire)->StartTls(server, deadline));
    if (wire) return wire;
    last = wire.error();
  }
  last.where = server.host_field;
  return Err(last);
}

Result<Server> ParseServer(const std::string& text, const ClientOptions& options) {
  constexpr std::string_view kUnix = "unix:";
  Server server;
  if (text.starts_with(kUnix)) {
    server.unix_path = text.substr(kUnix.size());
    server.host_field = "localhost";
    return server;
  }
  const bool secure = text.starts_with("https://");
  if (!secure && !text.starts_with("http://")) {
    return Err(ErrorCode::kInvalidArgument, "is no server; write http://host:port, https://host or unix:/path", text);
  }
  server.host_field = text.substr(secure ? 8 : 7);
  while (server.host_field.ends_with('/')) server.host_field.pop_back();
  server.host = server.host_field;
  server.port = secure ? "443" : "80";
  const std::size_t colon = server.host.rfind(':');
  if (colon != std::string::npos && server.host.find(']', colon) == std::string::npos) {
    server.port = server.host.substr(colon + 1);
    server.host.resize(colon);
  }
  if (server.host.size() > 2 && server.host.front() == '[' && server.host.back() == ']') {
    server.host = server.host.substr(1, server.host.size() - 2);
  }
  if (server.host.empty() || server.port.empty() || server.host.find('/') != std::string::npos) {
    return Err(ErrorCode::kInvalidArgument, "is no server; write http://host:port without a path", text);
  }
  if (secure) {
    ASSIGN_OR_RETURN(server.tls, TlsContext::ForClient(options.authorities_file));
  }
  return server;
}

std::string FormatRequest(const HttpRequest& request, const Server& server) {
  std::string text = fmt::format("{} {}{}{} HTTP/1.1\r\nHost: {}\r\n", request.method, request.path,
                                 request.query.empty() ? "" : "?", request.query, server.host_field);
  for (const auto& [name, value] : request.headers.fields()) text += FormatField(name, value);
  if (!request.body.empty() || request.method == "POST") {
    text += fmt::format("Content-Length: {}\r\n", request.body.size());
  }
  return text += "\r\n" + request.body;
}

ParserLimits LimitsOf(const ClientOptions& options) {
  return {.head_bytes_max = 256 << 10, .header_fields_max = 1000, .body_bytes_max = options.body_bytes_max};
}

// Reads once and feeds the parser with what comes; more than one response is not expected.
Status Step(Wire& wire, ResponseParser& parser, std::string* left, std::chrono::milliseconds timeout) {
  ASSIGN_OR_RETURN(const std::string bytes, wire.Read(Clock::now() + timeout));
  if (bytes.empty()) {
    parser.FeedEnd();
  } else {
    left->append(bytes);
    for (std::size_t taken = 1; taken > 0 && !left->empty();) {
      taken = parser.Feed(*left);
      left->erase(0, taken);
    }
  }
  if (parser.state() == ParserState::kFailed) {
    if (bytes.empty()) return Err(ErrorCode::kUnavailable, "the connection broke off before the response's end");
    return Err(ErrorCode::kCorrupt, "the response is not HTTP/1.1: " + parser.failure().message);
  }
  return {};
}

}  // namespace

class HttpStream::Impl {
 public:
  Impl(std::unique_ptr<Wire> connection, const ClientOptions& client_options)
      : wire(std::move(connection)), options(client_options), parser(LimitsOf(client_options), false) {}

  std::unique_ptr<Wire> wire;
  ClientOptions options;
  ResponseParser parser;
  std::string left;
  SseParser events;
};

HttpStream::HttpStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpStream::HttpStream(HttpStream&&) noexcept = default;
HttpStream& HttpStream::operator=(HttpStream&&) noexcept = default;
HttpStream::~HttpStream() = default;

int HttpStream::status() const {
  return impl_->parser.response().status;
}
const Headers& HttpStream::headers() const {
  return impl_->parser.response().headers;
}
std::size_t HttpStream::comments() const {
  return impl_->events.comments();
}

Result<std::string> HttpStream::Read() {
  for (;;) {
    std::string body = impl_->parser.TakeBody();
    if (!body.empty() || impl_->parser.state() == ParserState::kDone) return body;
    RETURN_IF_ERROR(Step(*impl_->wire, impl_->parser, &impl_->left, impl_->options.idle_timeout));
  }
}

Result<std::optional<SseEvent>> HttpStream::NextEvent() {
  for (;;) {
    if (std::optional<SseEvent> event = impl_->events.Next()) return event;
    if (impl_->events.failed()) return Err(ErrorCode::kCorrupt, "an event of the stream is too long");
    ASSIGN_OR_RETURN(const std::string bytes, Read());
    if (bytes.empty()) return std::optional<SseEvent>();
    impl_->events.Feed(bytes);
  }
}

class HttpClient::Impl {
 public:
  Impl(Server where, const ClientOptions& client_options) : server(std::move(where)), options(client_options) {}

  Result<std::unique_ptr<Wire>> Fresh() { return Connect(server, Clock::now() + options.connect_timeout); }

  // `answered`: whether anything of a response came, after which a repetition could do harm.
  Result<HttpResponse> SendOver(Wire& wire, const HttpRequest& request, bool* answered, bool* keep) {
    RETURN_IF_ERROR(wire.Write(FormatRequest(request, server), Clock::now() + options.idle_timeout));
    ResponseParser parser(LimitsOf(options), request.method == "HEAD");
    std::string left;
    while (parser.state() != ParserState::kDone) {
      RETURN_IF_ERROR(Step(wire, parser, &left, options.idle_timeout));
      *answered = true;
    }
    HttpResponse response = parser.response();
    *keep = parser.keep_alive() && left.empty();
    return response;
  }

  const Server server;
  const ClientOptions options;
  std::unique_ptr<Wire> kept;
};

HttpClient::HttpClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpClient::HttpClient(HttpClient&&) noexcept = default;
HttpClient& HttpClient::operator=(HttpClient&&) noexcept = default;
HttpClient::~HttpClient() = default;

Result<HttpClient> HttpClient::Create(const std::string& server, const ClientOptions& options) {
  ASSIGN_OR_RETURN(Server parsed, ParseServer(server, options));
  return HttpClient(std::make_unique<Impl>(std::move(parsed), options));
}

Result<HttpResponse> HttpClient::Send(const HttpRequest& request) {
  std::unique_ptr<Wire> wire = std::move(impl_->kept);
  const bool reused = wire != nullptr && !wire->Ended();
  if (!reused) {
    ASSIGN_OR_RETURN(wire, impl_->Fresh());
  }
  bool answered = false;
  bool keep = false;
  auto response = impl_->SendOver(*wire, request, &answered, &keep);
  if (!response && reused && !answered && response.error().code == ErrorCode::kUnavailable) {
    ASSIGN_OR_RETURN(wire, impl_->Fresh());
    response = impl_->SendOver(*wire, request, &answered, &keep);
  }
  if (response && keep) impl_->kept = std::move(wire);
  return response;
}

Result<HttpResponse> HttpClient::Get(std::string_view path_and_query) {
  HttpRequest request;
  request.method = "GET";
  request.path = path_and_query;
  return Send(request);
}

Result<HttpResponse> HttpClient::PostJson(std::string_view path, std::string body) {
  HttpRequest request;
  request.method = "POST";
  request.path = path;
  request.headers.Add("Content-Type", "application/json");
  request.body = std::move(body);
  return Send(request);
}

Result<HttpStream> HttpClient::Open(const HttpRequest& request) {
  ASSIGN_OR_RETURN(std::unique_ptr<Wire> wire, impl_->Fresh());
  auto stream = std::make_unique<HttpStream::Impl>(std::move(wire), impl_->options);
  RETURN_IF_ERROR(
      stream->wire->Write(FormatRequest(request, impl_->server), Clock::now() + impl_->options.idle_timeout));
  while (stream->parser.state() == ParserState::kHead) {
    RETURN_IF_ERROR(Step(*stream->wire, stream->parser, &stream->left, impl_->options.idle_timeout));
  }
  return HttpStream(std::move(stream));
}

}  // namespace galley::net
