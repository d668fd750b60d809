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
    std::shared_ptr<const Request> request;
    std::shared_ptr<Reply> reply;
    Trace trace;
    Headers headers;  // of every response to it
    ErrorStyle style = ErrorStyle::kOpenAi;
    const Route* route = nullptr;
    std::string_view rest{};
    int key = 0;
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
        codec(CodecOptionsOf(options)),
        keys(std::move(given)),
        ids(options.seed),
        metrics(options.model_names.front()),
        encoders(port.tokenizer()),
        pool(std::make_unique<WorkerPool>(options.workers)) {}

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

  // service.cc
  void Dispatch(const Call& call);
  void Answer(const Call& call, Response response);
  void Answer(const Call& call, const ApiError& error);
  void Generate(const Call& call);
  [[nodiscard]] std::shared_ptr<Exchange> Open(const Call& call, std::string_view id_prefix, PreparedRequest prepared);
  void Close(std::uint64_t number);
  void Remember(Recent entry);
  [[nodiscard]] std::string LogLine(const Asked& asked, std::string_view id, std::string_view model, bool stream,
                                    std::int64_t n, std::string_view prompts, const ExchangeReport& report) const;
  [[nodiscard]] int RetryAfter() const;
  [[nodiscard]] PrepareContext Context(text::Encoder& encoder, int key);

  // service_endpoints.cc
  [[nodiscard]] ApiResult<Response> CountTokens(const Call& call);
  [[nodiscard]] ApiResult<Response> Models(const Call& call);
  [[nodiscard]] ApiResult<Response> Model(const Call& call);
  [[nodiscard]] ApiResult<Response> StoredResponse(const Call& call);
  [[nodiscard]] ApiResult<Response> Tokenize(const Call& call);
  [[nodiscard]] ApiResult<Response> Detokenize(const Call& call);
  [[nodiscard]] ApiResult<Response> Live(const Call& call);
  [[nodiscard]] ApiResult<Response> Ready(const Call& call);
  [[nodiscard]] ApiResult<Response> MetricsPage(const Call& call);
  [[nodiscard]] ApiResult<Response> Version(const Call& call);
  [[nodiscard]] ApiResult<Response> ServerInfo(const Call& call);
  [[nodiscard]] ApiResult<Response> ClearCache(const Call& call);
  [[nodiscard]] ApiResult<Response> Load(const Call& call);
  [[nodiscard]] ApiResult<Response> Stats(const Call& call);
  [[nodiscard]] ApiResult<Response> Page(const Call& call);
  [[nodiscard]] protocol::Json ModelJson(const std::string& name) const;
};

}  // namespace galley::serve
