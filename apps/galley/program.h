// SPDX-License-Identifier: Apache-2.0
// The program without its process: picks the sub-command, resolves its options, prints help and errors. main.cc gives
// it the arguments and environment of the real process.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "command.h"
#include "galley/base/options.h"
#include "terminal.h"

namespace galley::app {

[[nodiscard]] std::span<const Command> Commands();

struct Process {
  std::vector<std::string> arguments;  // without the program's name
  options::Environment environment;
  std::filesystem::path executable;
  GeneratorFactory make_generator;
};

// Runs one command to its end and returns the exit code; every error has been printed.
[[nodiscard]] int RunProgram(const Process& process, Terminal& terminal);

// Text of `galley help exit-codes`.
[[nodiscard]] std::string ExitCodesText();

}  // namespace galley::app
