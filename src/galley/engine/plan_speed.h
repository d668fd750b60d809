// SPDX-License-Identifier: Apache-2.0
// What a step of a device with memory of its own moves, by where weights are kept, and how fast that can be at best:
// bytes over rates, nothing else, so a floor. Experts are taken to be chosen evenly, which no copy of some of them
// helps least. Pure. Bytes and seconds.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "galley/engine/memory_plan.h"

namespace galley::engine {

// Bytes a second: what an H200 reads of its memory and over PCIe, and a common disk.
inline constexpr double kDeviceRate = 4.4e12, kLinkRate = 50e9, kDiskRate = 1e9;

// Of steps of so many rows, each more than the one before; others are left out.
[[nodiscard]] std::vector<StepSpeed> SpeedsOf(const model::Config& config, const MemoryOptions& options,
                                              std::initializer_list<int> rows);
// "52.1 ms", "4.31 s"
[[nodiscard]] std::string TimeText(double seconds);
// "a step of 1 row reads 8.52 GB of device memory, 4.51 GB over PCIe: 92.2 ms at least, …"
[[nodiscard]] std::string ToLine(const StepSpeed& speed);

}  // namespace galley::engine
