// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <unordered_map>

#include "galley/protocol/json.h"
#include "galley/serve/service_impl.h"

namespace galley::serve {
namespace {

using protocol::Json;
using protocol::Protocol;

constexpr int kRetryAfterMax = 60;

struct ApiRow {
  Endpoint endpoint;
  Protocol protocol;
  std::string_view id_prefix;
};
constexpr ApiRow kApis[] = {{Endpoint::kChat, Protocol::kChat, "chatcmpl-"},
                            {Endpoint::kCompletions, Protocol::kCompletions, "cmpl-"},
                            {Endpoint::kResponses, Protocol::kResponses, "resp_"},
                            {Endpoint::kMessages, Protocol::kMessages, "msg_"}};

const ApiRow* ApiOf(Endpoint endpoint) {
  for (const ApiRow& row : kApis)
    if (row.endpoint == endpoint) return &row;
  return nullptr;
}

std::int64_t UnixTime() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Json RequestLine(const Trace& trace, std::string_view peer, int key, std::string_view path) {
  Json line = LogHead("request");
  line.Set("request_id", trace.request_id).Set("peer", peer).Set("key", key < 0 ? Json() : Json(key)).Set("path", path);
  if (!trace.traceparent.empty()) line.Set("traceparent", trace.traceparent);
  return line;
}

// What a client sent, where only printable ASCII may stand.
std::string Printable(std::string_view text, std::size_t longest) {
  std::string shown(text.substr(0, longest));
  for (char& c : shown) c = c >= ' ' && c <= '~' ? c : '?';
  return shown;
}

// What the codec changed or left out of a request, in a header: few bodies have room for it.
net::Headers WithWarnings(net::Headers headers, const PreparedRequest& prepared) {
  constexpr std::size_t kLongest = 500;
  std::string text;
  for (const std::string& warning : prepared.prompts.front().parsed->warnings) {
    if (!text.empty()) text += "; ";
    text += warning;
    if (text.size() > kLongest) break;
  }
  if (!text.empty()) headers.Add("x-galley-warning", Printable(text, kLongest));
  return headers;
}

}  // namespace

Json LogHead(std::string_view event) {
  const auto unix_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  return Json::MakeObject({{"time_ms", static_cast<std::int64_t>(unix_ms.count())}, {"event", event}});
}

PrepareContext Service::Impl::Context(text::Encoder& encoder, int key) {
  return {.options = options,
          .codec = codec,
          .tokenizer = engine.tokenizer(),
          .encoder = encoder,
          .engine = engine,
          .max_seq_len = engine.max_seq_len(),
          .eos_id = engine.eos_id(),
          .salt = keys.salt(key),
          .unseeded_seed = ids.NextSeed()};
}

void Service::Impl::Answer(const Call& call, net::HttpResponse response, const ApiError* error) {
  response.headers.Append(call.headers);
  metrics.RecordHttp(call.route == nullptr ? "none" : call.route->path, response.status);
  LogAnswer(call, response.status, error);
  call.reply->Send(std::move(response));
}

void Service::Impl::Answer(const Call& call, const ApiError& error) {
  Answer(call, ErrorResponse(error, call.style, call.trace.request_id), &error);
}

// The line of a request that became no call of the engine. What an error says may quote the request, so it stands there
// only where prompts may.
void Service::Impl::LogAnswer(const Call& call, int status, const ApiError* error) const {
  // Probes and scrapes come every few seconds and say nothing.
  const bool probe = call.route != nullptr && call.route->open;
  if (!options.log || (probe && status < 400)) return;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - call.request->accepted;
  Json line = RequestLine(call.trace, call.request->peer, call.key, Shown(call.request->path));
  line.Set("method", Shown(call.request->method)).Set("status", status).Set("total_ms", Milliseconds(took.count()));
  if (error != nullptr) {
    line.Set("error", CodeOf(*error));
    if (!error->param.empty()) line.Set("param", error->param);
    if (options.log_prompts) line.Set("message", error->message);
  }
  options.log(DumpJson(line));
}

// How long until a place is likely free: everybody in front of the client, each for the mean time of a request.
int Service::Impl::RetryAfter() const {
  const int running = std::max(1, engine.stats().running);
  const double wait_s = metrics.mean_request_s() * static_cast<double>(waiting.load()) / running;
  return std::clamp(static_cast<int>(wait_s) + 1, 1, kRetryAfterMax);
}

void Service::Impl::Generate(const Call& call) {
  const ApiRow& api = *ApiOf(call.route->endpoint);
  if (refusing) {
    metrics.RecordRefusal("draining");
    Answer(call, ShuttingDown());
    return;
  }
  if (waiting >= options.max_queue) {
    metrics.RecordRefusal("queue_full");
    Answer(call, ApiError{.status = 429,
                          .message = fmt::format("{} requests are waiting, as many as --max-queue allows; come back "
                                                 "later",
                                                 waiting.load()),
                          .retry_after_s = RetryAfter()});
    return;
  }
  ApiResult<PreparedRequest> prepared = [&] {
    EncoderPool::Loan encoder = encoders.Lend();
    return PrepareRequest(api.protocol, call.request->body, Context(*encoder, call.key));
  }();
  if (!prepared) {
    metrics.RecordRefusal("invalid");
    Answer(call, prepared.error());
    return;
  }
  const auto exchange = Open(call, api.id_prefix, std::move(*prepared));
  exchange->Start();
}

std::shared_ptr<Exchange> Service::Impl::Open(const Call& call, std::string_view id_prefix, PreparedRequest prepared) {
  std::int64_t choices = 0;
  for (const PreparedPrompt& prompt : prepared.prompts) choices += prompt.request.n;
  std::string prompts;
  for (const PreparedPrompt& prompt : prepared.prompts) prompts += prompt.text;
  const std::uint64_t number = next_number++;
  Exchange::Setting setting{.engine = engine,
                            .pool = *pool,
                            .metrics = metrics,
                            .id = std::string(id_prefix) + ids.Next(),
                            .request_id = call.trace.request_id,
                            .headers = WithWarnings(call.headers, prepared),
                            .fingerprint = "galley-" + options.version,
                            .created_s = UnixTime(),
                            .call_seed = ids.NextSeed(),
                            .keep_output = options.log_prompts,
                            .accepted = call.request->accepted,
                            .admitted = [this] { --waiting; },
                            .answered = {},
                            .retired = [this, number] { Close(number); }};
  // Not the call: it holds the body, which nobody needs while the model writes.
  const Asked asked{.trace = call.trace,
                    .peer = call.request->peer,
                    .path = call.request->path,
                    .route = call.route->path,
                    .key = call.key};
  setting.answered = [this, asked, model = prepared.model, stream = prepared.stream, choices, id = setting.id,
                      prompts = std::move(prompts)](const ExchangeReport& report) {
    metrics.RecordHttp(asked.route, report.status);
    Remember({.id = id, .model = model, .route = std::string(asked.route), .stream = stream, .report = report});
    if (options.log) options.log(LogLine(asked, id, model, stream, choices, prompts, report));
  };
  auto exchange = std::make_shared<Exchange>(std::move(setting), std::move(prepared), call.reply);
  waiting += exchange->submissions();
  std::lock_guard lock(mutex);
  open.emplace(number, exchange);
  return exchange;
}

void Service::Impl::Close(std::uint64_t number) {
  std::lock_guard lock(mutex);
  open.erase(number);
  if (open.empty()) idle.notify_all();
}

void Service::Impl::Remember(Recent entry) {
  std::lock_guard lock(mutex);
  recent.push_back(std::move(entry));
  if (recent.size() > kRecentMax) recent.pop_front();
}

std::string Service::Impl::LogLine(const Asked& asked, std::string_view id, std::string_view model, bool stream,
                                   std::int64_t n, std::string_view prompts, const ExchangeReport& report) const {
  Json line = RequestLine(asked.trace, asked.peer, asked.key, asked.path);
  line.Set("id", id).Set("model", model).Set("stream", stream).Set("n", n).Set("status", report.status);
  line.Set("finish", report.record.reason)
      .Set("prompt_tokens", report.record.prompt_tokens)
      .Set("cached_tokens", report.record.cached_tokens)
      .Set("replayed_tokens", report.replayed_tokens)
      .Set("completion_tokens", report.record.completion_tokens)
      .Set("queue_ms", Milliseconds(report.times.started_s))
      .Set("first_token_ms", Milliseconds(report.times.first_token_s))
      .Set("total_ms", Milliseconds(report.times.end_s));
  if (!report.error.empty()) line.Set("error", report.error);
  if (options.log_prompts) line.Set("prompt", prompts).Set("output", report.output);
  return DumpJson(line);
}

void Service::Impl::Dispatch(const Call& call) {
  if (ApiOf(call.route->endpoint) != nullptr) {
    Generate(call);
    return;
  }
  using Handler = ApiResult<net::HttpResponse> (Impl::*)(const Call& call);
  struct Row {
    Endpoint endpoint;
    Handler handler;
  };
  static constexpr Row kRows[] = {{Endpoint::kCountTokens, &Impl::CountTokens},
                                  {Endpoint::kInputTokens, &Impl::InputTokens},
                                  {Endpoint::kModels, &Impl::Models},
                                  {Endpoint::kModel, &Impl::Model},
                                  {Endpoint::kStoredResponse, &Impl::StoredResponse},
                                  {Endpoint::kTokenize, &Impl::Tokenize},
                                  {Endpoint::kDetokenize, &Impl::Detokenize},
                                  {Endpoint::kHealth, &Impl::Ready},
                                  {Endpoint::kLive, &Impl::Live},
                                  {Endpoint::kReady, &Impl::Ready},
                                  {Endpoint::kPing, &Impl::Live},
                                  {Endpoint::kMetrics, &Impl::MetricsPage},
                                  {Endpoint::kVersion, &Impl::Version},
                                  {Endpoint::kServerInfo, &Impl::ServerInfo},
                                  {Endpoint::kClearCache, &Impl::ClearCache},
                                  {Endpoint::kLoad, &Impl::Load},
                                  {Endpoint::kStats, &Impl::Stats},
                                  {Endpoint::kPage, &Impl::Page}};
  for (const Row& row : kRows) {
    if (row.endpoint != call.route->endpoint) continue;
    ApiResult<net::HttpResponse> response = (this->*row.handler)(call);
    if (response)
      Answer(call, std::move(*response));
    else
      Answer(call, response.error());
    return;
  }
}

Service::Service(EnginePort& engine, ServiceOptions options, Keys keys)
    : impl_(std::make_unique<Impl>(engine, std::move(options), std::move(keys))) {}

// A look at all open requests a few times in the interval: a stream begins at most a quarter of it late.
void Service::Impl::Watch() {
  const auto start_after = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(options.stream_start_s));
  std::unique_lock lock(mutex);
  while (watching) {
    stop_watching.wait_for(lock, start_after / 4);
    std::vector<std::shared_ptr<Exchange>> exchanges;
    for (const auto& [number, exchange] : open) exchanges.push_back(exchange);
    lock.unlock();
    for (const auto& exchange : exchanges) exchange->BeginIfWaiting(std::chrono::steady_clock::now() - start_after);
    exchanges.clear();
    lock.lock();
  }
}

