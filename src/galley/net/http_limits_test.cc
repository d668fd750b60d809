// SPDX-License-Identifier: Apache-2.0
// What the server does to clients that are slow, greedy, broken or hostile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "galley/net/http_server.h"
#include "galley/net/test_raw_client.h"
#include "galley/net/test_server.h"

namespace galley::net {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST(HttpLimits, MalformedRequestsGetAnErrorInJsonAndTheConnectionEnds) {
  TestServer server({.head_bytes_max = 1000, .body_bytes_max = 100});
  const struct {
    std::string text;
    int status;
  } cases[] = {
      {"NONSENSE\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505},
      {"GET / HTTP/1.1\r\nHost: x\r\nX: " + std::string(2000, 'x') + "\r\n\r\n", 431},
      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n", 413},
      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\nExpect: 100-continue\r\n\r\n", 413},
      {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
  };
  for (const auto& test : cases) {
    RawClient client(server.port());
    client.Send(test.text);
    const std::string& answer = client.UntilEnd();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 " + std::to_string(test.status) + " ")) << test.text.substr(0, 60);
    EXPECT_THAT(answer, HasSubstr("Content-Type: application/json\r\n"));
    EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
    EXPECT_THAT(answer, HasSubstr(R"({"type":"error","error":{"message":")"));
    EXPECT_THAT(answer, testing::ContainsRegex("\"code\":\"[a-z_]+\"}}$"));
    EXPECT_THAT(answer, Not(HasSubstr("100 Continue")));
    EXPECT_TRUE(client.ended());
  }
  EXPECT_EQ(server->stats().requests, 0);
  EXPECT_EQ(server->stats().rejected, static_cast<std::int64_t>(std::size(cases)));
}

// A client that sends on while it is refused must still be able to read why.
TEST(HttpLimits, TheRefusalOfALargeBodyReachesAClientThatKeepsSending) {
  TestServer server({.body_bytes_max = 1000});
  RawClient client(server.port());
  client.Send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n");
  for (int i = 0; i < 30; ++i) client.Send(std::string(100'000, 'x'));
  EXPECT_THAT(client.UntilEnd(), StartsWith("HTTP/1.1 413 Content Too Large\r\n"));
  EXPECT_FALSE(client.reset());
}

TEST(HttpLimits, ContinueIsSaidOnceAndOnlyToThoseWhoAsk) {
  TestServer server;
  RawClient client(server.port());
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(client.Until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("ab");
  client.Send("cd");
  EXPECT_THAT(client.Until("abcd"), StartsWith("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"));
  client.Forget();
  // The body is there already, or nobody asked.
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nefgh");
  EXPECT_THAT(client.Until("efgh"), StartsWith("HTTP/1.1 200 OK\r\n"));
  client.Forget();
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n");
  std::this_thread::sleep_for(20ms);
  client.Send("ijkl");
  EXPECT_THAT(client.Until("ijkl"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

// Sends `text` byte by byte, `gap` apart, until the server ends the connection; how long that took.
std::chrono::milliseconds Trickle(RawClient* client, std::string_view text, std::chrono::milliseconds gap) {
  const auto begin = Clock::now();
  for (const char byte : text) {
    if (!client->Send({&byte, 1})) break;
    client->UntilEnd(gap);
    if (client->ended()) break;
  }
  client->UntilEnd();
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
}

TEST(HttpLimits, TricklingHeadsAndBodiesAreEnded) {
  std::mutex mutex;
  std::vector<std::string> told;  // before the client is
  TestServer server({.head_timeout = 150ms,
                     .body_timeout = 150ms,
                     .on_rejected = [&](std::string_view peer, int status, std::string_view reason) {
                       EXPECT_THAT(peer, StartsWith("127.0.0.1:"));
                       const std::lock_guard lock(mutex);
                       told.push_back(std::to_string(status) + " " + std::string(reason));
                     }});
  RawClient head(server.port());
  const auto head_time = Trickle(&head, "GET /echo?" + std::string(2000, 'x'), 10ms);
  EXPECT_THAT(head.UntilEnd(), StartsWith("HTTP/1.1 408 Request Timeout\r\n"));
  EXPECT_GE(head_time, 150ms);
  EXPECT_LT(head_time, 8s);

  RawClient body(server.port());
  body.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n");
  const auto body_time = Trickle(&body, std::string(2000, 'x'), 10ms);
  EXPECT_THAT(body.UntilEnd(), StartsWith("HTTP/1.1 408 Request Timeout\r\n"));
  // 100 bytes a second extend the time by a tenth at most: 4,096 bytes buy one second.
  EXPECT_GE(body_time, 150ms);
  EXPECT_LT(body_time, 8s);
  EXPECT_EQ(server->stats().timed_out, 2);
  const std::lock_guard lock(mutex);
  EXPECT_THAT(told, ElementsAre("408 the request's head did not arrive in time",
                                "408 the request's body did not arrive in time"));
}

TEST(HttpLimits, ABodyThatMovesMayTakeLongerThanTheTimeout) {
  TestServer server({.body_timeout = 600ms, .transfer_bytes_per_second_min = 1000});
  RawClient client(server.port());
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n");
  for (int i = 0; i < 10; ++i) {  // 900 ms, and each 100 bytes buy 100 ms
    client.Send(std::string(100, 'x'));
    std::this_thread::sleep_for(90ms);
  }
  EXPECT_THAT(client.Until("xxx"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST(HttpLimits, IdleConnectionsAreClosedWithoutAWord) {
  TestServer server({.idle_timeout = 300ms, .head_timeout = 300ms});
  RawClient fresh(server.port());
  EXPECT_EQ(fresh.UntilEnd(), "");
  EXPECT_TRUE(fresh.ended());
  RawClient used(server.port());
  used.Send("GET /echo HTTP/1.1\r\nHost: x\r\n\r\n\r\n");  // the empty line at the end is no request
  EXPECT_THAT(used.UntilEnd(), EndsWith("GET  "));
  EXPECT_TRUE(used.ended());
  EXPECT_EQ(server->stats().timed_out, 0);
}

TEST(HttpLimits, ConnectionsOverTheLimitAreTold) {
  TestServer server({.connections_max = 2});
  RawClient first(server.port());
  RawClient second(server.port());
  ASSERT_TRUE(Eventually([&] { return server->stats().connections == 2; }));
  RawClient third(server.port());
  third.Get("/echo");
  EXPECT_THAT(third.UntilEnd(), StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_THAT(third.UntilEnd(), HasSubstr("Retry-After: 1\r\n"));
  first.Get("/echo");
  EXPECT_THAT(first.Until("GET  "), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_EQ(server->stats().refused, 1);
  first.Close();
  third.Close();
  ASSERT_TRUE(Eventually([&] { return server->stats().connections == 1; }));
  RawClient fourth(server.port());
  fourth.Get("/echo");
  EXPECT_THAT(fourth.Until("GET  "), StartsWith("HTTP/1.1 200 OK\r\n"));
}

// Without a descriptor for it a connection waits in the system's queue; it is taken as soon as there is one again.
TEST(HttpLimits, RunningOutOfDescriptorsIsSurvived) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP()
      << "the undefined-behaviour sanitizer opens a pipe to look at an object, and calls it broken if it cannot";
#endif
  TestServer server;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  RawClient client(server.port());
  RawClient waiting(server.port());
  ASSERT_TRUE(Eventually([&] { return server->stats().connections == 2; }));
  const int lowest_free = dup(0);
  ASSERT_GE(lowest_free, 0);
  close(lowest_free);
  rlimit scarce = before;
  scarce.rlim_cur = static_cast<rlim_t>(lowest_free) + 1;  // the client's own end takes the last one
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &scarce), 0);
  RawClient late(server.port());
  late.Get("/echo");
  EXPECT_EQ(late.Until("GET  ", 150ms), "");
  EXPECT_EQ(server->stats().accepted, 2);
  client.Get("/echo");
  EXPECT_THAT(client.Until("GET  "), StartsWith("HTTP/1.1 200 OK\r\n")) << "others are served meanwhile";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(late.Until("GET  "), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST(HttpLimits, BodiesThatArriveTogetherHaveACommonLimit) {
  TestServer server({.body_bytes_total_max = 1500});
  const std::string head = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n";
  RawClient first(server.port());
  first.Send(head + std::string(1000, 'x'));
  ASSERT_TRUE(Eventually([&] { return server->stats().bytes_in >= static_cast<std::int64_t>(head.size() + 1000); }));
  RawClient second(server.port());
  second.Send(head + std::string(1000, 'x'));
  EXPECT_THAT(second.UntilEnd(), StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  first.Send("x");
  EXPECT_THAT(first.Until("xxx"), StartsWith("HTTP/1.1 200 OK\r\n"));
  // What was counted for both is given back.
  RawClient third(server.port());
  third.Send(head + std::string(1001, 'x'));
  EXPECT_THAT(third.Until("xxx"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST(HttpLimits, AStreamWhoseClientDoesNotReadIsEnded) {
  TestServer server({.write_buffer_max = 64 << 10});
  RawClient client(server.port(), 4096);
  client.Get("/hold");
  const Reply reply = server.Held();
  std::atomic<int> closed{0};
  reply->OnClosed([&] { ++closed; });
  reply->StartStream(200, {{"Content-Type", "text/event-stream"}});
  std::size_t written = 0;
  const std::string piece(1000, 'x');
  while (reply->Write(piece)) {
    written += piece.size();
    ASSERT_LT(written, std::size_t{64} << 20) << "nothing holds the writer back";
    if (written % (16 * piece.size()) == 0) std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(Eventually([&] { return closed == 1; }));
  EXPECT_TRUE(reply->closed());
  EXPECT_FALSE(reply->Write(piece));
  EXPECT_EQ(server->stats().slow_readers, 1);
  EXPECT_TRUE(Eventually([&] { return server->stats().connections == 0 && server->stats().streams == 0; }));
  EXPECT_THAT(client.UntilEnd(), Not(EndsWith("0\r\n\r\n")));
  EXPECT_TRUE(client.reset());
}

TEST(HttpLimits, AResponseThatNobodyReadsTimesOut) {
  TestServer server({.write_timeout = 100ms, .transfer_bytes_per_second_min = 1 << 30});
  RawClient client(server.port(), 4096);
  client.Get("/hold");
  const Reply reply = server.Held();
  reply->Send({.status = 200, .headers = {}, .body = std::string(32 << 20, 'x')});
  EXPECT_TRUE(Eventually([&] { return server->stats().connections == 0; }));
  EXPECT_EQ(server->stats().timed_out, 1);
}

TEST(HttpLimits, SilentEventStreamsGetHeartbeats) {
  TestServer server({.heartbeat = 40ms});
  RawClient events(server.port());
  events.Get("/hold");
  const Reply reply = server.Held();
  reply->StartStream(200, {{"Content-Type", "text/event-stream; charset=utf-8"}});
  const std::string beat = "e\r\n: keep-alive\n\n\r\n";  // 14 bytes are e
  EXPECT_THAT(events.Until(beat + beat), HasSubstr("\r\n\r\n" + beat + beat));
  EXPECT_TRUE(reply->Write("data: x\n\n"));
  EXPECT_THAT(events.Until("9\r\ndata: x\n\n\r\n" + beat), EndsWith(beat));
  reply->Finish();
  EXPECT_THAT(events.Until("0\r\n\r\n"), EndsWith("0\r\n\r\n"));
  events.Forget();
  EXPECT_EQ(events.UntilEnd(150ms), "") << "nothing comes after the end";

  RawClient lines(server.port());
  lines.Get("/hold");
  const Reply other = server.Held();
  other->StartStream(200, {{"Content-Type", "application/x-ndjson"}});
  EXPECT_THAT(lines.UntilEnd(150ms), EndsWith("\r\n\r\n")) << "a comment would be no JSON";
  other->Finish();
}

}  // namespace
}  // namespace galley::net
