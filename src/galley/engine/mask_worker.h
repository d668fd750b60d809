// SPDX-License-Identifier: Apache-2.0
// Fills the token masks of a step on threads of its own, while the executor's thread waits for the device. Owned and
// called by the executor.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "galley/base/thread_pool.h"
#include "galley/engine/constraint.h"

namespace galley::engine {

struct MaskJob {
  TokenConstraint* constraint = nullptr;
  std::span<const TokenId> drafts;  // that the step verifies
  // One mask after the other: for the next token, then for the one behind each draft. Behind a draft that may not come
  // they are not filled, and where the constraint is open they are left as they were.
  std::span<std::uint32_t> masks;
  int filled = 0;          // rows whose masks are there, or not needed
  std::uint32_t open = 0;  // bits: rows that need none, the constraint being open there
  Status status;           // of FillMask for the one after those
};

class MaskWorker {
 public:
  // `threads` >= 1; constraints of one group are never on two of them.
  explicit MaskWorker(int threads);
  ~MaskWorker();
  MaskWorker(const MaskWorker&) = delete;
  MaskWorker& operator=(const MaskWorker&) = delete;

  // Begins with the jobs, which the caller leaves alone until Wait returns. Requires that none are under way.
  void Start(std::span<MaskJob> jobs);
  // Returns when all are done; at once when none were started.
  void Wait();

 private:
  void Loop();
  void Run(std::span<MaskJob> jobs);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::span<MaskJob> jobs_;  // guarded by mutex_, as the next; empty: nothing to do
  bool stopping_ = false;
  // Of Run: jobs in the order of their groups, and where in it each group begins, with the end behind the last.
  std::vector<MaskJob*> order_;
  std::vector<std::size_t> groups_;
  ThreadPool pool_;
  std::thread thread_;
};

}  // namespace galley::engine
