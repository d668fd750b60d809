// SPDX-License-Identifier: Apache-2.0
#include "gate.h"

#include <chrono>
#include <utility>

namespace galley::app {

using protocol::Json;

std::optional<LoadState> Gate::Note(std::uint64_t done, std::uint64_t total) {
  const std::lock_guard lock(mutex_);
  return meter_.Note(done, total, SecondsNow());
}

void Gate::Handle(const std::shared_ptr<const net::HttpRequest>& request,
                  const std::shared_ptr<net::Responder>& reply) {
  if (serve::Service* service = service_) return service->Handle(request, reply);
  reply->Send(Answer(request->path));
}

net::HttpResponse Gate::Answer(std::string_view path) const {
  if (path == "/live")
    return {.status = 200, .headers = {{"Content-Type", "text/plain; charset=utf-8"}}, .body = "ok\n"};
  const LoadState state = [this] {
    const std::lock_guard lock(mutex_);
    return meter_.state();
  }();
  net::HttpResponse loading;
  if (path == "/health" || path == "/ready") {
    loading = {.status = 503, .headers = {{"Content-Type", "application/json"}}, .body = {}};
    loading.body = DumpJson(ToJson(state, Json::MakeObject({{"status", "loading"}}))) + "\n";
  } else {
    loading = net::ErrorResponse(503, state.total == 0 ? "the model is being loaded" : ToLine(state));
  }
  loading.headers.Add("Retry-After", "5");
  return loading;
}

}  // namespace galley::app
