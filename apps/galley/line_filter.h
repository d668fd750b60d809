// SPDX-License-Identifier: Apache-2.0
// Commands that answer standard input line by line, as test harnesses drive them. One thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "galley/base/error.h"
#include "terminal.h"

namespace galley::app {

// Writes what `answer` says to each line that is not blank, and a line end, until the input ends, nobody reads the
// output any more, or `done`, asked before each line, says so. The exit code: that of kCancelled after an interrupt.
// Errors: those of reading and writing.
[[nodiscard]] Result<int> FilterLines(
    Terminal& terminal, const std::function<std::string(std::string_view line)>& answer,
    const std::function<bool()>& done = [] { return false; });

}  // namespace galley::app
