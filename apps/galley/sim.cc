// SPDX-License-Identifier: Apache-2.0
// `galley sim`: the seeded simulator of scheduler and caches.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "answer.h"
#include "command.h"
#include "galley/protocol/json.h"
#include "galley/sim/simulator.h"
#include "interrupt.h"

namespace galley::app {
namespace {

using protocol::Json;
using Clock = std::chrono::steady_clock;

struct Run {
  sim::SimOptions options;  // of the seed that ran last
  std::int64_t seeds = 0;   // that ran to their end
  sim::SimReport report;    // of all of them
  double seconds = 0;
};

constexpr std::int64_t kBarWidth = 30;

std::string ProgressLine(std::int64_t done, std::int64_t total, std::uint64_t seed, double seconds) {
  const auto filled = static_cast<std::size_t>(std::min(done, total) * kBarWidth / total);
  return fmt::format("sim [{}{}] {}/{} steps, {:.0f} a second, seed {}", std::string(filled, '#'),
                     std::string(static_cast<std::size_t>(kBarWidth) - filled, '.'), done, total,
                     static_cast<double>(done) / std::max(seconds, 1e-9), seed);
}

Result<Run> RunSeeds(Context& context, const Interrupt& interrupt) {
  const options::Values& values = context.values;
  const std::int64_t seeds = values.Int("seeds");
  const std::uint64_t first = values.Has("seed") ? static_cast<std::uint64_t>(values.Int("seed")) : DrawSeed();
  Run run;
  run.options.steps = values.Int("steps");
  run.options.ranks = static_cast<int>(values.Int("ranks"));
  run.options.steps_per_world = values.Int("steps-per-world");
  const Clock::time_point begin = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  run.options.on_progress = [&](std::int64_t steps) {
    context.terminal.Progress(
        ProgressLine(run.report.steps + steps, run.options.steps * seeds, run.options.seed, elapsed()));
    return !interrupt.requested();
  };
  for (; run.seeds < seeds && run.report.violations.empty() && !run.report.stopped; ++run.seeds) {
    // Seeds that --seed accepts, so that the command printed for a failing one works.
    run.options.seed = (first + static_cast<std::uint64_t>(run.seeds)) & (~std::uint64_t{0} >> 1);
    ASSIGN_OR_RETURN(const sim::SimReport report, sim::Simulate(run.options));
    run.report.Add(report);
  }
  run.seconds = elapsed();
  context.terminal.Progress("");
  return run;
}

struct Figure {
  std::string_view name;
  std::int64_t sim::SimReport::*member;
};

constexpr Figure kFigures[] = {
    {"steps", &sim::SimReport::steps},
    {"worlds", &sim::SimReport::worlds},
    {"failed_steps", &sim::SimReport::failed_steps},
    {"requests", &sim::SimReport::requests},
    {"outputs_checked", &sim::SimReport::outputs_checked},
    {"ended_stop", &sim::SimReport::ended_stop},
    {"ended_length", &sim::SimReport::ended_length},
    {"ended_cancelled", &sim::SimReport::ended_cancelled},
    {"ended_error", &sim::SimReport::ended_error},
    {"rows", &sim::SimReport::rows},
    {"decode_waits_longest", &sim::SimReport::decode_waits_longest},
    {"preemptions", &sim::SimReport::preemptions},
    {"resumes", &sim::SimReport::resumes},
    {"forks", &sim::SimReport::forks},
    {"shared_waits", &sim::SimReport::shared_waits},
    {"snapshot_saves", &sim::SimReport::snapshot_saves},
    {"snapshot_restores", &sim::SimReport::snapshot_restores},
    {"evictions", &sim::SimReport::evictions},
    {"prompt_tokens", &sim::SimReport::prompt_tokens},
    {"cached_tokens", &sim::SimReport::cached_tokens},
    {"replayed_tokens", &sim::SimReport::replayed_tokens},
};

std::string ReportJson(const Run& run) {
  Json object = Json::MakeObject({{"seed", run.options.seed},
                                  {"seeds", run.seeds},
                                  {"ranks", run.options.ranks},
                                  {"command", sim::ReplayCommand(run.options)},
                                  {"seconds", run.seconds},
                                  {"complete", !run.report.stopped}});
  for (const Figure& figure : kFigures) object.Set(figure.name, run.report.*figure.member);
  object.Set("digest", fmt::format("{:016x}", run.report.digest));
  Json violations(Json::Array{});
  for (const std::string& violation : run.report.violations) violations.Push(violation);
  object.Set("violations", std::move(violations));
  return protocol::DumpJson(object) + "\n";
}

}  // namespace

Result<int> RunSim(Context& context) {
  const Interrupt interrupt;
  ASSIGN_OR_RETURN(const Run run, RunSeeds(context, interrupt));
  Terminal& terminal = context.terminal;
  if (context.values.Bool("json")) {
    terminal.Write(ReportJson(run));
  } else {
    terminal.Write(fmt::format("{:<11} {}\n{}{:<11} {:.2f} s, {:.0f} steps a second\n", "command",
                               sim::ReplayCommand(run.options), run.report.ToString(), "time", run.seconds,
                               static_cast<double>(run.report.steps) / std::max(run.seconds, 1e-9)));
  }
  if (!run.report.violations.empty()) {
    return Err(ErrorCode::kInternal,
               fmt::format("the simulation found a mistake; `{}` repeats it", sim::ReplayCommand(run.options)));
  }
  return run.report.stopped ? Info(ErrorCode::kCancelled).exit_code : kExitOk;
}

}  // namespace galley::app
