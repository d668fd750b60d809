// SPDX-License-Identifier: Apache-2.0
// Limits that control groups (version 2) set for this process. A limit of any group above it holds as well, so the
// least counts. Reads small files of the system; otherwise pure.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace galley {

struct CgroupLimits {
  std::optional<std::uint64_t> memory_bytes;
  std::optional<double> processors;  // quota divided by period
};

// `root` is where groups are mounted, `self` the list of the process's groups ("0::/a/b"). In a container that sees its
// own group as the root, files of the path that are not there say nothing. What cannot be parsed ("max") is no limit.
[[nodiscard]] CgroupLimits ReadCgroupLimits(const std::filesystem::path& root = "/sys/fs/cgroup",
                                            const std::filesystem::path& self = "/proc/self/cgroup");

}  // namespace galley
