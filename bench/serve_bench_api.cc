// SPDX-License-Identifier: Apache-2.0
// The costs of the HTTP part once more, through the Chat Completions API.
#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <mutex>
#include <thread>
#include <vector>

#include "galley/base/check.h"
#include "galley/protocol/json.h"
#include "galley/serve/fake_engine.h"
#include "galley/serve/service.h"
#include "http_load.h"
#include "mixed_text.h"
#include "serve_bench.h"

namespace galley::bench {
namespace {

// Notes when the engine is asked, and forwards everything.
class TimedEngine : public serve::FakeEngine {
 public:
  using FakeEngine::FakeEngine;
  [[nodiscard]] Result<RequestId> Submit(engine::EngineRequest request, engine::EventSink sink) override {
    {
      const std::lock_guard lock(mutex_);
      submitted_.push_back(Clock::now());
      prompt_tokens_ = std::ssize(request.prompt_ids);
    }
    return FakeEngine::Submit(std::move(request), std::move(sink));
  }
  [[nodiscard]] std::vector<Clock::time_point> submitted() const {
    const std::lock_guard lock(mutex_);
    return submitted_;
  }
  [[nodiscard]] std::int64_t prompt_tokens() const {
    const std::lock_guard lock(mutex_);
    return prompt_tokens_;
  }
  void WaitForRequests(int count) const {
    while (std::ssize(submitted()) < count) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Clock::time_point> submitted_;
  std::int64_t prompt_tokens_ = 0;
};

serve::ServiceOptions OptionsForMany() {
  serve::ServiceOptions options;
  options.max_queue = 1 << 20;
  return options;
}

class ServedEngine {
 public:
  ServedEngine(const text::Tokenizer& tokenizer, serve::FakeEngineOptions options)
      : engine_(tokenizer, std::move(options)), service_(engine_, OptionsForMany(), *serve::Keys::Create({})) {}
  TimedEngine& engine() { return engine_; }
  [[nodiscard]] net::Handler MakeHandler() { return std::bind_front(&serve::Service::Handle, &service_); }

 private:
  TimedEngine engine_;
  serve::Service service_;
};

std::string ChatRequest(std::string_view content, int max_tokens) {
  const std::string body = fmt::format(
      R"({{"model":"model","stream":true,"thinking":{{"type":"disabled"}},"max_tokens":{},"messages":[{{"role":"user","content":{}}}]}})",
      max_tokens, protocol::DumpJson(protocol::Json(content)));
  return fmt::format(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n\r\n{}",
      body.size(), body);
}

bool ApiStreams(const Settings& settings, const text::Tokenizer& tokenizer) {
  ClientProcess clients({.connections = settings.streams, .request = ChatRequest("Hi", settings.tokens), .until = {}});
  // One token of the text after the other, for as long as is asked.
  std::vector<TokenId> words =
      serve::Saying(tokenizer, "a story about a dog and the big tree in the park, which was red");
  words.pop_back();  // the end
  serve::FakeEngineOptions options;
  options.step_gap = std::chrono::milliseconds(10);  // in which a step's tokens go out
  options.say = [&](const engine::EngineRequest& request, int) {
    std::vector<TokenId> all;
    for (int i = 0; i < request.max_tokens; ++i) all.push_back(words[static_cast<std::size_t>(i) % words.size()]);
    return all;
  };
  ServedEngine served(tokenizer, std::move(options));
  served.engine().SetAdmitting(false);
  const auto server = Serve(served.MakeHandler(), settings);
  clients.Start(server->port());
  served.engine().WaitForRequests(settings.streams);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const double cpu = ProcessSeconds();
  served.engine().SetAdmitting(true);
  const bool complete = clients.Wait();
  const double cost_us = (ProcessSeconds() - cpu) / settings.tokens / settings.streams * 1e6;
  fmt::print("streams  {} × {} tokens: {:.2f} µs of processor time a token with the API (limit 20 µs){}\n",
             settings.streams, settings.tokens, cost_us, complete ? "" : "; a client failed");
  return complete && cost_us <= 20;
}

bool ApiIdle(const Settings& settings, const text::Tokenizer& tokenizer) {
  ClientProcess clients({.connections = settings.idle, .request = ChatRequest("Hi", 5), .until = {}});
  ServedEngine served(tokenizer, {});
  served.engine().SetAdmitting(false);
  const auto server = Serve(served.MakeHandler(), settings);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::int64_t before = ResidentBytes();
  clients.Start(server->port());
  served.engine().WaitForRequests(settings.idle);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double extra_mb = static_cast<double>(ResidentBytes() - before) / 1e6;
  served.engine().SetAdmitting(true);
  const bool complete = clients.Wait();
  fmt::print("idle     {} streams: {:.1f} MB more resident memory with the API (limit 64 MB for 1,000){}\n",
             settings.idle, extra_mb, complete ? "" : "; a client failed");
  return complete && extra_mb * 1000 <= 64.0 * settings.idle;
}

bool ApiPrompt(const Settings& settings, const text::Tokenizer& tokenizer) {
  constexpr int kRounds = 20;
  const std::string text = MixedText(1 << 20);
  std::vector<std::unique_ptr<ClientProcess>> clients;
  for (int i = 0; i < kRounds; ++i) {
    clients.push_back(
        std::make_unique<ClientProcess>(LoadPlan{.connections = 1, .request = ChatRequest(text, 5), .until = {}}));
  }
  ServedEngine served(tokenizer, {.max_seq_len = 4 << 20});
  std::mutex mutex;
  std::vector<Clock::time_point> accepted;
  const net::Handler handler = served.MakeHandler();
  const auto server = Serve(
      [&](const std::shared_ptr<const net::HttpRequest>& request, const std::shared_ptr<net::Responder>& responder) {
        {
          const std::lock_guard lock(mutex);
          accepted.push_back(request->accepted);
        }
        handler(request, responder);
      },
      settings);
  bool complete = true;
  const double cpu = ProcessSeconds();
  for (const auto& client : clients) {
    client->Start(server->port());
    complete = client->Wait() && complete;
  }
  // One thread does the work, so this is the time on an idle machine.
  const double cost_ms = (ProcessSeconds() - cpu) / kRounds * 1e3;
  const std::vector<Clock::time_point> submitted = served.engine().submitted();
  CHECK(submitted.size() == accepted.size()) << "a request was refused";
  std::vector<double> times_ms;
  for (std::size_t i = 0; i < accepted.size(); ++i) {
    times_ms.push_back(std::chrono::duration<double>(submitted[i] - accepted[i]).count() * 1e3);
  }
  std::sort(times_ms.begin(), times_ms.end());
  fmt::print(
      "prompt   1 MB ({} tokens): {:.1f} ms of processor time with the API (limit 50 ms), from accept to submit {:.1f} "
      "ms at "
      "best and {:.1f} ms in the middle of {}{}\n",
      served.engine().prompt_tokens(), cost_ms, times_ms.front(), times_ms[times_ms.size() / 2], times_ms.size(),
      complete ? "" : "; a client failed");
  return complete && std::min(cost_ms, times_ms.front()) <= 50;
}

}  // namespace

bool ApiCosts(const Settings& settings) {
  const auto tokenizer = text::Tokenizer::Load(settings.tokenizer);
  if (!tokenizer) {
    fmt::print(stderr, "{}\n", tokenizer.error().ToString());
    return false;
  }
  bool good = ApiStreams(settings, *tokenizer);
  good = ApiIdle(settings, *tokenizer) && good;
  return ApiPrompt(settings, *tokenizer) && good;
}

}  // namespace galley::bench
