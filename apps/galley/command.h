// SPDX-License-Identifier: Apache-2.0
// What a sub-command is and what it is given. Each sub-command is one file with one function; the table in program.cc
// lists them. Commands take everything from outside through the context, so tests run them with a generator, files and
// descriptors of their own.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "galley/base/error.h"
#include "galley/base/options.h"
#include "galley/engine/generator.h"
#include "terminal.h"

namespace galley::app {

// Exit codes beyond those of error codes (base/error.h).
inline constexpr int kExitOk = 0;

using GeneratorFactory =
    std::function<Result<std::unique_ptr<engine::Generator>>(const engine::GeneratorOptions& options)>;

struct Context {
  Terminal& terminal;
  const options::Values& values;
  std::span<const std::string> arguments;  // what is left after the options
  const options::Environment& environment;
  const std::filesystem::path& executable;  // to find the model that comes with the program; may be empty
  const GeneratorFactory& make_generator;
};

struct Command {
  std::string_view name;
  std::string_view summary;              // one line of `galley help`
  std::string_view arguments;            // of the usage line
  std::string_view text;                 // help between usage and options
  Result<int> (*run)(Context& context);  // exit code
};

Result<int> RunGenerate(Context& context);
Result<int> RunChat(Context& context);
Result<int> RunTokenize(Context& context);
Result<int> RunInspect(Context& context);
Result<int> RunDump(Context& context);
Result<int> RunServe(Context& context);
Result<int> RunBench(Context& context);
Result<int> RunCalibrate(Context& context);
Result<int> RunPlan(Context& context);
Result<int> RunSim(Context& context);
Result<int> RunCodecServe(Context& context);
Result<int> RunGrammar(Context& context);
Result<int> RunGrammarServe(Context& context);
Result<int> RunOptions(Context& context);
Result<int> RunVersion(Context& context);

}  // namespace galley::app
