// SPDX-License-Identifier: Apache-2.0
// Containers count in std::size_t, ids and counts are signed: this is the one place where an index changes type.
#pragma once

#include <cstddef>
#include <cstdint>

namespace galley::kv {

// Requires i >= 0.
[[nodiscard]] constexpr std::size_t Idx(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

}  // namespace galley::kv
