// SPDX-License-Identifier: Apache-2.0
// The service behind a real HTTP server, seen from sockets: what clients get while they wait, and what becomes of those
// that leave or do not read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "galley/net/http_server.h"
#include "galley/net/test_raw_client.h"
#include "galley/serve/service_fixture.h"

namespace galley::serve {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr milliseconds kSoon{50};
constexpr double kSoonS = 0.05;

// A service on a free port. The server goes first, as in the program.
struct Hosted {
  explicit Hosted(FakeEngineOptions engine, ServiceOptions options = {}, net::ServerOptions http = {})
      : served(std::move(engine), std::move(options)) {
    http.listen = {"127.0.0.1:0"};
    auto created = net::HttpServer::Create(http, std::bind_front(&Service::Handle, served.service.get()));
    EXPECT_TRUE(created) << created.error().ToString();
    server = std::move(*created);
  }
  FakeEngine& engine() { return *served.engine; }

  Served served;
  std::unique_ptr<net::HttpServer> server;
};

std::string Post(std::string_view path, std::string_view body) {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         std::string(body);
}

std::string Chat(std::string_view more) {
  return Post("/v1/chat/completions",
              R"({"model":"nano","messages":[{"role":"user","content":"Hi"}],"thinking":{"type":"disabled"})" +
                  std::string(more) + "}");
}

bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 12000 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(5));
  return condition();
}

