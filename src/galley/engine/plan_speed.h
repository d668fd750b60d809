// SPDX-License-Identifier: Apache-2.0
// What a step of a device with memory of its own moves, by where weights are kept, and how long that takes at given
// rates. An estimate and no bound: experts are taken to be chosen evenly, the case that copies of some of them help
// least, rates are assumed, and kernels take what they take. Pure. Bytes and seconds.
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
// "a step of 1 row reads 7.94 GiB of device memory, 4.20 GiB over PCIe: about 92.2 ms, …"
[[nodiscard]] std::string ToLine(const StepSpeed& speed);
// What all of them assume.
[[nodiscard]] std::string SpeedsNote();

}  // namespace galley::engine
