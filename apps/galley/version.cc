// SPDX-License-Identifier: Apache-2.0
// `galley version`.
#include <fmt/core.h>

#include "command.h"

namespace galley::app {

Result<int> RunVersion(Context& context) {
  context.terminal.Write(fmt::format("galley {}\n", GALLEY_VERSION));
  return kExitOk;
}

}  // namespace galley::app
