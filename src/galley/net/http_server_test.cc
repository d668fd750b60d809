// SPDX-License-Identifier: Apache-2.0
#include "galley/net/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <tuple>
#include <vector>

#include "galley/net/test_raw_client.h"
#include "galley/net/test_server.h"

namespace galley::net {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using namespace std::chrono_literals;

TEST(HttpServer, AnswersAndKeepsTheConnection) {
  TestServer server;
  RawClient client(server.port());
  client.Get("/echo?a=1");
  EXPECT_THAT(client.Until("GET a=1 "), StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nDate: "));
  EXPECT_THAT(client.Until("GET a=1 "), HasSubstr("\r\nContent-Length: 8\r\nConnection: keep-alive\r\n\r\n"));
  client.Forget();
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello");
  EXPECT_THAT(client.Until("hello"), EndsWith("\r\n\r\nPOST  hello"));
  EXPECT_EQ(server->stats().accepted, 1);
  EXPECT_EQ(server->stats().requests, 2);
}

TEST(HttpServer, StreamsInChunks) {
  TestServer server;
  RawClient client(server.port());
  client.Get("/hold");
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
    TestServer server;
    auto client = std::make_unique<RawClient>(server.port());
    client->Get("/hold");
    const Reply reply = server.Held();
    std::promise<void> gone;
    reply->OnClosed([&] { gone.set_value(); });
    if (streaming) reply->StartStream(200, {{"Content-Type", "text/event-stream"}});
    const auto begin = std::chrono::steady_clock::now();
    client.reset();
    ASSERT_EQ(gone.get_future().wait_for(60s), std::future_status::ready);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);  // milliseconds when the machine is idle
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
    TestServer server({.handler_threads = threads});
    for (const std::string path : {"/drop", "/throw"}) {
      RawClient client(server.port());
      client.Get(path);
      EXPECT_THAT(client.Until("}}"), StartsWith("HTTP/1.1 500 Internal Server Error\r\n"));
    }
    // A stream that nobody ends breaks off without its last chunk.
    RawClient client(server.port());
    client.Get("/hold");
    Reply reply = server.Held();
    reply->StartStream(200, {});
    EXPECT_TRUE(reply->Write("half"));
    client.Until("half\r\n");
    reply.reset();
    EXPECT_THAT(client.UntilEnd(), Not(HasSubstr("0\r\n\r\n")));
    EXPECT_TRUE(client.ended());
  }
}

// As `printf … | nc -N` and some probes do.
TEST(HttpServer, AClientThatOnlySendsNoMoreGetsItsAnswer) {
  for (const int threads : {0, 2}) {
    ServerOptions options;
    options.handler_threads = threads;
    TestServer server(options);
    RawClient quick(server.port());
    quick.Send("GET /echo?a=1 HTTP/1.1\r\nHost: x\r\n\r\nGET /echo?b=2 HTTP/1.1\r\nHost: x\r\n\r\n");
    quick.FinishSending();
    const std::string& both = quick.UntilEnd();
    EXPECT_THAT(both, HasSubstr("GET a=1 "));
    EXPECT_THAT(both, EndsWith("GET b=2 "));
    EXPECT_FALSE(quick.reset());

    RawClient slow(server.port());
    slow.Send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    slow.FinishSending();
    Reply reply = server.Held();
    std::this_thread::sleep_for(50ms);  // in which the end is seen, or is not: either way it is answered
    reply->Send({.status = 200, .headers = {}, .body = std::string(3 << 20, 'x')});
    EXPECT_THAT(slow.UntilEnd(), EndsWith("xxx"));
    EXPECT_GT(slow.UntilEnd().size(), std::size_t{3} << 20);
    EXPECT_FALSE(slow.reset());

    // Who wants to know of clients that go away is told, whenever it asks.
    for (const bool late : {false, true}) {
      RawClient gone(server.port());
      gone.Send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
      if (late) gone.FinishSending();
      reply = server.Held();
      if (late) std::this_thread::sleep_for(50ms);
      std::promise<void> told;
      reply->OnClosed([&] { told.set_value(); });
      if (!late) gone.FinishSending();
      ASSERT_EQ(told.get_future().wait_for(60s), std::future_status::ready);
      EXPECT_TRUE(reply->closed());
    }
  }
}

TEST(HttpServer, PipelinedRequestsAreAnsweredInOrder) {
  for (const int threads : {0, 2}) {
    TestServer server({.handler_threads = threads});
    RawClient client(server.port());
    std::string all;
    for (int i = 100; i < 200; ++i) all += "GET /echo?" + std::to_string(i) + " HTTP/1.1\r\nHost: x\r\n\r\n";
    client.Send(all);
    const std::string& answers = client.Until("GET 199");
    std::size_t at = 0;
    for (int i = 100; i < 200; ++i) {
      at = answers.find("GET " + std::to_string(i), at);
      ASSERT_NE(at, std::string::npos) << i;
    }
  }
}

