// SPDX-License-Identifier: Apache-2.0
// Any text through both JSON readers, the checkpoint's and the protocol's. What the protocol accepts reads back, after
// writing, as the same value.
#include "galley/io/json.h"
#include "galley/protocol/json.h"
#include "input.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = galley::fuzz::Text(data, size);
  (void)galley::io::ParseJson(text, "input");

  const auto first = galley::protocol::ParseJson(text);
  if (!first) return 0;
  const std::string written = galley::protocol::DumpJson(*first);
  const auto second = galley::protocol::ParseJson(written);
  galley::fuzz::Require(second.has_value() && galley::protocol::DumpJson(*second) == written);
  return 0;
}
