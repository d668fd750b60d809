// SPDX-License-Identifier: Apache-2.0
// `galley options`: every option, for people or as the documentation page.
#include "command.h"
#include "galley/base/option_table.h"
#include "program.h"

namespace galley::app {

Result<int> RunOptions(Context& context) {
  const options::Table table = options::AllOptions();
  if (context.values.Bool("markdown")) {
    context.terminal.Write(options::MarkdownPage(table));
    return kExitOk;
  }
  context.terminal.Write(options::HelpText(table, ""));
  return kExitOk;
}

}  // namespace galley::app
