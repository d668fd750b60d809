// SPDX-License-Identifier: Apache-2.0
// One thread runs a loop, so its callbacks need no fences between them, which ThreadSanitizer does not understand.
#define BOOST_ASIO_DISABLE_FENCED_BLOCK

#include "galley/net/event_loop.h"

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "galley/base/check.h"
#include "galley/base/log.h"

namespace galley::net {

namespace asio = boost::asio;
using ErrorCodeOfAsio = boost::system::error_code;

class EventLoop::Impl {
 public:
  struct Ticker {
    Ticker(asio::io_context& context, std::chrono::milliseconds every, std::function<void()> what)
        : timer(context), interval(every), call(std::move(what)) {}
    asio::steady_timer timer;
    std::chrono::milliseconds interval;
    std::function<void()> call;
  };

  // Counted from the end of the last call, so that a late loop is not followed by a burst.
  void Arm(Ticker& ticker) {
    ticker.timer.expires_after(ticker.interval);
    ticker.timer.async_wait([this, &ticker](const ErrorCodeOfAsio& ec) {
      if (ec || stopping) return;
      ticker.call();
      Arm(ticker);
    });
  }

  // Memory may run out in any callback. The connection that it hit is lost to its time-out; the others live on.
  void Run() {
    for (;;) {
      try {
        context.run();
        return;
      } catch (const std::exception& error) {
        log::Error("network loop: {}", error.what());
      }
    }
  }

  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard{context.get_executor()};
  std::vector<std::unique_ptr<Ticker>> tickers;
  bool stopping = false;  // touched by the loop's thread only
  std::thread thread;
};

EventLoop::EventLoop() : impl_(std::make_unique<Impl>()) {}
EventLoop::~EventLoop() {
  CHECK(!impl_->thread.joinable()) << "a running loop is destroyed";
}

void EventLoop::Start() {
  for (const auto& ticker : impl_->tickers) impl_->Arm(*ticker);
  impl_->thread = std::thread([this] { impl_->Run(); });
}

void EventLoop::Stop() {
  if (!impl_->thread.joinable()) return;
  Post([impl = impl_.get()] {
    impl->stopping = true;
    for (const auto& ticker : impl->tickers) ticker->timer.cancel();
    impl->guard.reset();
  });
  impl_->thread.join();
}

void EventLoop::Post(std::function<void()> call) {
  asio::post(impl_->context, std::move(call));
}

void EventLoop::Every(std::chrono::milliseconds interval, std::function<void()> call) {
  impl_->tickers.push_back(std::make_unique<Impl::Ticker>(impl_->context, interval, std::move(call)));
}

class Socket::Impl {
 public:
  Impl(asio::io_context& context, int descriptor) : stream(context) {
    ErrorCodeOfAsio ec;
    stream.assign(descriptor, ec);
    if (ec) close(descriptor);
  }
  asio::posix::stream_descriptor stream;
};

Socket::Socket(EventLoop& loop, int descriptor) : impl_(std::make_unique<Impl>(loop.impl_->context, descriptor)) {}
Socket::~Socket() {
  Close();
}

Socket::Transfer Socket::Read(std::span<char> into) {
  for (;;) {
    const ssize_t count = recv(descriptor(), into.data(), into.size(), 0);
    if (count > 0) return {Outcome::kMoved, static_cast<std::size_t>(count)};
    if (count == 0) return {Outcome::kEnded};
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {Outcome::kWouldBlock};
    if (errno != EINTR) return {Outcome::kEnded};
  }
}

Socket::Transfer Socket::Write(std::string_view bytes) {
  for (;;) {
    const ssize_t count = send(descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) return {Outcome::kMoved, static_cast<std::size_t>(count)};
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {Outcome::kWouldBlock};
    if (errno != EINTR) return {Outcome::kEnded};
  }
}

void Socket::WhenReadable(std::function<void()> call) {
  impl_->stream.async_wait(asio::posix::stream_descriptor::wait_read,
                           [call = std::move(call)](const ErrorCodeOfAsio& ec) {
                             if (!ec) call();
                           });
}

void Socket::WhenWritable(std::function<void()> call) {
  impl_->stream.async_wait(asio::posix::stream_descriptor::wait_write,
                           [call = std::move(call)](const ErrorCodeOfAsio& ec) {
                             if (!ec) call();
                           });
}

void Socket::ShutdownSend() {
  shutdown(descriptor(), SHUT_WR);
}

void Socket::Close() {
  ErrorCodeOfAsio ec;
  if (impl_->stream.is_open()) impl_->stream.close(ec);
}

void Socket::Reset() {
  if (!impl_->stream.is_open()) return;
  const linger at_once = {1, 0};
  setsockopt(descriptor(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  Close();
}

bool Socket::open() const {
  return impl_->stream.is_open();
}
int Socket::descriptor() const {
  return impl_->stream.native_handle();
}

}  // namespace galley::net
