// SPDX-License-Identifier: Apache-2.0
// Method and path → what is asked for. One table; the API paths also answer under the prefixes that clients of
// DeepSeek, OpenAI and Anthropic put in front of them. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "galley/serve/api_error.h"

namespace galley::serve {

enum class Endpoint {
  kChat,
  kCompletions,
  kResponses,
  kMessages,
  kCountTokens,
  kInputTokens,
  kModels,
  kModel,  // one model; the rest of the path is its name
  kStoredResponse,
  kTokenize,
  kDetokenize,
  kHealth,
  kLive,
  kReady,
  kPing,
  kMetrics,
  kVersion,
  kServerInfo,
  kClearCache,
  kLoad,
  kStats,
  kPage,
};

struct Route {
  std::string_view method;
  std::string_view path;  // without prefix; a path that ends in "/*" takes one more segment
  Endpoint endpoint;
  bool api = false;   // answers under the prefixes too
  bool open = false;  // needs no key
};
[[nodiscard]] std::span<const Route> Routes();

struct Match {
  const Route* route = nullptr;  // null: `status` says why
  std::string_view rest{};       // what "*" stands for
  int status = 200;              // 404 or 405
  std::string allowed{};         // methods of that path, for 405: "GET, POST"
};
// HEAD is answered like GET; the transport leaves the body out.
[[nodiscard]] Match FindRoute(std::string_view method, std::string_view path);

// The shape of errors under this path, whether it exists or not.
[[nodiscard]] ErrorStyle StyleOf(std::string_view path);

}  // namespace galley::serve
