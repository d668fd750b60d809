// SPDX-License-Identifier: Apache-2.0
// Fills the token masks of a step on a thread of its own, while the executor's thread waits for the device. Owned and
// called by the executor.
#pragma once

#include <condition_variable>
#include <mutex>
#include <span>
#include <thread>

#include "galley/engine/constraint.h"

namespace galley::engine {

struct MaskJob {
  TokenConstraint* constraint = nullptr;
  std::span<const TokenId> drafts;  // that the step verifies
  // One mask after the other: for the next token, then for the one behind each draft. Behind a draft that may not come
  // they are not filled.
  std::span<std::uint32_t> masks;
  int filled = 0;  // masks that are there
  Status status;   // of FillMask for the one after those
};

class MaskWorker {
 public:
  MaskWorker();
  ~MaskWorker();
  MaskWorker(const MaskWorker&) = delete;
  MaskWorker& operator=(const MaskWorker&) = delete;

  // Begins with the jobs, which the caller leaves alone until Wait returns. Requires that none are under way.
  void Start(std::span<MaskJob> jobs);
  // Returns when all are done; at once when none were started.
  void Wait();

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::span<MaskJob> jobs_;  // guarded by mutex_, as the next; empty: nothing to do
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace galley::engine