void Service::Impl::StopWatching() {
  {
    std::lock_guard lock(mutex);
    watching = false;
  }
  stop_watching.notify_all();
  if (watcher.joinable()) watcher.join();
}

Service::~Service() {
  impl_->StopWatching();
  RefuseNew();
  Shutdown();
  std::unique_lock lock(impl_->mutex);
  impl_->idle.wait(lock, [this] { return impl_->open.empty(); });
  lock.unlock();
  impl_->pool.reset();
}

void Service::Handle(const std::shared_ptr<const net::HttpRequest>& request,
                     const std::shared_ptr<net::Responder>& reply) {
  Impl::Call call{.request = request, .reply = reply, .trace = TraceOf(request->headers, impl_->ids), .headers = {}};
  call.headers.Add("x-request-id", call.trace.request_id);
  if (!call.trace.traceparent.empty()) call.headers.Add("traceparent", call.trace.traceparent);
  if (!call.trace.tracestate.empty()) call.headers.Add("tracestate", call.trace.tracestate);
  // The list of models has one path for the clients of all APIs; Anthropic's send this header with every request.
  call.style = request->headers.Find("anthropic-version") ? ErrorStyle::kMessages : StyleOf(request->path);
  const Match match = FindRoute(request->method, request->path);
  call.route = match.route;
  call.rest = match.rest;
  const std::optional<int> key = impl_->keys.Check(request->headers);
  if (!key && (match.route == nullptr || !match.route->open)) {
    impl_->metrics.RecordRefusal("key");
    impl_->Answer(call, ApiError{.status = 401,
                                 .message = "no valid API key; send `authorization: Bearer KEY` or `x-api-key: KEY`"});
    return;
  }
  call.key = key.value_or(-1);
  if (match.route == nullptr) {
    if (match.status == 405) call.headers.Add("allow", match.allowed);
    impl_->Answer(
        call, ApiError{.status = match.status,
                       .message = match.status == 405 ? fmt::format("{} takes {}, not {}", Shown(request->path),
                                                                    match.allowed, Shown(request->method))
                                                      : fmt::format("there is nothing at {}", Shown(request->path))});
    return;
  }
  // The body is read as it is: taking packed bytes for JSON would only say that they are none.
  const std::string_view coding = request->headers.Get("content-encoding");
  if (!request->body.empty() && !coding.empty() && coding != "identity") {
    impl_->Answer(call, ApiError{.status = 415,
                                 .message = fmt::format("content-encoding {} is not supported: send the body as it is",
                                                        Printable(coding, 40)),
                                 .code = "unsupported_media_type"});
    return;
  }
  impl_->Dispatch(call);
}

void Service::NoteRejection(std::string_view peer, int status, std::string_view reason) {
  impl_->metrics.RecordHttp("none", status);
  if (!impl_->options.log) return;
  Json line = LogHead("rejected");
  line.Set("peer", peer).Set("status", status).Set("error", reason);
  impl_->options.log(DumpJson(line));
}

void Service::SetReady(bool ready) {
  impl_->ready = ready;
}

void Service::RefuseNew() {
  impl_->ready = false;
  impl_->refusing = true;
}

bool Service::WaitIdle(std::chrono::milliseconds patience) {
  std::unique_lock lock(impl_->mutex);
  return impl_->idle.wait_for(lock, patience, [this] { return impl_->open.empty(); });
}

void Service::Shutdown() {
  std::vector<std::shared_ptr<Exchange>> exchanges;
  {
    std::lock_guard lock(impl_->mutex);
    for (const auto& [number, exchange] : impl_->open) exchanges.push_back(exchange);
  }
  for (const auto& exchange : exchanges) exchange->Shutdown();
}

std::int64_t Service::open_requests() const {
  std::lock_guard lock(impl_->mutex);
  return static_cast<std::int64_t>(impl_->open.size());
}

}  // namespace galley::serve
