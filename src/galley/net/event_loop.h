// SPDX-License-Identifier: Apache-2.0
// One thread that waits for sockets and time, by Boost.Asio, and the sockets that it waits for. Owned by the server.
// Post may be called from any thread; everything else of a loop's sockets happens on its thread. Sockets never block:
// reading and writing return at once, and waiting is asked for with a callback.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "galley/base/error.h"

namespace galley::net {

class EventLoop {
 public:
  EventLoop();
  ~EventLoop();  // Stop has to come first once Start was called
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  void Start();
  // Runs what was posted and the callbacks of closed sockets, then ends and joins the thread. Sockets that are still
  // open would keep it from ending: close them first, in a posted call.
  void Stop();
  void Post(std::function<void()> call);
  // Until Stop; before Start.
  void Every(std::chrono::milliseconds interval, std::function<void()> call);

 private:
  friend class Socket;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// A connected or listening socket. Owns the descriptor. Not open when the loop could not take it.
class Socket {
 public:
  Socket(EventLoop& loop, int descriptor);
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  enum class Outcome { kMoved, kWouldBlock, kEnded };  // kEnded: the peer closed or the connection broke
  struct Transfer {
    Outcome outcome;
    std::size_t bytes = 0;
  };
  [[nodiscard]] Transfer Read(std::span<char> into);
  [[nodiscard]] Transfer Write(std::string_view bytes);

  // One wait of each kind at a time; the callback runs once, on the loop's thread, and not at all once closed.
  void WhenReadable(std::function<void()> call);
  void WhenWritable(std::function<void()> call);

  void ShutdownSend();
  void Close();
  void Reset();  // drops unsent bytes and tells the peer with RST

  [[nodiscard]] bool open() const;
  [[nodiscard]] int descriptor() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// A listening descriptor for one of ServerOptions::listen.
struct Listener {
  int descriptor = -1;
  std::string address;    // "http://127.0.0.1:8000" without the scheme: "127.0.0.1:8000", "unix:/path"
  std::string unix_path;  // to be removed at the end
  int port = 0;
};
[[nodiscard]] Result<Listener> Listen(const std::string& address);

// The next waiting connection. Descriptor -1: none, or `exhausted`: the process has no descriptor left.
struct Accepted {
  int descriptor = -1;
  bool exhausted = false;
  std::string peer;
};
[[nodiscard]] Accepted Accept(int listener);

}  // namespace galley::net
