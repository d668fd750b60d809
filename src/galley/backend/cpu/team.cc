// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cpu/team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
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

Team::Team(int threads, std::span<const Core> processors) {
  CHECK(threads >= 1) << "threads = " << threads;
  PlaceWorkers(threads, processors);
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int worker = 1; worker < threads; ++worker) {
      workers_.emplace_back([this, worker] { Loop(worker); });
      if (static_cast<std::size_t>(worker) < processors.size())
        PinTo(workers_.back(), processors[static_cast<std::size_t>(worker)].processor);
    }
  } catch (const std::system_error& error) {
    log::Warning("only {} of {} threads could be started ({}); the work takes longer", workers_.size() + 1, threads,
                 error.what());
  }
}

void Team::PlaceWorkers(int threads, std::span<const Core> processors) {
  std::vector<int> nodes;  // of each worker
  for (std::size_t i = 0; i < static_cast<std::size_t>(threads); ++i)
    nodes.push_back(i < processors.size() ? processors[i].node : processors.empty() ? 0 : processors.front().node);
  std::vector<int> different = nodes;
  std::sort(different.begin(), different.end());
  different.erase(std::unique(different.begin(), different.end()), different.end());
  nodes_ = different.size();
  ranges_ = std::make_unique<Range[]>(nodes_);
  for (const int node : nodes) {
    home_.push_back(
        static_cast<std::size_t>(std::lower_bound(different.begin(), different.end(), node) - different.begin()));
    for (std::size_t n = home_.back() + 1; n < nodes_; ++n) ++ranges_[n].workers_before;
  }
}

Team::~Team() {
  stopping_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Team::Work(int worker) {
  const std::size_t home = home_[static_cast<std::size_t>(worker)];
  for (std::size_t n = 0; n < nodes_; ++n) {
    Range& range = ranges_[(home + n) % nodes_];
    for (std::int64_t i = range.next.fetch_add(1, std::memory_order_relaxed); i < range.end;
         i = range.next.fetch_add(1, std::memory_order_relaxed)) {
      call_(context_, i, worker);
    }
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
  for (std::size_t n = 0; n < nodes_; ++n) {
    const auto border = [&](std::int64_t workers) { return tasks * workers / static_cast<std::int64_t>(home_.size()); };
    ranges_[n].next.store(border(ranges_[n].workers_before));
    ranges_[n].end = n + 1 < nodes_ ? border(ranges_[n + 1].workers_before) : tasks;
  }
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
