// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/api_error.h"

#include <fmt/format.h>

#include <utility>

#include "galley/base/utf8_cut.h"
#include "galley/text/utf8.h"

namespace galley::serve {
namespace {

using protocol::Json;

constexpr std::size_t kShownBytesMax = 200;
constexpr std::size_t kMessageBytesMax = 2000;

struct StatusRow {
  int status;
  std::string_view type;           // OpenAI's and DeepSeek's word
  std::string_view code;           // usual one
  std::string_view messages_type;  // Anthropic's word
};

constexpr StatusRow kStatuses[] = {
    {400, "invalid_request_error", "invalid_request_error", "invalid_request_error"},
    {401, "authentication_error", "invalid_api_key", "authentication_error"},
    {403, "permission_error", "permission_denied", "permission_error"},
    {404, "not_found_error", "not_found", "not_found_error"},
    {405, "invalid_request_error", "method_not_allowed", "invalid_request_error"},
    {408, "timeout_error", "timeout", "api_error"},
    {413, "invalid_request_error", "request_too_large", "request_too_large"},
    {415, "invalid_request_error", "unsupported_media_type", "invalid_request_error"},
    {429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_error"},
    {500, "server_error", "internal", "api_error"},
    {503, "service_unavailable_error", "service_unavailable", "overloaded_error"},
    {504, "timeout_error", "deadline", "api_error"},
};

// The engine's fields, and what clients call them.
constexpr std::pair<std::string_view, std::string_view> kMembers[] = {{"prompt_ids", "prompt"},
                                                                      {"stop_ids", "stop_token_ids"},
                                                                      {"banned_words", "bad_words"},
                                                                      {"allowed_ids", "allowed_token_ids"},
                                                                      {"banned_ids", "logit_bias"}};

const StatusRow& RowOf(int status) {
  for (const StatusRow& row : kStatuses)
    if (row.status == status) return row;
  return RowOf(status >= 500 ? 500 : 400);
}

// Valid UTF-8, and cut where it is longer.
std::string CutTo(std::string_view text, std::size_t bytes_max) {
  const std::string shown = text::ReplaceInvalidUtf8(CutUtf8(text, bytes_max));
  return text.size() <= bytes_max ? shown : shown + "…";
}

}  // namespace

ApiError FromError(const Error& error) {
  const ErrorCodeInfo& info = Info(error.code);
  // 499 is no status to send; a request that its own client cancelled has nobody to read it anyway.
  const int status = error.code == ErrorCode::kCancelled ? 503 : info.http_status;
  Error told = error;
  for (const auto& [field, member] : kMembers)
    if (error.where == field) told.where = member;
  // What is wrong with a request has one code, wherever it was found.
  const std::string_view code = error.code == ErrorCode::kInvalidArgument ? "" : info.label;
  return {.status = status, .message = told.ToString(), .param = told.where, .code = std::string(code)};
}

ApiError FromError(const protocol::RequestError& error) {
  const std::string message = error.detail.empty() ? error.message : error.message + " " + error.detail;
  return {.status = 400, .message = message, .param = error.param};
}

ApiError ShuttingDown() {
  return {.status = 503, .message = "the server is shutting down", .retry_after_s = 5};
}

std::string Shown(std::string_view sent) {
  return CutTo(sent, kShownBytesMax);
}

std::string CodeOf(const ApiError& error) {
  return error.code.empty() ? std::string(RowOf(error.status).code) : error.code;
}

net::HttpResponse ErrorResponse(const ApiError& error, ErrorStyle style, std::string_view request_id) {
  const StatusRow& row = RowOf(error.status);
  // It may quote what the client sent.
  const std::string message = CutTo(error.message, kMessageBytesMax);
  Json body;
  if (style == ErrorStyle::kMessages) {
    body = Json::MakeObject({{"type", "error"},
                             {"error", Json::MakeObject({{"type", row.messages_type}, {"message", message}})},
                             {"request_id", request_id}});
  } else {
    body = Json::MakeObject({{"error", Json::MakeObject({{"message", message},
                                                         {"type", row.type},
                                                         {"param", error.param.empty() ? Json() : Json(error.param)},
                                                         {"code", CodeOf(error)}})}});
  }
  net::HttpResponse response{
      .status = error.status, .headers = {{"content-type", "application/json"}}, .body = DumpJson(body)};
  if (error.status == 401) response.headers.Add("www-authenticate", "Bearer");
  if (error.retry_after_s) response.headers.Add("retry-after", std::to_string(*error.retry_after_s));
  return response;
}

protocol::AnswerFailure FailureOf(const ApiError& error) {
  const StatusRow& row = RowOf(error.status);
  return {.message = error.message,
          .type = std::string(row.type),
          .messages_type = std::string(row.messages_type),
          .code = CodeOf(error)};
}

}  // namespace galley::serve
