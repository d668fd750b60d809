// SPDX-License-Identifier: Apache-2.0
#include "galley/sim/simulator.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "galley/sim/world.h"

namespace galley::sim {
namespace {

constexpr std::int64_t kProgressSteps = 256;

constexpr std::int64_t SimReport::*kSums[] = {
    &SimReport::steps,         &SimReport::worlds,         &SimReport::requests,          &SimReport::outputs_checked,
    &SimReport::ended_stop,    &SimReport::ended_length,   &SimReport::ended_cancelled,   &SimReport::ended_error,
    &SimReport::failed_steps,  &SimReport::preemptions,    &SimReport::resumes,           &SimReport::forks,
    &SimReport::shared_waits,  &SimReport::snapshot_saves, &SimReport::snapshot_restores, &SimReport::evictions,
    &SimReport::prompt_tokens, &SimReport::cached_tokens,  &SimReport::replayed_tokens,   &SimReport::rows,
};

}  // namespace

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
  const auto going = [&] { return !report.stopped && std::ssize(report.violations) < options.violations_max; };
  const auto step = [&](World& world, bool draining) {
    world.Step(draining);
    ++report.steps;
    if (report.steps % kProgressSteps == 0 && options.on_progress) report.stopped = !options.on_progress(report.steps);
  };
  while (report.steps < options.steps && going()) {
    World world(options, MixBits(options.seed) + static_cast<std::uint64_t>(report.worlds), report);
    for (std::int64_t i = 0; i < options.steps_per_world && report.steps < options.steps && going(); ++i) {
      step(world, false);
    }
    while (!world.Idle() && going()) step(world, true);
    if (going()) world.Close();
    ++report.worlds;
  }
  return report;
}

std::string ReplayCommand(const SimOptions& options) {
  return fmt::format("galley sim --seed {} --steps {} --ranks {} --steps-per-world {}", options.seed, options.steps,
                     options.ranks, options.steps_per_world);
}

void SimReport::Add(const SimReport& other) {
  for (const auto member : kSums) this->*member += other.*member;
  decode_waits_longest = std::max(decode_waits_longest, other.decode_waits_longest);
  digest = MixBits(digest ^ other.digest);
  stopped = stopped || other.stopped;
  violations.insert(violations.end(), other.violations.begin(), other.violations.end());
}

std::string SimReport::ToString() const {
  const auto line = [](std::string_view name, std::string_view text) { return fmt::format("{:<11} {}\n", name, text); };
  std::string text;
  text += line("steps", fmt::format("{} in {} configurations, {} of them failed by the fault injector", steps, worlds,
                                    failed_steps));
  text += line("requests", fmt::format("{}; their branches ended by stop {}, length {}, cancellation {}, error {}",
                                       requests, ended_stop, ended_length, ended_cancelled, ended_error));
  text += line("outputs", fmt::format("{} checked, all tokens", outputs_checked));
  text += line("rows", fmt::format("{}; longest wait of a ready decode {} steps", rows, decode_waits_longest));
  text += line("scheduler", fmt::format("{} preemptions, {} resumes, {} forks, {} waits for another's blocks",
                                        preemptions, resumes, forks, shared_waits));
  text += line("cache", fmt::format("{} prompt tokens, {} cached, {} replayed, {} blocks evicted", prompt_tokens,
                                    cached_tokens, replayed_tokens, evictions));
  text += line("snapshots", fmt::format("{} saved, {} restored", snapshot_saves, snapshot_restores));
  text += line("digest", fmt::format("{:016x}", digest));
  text += line("violations", fmt::format("{}", violations.size()));
  for (const std::string& violation : violations) text += "  " + violation + "\n";
  return text;
}

}  // namespace galley::sim
