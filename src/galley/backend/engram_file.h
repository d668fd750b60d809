// SPDX-License-Identifier: Apache-2.0
// Rows of Engram tables that lie in mapped files: asked for, so that the system reads all of a step at once, and
// copied. `args` has its row numbers in host memory. Any thread.
#pragma once

#include <cstdint>

#include "galley/backend/ops.h"

namespace galley::backend {

// Returns when the system has begun to read; what it does not know how to read ahead is read when it is used.
void AskForRows(const EngramGatherArgs& args);
// Codes and scales of the rows, one after the other.
void CopyRows(const EngramGatherArgs& args, std::uint8_t* codes, std::uint8_t* scales);

}  // namespace galley::backend
