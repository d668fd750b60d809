// SPDX-License-Identifier: Apache-2.0
// Any text as the configuration file, and its lines as command line arguments, against the program's option table.
#include <vector>

#include "galley/base/config_file.h"
#include "galley/base/option_table.h"
#include "galley/base/options.h"
#include "input.h"

namespace {

std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return lines;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace options = galley::options;
  const std::string_view text = galley::fuzz::Text(data, size);
  const options::Table table = options::AllOptions();
  const options::Environment environment;

  if (const auto file = options::ParseConfigFile(text, "input")) {
    const options::CommandLine nothing;
    (void)options::Resolve(table, {"generate", nothing, environment, *file, "input"});
  }
  const std::vector<std::string> arguments = Lines(text);
  if (const auto line = options::ParseCommandLine(table, "generate", arguments)) {
    (void)options::Resolve(table, {.command = "generate", .command_line = *line, .environment = environment});
  }
  return 0;
}
