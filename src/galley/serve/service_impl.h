// SPDX-License-Identifier: Apache-2.0
// What a Service consists of. Private to service.cc, which takes requests and generates, and service_endpoints.cc,
// which has the small endpoints.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "galley/serve/encoder_pool.h"
#include "galley/serve/exchange.h"
#include "galley/serve/metrics.h"
#include "galley/serve/prepare.h"
#include "galley/serve/routes.h"
#include "galley/serve/service.h"
#include "galley/serve/trace.h"
#include "galley/serve/worker_pool.h"

namespace galley::serve {

inline constexpr std::size_t kRecentMax = 64;

struct Service::Impl {
  // One HTTP request on its way.
  struct Call {
    std::shared_ptr<const net::HttpRequest> request;
    std::shared_ptr<net::Responder> reply;
    Trace trace;
    net::Headers headers;  // of every response to it
    ErrorStyle style = ErrorStyle::kOpenAi;
    const Route* route = nullptr;
    std::string_view rest{};
    int key = -1;  // place among the keys; -1: none was right
  };
  // What the log says of a request that became a call of the engine.
  struct Asked {
    Trace trace;
    std::string peer;
    std::string path;
    std::string_view route;  // as in the table
    int key = 0;
  };
  // A request that has ended, for the page.
  struct Recent {
    std::string id;
    std::string model;
    std::string route;
    bool stream = false;
    ExchangeReport report;
  };

  Impl(EnginePort& port, ServiceOptions in, Keys given)
      : engine(port),
        options(std::move(in)),
        codec(CodecOptionsOf(options, port.max_seq_len())),
        keys(std::move(given)),
        ids(options.seed),
        metrics(options.model_names.front()),
        encoders(port.tokenizer()),
        pool(std::make_unique<WorkerPool>(options.workers)) {
    watching = options.stream_start_s > 0;
    if (watching) watcher = std::thread([this] { Watch(); });
  }

  EnginePort& engine;
  const ServiceOptions options;
  const protocol::CodecOptions codec;
  const Keys keys;
  IdSource ids;
  Metrics metrics;
  EncoderPool encoders;
  std::unique_ptr<WorkerPool> pool;
  std::atomic<bool> ready = true;
  std::atomic<bool> refusing = false;
  std::atomic<std::int64_t> waiting = 0;  // submissions that the engine has not admitted
  std::atomic<std::uint64_t> next_number = 0;

  mutable std::mutex mutex;
  std::condition_variable idle;
  std::unordered_map<std::uint64_t, std::shared_ptr<Exchange>> open;  // guarded by mutex, as is the next
  std::deque<Recent> recent;

  // Begins streams whose requests wait for long; its own thread, where that is wanted.
  std::condition_variable stop_watching;
  bool watching = false;  // guarded by mutex
  std::thread watcher;

  // service.cc
  void Watch();
  void StopWatching();
  void Dispatch(const Call& call);
  void Answer(const Call& call, net::HttpResponse response, const ApiError* error = nullptr);
  void Answer(const Call& call, const ApiError& error);
  void LogAnswer(const Call& call, int status, const ApiError* error) const;
  void Generate(const Call& call);
  [[nodiscard]] std::shared_ptr<Exchange> Open(const Call& call, std::string_view id_prefix, PreparedRequest prepared);
  void Close(std::uint64_t number);
  void Remember(Recent entry);
  [[nodiscard]] std::string LogLine(const Asked& asked, std::string_view id, std::string_view model, bool stream,
                                    std::int64_t n, std::string_view prompts, const ExchangeReport& report) const;
  [[nodiscard]] int RetryAfter() const;
  [[nodiscard]] PrepareContext Context(text::Encoder& encoder, int key);

  // service_endpoints.cc
  [[nodiscard]] ApiResult<net::HttpResponse> CountTokens(const Call& call);
  [[nodiscard]] ApiResult<net::HttpResponse> InputTokens(const Call& call);
  [[nodiscard]] ApiResult<net::HttpResponse> Models(const Call& call);
  [[nodiscard]] ApiResult<net::HttpResponse> Model(const Call& call);
  [[nodiscard]] ApiResult<net::HttpResponse> StoredResponse(const Call& call);
  [[nodiscard]] ApiResult<net::HttpResponse> Tokenize(const Call& call);
  [[nodiscard]] ApiResult<net::HttpResponse> Detokenize(const Call& call);
  [[nodiscard]] ApiResult<net::HttpResponse> Live(const Call& call);
  [[nodiscard]] ApiResult<net::HttpResponse> Ready(const Call& call);
  [[nodiscard]] ApiResult<net::HttpResponse> MetricsPage(const Call& call);
  [[nodiscard]] ApiResult<net::HttpResponse> Version(const Call& call);
  [[nodiscard]] ApiResult<net::HttpResponse> ServerInfo(const Call& call);
  [[nodiscard]] ApiResult<net::HttpResponse> ClearCache(const Call& call);
  [[nodiscard]] ApiResult<net::HttpResponse> Load(const Call& call);
  [[nodiscard]] ApiResult<net::HttpResponse> Stats(const Call& call);
  [[nodiscard]] ApiResult<net::HttpResponse> Page(const Call& call);
  // The body of /tokenize or /detokenize, whose model is one that there is.
  [[nodiscard]] ApiResult<protocol::Json> ReadTokensBody(const Call& call) const;
  [[nodiscard]] protocol::Json ModelJson(const std::string& name) const;
};

}  // namespace galley::serve
