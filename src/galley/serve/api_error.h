// SPDX-License-Identifier: Apache-2.0
// An error as HTTP tells it: one status, and a body in the shape of the API that was called. Plain data.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "galley/base/error.h"
#include "galley/net/http_message.h"
#include "galley/protocol/answer.h"
#include "galley/protocol/request.h"

namespace galley::serve {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param{};                 // member of the body that it is about; "" for none
  std::string code{};                  // "" for the status's usual one
  std::optional<int> retry_after_s{};  // tells the client when to come back
};

template <typename T>
using ApiResult = tl::expected<T, ApiError>;

[[nodiscard]] inline tl::unexpected<ApiError> Refuse(ApiError error) {
  return tl::unexpected<ApiError>(std::move(error));
}

// An error of the engine or the tokenizer. Internal details of our own bugs stay in the log.
[[nodiscard]] ApiError FromError(const Error& error);
[[nodiscard]] ApiError FromError(const protocol::RequestError& error);

// 503 for what comes or is still open while the server shuts down, with the time to come back to its successor.
[[nodiscard]] ApiError ShuttingDown();

// What a client sent, for a message: valid UTF-8, and cut where it is longer than anybody reads.
[[nodiscard]] std::string Shown(std::string_view sent);

// Shape of error bodies: Anthropic's for Messages, OpenAI's for everything else.
enum class ErrorStyle { kOpenAi, kMessages };
[[nodiscard]] net::HttpResponse ErrorResponse(const ApiError& error, ErrorStyle style, std::string_view request_id);
// The error's code, or its status's usual one.
[[nodiscard]] std::string CodeOf(const ApiError& error);
// The same inside a stream that has begun.
[[nodiscard]] protocol::AnswerFailure FailureOf(const ApiError& error);

}  // namespace galley::serve
