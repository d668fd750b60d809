// SPDX-License-Identifier: Apache-2.0
// `galley bench verify-plan`: verify-length planning against synthetic devices, on a virtual clock.
#include <fmt/core.h>

#include "bench.h"
#include "galley/protocol/json.h"
#include "galley/sim/verify_sim.h"
#include "interrupt.h"

namespace galley::app {
namespace {

using protocol::Json;

constexpr std::size_t kName = 20, kColumn = 14;

Json OutcomeJson(const sim::VerifyCase& setting, const sim::VerifyOutcome& outcome) {
  return Json::MakeObject({{"device", setting.device.name},
                           {"traffic", setting.traffic.name},
                           {"sequences", setting.sequences},
                           {"tokens_per_s", outcome.planned},
                           {"tokens_per_s_none", outcome.none},
                           {"tokens_per_s_best_fixed", outcome.best_fixed},
                           {"best_fixed_length", outcome.best_length}});
}

}  // namespace

Result<int> RunBenchVerifyPlan(Context& context) {
  Terminal& terminal = context.terminal;
  const bool json = context.values.Bool("json");
  const std::uint64_t seed = context.values.Has("seed") ? static_cast<std::uint64_t>(context.values.Int("seed")) : 1;
  const Interrupt interrupt;
  Json list(Json::Array{});
  if (!json) {
    terminal.Write(
        "Tokens a second with planned verify lengths ÷ without speculation / ÷ with the best fixed length in "
        "hindsight\n"
        "(that length), by sequences at once\n\n");
    std::string heading = fmt::format("{:<{}}", "device, drafts", kName);
    for (const int load : sim::VerifyLoads()) heading += fmt::format("{:>{}}", load, kColumn);
    terminal.Write(heading + "\n");
  }
  for (const sim::DeviceModel& device : sim::VerifyDevices()) {
    for (const sim::TrafficModel& traffic : sim::VerifyTraffic()) {
      std::string line = fmt::format("{:<{}}", fmt::format("{}, {}", device.name, traffic.name), kName);
      for (const int load : sim::VerifyLoads()) {
        if (interrupt.requested() || terminal.output_closed()) return Err(ErrorCode::kCancelled, "interrupted");
        terminal.Progress(fmt::format("{}, {}, {} sequences", device.name, traffic.name, load));
        const sim::VerifyCase setting = sim::VerifyCaseOf(device, traffic, load, seed);
        const sim::VerifyOutcome outcome = sim::CompareVerify(setting);
        list.Push(OutcomeJson(setting, outcome));
        line += fmt::format(
            "{:>{}}", fmt::format("{:.2f}/{:.2f} ({})", outcome.over_none(), outcome.over_best(), outcome.best_length),
            kColumn);
      }
      terminal.Progress("");
      if (!json) terminal.Write(line + "\n");
    }
  }
  if (json) {
    const Json report = Json::MakeObject({{"kind", "verify-plan"}, {"seed", seed}, {"points", std::move(list)}});
    terminal.Write(protocol::DumpJson(report) + "\n");
  }
  return kExitOk;
}

}  // namespace galley::app
