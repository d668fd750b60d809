// SPDX-License-Identifier: Apache-2.0
// Options that a command takes but that do nothing beside the others of the run: said, not passed over in silence.
#pragma once

#include <string_view>

#include "command.h"

namespace galley::app {

// Options that have an effect only beside others. One of the command line is an error, kInvalidArgument; one from
// elsewhere may be meant for other runs and is a warning.
[[nodiscard]] Status CheckEffects(const options::Values& values, Terminal& terminal);

// Options that other kinds of `galley bench`, or other parts of this one, have and this one has not, on the command
// line. Errors: kInvalidArgument.
[[nodiscard]] Status CheckBenchOptions(const options::Values& values, std::string_view kind);

}  // namespace galley::app
