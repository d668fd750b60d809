// SPDX-License-Identifier: Apache-2.0
#include "option_effects.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "galley/engine/engine.h"

namespace galley::app {
namespace {

struct Condition {
  std::string_view option;
  bool (*idle)(const options::Values& values);
  std::string_view advice;
};

bool Computes(const options::Values& values, std::string_view backend) {
  return engine::BackendName(values.String("backend")) == backend;
}

constexpr Condition kConditions[] = {
    {"cuda-graphs",
     [](const options::Values& values) { return values.String("cuda-graphs") != "on" && !Computes(values, "cuda"); },
     "is for the cuda backend; leave it out, or use --backend cuda"},
    {"device-memory",
     [](const options::Values& values) { return values.Int("device-memory") > 0 && !Computes(values, "cuda"); },
     "is for the cuda backend; leave it out, or use --backend cuda"},
    {"expert-memory",
     [](const options::Values& values) {
       return values.Int("expert-memory") > 0 && values.String("experts") != "disk";
     },
     "is for experts on disk; leave it out, or add --experts disk"},
    {"isa", [](const options::Values& values) { return values.String("isa") != "auto" && !Computes(values, "cpu"); },
     "is for the cpu backend; leave it out, or use --backend cpu"},
    {"processor-time",
     [](const options::Values& values) { return values.Bool("processor-time") && Computes(values, "cuda"); },
     "is for what computes on processors; leave it out, or use --backend cpu"},
    {"threads", [](const options::Values& values) { return values.Int("threads") != 0 && Computes(values, "cuda"); },
     "is for backends that compute on processors; leave it out, or use --backend cpu"},
};

struct BenchOptions {
  std::string_view options;
  std::string_view kinds;  // that have them
};

constexpr BenchOptions kBenchOptions[] = {
    {"backend", "throughput layers kernels slice"},
    {"isa threads", "throughput layers"},
    {"json seed", "throughput verify-plan"},
    {"shape", "layers kernels slice"},
    {"only", "layers kernels"},
    {"prefill-rows", "kernels slice"},
    {"layers", "slice"},
    {"processor-time", "layers"},
    {"requests prompt-len output-len shared-prefix shared-tokens prefix-groups concurrency prefix-cache compare-drafts "
     "prompts repeat speculation draft-tokens fixed-acceptance adaptive-verify temperature step-rows blocks "
     "memory-limit replay itl-target-ms sync decoder-truncation decoder-keep model weights-digest experts "
     "expert-memory expert-cache engram weight-cache cuda-graphs",
     "throughput"},
};

// Parts of `galley bench kernels` that are no ops, and what they do not read.
constexpr struct {
  std::string_view name, idle;
} kPartsAlone[] = {{"placement", "prefill-rows"}, {"collectives", "prefill-rows shape"}};

Status CheckPartsAlone(const options::Values& values) {
  const std::vector<std::string> only = values.List("only");
  for (const auto& part : kPartsAlone) {
    if (std::find(only.begin(), only.end(), part.name) == only.end()) continue;
    if (only.size() > 1)
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("{} is measured alone; leave out the other parts, or measure them apart", part.name),
                 "--only");
    for (const std::string_view option : options::Words(part.idle)) {
      if (values.source(option) == options::Source::kCommandLine)
        return Err(ErrorCode::kInvalidArgument, fmt::format("{} does not read this option; leave it out", part.name),
                   fmt::format("--{}", option));
    }
  }
  return {};
}

}  // namespace

Status CheckEffects(const options::Values& values, Terminal& terminal) {
  for (const Condition& row : kConditions) {
    if (!row.idle(values)) continue;
    if (values.source(row.option) == options::Source::kCommandLine)
      return Err(ErrorCode::kInvalidArgument, std::string(row.advice), fmt::format("--{}", row.option));
    terminal.Complain(fmt::format("warning: {} {}", row.option, row.advice));
  }
  return {};
}

Status CheckBenchOptions(const options::Values& values, std::string_view kind) {
  for (const BenchOptions& row : kBenchOptions) {
    const std::vector<std::string_view> kinds = options::Words(row.kinds);
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) continue;
    for (const std::string_view option : options::Words(row.options)) {
      if (values.source(option) != options::Source::kCommandLine) continue;
      return Err(
          ErrorCode::kInvalidArgument,
          fmt::format("`galley bench {}` does not take this option; it belongs to {}", kind, fmt::join(kinds, ", ")),
          fmt::format("--{}", option));
    }
  }
  return kind == "kernels" ? CheckPartsAlone(values) : Status();
}

}  // namespace galley::app
