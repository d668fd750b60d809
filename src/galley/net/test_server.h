// SPDX-License-Identifier: Apache-2.0
// For tests only: a server on a free port with a few paths, and waiting for what happens on other threads.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "galley/net/http_server.h"

namespace galley::net {

using Request = std::shared_ptr<const HttpRequest>;
using Reply = std::shared_ptr<Responder>;

// A server on a free port whose handler is chosen by path.
class TestServer {
 public:
  explicit TestServer(ServerOptions options = {}, Handler fallback = nullptr) : fallback_(std::move(fallback)) {
    if (options.listen == ServerOptions{}.listen) options.listen = {"127.0.0.1:0"};
    auto created =
        HttpServer::Create(options, [this](const Request& request, const Reply& reply) { Handle(request, reply); });
    EXPECT_TRUE(created) << created.error().ToString();
    server_ = std::move(*created);
  }
  [[nodiscard]] int port() const { return server_->port(); }
  HttpServer& operator*() { return *server_; }
  HttpServer* operator->() { return server_.get(); }

  // The responder of the oldest request to /hold that was not yet asked for.
  Reply Held() {
    for (int i = 0; i < 1000; ++i) {
      {
        const std::lock_guard lock(mutex_);
        if (!held_.empty()) {
          Reply reply = std::move(held_.front());
          held_.pop_front();
          return reply;
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ADD_FAILURE() << "no request to /hold came";
    return nullptr;
  }

 private:
  void Handle(const Request& request, const Reply& reply) {
    if (fallback_) return fallback_(request, reply);
    if (request->path == "/echo") {
      return reply->Send({.status = 200,
                          .headers = {{"Content-Type", "text/plain"}},
                          .body = request->method + " " + request->query + " " + request->body});
    }
    if (request->path == "/hold") {
      const std::lock_guard lock(mutex_);
      held_.push_back(reply);
      return;
    }
    if (request->path == "/throw") throw std::runtime_error("on purpose");
    if (request->path == "/drop") return;
    reply->Send(ErrorResponse(404, "no such path"));
  }

  Handler fallback_;
  std::mutex mutex_;
  std::deque<Reply> held_;
  std::unique_ptr<HttpServer> server_;  // last: its threads use the rest
};

// Waits until `condition` holds; false after ten seconds.
inline bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

}  // namespace galley::net
