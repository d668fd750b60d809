// SPDX-License-Identifier: Apache-2.0
// Threads that turn tokens into events. Jobs of one exchange
// never run at the same time because the exchange posts itself once (exchange.h). Post may be called from any thread;
// the destructor runs what is queued and joins.
#pragma once

#include <functional>
#include <memory>

namespace galley::serve {

class WorkerPool {
 public:
  using Job = std::function<void()>;

  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void Post(Job job);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace galley::serve
