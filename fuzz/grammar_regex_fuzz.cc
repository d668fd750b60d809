// SPDX-License-Identifier: Apache-2.0
// Patterns: options in the first byte, the pattern behind it.
#include "grammar_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  galley::fuzz::CompileAndWalk("regex", data, size);
  return 0;
}
