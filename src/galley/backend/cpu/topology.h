// SPDX-License-Identifier: Apache-2.0
// Physical cores and memory nodes of the machine, as far as this process may use them. Two logical processors of one
// core share its vector units, so compute threads take one of them. Reads the system's description; otherwise pure.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "galley/base/cgroup.h"

namespace galley::backend::cpu {

struct Core {
  int processor = 0;  // the first of its logical processors that may be used
  int node = 0;       // memory node
};

// "0-3,8,10-11" as numbers; what is not a list of that form ends it.
[[nodiscard]] std::vector<int> ParseProcessorList(std::string_view list);

// Cores of the processors in `allowed`, node by node, in ascending order. `root` is the folder with cpu0, cpu1 … of the
// system's description; without one every processor counts as a core of node 0.
[[nodiscard]] std::vector<Core> FindCores(const std::filesystem::path& root, std::span<const int> allowed);

// How compute threads are placed on this machine.
struct Placement {
  int threads = 1;
  std::vector<Core> processors;  // of each thread; empty: the system places them
};
// `asked` threads, or with 0 one for each core, cut by `limits`: never two on a core, so the other logical processors
// of the cores are free for threads that serve connections. Threads are pinned only on a machine of several memory
// nodes that this process has to itself (`whole_machine`): pinned threads of two processes would share cores.
[[nodiscard]] Placement PlaceOn(std::span<const Core> cores, int asked, const CgroupLimits& limits, bool whole_machine);
// On this machine, of the processors that the calling thread may use.
[[nodiscard]] Placement PlaceThreads(int asked);

}  // namespace galley::backend::cpu
