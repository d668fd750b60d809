// SPDX-License-Identifier: Apache-2.0
// The parts of the table of options, in the order of its pages.
#pragma once

#include "galley/base/options.h"

namespace galley::options {

[[nodiscard]] Table ModelOptions();   // the model, what goes in and what comes out, tools around them
[[nodiscard]] Table EngineOptions();  // the engine, benchmarks, the server

}  // namespace galley::options
