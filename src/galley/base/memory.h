// SPDX-License-Identifier: Apache-2.0
// How much memory this process may use.
#pragma once

#include <cstdint>

namespace galley {

// Bytes: the smallest of the machine's memory, the cgroup's limit and the address space limit (ulimit -v).
[[nodiscard]] std::uint64_t UsableMemoryBytes();

}  // namespace galley
