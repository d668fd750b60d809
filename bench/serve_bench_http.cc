// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include "galley/base/check.h"
#include "galley/net/sse.h"
#include "http_load.h"
#include "serve_bench.h"

namespace galley::bench {

double ProcessSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Resident memory of this process in bytes.
std::int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total = 0;
  std::int64_t resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

std::unique_ptr<net::HttpServer> Serve(net::Handler handler, const Settings& settings) {
  net::ServerOptions options;
  options.listen = {"127.0.0.1:0"};
  options.io_threads = settings.io_threads;
  options.connections_max = 16'384;
  auto server = net::HttpServer::Create(options, std::move(handler));
  CHECK(server) << server.error().ToString();
  return std::move(*server);
}

namespace {

// Keeps responders until all have come.
class Gathering {
 public:
  [[nodiscard]] net::Handler MakeHandler() {
    return [this](const std::shared_ptr<const net::HttpRequest>&, const std::shared_ptr<net::Responder>& responder) {
      responder->StartStream(200, {{"Content-Type", "text/event-stream"}});
      const std::lock_guard lock(mutex_);
      responders_.push_back(responder);
    };
  }
  std::vector<std::shared_ptr<net::Responder>> WaitFor(int count) {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      const std::lock_guard lock(mutex_);
      if (std::ssize(responders_) == count) return std::move(responders_);
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<net::Responder>> responders_;
};

const std::string kGet = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

// The size of a chat chunk with one short token.
std::string TokenEvent(int number) {
  std::string event;
  net::AppendSse(
      event, "",
      fmt::format(R"({{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,)"
                  R"("model":"nano","choices":[{{"index":0,"delta":{{"content":" tok{}"}},"finish_reason":null}}]}})",
                  number));
  return event;
}

bool Streams(const Settings& settings) {
  ClientProcess clients({.connections = settings.streams, .request = kGet, .until = {}});
  Gathering gathering;
  const auto server = Serve(gathering.MakeHandler(), settings);
  clients.Start(server->port());
  const auto responders = gathering.WaitFor(settings.streams);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the heads are sent
  std::int64_t expected = server->stats().bytes_out;
  const double cpu = ProcessSeconds();
  const auto begin = Clock::now();
  for (int token = 0; token < settings.tokens; ++token) {
    const std::string event = TokenEvent(token);
    for (const auto& responder : responders) CHECK(responder->Write(event)) << "a client went away or lags";
    // The next step waits until this one is sent, or several tokens would go out at once and cost less.
    expected += static_cast<std::int64_t>(settings.streams) *
                static_cast<std::int64_t>(fmt::formatted_size("{:x}\r\n{}\r\n", event.size(), event));
    while (server->stats().bytes_out < expected) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  for (const auto& responder : responders) responder->Finish();
  const bool complete = clients.Wait();
  const double tokens = static_cast<double>(settings.tokens) * settings.streams;
  const double cost_us = (ProcessSeconds() - cpu) / tokens * 1e6;
  fmt::print("streams  {} × {} tokens: {:.2f} µs of processor time a token over HTTP alone, {:.2f} µs of time{}\n",
             settings.streams, settings.tokens, cost_us, SecondsSince(begin) / tokens * 1e6,
             complete ? "" : "; a client failed");
  return complete;
}

bool Idle(const Settings& settings) {
  ClientProcess clients({.connections = settings.idle, .request = kGet, .until = {}});
  Gathering gathering;
  const auto server = Serve(gathering.MakeHandler(), settings);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::int64_t before = ResidentBytes();
  clients.Start(server->port());
  const auto responders = gathering.WaitFor(settings.idle);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double extra_mb = static_cast<double>(ResidentBytes() - before) / 1e6;
  for (const auto& responder : responders) responder->Finish();
  const bool complete = clients.Wait();
  fmt::print("idle     {} streams: {:.1f} MB more resident memory, {:.1f} kB a stream (limit 64 MB for 1,000){}\n",
             settings.idle, extra_mb, extra_mb * 1e3 / settings.idle, complete ? "" : "; a client failed");
  return complete && extra_mb * 1000 <= 64.0 * settings.idle;
}

bool Prompt(const Settings& settings) {
  constexpr int kRounds = 40;
  const std::string body(1 << 20, 'x');
  const std::string request = fmt::format(
      "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}", body.size(), body);
  std::vector<std::unique_ptr<ClientProcess>> clients;
  for (int i = 0; i < kRounds; ++i) {
    clients.push_back(std::make_unique<ClientProcess>(LoadPlan{.connections = 1, .request = request, .until = {}}));
  }
  std::mutex mutex;
  std::vector<double> times_ms;
  const auto server = Serve(
      [&](const std::shared_ptr<const net::HttpRequest>& got, const std::shared_ptr<net::Responder>& responder) {
        const std::lock_guard lock(mutex);
        times_ms.push_back(SecondsSince(got->accepted) * 1e3);
        responder->Send({.status = 200, .headers = {}, .body = "ok"});
      },
      settings);
  bool complete = true;
  for (const auto& client : clients) {
    client->Start(server->port());
    complete = client->Wait() && complete;
  }
  std::sort(times_ms.begin(), times_ms.end());
  fmt::print("prompt   1 MB: {:.2f} ms from accept to handler in the middle, {:.2f} ms at most of {} (limit 50 ms){}\n",
             times_ms[times_ms.size() / 2], times_ms.back(), times_ms.size(), complete ? "" : "; a client failed");
  return complete && times_ms[times_ms.size() / 2] <= 50;
}

}  // namespace

bool HttpCosts(const Settings& settings) {
  bool good = Streams(settings);
  good = Idle(settings) && good;
  return Prompt(settings) && good;
}

}  // namespace galley::bench
