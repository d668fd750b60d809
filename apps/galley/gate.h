// SPDX-License-Identifier: Apache-2.0
// What a server answers before its model is loaded. Owned by `galley serve`; any thread may call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "galley/net/http_message.h"
#include "galley/net/http_server.h"
#include "galley/serve/service.h"
#include "loading.h"

namespace galley::app {

// Stands for the service until it is there: the server listens before a large model is loaded, so that a port that is
// taken is known at once and nobody else takes it meanwhile.
class Gate {
 public:
  // How far loading has got, for those who ask; returns what LoadMeter::Note does.
  std::optional<LoadState> Note(std::uint64_t done, std::uint64_t total);
  void Open(serve::Service& service) { service_ = &service; }

  void Handle(const std::shared_ptr<const net::HttpRequest>& request, const std::shared_ptr<net::Responder>& reply);
  void NoteRejection(std::string_view peer, int status, std::string_view reason) {
    if (serve::Service* service = service_) service->NoteRejection(peer, status, reason);
  }
  // The answer to a request for `path` while the model is loaded: 503, for probes with how far it is; /live is 200.
  [[nodiscard]] net::HttpResponse Answer(std::string_view path) const;

 private:
  std::atomic<serve::Service*> service_ = nullptr;
  mutable std::mutex mutex_;  // guards the meter
  LoadMeter meter_;
};

}  // namespace galley::app
