// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file: the parser refuses them or gives tensors that lie inside the file, fill it and do
// not overlap. The header's text is tried as an index too.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "galley/base/check.h"
#include "galley/io/safetensors.h"
#include "galley/io/shard_set.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace galley;
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  const Result<io::SafetensorsHeader> header = io::ParseSafetensors(file, "input");
  if (header) {
    std::uint64_t end = 0, total = 0;
    for (const io::SafetensorsEntry& entry : header->tensors) {
      CHECK(entry.offset <= size && entry.bytes <= size - entry.offset) << entry.name << " lies outside the file";
      CHECK(entry.bytes == 0 || entry.offset >= end) << entry.name << " overlaps";
      if (entry.bytes > 0) end = entry.offset + entry.bytes;
      total += entry.bytes;
      CHECK(io::SafetensorsBits(entry.dtype).has_value());
    }
    CHECK(total < size) << "no room for the header";
  } else {
    CHECK(!header.error().message.empty());
  }
  if (size > 8) {
    const std::string_view text(reinterpret_cast<const char*>(data) + 8, size - 8);
    if (const Result<io::WeightMap> map = io::ParseIndex(text, "input")) {
      for (const auto& [name, shard] : *map) CHECK(shard.find('/') == shard.npos) << shard;
    }
  }
  return 0;
}
