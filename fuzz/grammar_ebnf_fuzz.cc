// SPDX-License-Identifier: Apache-2.0
// EBNF grammars: options in the first byte, the grammar behind it.
#include "grammar_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  galley::fuzz::CompileAndWalk("ebnf", data, size);
  return 0;
}
