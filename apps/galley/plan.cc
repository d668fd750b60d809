// SPDX-License-Identifier: Apache-2.0
// `galley plan`: the memory that an engine would take, without loading a model.
#include "galley/engine/memory_plan.h"

#include "command.h"
#include "files.h"
#include "galley/base/math.h"
#include "galley/engine/engine.h"
#include "galley/engine/loaded_model.h"
#include "galley/model/inspect.h"

namespace galley::app {

Result<int> RunPlan(Context& context) {
  const options::Values& values = context.values;
  if (!context.arguments.empty()) {
    return Err(ErrorCode::kInvalidArgument, "takes no arguments; the model is named by --model", context.arguments[0]);
  }
  ASSIGN_OR_RETURN(const std::filesystem::path model_dir, ModelDir(context));
  const model::InspectReport report = model::Inspect(model_dir);
  if (!report.config) return Err(report.problems.front());

  engine::EngineOptions options;
  options.max_seqs = static_cast<int>(values.Int("max-seqs"));
  options.max_seq_len = values.Int("max-seq-len");
  options.step_rows_max = static_cast<int>(values.Int("step-rows"));
  options.snapshots = static_cast<int>(values.Int("snapshots"));
  options.blocks = static_cast<int>(values.Int("blocks"));
  options.memory_limit = values.Int("memory-limit");
  options.grammar_cache = values.Int("grammar-cache");
  options.device = ReadDevice(context);
  ASSIGN_OR_RETURN(options.speculation, ReadSpeculation(values));
  if (options.blocks == 0 && values.source("max-tokens") != options::Source::kDefault) {
    options.blocks =
        static_cast<int>(CeilDiv<std::int64_t>(values.Int("max-tokens"), backend::kBlockTokens) * options.max_seqs);
  }
  ASSIGN_OR_RETURN(engine::MemoryPlan plan, engine::PlanMemory(options, *report.config));
  plan.device_limit = values.Int("device-memory");
  if (plan.device_limit == 0) plan.device_limit = engine::DeviceMemory(options.device.backend);
  const std::int64_t limit = engine::MemoryLimit(values.Int("memory-limit"));
  if (const std::string slow = engine::BeyondMemoryNote(plan, engine::MemoryLimit(0));
      !slow.empty() && plan.Fits(limit))
    plan.notes.push_back(slow);
  if (values.Bool("json")) {
    context.terminal.Write(engine::ToJson(plan, limit));
  } else {
    context.terminal.Write(engine::ToText(plan, limit));
  }
  if (!plan.ChecksDevice()) {
    context.terminal.Note(
        "the GPU's memory was not checked, because there is none here; give what the GPU has free with "
        "--device-memory, as 139GiB (there, nvidia-smi --query-gpu=memory.free tells it)");
  }
  const Status fits = plan.Fits(limit);
  if (fits) return kExitOk;
  context.terminal.Note(fits.error().ToString());
  return Info(fits.error().code).exit_code;
}

}  // namespace galley::app
