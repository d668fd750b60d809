// SPDX-License-Identifier: Apache-2.0
// Seeded simulation of ranks: the real scheduler, caches and vote over a fake device, a virtual clock and random
// traffic (lengths, shared prefixes, chats, branches, cancellations, deadlines, tiny pools, failing steps). Every step
// is checked, every output is compared with an oracle that knows nothing of scheduling, and the same options always
// give the same run. A pure function; `galley sim` prints its report.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "galley/base/error.h"

namespace galley::sim {

struct SimOptions {
  std::uint64_t seed = 1;
  std::int64_t steps = 10'000;          // group steps to simulate, before the last requests are drained
  int ranks = 1;                        // 1 to 64
  std::int64_t steps_per_world = 2000;  // then everything drains and another random configuration begins
  int violations_max = 20;              // stop when so many were found
  std::int64_t corrupt_step =
      0;  // tests of the checks: in this step of a world a drawn token changes on its way; 0: never
  // Called every few hundred steps with those done so far; false ends the run. Has no influence on it otherwise.
  std::function<bool(std::int64_t steps)> on_progress = {};
};

// The command that repeats a run with these options exactly.
[[nodiscard]] std::string ReplayCommand(const SimOptions& options);

struct SimReport {
  std::int64_t steps = 0;
  std::int64_t worlds = 0;
  std::int64_t requests = 0;
  std::int64_t outputs_checked = 0;  // branches that ended by themselves and equal the oracle
  std::int64_t ended_stop = 0, ended_length = 0, ended_cancelled = 0, ended_error = 0;  // branches
  std::int64_t failed_steps = 0;
  std::int64_t preemptions = 0, resumes = 0, forks = 0, shared_waits = 0;
  std::int64_t snapshot_saves = 0, snapshot_restores = 0, evictions = 0;
  std::int64_t prompt_tokens = 0, cached_tokens = 0, replayed_tokens = 0;
  std::int64_t rows = 0;
  std::int64_t decode_waits_longest = 0;
  std::uint64_t digest = 0;  // of every plan and every output: equal runs have equal digests
  bool stopped = false;      // by on_progress
  std::vector<std::string> violations;

  // Sums; the longest wait; a digest of both digests; the other's violations after one's own.
  void Add(const SimReport& other);
  // A table, one line for each group of figures, and one for each violation.
  [[nodiscard]] std::string ToString() const;
};

// kInvalidArgument naming option, value and limit.
[[nodiscard]] Result<SimReport> Simulate(const SimOptions& options);

}  // namespace galley::sim
