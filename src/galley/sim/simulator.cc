// SPDX-License-Identifier: Apache-2.0
#include "galley/sim/simulator.h"

#include <fmt/core.h>

#include "galley/sim/world.h"

namespace galley::sim {

Result<SimReport> Simulate(const SimOptions& options) {
  if (options.steps < 1) {
    return Err(ErrorCode::kInvalidArgument, fmt::format("is {}; must be at least 1", options.steps), "steps");
  }
  if (options.ranks < 1 || options.ranks > 64) {
    return Err(ErrorCode::kInvalidArgument, fmt::format("is {}; must be 1 to 64", options.ranks), "ranks");
  }
  if (options.steps_per_world < 1) {
    return Err(ErrorCode::kInvalidArgument, fmt::format("is {}; must be at least 1", options.steps_per_world),
               "steps_per_world");
  }
  SimReport report;
  const auto going = [&] { return static_cast<int>(report.violations.size()) < options.violations_max; };
  while (report.steps < options.steps && going()) {
    World world(options, MixBits(options.seed) + static_cast<std::uint64_t>(report.worlds), report);
    for (std::int64_t i = 0; i < options.steps_per_world && report.steps < options.steps && going(); ++i) {
      world.Step(false);
      ++report.steps;
    }
    while (!world.Idle() && going()) {
      world.Step(true);
      ++report.steps;
    }
    if (going()) world.Close();
    ++report.worlds;
  }
  return report;
}

std::string SimReport::ToString() const {
  std::string text = fmt::format(
      "steps {}  worlds {}  requests {}  rows {}\n"
      "outputs equal to the oracle {}  (branches ended: stop {}, length {}, cancelled {}, error {})\n"
      "failed steps {}  preemptions {}  resumes {}  forks {}  waits for shared blocks {}\n"
      "snapshots saved {}, restored {}  blocks evicted {}  prompt tokens {}, cached {}, replayed {}\n"
      "longest wait of a ready decode {} steps  digest {:016x}\n",
      steps, worlds, requests, rows, outputs_checked, ended_stop, ended_length, ended_cancelled, ended_error,
      failed_steps, preemptions, resumes, forks, shared_waits, snapshot_saves, snapshot_restores, evictions,
      prompt_tokens, cached_tokens, replayed_tokens, decode_waits_longest, digest);
  for (const std::string& violation : violations) text += "VIOLATION " + violation + "\n";
  return text;
}

}  // namespace galley::sim
