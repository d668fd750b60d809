// SPDX-License-Identifier: Apache-2.0
// Galley's HTTP APIs over an engine: the handler of an HTTP server, but without sockets. A request that was read whole
// goes in, and whatever endpoint its path names answers through the responder. Handle may be called from any thread and
// from many at once; reading and tokenizing happen on that thread, tokens are turned into events on the service's own
// workers. Owns nothing but its workers and a thread that begins the streams of requests that wait for long; the
// engine, and what the options refer to, outlive it.
//
// Shutting down goes: SetReady(false), some grace in which traffic is sent elsewhere, RefuseNew, WaitIdle, Shutdown.
#pragma once

#include <chrono>
#include <memory>
#include <string_view>

#include "galley/net/http_server.h"
#include "galley/protocol/json.h"
#include "galley/serve/auth.h"
#include "galley/serve/engine_port.h"
#include "galley/serve/service_options.h"

namespace galley::serve {

class Service {
 public:
  Service(EnginePort& engine, ServiceOptions options, Keys keys);
  // Shutdown, and waits until the engine has given up everything of this service.
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  void Handle(const std::shared_ptr<const net::HttpRequest>& request, const std::shared_ptr<net::Responder>& reply);

  // A request that the transport answered by itself, for the log and the metrics; ServerOptions::on_rejected.
  void NoteRejection(std::string_view peer, int status, std::string_view reason);

  // What /ready and /health say. Does not refuse anything.
  void SetReady(bool ready);
  // From now on generation requests are told 503.
  void RefuseNew();
  // True: no generation request is open any more. False: the time is over.
  [[nodiscard]] bool WaitIdle(std::chrono::milliseconds patience);
  // Ends whatever is open: each client gets one error.
  void Shutdown();

  [[nodiscard]] std::int64_t open_requests() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// How every line of the log begins.
[[nodiscard]] protocol::Json LogHead(std::string_view event);

}  // namespace galley::serve
