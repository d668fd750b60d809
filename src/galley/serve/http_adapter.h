// SPDX-License-Identifier: Apache-2.0
// The service behind the HTTP server: requests of one as requests of the other. No state of its own.
#pragma once

#include "galley/net/http_server.h"
#include "galley/serve/service.h"

namespace galley::serve {

// `service` outlives the server that gets the handler.
[[nodiscard]] net::Handler HandlerOf(Service& service);

}  // namespace galley::serve
