// SPDX-License-Identifier: Apache-2.0
#include "galley/net/cors.h"

#include <algorithm>

namespace galley::net {
namespace {

// A page that came from this very server: its origin is a scheme in front of what the client calls our host.
bool SameHost(std::string_view origin, std::string_view host) {
  const std::size_t colon = origin.find("://");
  return colon != std::string_view::npos && EqualsIgnoreCase(origin.substr(colon + 3), host);
}

}  // namespace

bool CorsPolicy::Listed(std::string_view origin) const {
  return std::any_of(origins_.begin(), origins_.end(),
                     [origin](const std::string& entry) { return entry == "*" || EqualsIgnoreCase(entry, origin); });
}

CorsPolicy::Decision CorsPolicy::Decide(const HttpRequest& request) const {
  Decision decision;
  const auto origin = request.headers.Find("Origin");
  if (!origin) return decision;
  if (!Listed(*origin)) {
    // A browser would send such a request all the same and only hide the answer from the page, so that any site could
    // spend the server's time.
    if (!SameHost(*origin, request.headers.Get("Host"))) {
      decision.answer =
          ErrorResponse(403, "pages of this origin may not call this server; --cors-origin lists those that may");
    }
    return decision;
  }
  decision.headers = {{"Access-Control-Allow-Origin", std::string(*origin)},
                      {"Vary", "Origin"},
                      {"Access-Control-Expose-Headers", "x-request-id, x-galley-warning, retry-after"}};
  if (request.method != "OPTIONS" || !request.headers.Find("Access-Control-Request-Method")) return decision;
  HttpResponse preflight{.status = 204, .headers = {}, .body = {}};
  preflight.headers.Add("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE, OPTIONS");
  if (const auto asked = request.headers.Find("Access-Control-Request-Headers")) {
    preflight.headers.Add("Access-Control-Allow-Headers", std::string(*asked));
  }
  preflight.headers.Add("Access-Control-Max-Age", "600");
  decision.answer = std::move(preflight);
  return decision;
}

}  // namespace galley::net
