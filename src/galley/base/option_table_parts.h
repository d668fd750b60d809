// SPDX-License-Identifier: Apache-2.0
// The parts of the table of options, in the order of its pages.
#pragma once

#include "galley/base/options.h"

namespace galley::options {

// Options that help shows together. A row leaves out its section, and commands and scope where they are these.
struct Section {
  std::string_view name;
  std::string_view commands = {};
  Scope scope = Scope::kAll;
  Table rows = {};
};

[[nodiscard]] std::span<const Section> ModelOptions();  // the model, what goes in and what comes out, tools around them
[[nodiscard]] std::span<const Section> EngineOptions();  // the engine, benchmarks, the server

}  // namespace galley::options
