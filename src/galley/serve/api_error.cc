// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/api_error.h"

#include <fmt/format.h>

#include "galley/text/utf8.h"

namespace galley::serve {
namespace {

using protocol::Json;

constexpr std::size_t kShownBytesMax = 200;

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

const StatusRow& RowOf(int status) {
  for (const StatusRow& row : kStatuses)
    if (row.status == status) return row;
  return RowOf(status >= 500 ? 500 : 400);
}

}  // namespace

ApiError FromError(const Error& error) {
  const ErrorCodeInfo& info = Info(error.code);
  // 499 is no status to send; a request that its own client cancelled has nobody to read it anyway.
  const int status = error.code == ErrorCode::kCancelled ? 503 : info.http_status;
  return {.status = status, .message = error.ToString(), .param = error.where, .code = std::string(info.label)};
}

ApiError FromError(const protocol::RequestError& error) {
  const std::string message = error.detail.empty() ? error.message : error.message + " " + error.detail;
  return {.status = 400, .message = message, .param = error.param};
}

std::string Shown(std::string_view sent) {
  if (sent.size() <= kShownBytesMax) return text::ReplaceInvalidUtf8(sent);
  // A cut inside a character leaves no broken one behind: its bytes go too.
  std::size_t end = kShownBytesMax;
  while (end > kShownBytesMax - 3 && (static_cast<unsigned char>(sent[end]) & 0xC0) == 0x80) --end;
  return text::ReplaceInvalidUtf8(sent.substr(0, end)) + "…";
}

net::HttpResponse ErrorResponse(const ApiError& error, ErrorStyle style, std::string_view request_id) {
  const StatusRow& row = RowOf(error.status);
  Json body;
  if (style == ErrorStyle::kMessages) {
    body = Json::MakeObject({{"type", "error"},
                             {"error", Json::MakeObject({{"type", row.messages_type}, {"message", error.message}})},
                             {"request_id", request_id}});
  } else {
    const std::string_view code = error.code.empty() ? row.code : std::string_view(error.code);
    body = Json::MakeObject({{"error", Json::MakeObject({{"message", error.message},
                                                         {"type", row.type},
                                                         {"param", error.param.empty() ? Json() : Json(error.param)},
                                                         {"code", code}})}});
  }
  net::HttpResponse response{
      .status = error.status, .headers = {{"content-type", "application/json"}}, .body = DumpJson(body)};
  if (error.retry_after_s) response.headers.Add("retry-after", std::to_string(*error.retry_after_s));
  return response;
}

protocol::AnswerFailure FailureOf(const ApiError& error) {
  const StatusRow& row = RowOf(error.status);
  return {.message = error.message,
          .type = std::string(row.type),
          .messages_type = std::string(row.messages_type),
          .code = error.code.empty() ? std::string(row.code) : error.code};
}

}  // namespace galley::serve
