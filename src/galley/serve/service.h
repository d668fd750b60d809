// SPDX-License-Identifier: Apache-2.0
// Galley's HTTP APIs over an engine, without the HTTP: a request and a reply go in, and whatever endpoint the path
// names answers. Handle may be called from any thread and from many at once; reading and tokenizing happen on that
// thread, tokens are turned into events on the service's own workers. Owns nothing but its workers; engine, and what
// the options refer to, outlive it.
//
// Shutting down goes: SetReady(false), some grace in which traffic is sent elsewhere, RefuseNew, WaitIdle, Shutdown.
#pragma once

#include <chrono>
#include <memory>

#include "galley/serve/auth.h"
#include "galley/serve/engine_port.h"
#include "galley/serve/service_options.h"
#include "galley/serve/transport.h"

namespace galley::serve {

class Service {
 public:
  Service(EnginePort& engine, ServiceOptions options, Keys keys);
  // Shutdown, and waits until the engine has given up everything of this service.
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  void Handle(const std::shared_ptr<const Request>& request, const std::shared_ptr<Reply>& reply);

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

}  // namespace galley::serve
