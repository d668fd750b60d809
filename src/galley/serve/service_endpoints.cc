// SPDX-License-Identifier: Apache-2.0
// The endpoints that generate nothing.
#include <fmt/format.h>

#include <algorithm>

#include "galley/base/percent.h"
#include "galley/protocol/json.h"
#include "galley/protocol/shape.h"
#include "galley/serve/foreign_members.h"
#include "galley/serve/number_range.h"
#include "galley/serve/service_impl.h"

namespace galley::serve {
namespace {

using protocol::Json;

net::HttpResponse JsonResponse(const Json& body, int status = 200) {
  return {.status = status, .headers = {{"content-type", "application/json"}}, .body = DumpJson(body)};
}

net::HttpResponse TextResponse(std::string body, std::string_view type, int status = 200) {
  return {.status = status, .headers = {{"content-type", std::string(type)}}, .body = std::move(body)};
}

Json Seconds(double seconds) {
  return seconds < 0 ? Json() : Json(seconds);
}

}  // namespace

ApiResult<net::HttpResponse> Service::Impl::CountTokens(const Call& call) {
  EncoderPool::Loan encoder = encoders.Lend();
  const auto count = CountPromptTokens(protocol::Protocol::kMessages, call.request->body, Context(*encoder, call.key));
  if (!count) return Refuse(count.error());
  return JsonResponse(Json::MakeObject({{"input_tokens", *count}}));
}

ApiResult<net::HttpResponse> Service::Impl::InputTokens(const Call& call) {
  EncoderPool::Loan encoder = encoders.Lend();
  const auto count = CountPromptTokens(protocol::Protocol::kResponses, call.request->body, Context(*encoder, call.key));
  if (!count) return Refuse(count.error());
  return JsonResponse(Json::MakeObject({{"object", "response.input_tokens"}, {"input_tokens", *count}}));
}

Json Service::Impl::ModelJson(const std::string& name) const {
  // The members of OpenAI's API and of Anthropic's; nothing says when a model was made.
  return Json::MakeObject({{"id", name},
                           {"object", "model"},
                           {"type", "model"},
                           {"display_name", name},
                           {"created", 0},
                           {"created_at", "1970-01-01T00:00:00Z"},
                           {"owned_by", "galley"},
                           {"root", options.model_names.front()},
                           {"parent", nullptr},
                           {"max_model_len", engine.max_seq_len()}});
}

ApiResult<net::HttpResponse> Service::Impl::Models(const Call&) {
  Json data(Json::Array{}), models(Json::Array{});
  for (const std::string& name : options.model_names) {
    data.Push(ModelJson(name));
    // Some clients look here instead.
    models.Push(Json::MakeObject({{"name", name}, {"model", name}, {"slug", name}}));
  }
  return JsonResponse(Json::MakeObject({{"object", "list"},
                                        {"data", std::move(data)},
                                        {"first_id", options.model_names.front()},
                                        {"last_id", options.model_names.back()},
                                        {"has_more", false},
                                        {"models", std::move(models)}}));
}

ApiResult<net::HttpResponse> Service::Impl::Model(const Call& call) {
  // SDKs send "org/name" as "org%2Fname".
  const std::string name = DecodePercent(call.rest);
  const auto found = std::find(options.model_names.begin(), options.model_names.end(), name);
  if (found == options.model_names.end()) return Refuse(NoSuchModel(name, options));
  return JsonResponse(ModelJson(*found));
}

ApiResult<net::HttpResponse> Service::Impl::StoredResponse(const Call& call) {
  return Refuse({.status = 404,
                 .message = fmt::format("there is no response {}: this server stores none; send the conversation again",
                                        Shown(call.rest))});
}

ApiResult<Json> Service::Impl::ReadTokensBody(const Call& call) const {
  auto body = ReadObject(call.request->body, options);
  if (!body) return body;
  if (protocol::Get(*body, "model").is_null()) body->Set("model", options.model_names.front());
  if (auto checked = CheckModel(*body, options); !checked) return Refuse(checked.error());
  for (const std::string_view name : {"add_special_tokens", "return_token_strs"}) {
    const Json& value = protocol::Get(*body, name);
    if (!value.is_null() && !value.is_bool())
      return Refuse({.status = 400,
                     .message = fmt::format("{} must be true or false, not {}", name, value.type_name()),
                     .param = std::string(name)});
  }
  return body;
}

ApiResult<net::HttpResponse> Service::Impl::Tokenize(const Call& call) {
  auto body = ReadTokensBody(call);
  if (!body) return Refuse(body.error());
  EncoderPool::Loan encoder = encoders.Lend();
  ApiResult<std::vector<TokenId>> token_ids;
  const Json& prompt = protocol::Get(*body, "prompt");
  if (prompt.is_string()) {
    const Json& add = protocol::Get(*body, "add_special_tokens");
    const bool special = add.is_null() || protocol::IsTrue(add);
    protocol::Prompt plain;
    plain.text = protocol::Text(prompt);
    token_ids = EncodePrompt(special ? protocol::RenderText(plain.text) : plain, *encoder);
  } else if (protocol::Get(*body, "messages").is_array()) {
    if (auto done = TranslateForeign(protocol::Protocol::kChat, *body); !done) return Refuse(done.error());
    const auto parsed = protocol::ConvertBody(protocol::Protocol::kChat, *body, codec);
    if (!parsed) return Refuse(FromError(parsed.error()));
    token_ids = EncodePrompt(protocol::RenderRequest(*parsed, codec), *encoder);
  } else {
    return Refuse({.status = 400, .message = "give `prompt`, a text, or `messages`, a chat", .param = "prompt"});
  }
  if (!token_ids) return Refuse(token_ids.error());
  Json answer = Json::MakeObject({{"count", static_cast<std::int64_t>(token_ids->size())},
                                  {"max_model_len", engine.max_seq_len()},
                                  {"tokens", Json(Json::Array(token_ids->begin(), token_ids->end()))}});
  if (protocol::IsTrue(protocol::Get(*body, "return_token_strs"))) {
    Json spellings(Json::Array{});
    for (const TokenId id : *token_ids) spellings.Push(Json(engine.tokenizer().Spelling(id).value_or("")));
    answer.Set("token_strs", std::move(spellings));
  }
  return JsonResponse(answer);
}

ApiResult<net::HttpResponse> Service::Impl::Detokenize(const Call& call) {
  const auto body = ReadTokensBody(call);
  if (!body) return Refuse(body.error());
  const Json& tokens = protocol::Get(*body, "tokens");
  if (!tokens.is_array())
    return Refuse({.status = 400, .message = "tokens: must be a list of token ids", .param = "tokens"});
  std::vector<TokenId> token_ids;
  const NumberRange range{.name = "tokens", .low = 0, .high = engine.tokenizer().vocab_size() - 1.0, .whole = true};
  for (const Json& token : protocol::Elements(tokens)) {
    const std::optional<double> id = range.Read(token);
    if (!id)
      return Refuse({.status = 400,
                     .message = fmt::format("tokens: {} is not an id in [0, {})", DumpJson(token),
                                            engine.tokenizer().vocab_size()),
                     .param = "tokens"});
    token_ids.push_back(static_cast<TokenId>(*id));
  }
  const auto text = engine.tokenizer().Decode(token_ids);
  if (!text) return Refuse(FromError(text.error()));
  return JsonResponse(Json::MakeObject({{"prompt", *text}, {"text", *text}}));
}

ApiResult<net::HttpResponse> Service::Impl::Live(const Call&) {
  return TextResponse("ok\n", "text/plain; charset=utf-8");
}

ApiResult<net::HttpResponse> Service::Impl::Ready(const Call&) {
  if (ready) return TextResponse("ok\n", "text/plain; charset=utf-8");
  return Refuse(ShuttingDown());
}

ApiResult<net::HttpResponse> Service::Impl::MetricsPage(const Call&) {
  Gauges gauges{.engine = engine.stats(),
                .max_seq_len = engine.max_seq_len(),
                .prefix_cache = options.prefix_cache,
                .draining = !ready};
  {
    std::lock_guard lock(mutex);
    gauges.open_requests = static_cast<std::int64_t>(open.size());
  }
  return TextResponse(metrics.Render(gauges), "text/plain; version=0.0.4; charset=utf-8");
}

ApiResult<net::HttpResponse> Service::Impl::Version(const Call&) {
  return JsonResponse(Json::MakeObject({{"version", options.version}, {"server", "galley"}}));
}

ApiResult<net::HttpResponse> Service::Impl::ServerInfo(const Call&) {
  const auto fixed = protocol::ParseJson(options.info.empty() ? "{}" : options.info);
  Json info = fixed && fixed->is_object() ? *fixed : Json(Json::Object{});
  info.Set("version", options.version).Set("model", options.model_names.front());
  Json names(Json::Array{});
  for (const std::string& name : options.model_names) names.Push(Json(name));
  info.Set("served_model_names", std::move(names)).Set("max_model_len", engine.max_seq_len());
  info.Set("max_queue", options.max_queue).Set("workers", options.workers);
  return JsonResponse(info);
}

ApiResult<net::HttpResponse> Service::Impl::ClearCache(const Call&) {
  engine.ClearCache();
  return JsonResponse(Json::MakeObject({{"success", true}}));
}

ApiResult<net::HttpResponse> Service::Impl::Load(const Call&) {
  std::lock_guard lock(mutex);
  return JsonResponse(Json::MakeObject({{"server_load", static_cast<std::int64_t>(open.size())}}));
}

ApiResult<net::HttpResponse> Service::Impl::Stats(const Call&) {
  const engine::EngineStats stats = engine.stats();
  Json list(Json::Array{});
  std::lock_guard lock(mutex);
  for (const Recent& entry : recent) {
    const ExchangeReport& report = entry.report;
    list.Push(Json::MakeObject({{"id", entry.id},
                                {"model", entry.model},
                                {"route", entry.route},
                                {"stream", entry.stream},
                                {"finish", report.record.reason},
                                {"prompt_tokens", report.record.prompt_tokens},
                                {"cached_tokens", report.record.cached_tokens},
                                {"completion_tokens", report.record.completion_tokens},
                                {"queue_s", Seconds(report.times.started_s)},
                                {"first_token_s", Seconds(report.times.first_token_s)},
                                {"total_s", Seconds(report.times.end_s)}}));
  }
  return JsonResponse(Json::MakeObject({{"model", options.model_names.front()},
                                        {"version", options.version},
                                        {"ready", ready.load()},
                                        {"open", static_cast<std::int64_t>(open.size())},
                                        {"running", stats.running},
                                        {"waiting", stats.waiting},
                                        {"blocks_total", stats.blocks_total},
                                        {"blocks_active", stats.blocks_active},
                                        {"blocks_cached", stats.blocks_cached},
                                        {"recent", std::move(list)}}));
}

ApiResult<net::HttpResponse> Service::Impl::Page(const Call&) {
  if (options.page.empty()) return Refuse({.status = 404, .message = "this build has no page"});
  return TextResponse(options.page, "text/html; charset=utf-8");
}

}  // namespace galley::serve
