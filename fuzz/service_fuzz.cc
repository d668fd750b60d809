// SPDX-License-Identifier: Apache-2.0
// Any bytes as the body of each POST endpoint, over an engine that says what stands behind the body's first NUL: one
// answer comes, never 500, errors are JSON, and a stream ends with exactly one of its API's ends.
#include <array>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "galley/protocol/json.h"
#include "galley/serve/fake_engine.h"
#include "galley/serve/service.h"
#include "input.h"

namespace {

using galley::fuzz::Require;
using galley::serve::FakeEngine;
using galley::serve::Service;
namespace net = galley::net;

class Collector : public net::Responder {
 public:
  void Send(net::HttpResponse response) override {
    std::lock_guard lock(mutex_);
    Require(!streaming_ && !ended_);
    response_ = std::move(response);
    ended_ = true;
    changed_.notify_all();
  }
  void StartStream(int status, net::Headers headers) override {
    std::lock_guard lock(mutex_);
    Require(!streaming_ && !ended_);
    streaming_ = true;
    response_.status = status;
    response_.headers = std::move(headers);
  }
  bool Write(std::string bytes) override {
    std::lock_guard lock(mutex_);
    Require(streaming_ && !ended_);
    response_.body += bytes;
    return true;
  }
  void Finish() override {
    std::lock_guard lock(mutex_);
    Require(streaming_ && !ended_);
    ended_ = true;
    changed_.notify_all();
  }
  void OnClosed(std::function<void()> closed) override {
    std::lock_guard lock(mutex_);
    closed_ = std::move(closed);
  }
  [[nodiscard]] bool closed() const override { return false; }

  const net::HttpResponse& Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
    return response_;
  }
  [[nodiscard]] bool streaming() const { return streaming_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  net::HttpResponse response_;
  bool streaming_ = false;
  bool ended_ = false;
  std::function<void()> closed_;
};

constexpr std::array<std::string_view, 9> kPaths = {
    "/v1/chat/completions",      "/v1/completions", "/v1/responses", "/v1/messages",
    "/v1/messages/count_tokens", "/tokenize",       "/detokenize",   "/flush_cache",
    "/reset_prefix_cache"};
// How a stream of the first four paths may end.
constexpr std::array<std::array<std::string_view, 3>, 4> kEnds = {
    {{"data: [DONE]\n", "data: {\"error\":", ""},
     {"data: [DONE]\n", "data: {\"error\":", ""},
     {"event: response.completed\n", "event: response.incomplete\n", "event: response.failed\n"},
     {"event: message_stop\n", "event: error\n", ""}}};

// Lines of the stream that begin with `end`.
int CountOf(std::string_view stream, std::string_view end) {
  int count = 0;
  for (std::size_t at = 0; !end.empty() && at < stream.size();) {
    if (stream.substr(at).starts_with(end)) ++count;
    const std::size_t line_end = stream.find('\n', at);
    at = line_end == std::string_view::npos ? stream.size() : line_end + 1;
  }
  return count;
}

// What the engine is to say in this run, and the service over it. They live as long as the process.
struct Fixture {
  Fixture() {
    auto loaded = galley::text::Tokenizer::Load(GALLEY_SOURCE_DIR "/models/nano/tokenizer.json");
    Require(loaded.has_value());
    tokenizer = std::make_unique<galley::text::Tokenizer>(std::move(*loaded));
    galley::serve::FakeEngineOptions engine_options;
    engine_options.max_seq_len = 1024;
    engine_options.say = [this](const galley::engine::EngineRequest&, int) {
      return galley::serve::Saying(*tokenizer, says);
    };
    engine = std::make_unique<FakeEngine>(*tokenizer, std::move(engine_options));
    galley::serve::ServiceOptions options;
    options.model_names = {"m"};
    options.n_max = 4;
    options.workers = 1;
    options.log_prompts = true;
    options.log = [](const std::string& line) { Require(galley::protocol::ParseJson(line).has_value()); };
    service = std::make_unique<Service>(*engine, std::move(options), *galley::serve::Keys::Create({}));
  }

  std::string says;
  std::unique_ptr<galley::text::Tokenizer> tokenizer;
  std::unique_ptr<FakeEngine> engine;
  std::unique_ptr<Service> service;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static auto* fixture = new Fixture;
  if (size < 1) return 0;
  const std::size_t path = data[0] % kPaths.size();
  const std::string_view input = galley::fuzz::Text(data + 1, size - 1);
  const std::size_t body_end = std::min(input.find('\0'), input.size());
  fixture->says = input.substr(std::min(body_end + 1, input.size()));
  // What a tokenizer refuses is no output of a model.
  if (!fixture->tokenizer->Encode(fixture->says, galley::text::AddedTokens::kMatch)) fixture->says = "x";

  auto request = std::make_shared<net::HttpRequest>();
  request->method = "POST";
  request->path = kPaths[path];
  request->body = input.substr(0, body_end);
  auto reply = std::make_shared<Collector>();
  fixture->service->Handle(request, reply);
  const net::HttpResponse& response = reply->Wait();
  Require(response.status == 200 || (response.status >= 400 && response.status < 500));
  if (!reply->streaming()) {
    Require(galley::protocol::ParseJson(response.body).has_value());
  } else {
    Require(path < kEnds.size());
    int ends = 0;
    for (const std::string_view end : kEnds[path]) ends += CountOf(response.body, end);
    Require(ends == 1);
  }
  Require(fixture->service->WaitIdle(std::chrono::seconds(10)));
  return 0;
}
