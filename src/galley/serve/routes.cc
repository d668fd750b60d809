// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/routes.h"

#include <array>

namespace galley::serve {
namespace {

constexpr Route kRoutes[] = {
    {"POST", "/chat/completions", Endpoint::kChat, true},
    {"POST", "/completions", Endpoint::kCompletions, true},
    {"POST", "/responses", Endpoint::kResponses, true},
    {"POST", "/responses/input_tokens", Endpoint::kInputTokens, true},
    {"GET", "/responses/*", Endpoint::kStoredResponse, true},
    {"DELETE", "/responses/*", Endpoint::kStoredResponse, true},
    {"POST", "/messages", Endpoint::kMessages, true},
    {"POST", "/messages/count_tokens", Endpoint::kCountTokens, true},
    {"GET", "/models", Endpoint::kModels, true},
    {"GET", "/models/*", Endpoint::kModel, true},
    {"POST", "/tokenize", Endpoint::kTokenize, true},
    {"POST", "/detokenize", Endpoint::kDetokenize, true},
    {"GET", "/health", Endpoint::kHealth, false, true},
    {"GET", "/live", Endpoint::kLive, false, true},
    {"GET", "/ready", Endpoint::kReady, false, true},
    {"GET", "/ping", Endpoint::kPing, false, true},
    {"POST", "/ping", Endpoint::kPing, false, true},
    {"GET", "/metrics", Endpoint::kMetrics, false, true},
    {"GET", "/version", Endpoint::kVersion, false, true},
    {"GET", "/server_info", Endpoint::kServerInfo},
    {"GET", "/get_server_info", Endpoint::kServerInfo},
    {"POST", "/flush_cache", Endpoint::kClearCache},
    {"GET", "/flush_cache", Endpoint::kClearCache},
    {"POST", "/reset_prefix_cache", Endpoint::kClearCache},
    {"GET", "/load", Endpoint::kLoad},
    {"GET", "/stats", Endpoint::kStats},
    {"GET", "/", Endpoint::kPage, false, true},
};

constexpr std::array<std::string_view, 2> kOuter = {"/anthropic", "/beta"};
constexpr std::string_view kInner = "/v1";

// Without `prefix` when it stands as a whole segment at the front.
std::string_view Without(std::string_view path, std::string_view prefix) {
  const bool there = path.starts_with(prefix) && path.size() > prefix.size() && path[prefix.size()] == '/';
  return there ? path.substr(prefix.size()) : path;
}

std::string_view WithoutPrefixes(std::string_view path) {
  for (const std::string_view outer : kOuter) {
    const std::string_view rest = Without(path, outer);
    if (rest.size() != path.size()) return Without(rest, kInner);
  }
  return Without(path, kInner);
}

// Whether `path` is the route's; `rest` becomes what "*" stands for.
bool PathFits(const Route& route, std::string_view path, std::string_view& rest) {
  if (!route.path.ends_with("/*")) return route.path == path;
  const std::string_view head = route.path.substr(0, route.path.size() - 1);
  if (!path.starts_with(head) || path.size() == head.size()) return false;
  rest = path.substr(head.size());
  return true;
}

}  // namespace

std::span<const Route> Routes() {
  return kRoutes;
}

Match FindRoute(std::string_view method, std::string_view path) {
  const std::string_view wanted = method == "HEAD" ? "GET" : method;
  // One slash at the end is a client's habit, not another path.
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const std::string_view bare = WithoutPrefixes(path);
  Match match{.status = 404};
  for (const Route& route : kRoutes) {
    std::string_view rest;
    if (!PathFits(route, route.api ? bare : path, rest)) continue;
    if (route.method == wanted) return {.route = &route, .rest = rest};
    match.status = 405;
    if (!match.allowed.empty()) match.allowed += ", ";
    match.allowed += route.method;
  }
  return match;
}

ErrorStyle StyleOf(std::string_view path) {
  const std::string_view bare = WithoutPrefixes(path);
  const bool messages = bare == "/messages" || bare.starts_with("/messages/") || path.starts_with("/anthropic/");
  return messages ? ErrorStyle::kMessages : ErrorStyle::kOpenAi;
}

}  // namespace galley::serve
