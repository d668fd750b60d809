// SPDX-License-Identifier: Apache-2.0
// Threads that run handlers, so that reading a large prompt does not stop the streams of others. Owned by the server.
// The queue needs no limit of its own: each connection has at most one request in it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace galley::net {

class HandlerPool {
 public:
  explicit HandlerPool(int threads);
  ~HandlerPool();  // Stop
  HandlerPool(const HandlerPool&) = delete;
  HandlerPool& operator=(const HandlerPool&) = delete;

  // Any thread. Without threads, and after Stop, the job is destroyed unrun.
  void Submit(std::function<void()> job);
  // Drops what waits and joins the threads.
  void Stop();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace galley::net
