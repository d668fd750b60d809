// SPDX-License-Identifier: Apache-2.0
// Listening and accepting with the system's own calls: addresses, options of sockets, names of peers.
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "galley/net/event_loop.h"

namespace galley::net {
namespace {

constexpr int kBacklog = 1024;
constexpr std::string_view kUnix = "unix:";

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return value_; }
  int Release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

tl::unexpected<Error> Failed(const std::string& address, std::string_view verb) {
  return Err(ErrorCode::kIo, fmt::format("cannot {}: {}", verb, std::strerror(errno)), address);
}

// "host:port" or "[v6]:port".
struct HostPort {
  std::string host;
  std::string port;
};
std::optional<HostPort> Split(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) return std::nullopt;
  HostPort parts{address.substr(0, colon), address.substr(colon + 1)};
  int port = -1;
  const char* end = parts.port.data() + parts.port.size();
  const auto [stop, error] = std::from_chars(parts.port.data(), end, port);
  if (error != std::errc{} || stop != end || port < 0 || port > 65'535) return std::nullopt;
  if (parts.host.front() == '[') {
    if (parts.host.size() < 4 || parts.host.back() != ']') return std::nullopt;
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  } else if (parts.host.find(':') != std::string::npos) {
    return std::nullopt;  // an IPv6 address needs its brackets
  }
  return parts;
}

std::string NameOf(const sockaddr_storage& storage, socklen_t length, int* port) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> service{};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&storage), length, host.data(), host.size(), service.data(),
                  service.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  if (port != nullptr) *port = std::atoi(service.data());
  return storage.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host.data(), service.data())
                                       : fmt::format("{}:{}", host.data(), service.data());
}

Result<Listener> ListenTcp(const std::string& address) {
  const auto parts = Split(address);
  if (!parts) {
    return Err(ErrorCode::kInvalidArgument,
               "is no address to listen on; write 127.0.0.1:8000, [::1]:8000 or unix:/path", address);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(parts->host.c_str(), parts->port.c_str(), &hints, &found); code != 0) {
    return Err(ErrorCode::kInvalidArgument, fmt::format("names no address of this machine: {}", gai_strerror(code)),
               address);
  }
  const std::unique_ptr<addrinfo, FreeAddresses> list(found);
  Descriptor descriptor(socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (descriptor.get() < 0) return Failed(address, "make a socket");
  const int on = 1;
  const int off = 0;
  setsockopt(descriptor.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // "[::]" takes IPv4 as well, as people expect of "every address".
  if (found->ai_family == AF_INET6) setsockopt(descriptor.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (bind(descriptor.get(), found->ai_addr, found->ai_addrlen) != 0) {
    if (errno == EADDRINUSE)
      return Err(ErrorCode::kIo, "another program listens there; stop it or choose another port", address);
    return Failed(address, "listen");
  }
  if (listen(descriptor.get(), kBacklog) != 0) return Failed(address, "listen");
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (getsockname(descriptor.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return Failed(address, "ask for the port");
  }
  Listener listener;
  listener.address = NameOf(bound, length, &listener.port);
  listener.descriptor = descriptor.Release();
  return listener;
}

// A socket file that nobody answers on is left over from a process that died, and is replaced.
void RemoveStale(const std::string& path, const sockaddr_un& name) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) return;
  const Descriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (probe.get() < 0) return;
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 && errno == ECONNREFUSED) {
    unlink(path.c_str());
  }
}

Result<Listener> ListenUnix(const std::string& address) {
  const std::string path = address.substr(kUnix.size());
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof name.sun_path) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("the path of a unix socket has 1 to {} bytes", sizeof name.sun_path - 1), address);
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  RemoveStale(path, name);
  Descriptor descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (descriptor.get() < 0) return Failed(address, "make a socket");
  if (bind(descriptor.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
    return Failed(address, "listen");
  }
  // The file's owner and group may connect; who else may is a matter of the directory.
  chmod(path.c_str(), 0660);
  if (listen(descriptor.get(), kBacklog) != 0) return Failed(address, "listen");
  return Listener{.descriptor = descriptor.Release(), .address = address, .unix_path = path};
}

}  // namespace

Result<Listener> Listen(const std::string& address) {
  return address.starts_with(kUnix) ? ListenUnix(address) : ListenTcp(address);
}

Accepted Accept(int listener) {
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  Accepted accepted;
  do {
    length = sizeof peer;
    accepted.descriptor = accept4(listener, reinterpret_cast<sockaddr*>(&peer), &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    // A connection that broke before it was taken is no reason to stop.
  } while (accepted.descriptor < 0 && (errno == EINTR || errno == ECONNABORTED));
  if (accepted.descriptor < 0) {
    accepted.exhausted = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    return accepted;
  }
  if (peer.ss_family == AF_UNIX) {
    accepted.peer = "unix";
    return accepted;
  }
  accepted.peer = NameOf(peer, length, nullptr);
  // Tokens leave at once. What the peer cannot take stays here, where it is counted, rather than in the system's
  // buffers.
  const int on = 1;
  const int unsent = 64 << 10;
  setsockopt(accepted.descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(accepted.descriptor, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
  setsockopt(accepted.descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  return accepted;
}

}  // namespace galley::net
