// SPDX-License-Identifier: Apache-2.0
// Which pages of browsers may call the server. Immutable, shared by threads. A request without an Origin field is not
// from a page, or from one of our own, and is none of this file's business.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "galley/net/http_message.h"

namespace galley::net {

class CorsPolicy {
 public:
  // Origins as browsers send them, "https://chat.example.org:8443"; "*" is all.
  explicit CorsPolicy(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  struct Decision {
    std::optional<HttpResponse> answer;  // what to send instead of asking the handler: a preflight's answer, or 403
    Headers headers;                     // to be added to whatever is sent
  };
  [[nodiscard]] Decision Decide(const HttpRequest& request) const;

 private:
  [[nodiscard]] bool Listed(std::string_view origin) const;
  std::vector<std::string> origins_;
};

}  // namespace galley::net
