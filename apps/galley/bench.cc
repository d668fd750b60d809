// SPDX-License-Identifier: Apache-2.0
// `galley bench KIND`: picks the kind.
#include "bench.h"

#include <fmt/core.h>

#include <string>
#include <vector>

#include "galley/base/check.h"
#include "galley/base/nearest.h"
#include "option_effects.h"

namespace galley::app {
namespace {

template <GpuBench kKind>
Result<int> RunOnGpu(Context& context) {
  const std::string& backend = context.values.String("backend");
  if (backend == "cuda") return RunBenchOnGpu(context, kKind);
  return Err(ErrorCode::kUnsupported,
             fmt::format("measures the cuda backend only, not {}; add --backend cuda", backend), context.arguments[0]);
}

constexpr BenchKind kKinds[] = {
    {"throughput", "many requests at once through the engine", RunBenchThroughput},
    {"verify-plan", "planning of verify lengths on simulated devices", RunBenchVerifyPlan},
    {"layers", "one layer at its true shape on the processor or, with --backend cuda, a GPU", RunBenchLayers},
    {"kernels", "ops of the cuda backend at their true shapes", RunOnGpu<GpuBench::kKernels>},
    {"slice", "steps over a few layers of the model on a GPU", RunOnGpu<GpuBench::kSlice>},
};

std::string KindsText() {
  std::string text;
  for (const BenchKind& kind : kKinds)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", kind.name, kind.summary);
  return text;
}

}  // namespace

const model::ModelShape& ShapeOf(const options::Values& values) {
  const model::ModelShape* shape = model::FindShape(values.String("shape"));
  CHECK(shape != nullptr) << "the option table allows " << values.String("shape");
  return *shape;
}

Result<int> RunBench(Context& context) {
  if (context.arguments.empty()) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("says nothing about what to measure; kinds are {}", KindsText()), "galley bench");
  }
  if (context.arguments.size() > 1) {
    return Err(ErrorCode::kInvalidArgument, "one kind at a time", context.arguments[1]);
  }
  std::vector<std::string_view> names;
  for (const BenchKind& kind : kKinds) {
    if (kind.name == context.arguments[0]) {
      RETURN_IF_ERROR(CheckBenchOptions(context.values, kind.name));
      return kind.run(context);
    }
    names.push_back(kind.name);
  }
  return Err(
      ErrorCode::kInvalidArgument,
      fmt::format("is no kind of benchmark{}; kinds are {}", Suggestion(context.arguments[0], names), KindsText()),
      context.arguments[0]);
}

}  // namespace galley::app
