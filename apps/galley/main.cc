// SPDX-License-Identifier: Apache-2.0
// The process around the program: arguments, environment, signals. Nothing else of Galley reads the environment.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
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

// A process may start with a standard descriptor closed. The next file to be opened would take its number, and text
// meant for the terminal would end up in it. The stand-ins refuse what the descriptor is for, as a closed one does.
void FillClosedDescriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is this one; nothing can be done, nor said, if opening fails.
    [[maybe_unused]] const int opened = open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  FillClosedDescriptors();
  // A reader that goes away shows as a failed write, which the terminal takes quietly.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` fails as one to a full disk does
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
