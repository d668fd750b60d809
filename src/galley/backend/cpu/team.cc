// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cpu/team.h"

#include <pthread.h>
#include <sched.h>

#include <system_error>

#include "galley/base/check.h"
#include "galley/base/log.h"

namespace galley::backend::cpu {
namespace {

// About 20 microseconds: longer than the caller mostly needs between two loops of a step.
constexpr int kSpins = 400;
// Then about half a millisecond of giving way to whoever else wants the processor, so that what a step does on one
// thread, and what lies between two steps, does not put the workers to sleep: waking one takes longer than most loops,
// and asking for it costs the caller 7 us each time.
constexpr int kYields = 500, kSpinsBetween = 16;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void PinTo(std::thread& thread, int processor) {
  if (processor < 0 || processor >= CPU_SETSIZE) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  // A thread that cannot be pinned still computes.
  (void)pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
}

}  // namespace

Team::Team(int threads, std::span<const int> processors) {
  CHECK(threads >= 1) << "threads = " << threads;
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int worker = 1; worker < threads; ++worker) {
      workers_.emplace_back([this, worker] { Loop(worker); });
      if (static_cast<std::size_t>(worker) < processors.size())
        PinTo(workers_.back(), processors[static_cast<std::size_t>(worker)]);
    }
  } catch (const std::system_error& error) {
    log::Warning("only {} of {} threads could be started ({}); the work takes longer", workers_.size() + 1, threads,
                 error.what());
  }
}

Team::~Team() {
  stopping_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Team::Work(int worker) {
  for (std::int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < tasks_;
       i = next_.fetch_add(1, std::memory_order_relaxed)) {
    call_(context_, i, worker);
  }
}

void Team::Loop(int worker) {
  std::uint32_t seen = 0;
  while (!stopping_.load()) {
    std::uint32_t now = generation_.load();
    for (int spin = 0; now == seen && spin < kSpins + kYields * kSpinsBetween; ++spin) {
      if (spin >= kSpins && spin % kSpinsBetween == 0) sched_yield();
      Pause();
      now = generation_.load();
    }
    if (now == seen) {
      generation_.wait(seen);
      continue;
    }
    seen = now;
    inside_.fetch_add(1);
    if (open_.load()) Work(worker);
    inside_.fetch_sub(1);
  }
}

void Team::Share(std::int64_t tasks, const void* context, Call call) {
  context_ = context;
  call_ = call;
  tasks_ = tasks;
  next_.store(0);
  open_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  Work(0);
  open_.store(false);
  // A worker that lost its processor in the middle of a task gets the caller's.
  for (int spin = 0; inside_.load() != 0; ++spin) {
    if (spin < kSpins) {
      Pause();
    } else {
      sched_yield();
    }
  }
}

}  // namespace galley::backend::cpu