int CountOf(std::string_view text, std::string_view part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

FakeEngineOptions SaysForEver() {
  FakeEngineOptions engine;
  engine.say = [](const engine::EngineRequest&, int) { return std::vector<TokenId>(8000, 300); };
  engine.step_gap = std::chrono::microseconds(200);
  return engine;
}

TEST(Http, AStreamThatWaitsForItsTurnGetsHeartbeats) {
  Hosted host(Says("Hello"), {.stream_start_s = kSoonS}, {.heartbeat = kSoon});
  host.engine().SetAdmitting(false);
  net::RawClient client(host.server->port());
  ASSERT_TRUE(client.Send(Chat(R"(,"stream":true)")));
  EXPECT_THAT(client.Until(": keep-alive"), HasSubstr("HTTP/1.1 200"));
  EXPECT_EQ(host.engine().stats().waiting, 1) << "it has not been admitted";
  EXPECT_THAT(client.Until("\r\n\r\n"), Not(HasSubstr("data:")));
  host.engine().SetAdmitting(true);
  EXPECT_THAT(client.UntilEnd(), HasSubstr("data: [DONE]"));
}

TEST(Http, AStreamGetsHeartbeatsWhileItsPromptIsRead) {
  Hosted host(Says("Hello"), {}, {.heartbeat = kSoon});
  host.engine().SetStepping(false);
  net::RawClient client(host.server->port());
  ASSERT_TRUE(client.Send(Chat(R"(,"stream":true)")));
  EXPECT_THAT(client.Until(": keep-alive"), Not(HasSubstr("data:")));
  host.engine().SetStepping(true);
  EXPECT_THAT(client.UntilEnd(), HasSubstr("data: [DONE]"));
}

TEST(Http, AfterAnEarlyBeginAFailureIsTheOneEvent) {
  FakeEngineOptions engine;
  engine.fail_after = Error{ErrorCode::kResourceExhausted, "it never fits", ""};
  Hosted host(engine, {.stream_start_s = kSoonS}, {.heartbeat = kSoon});
  host.engine().SetAdmitting(false);
  net::RawClient client(host.server->port());
  ASSERT_TRUE(client.Send(Chat(R"(,"stream":true)")));
  client.Until(": keep-alive");
  host.engine().SetAdmitting(true);
  const std::string& all = client.UntilEnd();
  EXPECT_EQ(CountOf(all, "it never fits"), 1);
  EXPECT_THAT(all, Not(HasSubstr("[DONE]")));
}

TEST(Http, WithoutAStreamNothingIsSentBeforeTheAnswer) {
  Hosted host(Says("Hello"), {.stream_start_s = kSoonS}, {.heartbeat = kSoon});
  host.engine().SetAdmitting(false);
  net::RawClient client(host.server->port());
  ASSERT_TRUE(client.Send(Chat("")));
  EXPECT_EQ(client.Until("HTTP", milliseconds(300)), "");
  host.engine().SetAdmitting(true);
  EXPECT_THAT(client.UntilEnd(), HasSubstr("Hello"));
}

// The engine stands still between two steps, so whatever frees the sequence has not waited for one.
TEST(Http, AClientThatLeavesFreesItsSequenceWithoutAnotherStep) {
  for (const bool queued : {false, true}) {
    for (const std::string_view more : {"", R"(,"stream":true)", R"(,"n":3)", R"(,"n":2,"stop":"x","stream":true)"}) {
      Hosted host(SaysForEver());
      host.engine().SetStepping(false);
      host.engine().SetAdmitting(!queued);
      {
        net::RawClient client(host.server->port());
        ASSERT_TRUE(client.Send(Chat(more)));
        ASSERT_TRUE(Eventually([&] { return host.engine().live() > 0; }));
      }
      EXPECT_TRUE(Eventually([&] { return host.engine().live() == 0; })) << more;
      EXPECT_EQ(host.engine().steps(), 0) << more;
      host.served.WaitIdle();
    }
  }
}

TEST(Http, WhileItWritesALostClientCostsOneStepAtMost) {
  FakeEngineOptions engine = SaysForEver();
  engine.step_gap = milliseconds(300);  // far longer than it takes to notice
  Hosted host(engine);
  std::int64_t before = 0;
  {
    net::RawClient client(host.server->port());
    ASSERT_TRUE(client.Send(Chat(R"(,"stream":true,"max_tokens":8000)")));
    client.Until("data:");
    before = host.engine().steps();
  }
  EXPECT_TRUE(Eventually([&] { return host.engine().live() == 0; }));
  EXPECT_LE(host.engine().steps(), before + 2) << "the step that ran when it left, and one more";
}

TEST(Http, AClientThatDoesNotReadLosesItsSequence) {
  Hosted host(SaysForEver(), {}, {.write_buffer_max = 32 << 10});
  net::RawClient client(host.server->port(), /*receive_buffer=*/4096);
  ASSERT_TRUE(client.Send(Chat(R"(,"stream":true,"max_tokens":8000,"n":4)")));
  ASSERT_TRUE(Eventually([&] { return host.engine().live() > 0; }));
  EXPECT_TRUE(Eventually([&] { return host.engine().live() == 0; }));
  EXPECT_EQ(host.server->stats().slow_readers, 1);
  EXPECT_THAT(client.UntilEnd(), Not(HasSubstr("[DONE]"))) << "it can tell that the answer is not whole";
  host.served.WaitIdle();
}

TEST(Http, PipelinedRequestsAreAnsweredInTheirOrder) {
  FakeEngineOptions engine;
  engine.say = [](const engine::EngineRequest& request, int) {
    return Saying(NanoTokenizer(), "seed " + std::to_string(request.sampling.seed));
  };
  Hosted host(engine);
  std::string requests;
  for (int i = 1; i <= 8; ++i) {
    std::string one = Chat(R"(,"seed":)" + std::to_string(i) + (i % 2 == 0 ? R"(,"stream":true)" : ""));
    if (i < 8) one.erase(one.find("Connection: close\r\n"), 19);
    requests += one;
  }
  net::RawClient client(host.server->port());
  ASSERT_TRUE(client.Send(requests));
  const std::string& all = client.UntilEnd();
  EXPECT_EQ(CountOf(all, "HTTP/1.1 200"), 8);
  std::size_t at = 0;
  for (int i = 1; i <= 7; i += 2) {
    const std::size_t next = all.find("seed " + std::to_string(i), at);
    ASSERT_NE(next, std::string::npos) << i;
    at = next;
  }
}

TEST(Http, ServerAndServiceStopUnderLoad) {
  Hosted host(SaysForEver());
  std::vector<std::unique_ptr<net::RawClient>> clients;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(std::make_unique<net::RawClient>(host.server->port()));
    ASSERT_TRUE(
        clients.back()->Send(Chat(i % 2 == 0 ? R"(,"stream":true,"max_tokens":8000)" : R"(,"max_tokens":8000)")));
  }
  for (int i = 0; i < 40; i += 2) clients[static_cast<std::size_t>(i)]->Until("data:");
  ASSERT_TRUE(Eventually([&] { return host.engine().live() == 40; }));
  host.served.service->RefuseNew();
  host.served.service->Shutdown();
  // The clients read meanwhile: what was written before may be more than sockets hold. The patience is for sanitizers
  // on busy machines.
  std::thread readers([&] {
    for (const auto& client : clients) (void)client->UntilEnd();
  });
  EXPECT_TRUE(host.server->Drain(std::chrono::minutes(2)));
  readers.join();
  host.server->Stop();
  for (int i = 0; i < 40; ++i) {
    const std::string& all = clients[static_cast<std::size_t>(i)]->UntilEnd();
    EXPECT_EQ(CountOf(all, "shutting down"), 1) << all.substr(0, 200);
    EXPECT_EQ(CountOf(all, "[DONE]"), 0);
    EXPECT_EQ(CountOf(all, i % 2 == 0 ? "HTTP/1.1 200" : "HTTP/1.1 503"), 1);
    EXPECT_EQ(CountOf(all, "retry-after: 5"), i % 2);
  }
}

}  // namespace
}  // namespace galley::serve
