// SPDX-License-Identifier: Apache-2.0
// JSON Schemas: options in the first byte, the schema behind it.
#include "grammar_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  galley::fuzz::CompileAndWalk("json_schema", data, size);
  return 0;
}
