// SPDX-License-Identifier: Apache-2.0
#include "galley/base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "galley/base/cgroup.h"
#include "galley/base/check.h"
#include "galley/base/log.h"

namespace galley {

// One loop is published as a generation; workers that wake join it, take indices from `next`, and report back.
struct ThreadPool::Shared {
  std::mutex mutex;
  std::condition_variable start, finished;
  std::uint64_t generation = 0;  // guarded by mutex, as the next three
  int workers_inside = 0;
  bool stopping = false;
  const std::function<void(std::int64_t)>* body = nullptr;
  std::int64_t count = 0;
  std::exception_ptr failure;  // guarded by mutex
  std::atomic<std::int64_t> next{0};
  std::vector<std::thread> workers;

  // Exceptions stay inside: a thread that left while others run the body would take the body's variables with it.
  void Run() {
    try {
      for (std::int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) (*body)(i);
    } catch (...) {
      next.store(count);  // the indices that are left
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  }

  void WorkerLoop() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      start.wait(lock, [&] { return stopping || generation != seen; });
      if (stopping) return;
      seen = generation;
      if (body == nullptr) continue;  // woke after the loop had ended
      ++workers_inside;
      lock.unlock();
      Run();
      lock.lock();
      if (--workers_inside == 0) finished.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads) : threads_(1), shared_(std::make_unique<Shared>()) {
  CHECK(threads >= 1) << "threads = " << threads;
  shared_->workers.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (; threads_ < threads; ++threads_) {
      shared_->workers.emplace_back([shared = shared_.get()] { shared->WorkerLoop(); });
    }
  } catch (const std::system_error& error) {
    log::Warning("only {} of {} threads could be started ({}); the work takes longer", threads_, threads, error.what());
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
  }
  shared_->start.notify_all();
  for (std::thread& worker : shared_->workers) worker.join();
}

void ThreadPool::ParallelFor(std::int64_t count, const std::function<void(std::int64_t)>& body) {
  if (threads_ == 1 || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  {
    std::lock_guard lock(shared_->mutex);
    shared_->body = &body;
    shared_->count = count;
    shared_->next.store(0);
    ++shared_->generation;
  }
  shared_->start.notify_all();
  shared_->Run();
  std::unique_lock lock(shared_->mutex);
  shared_->finished.wait(lock, [&] { return shared_->workers_inside == 0; });
  shared_->body = nullptr;
  if (shared_->failure) std::rethrow_exception(std::exchange(shared_->failure, nullptr));
}

int UsableProcessors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int allowed = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (sched_getaffinity(0, sizeof(set), &set) == 0) allowed = std::max(1, CPU_COUNT(&set));
  return ProcessorsWithin(allowed, ReadCgroupLimits());
}

}  // namespace galley
