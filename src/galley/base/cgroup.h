// SPDX-License-Identifier: Apache-2.0
// Limits that control groups set for this process, of version 2 and of version 1, whichever controller is where. A
// limit of any group above holds as well, so the least counts. Reads small files of the system; otherwise pure.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace galley {

struct CgroupLimits {
  std::optional<std::uint64_t> memory_bytes;
  std::optional<double> processors;  // quota divided by period
};

// `root` is where groups are mounted, `self` the list of the process's groups: "0::/a/b" (version 2), "4:memory:/a/b"
// (version 1, in a folder of the controller's name). In a container that sees its own group as the root, files of the
// path that are not there say nothing. What cannot be parsed ("max") or is negative is no limit.
[[nodiscard]] CgroupLimits ReadCgroupLimits(const std::filesystem::path& root = "/sys/fs/cgroup",
                                            const std::filesystem::path& self = "/proc/self/cgroup");

// As many of `processors` as may run all the time: whole ones of the quota, at least one. More threads than that would
// be stopped together when the quota is used up.
[[nodiscard]] int ProcessorsWithin(int processors, const CgroupLimits& limits);

}  // namespace galley