TEST(HttpServer, MoreThanIsKeptMayBePipelinedBehindAnOpenRequest) {
  TestServer server;
  RawClient client(server.port());
  client.Get("/hold");
  const Reply reply = server.Held();
  const std::string body(300'000, 'b');  // several times what is read ahead
  std::thread sender([&] { client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + body); });
  std::this_thread::sleep_for(20ms);
  reply->Send({.status = 200, .headers = {}, .body = "first"});
  sender.join();
  EXPECT_THAT(client.Until(body), HasSubstr("\r\n\r\nfirstHTTP/1.1 200 OK\r\n"));
}

TEST(HttpServer, ARequestInSingleBytes) {
  TestServer server;
  RawClient client(server.port());
  const std::string request =
      "POST /echo?q HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
  for (const char byte : request) client.Send({&byte, 1});
  EXPECT_THAT(client.Until("hello"), EndsWith("POST q hello"));
}

TEST(HttpServer, HeadHasNoBody) {
  TestServer server;
  RawClient client(server.port());
  client.Send("HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\nGET /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string& answers = client.Until("GET  ");
  EXPECT_THAT(answers, HasSubstr("Content-Length: 6\r\nConnection: keep-alive\r\n\r\nHTTP/1.1 200 OK"));  // "HEAD  "
  RawClient stream(server.port());
  stream.Send("HEAD /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  const Reply reply = server.Held();
  reply->StartStream(200, {});
  EXPECT_TRUE(reply->Write("not for HEAD"));
  reply->Finish();
  stream.Get("/echo");
  EXPECT_THAT(stream.Until("GET  "), Not(HasSubstr("not for HEAD")));
}

TEST(HttpServer, Http10ClosesAndHasNoChunks) {
  TestServer server;
  RawClient plain(server.port());
  plain.Send("GET /echo HTTP/1.0\r\n\r\n");
  EXPECT_THAT(plain.UntilEnd(), HasSubstr("Connection: close\r\n\r\nGET  "));
  EXPECT_TRUE(plain.ended());
  RawClient stream(server.port());
  stream.Send("GET /hold HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const Reply reply = server.Held();
  reply->StartStream(200, {{"Content-Type", "text/event-stream"}});
  EXPECT_TRUE(reply->Write("data: x\n\n"));
  reply->Finish();
  EXPECT_THAT(stream.UntilEnd(), EndsWith("Connection: close\r\n\r\ndata: x\n\n"));
  EXPECT_TRUE(stream.ended());
}

TEST(HttpServer, CloseIsHonoured) {
  TestServer server;
  RawClient client(server.port());
  client.Send("GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.UntilEnd(), HasSubstr("Connection: close\r\n\r\nGET  "));
  EXPECT_TRUE(client.ended());
  EXPECT_FALSE(client.reset());
}

TEST(HttpServer, PagesOfOtherSites) {
  TestServer server({.cors_origins = {"https://ok.example"}});
  RawClient client(server.port());
  client.Send("GET /echo HTTP/1.1\r\nHost: x\r\nOrigin: https://evil.example\r\n\r\n");
  EXPECT_THAT(client.Until("}}"), StartsWith("HTTP/1.1 403 Forbidden\r\n"));
  client.Forget();
  client.Send("GET /echo HTTP/1.1\r\nHost: x\r\nOrigin: https://ok.example\r\n\r\n");
  EXPECT_THAT(client.Until("GET  "), HasSubstr("\r\nAccess-Control-Allow-Origin: https://ok.example\r\n"));
  client.Forget();
  client.Send(
      "OPTIONS /echo HTTP/1.1\r\nHost: x\r\nOrigin: https://ok.example\r\nAccess-Control-Request-Method: POST\r\n\r\n");
  EXPECT_THAT(client.Until("\r\n\r\n"), StartsWith("HTTP/1.1 204 No Content\r\n"));
  EXPECT_THAT(client.Until("\r\n\r\n"), Not(HasSubstr("Content-Length")));
  EXPECT_EQ(server->stats().requests, 1);
}

TEST(HttpServer, FiveHundredStreamsAtOnce) {
  // 1,000 sockets in one process: as many descriptors as the system allows.
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  for (const int threads : {1, 2}) {
    constexpr int kStreams = 500;
    constexpr int kEvents = 20;
    TestServer server({.io_threads = threads});
    std::vector<std::unique_ptr<RawClient>> clients;
    std::vector<Reply> replies;
    for (int i = 0; i < kStreams; ++i) {
      clients.push_back(std::make_unique<RawClient>(server.port()));
      ASSERT_TRUE(clients.back()->Get("/hold"));
    }
    for (int i = 0; i < kStreams; ++i) {
      replies.push_back(server.Held());
      replies.back()->StartStream(200, {{"Content-Type", "text/event-stream"}});
    }
    // Two writers, as a step's outputs may come from several threads.
    std::vector<std::thread> writers;
    for (int half = 0; half < 2; ++half) {
      writers.emplace_back([&, half] {
        for (int event = 0; event < kEvents; ++event) {
          for (int i = half; i < kStreams; i += 2) {
            EXPECT_TRUE(replies[static_cast<std::size_t>(i)]->Write("data: " + std::to_string(event) + "\n\n"));
          }
        }
        for (int i = half; i < kStreams; i += 2) replies[static_cast<std::size_t>(i)]->Finish();
      });
    }
    for (std::thread& writer : writers) writer.join();
    for (const auto& client : clients) {
      const std::string& answer = client->Until("\r\n0\r\n\r\n");
      std::size_t at = 0;
      for (int event = 0; event < kEvents; ++event) {
        at = answer.find("data: " + std::to_string(event) + "\n\n", at);
        ASSERT_NE(at, std::string::npos) << event;
      }
      ASSERT_THAT(answer, EndsWith("0\r\n\r\n"));
    }
    EXPECT_EQ(server->stats().requests, kStreams);
    EXPECT_EQ(server->stats().streams, 0);
  }
}

TEST(HttpServer, DrainLetsRunningRequestsEnd) {
  TestServer server;
  RawClient idle(server.port());
  idle.Get("/echo");
  idle.Until("GET  ");
  RawClient busy(server.port());
  busy.Get("/hold");
  const Reply reply = server.Held();
  EXPECT_FALSE(server->Drain(50ms)) << "one request is still running";
  idle.UntilEnd();
  EXPECT_TRUE(idle.ended());
  EXPECT_FALSE(RawClient(server.port()).connected());
  reply->StartStream(200, {});
  EXPECT_TRUE(reply->Write("last"));
  reply->Finish();
  EXPECT_THAT(busy.UntilEnd(), HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(busy.UntilEnd(), EndsWith("4\r\nlast\r\n0\r\n\r\n"));
  busy.Close();
  EXPECT_TRUE(server->Drain(5s));
}

TEST(HttpServer, StopEndsWhatIsOpenAndRespondersMayOutliveIt) {
  std::atomic<int> closed{0};
  Reply reply;
  {
    TestServer server;
    RawClient client(server.port());
    client.Get("/hold");
    reply = server.Held();
    reply->StartStream(200, {});
    reply->OnClosed([&] { ++closed; });
    server->Stop();
    EXPECT_EQ(closed, 1);
    client.UntilEnd();
    EXPECT_TRUE(client.ended());
    EXPECT_FALSE(reply->Write("late"));
    server->Stop();  // once is enough, twice does no harm
  }
  EXPECT_FALSE(reply->Write("later"));
  reply->Finish();
}

TEST(HttpServer, BadOptionsAreRefused) {
  const Handler handler = [](const Request&, const Reply&) {};
  ServerOptions options;
  options.io_threads = 0;
  EXPECT_EQ(HttpServer::Create(options, handler).error().ToString(), "io_threads: 0 is out of range; give 1 to 64");
  for (const std::string address : {"", "8000", ":", ":80", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "::1:80",
                                    "[::1:80", "[]:80", "unix:", "256.256.256.256:0"}) {
    options = {};
    options.listen = {address};
    const auto created = HttpServer::Create(options, handler);
    ASSERT_FALSE(created) << address;
    EXPECT_EQ(created.error().code, ErrorCode::kInvalidArgument) << address << ": " << created.error().ToString();
  }
  TestServer running;
  options.listen = {"127.0.0.1:" + std::to_string(running.port())};
  EXPECT_EQ(HttpServer::Create(options, handler).error().ToString(),
            options.listen[0] + ": another program listens there; stop it or choose another port");
  for (const std::string origin :
       {"chat.example.org", "https://chat.example.org/", "https://", "", "https://a, https://b"}) {
    options = {};
    options.cors_origins = {origin};
    EXPECT_THAT(HttpServer::Create(options, handler).error().ToString(), HasSubstr("is no origin")) << origin;
  }
  for (const auto& [file, code, says] :
       {std::tuple("/nowhere/chain.pem", ErrorCode::kNotFound, "cannot read the TLS certificate: No such file"),
        std::tuple("/dev/null", ErrorCode::kCorrupt, "the TLS certificate must be a chain in PEM, but OpenSSL says")}) {
    options = {};
    options.tls = {.certificate = file, .key = file};
    const Error error = HttpServer::Create(options, handler).error();
    EXPECT_EQ(error.code, code) << error.ToString();
    EXPECT_THAT(error.ToString(), HasSubstr(std::string(file) + ": " + says));
  }
  options = {};
  options.listen = {"127.0.0.1:0"};
  options.cors_origins = {"*", "null", "http://localhost:3000", "https://[::1]:8443"};
  EXPECT_TRUE(HttpServer::Create(options, handler));
}

}  // namespace
}  // namespace galley::net
