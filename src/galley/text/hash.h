// SPDX-License-Identifier: Apache-2.0
// Hashes for the tables of this layer. They spread, they do not protect: every table that uses them is bounded or keyed
// by data that was checked when it was built.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace galley::text {

// One round: multiply and fold the high half into the low one.
[[nodiscard]] inline std::uint64_t HashRound(std::uint64_t hash, std::uint64_t word) {
  const std::uint64_t mixed = (hash ^ word) * 0x9E3779B97F4A7C15U;
  return mixed ^ (mixed >> 32);
}

[[nodiscard]] inline std::uint64_t HashBytes(std::string_view bytes) {
  std::uint64_t hash = bytes.size();
  std::size_t pos = 0;
  for (; pos + 8 <= bytes.size(); pos += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + pos, 8);
    hash = HashRound(hash, word);
  }
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data() + pos, bytes.size() - pos);
  return HashRound(HashRound(hash, word), 0);
}

}  // namespace galley::text
