// SPDX-License-Identifier: Apache-2.0
#include "galley/base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

namespace galley {
namespace {

template <typename T>
void Lower(std::optional<T>& limit, T value) {
  limit = limit ? std::min(*limit, value) : value;
}

void ReadGroup(const std::filesystem::path& group, CgroupLimits& limits) {
  std::uint64_t bytes = 0;
  if (std::ifstream(group / "memory.max") >> bytes) Lower(limits.memory_bytes, bytes);
  double quota = 0, period = 0;  // microseconds
  if (std::ifstream(group / "cpu.max") >> quota >> period && quota > 0 && period > 0)
    Lower(limits.processors, quota / period);
}

}  // namespace

CgroupLimits ReadCgroupLimits(const std::filesystem::path& root, const std::filesystem::path& self) {
  CgroupLimits limits;
  ReadGroup(root, limits);
  std::ifstream file(self);
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kVersion2 = "0::/";
    if (!line.starts_with(kVersion2)) continue;
    std::filesystem::path group = root;
    for (const std::filesystem::path& part : std::filesystem::path(line.substr(kVersion2.size()))) {
      if (part == "..") break;  // a group outside of what this process sees
      group /= part;
      ReadGroup(group, limits);
    }
  }
  return limits;
}

}  // namespace galley
