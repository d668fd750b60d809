// SPDX-License-Identifier: Apache-2.0
// Element types of checkpoint tensors and of activations, with the safetensors spelling of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace galley {

enum class DType : std::uint8_t {
  kF32,
  kBF16,
  kF16,
  kF8E4M3,  // OCP e4m3fn: no infinities, largest value 448
  kE8M0,    // power-of-two scale, value 2^(byte - 127)
  kI8,      // also the carrier of packed MXFP4: two e2m1 codes a byte, low nibble first
  kU8,
  kI16,
  kI32,
  kI64,
  kF64,
  kBool,
};

struct DTypeInfo {
  DType dtype;
  std::string_view safetensors_name;
  std::size_t bytes;
};
[[nodiscard]] const DTypeInfo& Info(DType dtype);
[[nodiscard]] std::optional<DType> DTypeFromSafetensors(std::string_view name);

}  // namespace galley
