// SPDX-License-Identifier: Apache-2.0
#include "galley/net/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "galley/net/raw_client.h"

namespace galley::net {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using namespace std::chrono_literals;

using Request = std::shared_ptr<const HttpRequest>;
using Reply = std::shared_ptr<Responder>;

// A server on a free port whose handler is chosen by path.
class Server {
 public:
  explicit Server(ServerOptions options = {}, Handler fallback = nullptr) : fallback_(std::move(fallback)) {
    options.listen = {"127.0.0.1:0"};
    auto created =
        HttpServer::Create(options, [this](const Request& request, const Reply& reply) { Handle(request, reply); });
    EXPECT_TRUE(created) << created.error().ToString();
    server_ = std::move(*created);
  }
  [[nodiscard]] int port() const { return server_->port(); }
  HttpServer& operator*() { return *server_; }
  HttpServer* operator->() { return server_.get(); }

  // The responder of the last request to /hold.
  Reply Held() {
    for (int i = 0; i < 1000; ++i) {
      {
        const std::lock_guard lock(mutex_);
        if (held_ != nullptr) return std::exchange(held_, nullptr);
      }
      std::this_thread::sleep_for(5ms);
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
      held_ = reply;
      return;
    }
    if (request->path == "/throw") throw std::runtime_error("on purpose");
    if (request->path == "/drop") return;
    reply->Send(ErrorResponse(404, "no such path"));
  }

  Handler fallback_;
  std::mutex mutex_;
  Reply held_;
  std::unique_ptr<HttpServer> server_;  // last: its threads use the rest
};

// Waits until `condition` holds; false after ten seconds.
bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

TEST(HttpServer, AnswersAndKeepsTheConnection) {
  Server server;
  RawClient client(server.port());
  client.Send("GET /echo?a=1 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.Until("GET a=1 "), StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nDate: "));
  EXPECT_THAT(client.Until("GET a=1 "), HasSubstr("\r\nContent-Length: 8\r\nConnection: keep-alive\r\n\r\n"));
  client.Forget();
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello");
  EXPECT_THAT(client.Until("hello"), EndsWith("\r\n\r\nPOST  hello"));
  EXPECT_EQ(server->stats().accepted, 1);
  EXPECT_EQ(server->stats().requests, 2);
}

TEST(HttpServer, StreamsInChunks) {
  Server server;
  RawClient client(server.port());
  client.Send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  const Reply reply = server.Held();
  reply->StartStream(200, {{"Content-Type", "text/event-stream"}});
  EXPECT_THAT(client.Until("\r\n\r\n"), HasSubstr("Transfer-Encoding: chunked"));
  client.Forget();
  EXPECT_TRUE(reply->Write("data: one\n\n"));  // 11 bytes are b
  EXPECT_EQ(client.Until("\n\n\r\n"), "b\r\ndata: one\n\n\r\n");
  client.Forget();
  EXPECT_EQ(server->stats().streams, 1);
  reply->Finish();
  EXPECT_EQ(client.Until("0\r\n\r\n"), "0\r\n\r\n");
  EXPECT_FALSE(reply->Write("late")) << "nothing is written after the end";
  EXPECT_FALSE(reply->closed());
  EXPECT_EQ(server->stats().streams, 0);
}

TEST(HttpServer, AClientThatGoesAwayIsNoticedAtOnce) {
  for (const bool streaming : {false, true}) {
    Server server;
    auto client = std::make_unique<RawClient>(server.port());
    client->Send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    const Reply reply = server.Held();
    std::promise<void> gone;
    reply->OnClosed([&] { gone.set_value(); });
    if (streaming) reply->StartStream(200, {{"Content-Type", "text/event-stream"}});
    const auto begin = std::chrono::steady_clock::now();
    client.reset();
    ASSERT_EQ(gone.get_future().wait_for(5s), std::future_status::ready);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);  // milliseconds when the machine is idle
    EXPECT_TRUE(reply->closed());
    EXPECT_FALSE(reply->Write("more"));
    bool at_once = false;
    reply->OnClosed([&] { at_once = true; });
    EXPECT_TRUE(at_once);
    EXPECT_EQ(server->stats().disconnects, 1);
    EXPECT_TRUE(Eventually([&] { return server->stats().connections == 0; }));
  }
}

TEST(HttpServer, ARequestIsNeverLeftWithoutAnAnswer) {
  for (const int threads : {0, 2}) {
    ServerOptions options;
    options.handler_threads = threads;
    Server server(options);
    for (const std::string path : {"/drop", "/throw"}) {
      RawClient client(server.port());
      client.Send("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
      EXPECT_THAT(client.Until("}}"), StartsWith("HTTP/1.1 500 Internal Server Error\r\n"));
    }
    // A stream that nobody ends breaks off without its last chunk.
    RawClient client(server.port());
    client.Send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    Reply reply = server.Held();
    reply->StartStream(200, {});
    EXPECT_TRUE(reply->Write("half"));
    client.Until("half\r\n");
    reply.reset();
    EXPECT_THAT(client.UntilEnd(), Not(HasSubstr("0\r\n\r\n")));
    EXPECT_TRUE(client.ended());
  }
}

}  // namespace
}  // namespace galley::net
