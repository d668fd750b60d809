// SPDX-License-Identifier: Apache-2.0
// What to change when a memory plan does not fit: options and values of which each is enough, or several that are
// enough together. Pure. Bytes.
#pragma once

#include <span>
#include <string>

#include "galley/engine/memory_plan.h"

namespace galley::engine {

// "1.23 GiB", always with the unit that leaves the number readable.
[[nodiscard]] std::string SizeText(std::int64_t bytes);

// A sentence without its end. `items`: all of one memory, together more than `limit`.
[[nodiscard]] std::string AdviceFor(std::span<const MemoryItem> items, std::int64_t limit);

}  // namespace galley::engine
