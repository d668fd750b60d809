// SPDX-License-Identifier: Apache-2.0
#include "line_filter.h"

#include "command.h"
#include "interrupt.h"

namespace galley::app {

Result<int> FilterLines(Terminal& terminal, const std::function<std::string(std::string_view line)>& answer,
                        const std::function<bool()>& done) {
  const Interrupt interrupt;
  std::string line;
  while (!done()) {
    ASSIGN_OR_RETURN(const ReadEnd end, terminal.ReadLine(interrupt, line));
    if (end == ReadEnd::kInterrupted) return Info(ErrorCode::kCancelled).exit_code;
    if (end == ReadEnd::kEndOfInput || terminal.output_closed()) break;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    terminal.Write(answer(line) + "\n");
    RETURN_IF_ERROR(terminal.write_status());
  }
  return kExitOk;
}

}  // namespace galley::app
