// SPDX-License-Identifier: Apache-2.0
#include "galley/base/option_table.h"

#include <vector>

#include "galley/base/option_table_parts.h"

namespace galley::options {
namespace {

constexpr Spec kProgram[] = {
    // The program itself.
    {.name = "markdown",
     .type = Type::kBool,
     .commands = "options",
     .help = "Print the documentation page docs/options.md.",
     .scope = Scope::kFlag},
    {.name = "config",
     .type = Type::kPath,
     .commands = "*",
     .value_name = "FILE",
     .help = "Read options from this TOML file.",
     .scope = Scope::kFlagAndEnvironment},
    {.name = "log-level",
     .type = Type::kEnum,
     .commands = "*",
     .initial = "warning",
     .help = "Least important diagnostics to print on standard error.",
     .choices = "debug info warning error"},
};

constexpr Section kSections[] = {{.name = "general", .rows = kProgram}};

std::vector<Spec> Joined() {
  std::vector<Spec> table;
  for (const std::span<const Section> part : {ModelOptions(), EngineOptions(), std::span<const Section>(kSections)}) {
    for (const Section& section : part) {
      for (Spec row : section.rows) {
        row.section = section.name;
        if (row.commands.empty()) row.commands = section.commands;
        if (row.scope == Scope::kAll) row.scope = section.scope;
        table.push_back(row);
      }
    }
  }
  return table;
}

}  // namespace

Table AllOptions() {
  static const std::vector<Spec> table = Joined();
  return table;
}

}  // namespace galley::options
