// SPDX-License-Identifier: Apache-2.0
// Structural tags and tool sets: options in the first byte, the JSON behind it.
#include "grammar_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  galley::fuzz::CompileAndWalk(size > 0 && (data[0] & 32) != 0 ? "dsml" : "structural_tag", data, size);
  return 0;
}
