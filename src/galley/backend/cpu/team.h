// SPDX-License-Identifier: Apache-2.0
// The cpu backend's threads. They run one loop at a time; between loops a worker first spins, because the next loop of
// a step follows within microseconds, and then sleeps. Owned by a backend; Run is called by one thread at a time, which
// works as well. Tasks are handed out dynamically, so results must not depend on who runs which.
//
// On several memory nodes each node has its own share of a loop's tasks, in proportion to its workers, and its workers
// take those first: the rows of a matrix then meet the same node in every step, so the pages that it touched first are
// near. Who is done helps the other nodes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "galley/backend/cpu/topology.h"

namespace galley::backend::cpu {

class Team {
 public:
  // `threads` >= 1, the calling thread included. `processors`: where the workers are, the i-th worker (from 1) pinned
  // to processors[i]; the caller counts as near processors[0], and is left alone, because threads that it starts would
  // be pinned with it. Empty: nowhere.
  explicit Team(int threads, std::span<const Core> processors = {});
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  [[nodiscard]] int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // body(task, worker) for every task in [0, tasks), worker in [0, threads()). `body` must neither throw nor call Run.
  // `cost` is about the number of multiplications of all tasks together: a small loop runs on the caller alone.
  template <typename Body>
  void Run(std::int64_t tasks, double cost, const Body& body) {
    if (tasks <= 1 || workers_.empty() || cost < kParallelCost) {
      for (std::int64_t i = 0; i < tasks; ++i) body(i, 0);
      return;
    }
    Share(tasks, &body, [](const void* context, std::int64_t task, int worker) {
      (*static_cast<const Body*>(context))(task, worker);
    });
  }

 private:
  using Call = void (*)(const void* context, std::int64_t task, int worker);
  // Below this a loop takes about as long as waking somebody.
  static constexpr double kParallelCost = 60'000;

  // Tasks of the workers of one memory node.
  struct alignas(64) Range {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
    std::int64_t workers_before = 0;  // of nodes before this one
  };

  void PlaceWorkers(int threads, std::span<const Core> processors);
  void Share(std::int64_t tasks, const void* context, Call call);
  void Work(int worker);
  void Loop(int worker);

  std::vector<std::thread> workers_;
  // The loop in progress. A worker announces itself in `inside_` before it looks at `open_`; the caller closes the loop
  // before it waits for `inside_` to fall to zero, so nobody reads these fields while they change.
  const void* context_ = nullptr;
  Call call_ = nullptr;
  std::size_t nodes_ = 1;
  std::unique_ptr<Range[]> ranges_;  // [nodes_]
  std::vector<std::size_t> home_;    // number in ranges_, of each worker
  alignas(64) std::atomic<int> inside_{0};
  std::atomic<bool> open_{false};
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace galley::backend::cpu
