// SPDX-License-Identifier: Apache-2.0
// A fixed set of worker threads that run one loop at a time. Owned by whoever runs the compute (a backend); ParallelFor
// is called by one thread at a time, blocks until every index is done, and uses the calling thread as a worker.
// Indices are handed out dynamically, so results must not depend on which thread runs which index.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace galley {

class ThreadPool {
 public:
  // `threads` >= 1 counts the calling thread; 1 starts no thread at all. Where the system refuses to start as many (a
  // limit on processes or address space), the pool has fewer and says so in the log.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const { return threads_; }

  // Calls body(i) for i in [0, count). `body` must not call ParallelFor of the same pool. What it throws (memory ran
  // out) reaches the caller once no thread is inside `body` any more; the indices left are then not run.
  void ParallelFor(std::int64_t count, const std::function<void(std::int64_t)>& body);

 private:
  struct Shared;
  int threads_;
  std::unique_ptr<Shared> shared_;
};

// Threads that this process may use: the affinity mask, cut by the cgroup's processor quota where one is set.
[[nodiscard]] int UsableProcessors();

}  // namespace galley
