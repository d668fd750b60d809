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
     .section = "general",
     .commands = "options",
     .help = "Print the documentation page docs/options.md.",
     .scope = Scope::kFlag},
    {.name = "config",
     .type = Type::kPath,
     .section = "general",
     .commands = "*",
     .value_name = "FILE",
     .help = "Read options from this TOML file.",
     .scope = Scope::kFlagAndEnvironment},
    {.name = "log-level",
     .type = Type::kEnum,
     .section = "general",
     .commands = "*",
     .initial = "warning",
     .help = "Least important diagnostics to print on standard error.",
     .choices = "debug info warning error"},
};

std::vector<Spec> Joined() {
  std::vector<Spec> table;
  for (const Table part : {ModelOptions(), EngineOptions(), Table(kProgram)})
    table.insert(table.end(), part.begin(), part.end());
  return table;
}

}  // namespace

Table AllOptions() {
  static const std::vector<Spec> table = Joined();
  return table;
}

}  // namespace galley::options
