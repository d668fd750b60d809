// SPDX-License-Identifier: Apache-2.0
// `galley inspect`: whether a model directory is whole, and what it holds.
#include "galley/model/inspect.h"

#include <fmt/core.h>

#include "command.h"
#include "files.h"

namespace galley::app {

Result<int> RunInspect(Context& context) {
  if (context.arguments.size() > 1) {
    return Err(ErrorCode::kInvalidArgument, "one model at a time", context.arguments[1]);
  }
  if (!context.arguments.empty() && context.values.source("model") == options::Source::kCommandLine) {
    return Err(ErrorCode::kInvalidArgument, "the model is named twice, by --model and by the argument",
               context.arguments[0]);
  }
  std::filesystem::path dir;
  if (context.arguments.empty()) {
    ASSIGN_OR_RETURN(dir, ModelDir(context));
  } else {
    dir = context.arguments[0];
  }
  model::InspectReport report = model::Inspect(dir);
  if (context.values.Bool("digest") && report.files > 0) {
    ASSIGN_OR_RETURN(report.weights_digest, WeightsDigest(context, dir));
  }
  const bool json = context.values.Bool("json");
  if (json) {
    context.terminal.Write(model::ToJson(report) + "\n");
  } else {
    context.terminal.WriteForeign(model::ToText(report));
  }
  return report.ok() ? kExitOk : Info(report.problems.front().code).exit_code;
}

}  // namespace galley::app
