// SPDX-License-Identifier: Apache-2.0
// The process around the program: arguments, environment, signals. Nothing else of Galley reads the environment.
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <system_error>

#include "galley/engine/generator.h"
#include "program.h"

namespace {

galley::options::Environment ReadEnvironment() {
  galley::options::Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

}  // namespace

int main(int argc, char** argv) {
  // A reader that goes away shows as a failed write, which the terminal takes quietly.
  std::signal(SIGPIPE, SIG_IGN);
  std::error_code error;
  galley::app::Process process{
      .arguments = std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc),
      .environment = ReadEnvironment(),
      .executable = std::filesystem::read_symlink("/proc/self/exe", error),
      .make_generator = galley::engine::Generator::Create,
  };
  galley::app::Terminal terminal({.in = STDIN_FILENO, .out = STDOUT_FILENO, .err = STDERR_FILENO});
  return galley::app::RunProgram(process, terminal);
}
