// SPDX-License-Identifier: Apache-2.0
// For tests only: a TCP connection to a port of this machine that sends exactly the bytes it is told, and waits for at
// most some seconds for what it expects.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <string_view>

namespace galley::net {

class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer = 0) : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0) setsockopt(descriptor_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    connected_ = connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawClient() { Close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  [[nodiscard]] bool connected() const { return connected_; }
  [[nodiscard]] int descriptor() const { return descriptor_; }
  void Close() {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = -1;
  }

  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }

  bool Get(std::string_view target) {
    return Send(std::string("GET ").append(target).append(" HTTP/1.1\r\nHost: x\r\n\r\n"));
  }
  // What shutdown(2) calls the sending side; the client still reads.
  void FinishSending() { shutdown(descriptor_, SHUT_WR); }

  // Reads until what has come contains `text`, the server closed, or time is up. Returns all that has come.
  const std::string& Until(std::string_view text, std::chrono::milliseconds timeout = std::chrono::minutes(1)) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!ended_ && (text.empty() || received_.find(text) == std::string::npos)) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd waiting{descriptor_, POLLIN, 0};
      if (left.count() <= 0 || poll(&waiting, 1, static_cast<int>(left.count())) <= 0) break;
      std::array<char, 16 << 10> piece;
      const ssize_t count = recv(descriptor_, piece.data(), piece.size(), 0);
      if (count <= 0) {
        ended_ = true;
        reset_ = count < 0;
        break;
      }
      received_.append(piece.data(), static_cast<std::size_t>(count));
    }
    return received_;
  }
  // Reads until the server closes.
  const std::string& UntilEnd(std::chrono::milliseconds timeout = std::chrono::minutes(1)) {
    return Until({}, timeout);
  }

  [[nodiscard]] bool ended() const { return ended_; }  // the server closed or reset
  [[nodiscard]] bool reset() const { return reset_; }
  void Forget() { received_.clear(); }

 private:
  int descriptor_;
  bool connected_ = false;
  bool ended_ = false;
  bool reset_ = false;
  std::string received_;
};

}  // namespace galley::net
