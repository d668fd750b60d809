// SPDX-License-Identifier: Apache-2.0
// What every fuzz target needs: the fuzzer's bytes as text, and copies of exactly the input's size, so that the address
// sanitizer sees a read of one byte too many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace galley::fuzz {

[[nodiscard]] inline std::string_view Text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Stops the run when a property that must hold for every input does not.
inline void Require(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace galley::fuzz

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
