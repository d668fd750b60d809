// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/worker_pool.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace galley::serve {

struct WorkerPool::Shared {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Job> jobs;
  int idle = 0;
  bool stopping = false;
  std::vector<std::thread> threads;

  void Run() {
    std::unique_lock lock(mutex);
    while (true) {
      ++idle;
      wake.wait(lock, [this] { return stopping || !jobs.empty(); });
      --idle;
      if (jobs.empty()) return;
      Job job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      job();
      job = nullptr;  // what it holds is released outside the lock
      lock.lock();
    }
  }
};

WorkerPool::WorkerPool(int threads) : shared_(std::make_shared<Shared>()) {
  for (int i = 0; i < threads; ++i) shared_->threads.emplace_back([shared = shared_.get()] { shared->Run(); });
}

WorkerPool::~WorkerPool() {
  {
    std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
  }
  shared_->wake.notify_all();
  for (std::thread& thread : shared_->threads) thread.join();
}

void WorkerPool::Post(Job job) {
  // The job may end whatever the pool's owner waits for, so that the pool goes before this call has returned.
  const std::shared_ptr<Shared> shared = shared_;
  bool anyone_waits = false;
  {
    std::lock_guard lock(shared->mutex);
    shared->jobs.push_back(std::move(job));
    anyone_waits = shared->idle > 0;
  }
  if (anyone_waits) shared->wake.notify_one();
}

}  // namespace galley::serve
