// SPDX-License-Identifier: Apache-2.0
#include "galley/base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

namespace galley {
namespace {

using Path = std::filesystem::path;

template <typename T>
void Lower(std::optional<T>& limit, T value) {
  limit = limit ? std::min(*limit, value) : value;
}

template <typename T>
std::optional<T> ReadNumber(const Path& file) {
  T value{};
  if (std::ifstream(file) >> value) return value;
  return std::nullopt;
}

void LowerProcessors(CgroupLimits& limits, double quota, double period) {  // microseconds
  if (quota > 0 && period > 0) Lower(limits.processors, quota / period);
}

void ReadVersion2(const Path& group, CgroupLimits& limits) {
  // Above `high` the system slows the group down until it lets go of memory, so that is as far as it may grow.
  for (const char* name : {"memory.max", "memory.high"}) {
    if (const auto bytes = ReadNumber<std::uint64_t>(group / name)) Lower(limits.memory_bytes, *bytes);
  }
  double quota = 0, period = 0;
  if (std::ifstream(group / "cpu.max") >> quota >> period) LowerProcessors(limits, quota, period);
}

void ReadMemory1(const Path& group, CgroupLimits& limits) {
  constexpr std::uint64_t kNone = std::uint64_t{1} << 62;  // "no limit" is the largest number of whole pages
  const auto lower = [&](std::uint64_t bytes) {
    if (bytes < kNone) Lower(limits.memory_bytes, bytes);
  };
  if (const auto bytes = ReadNumber<std::uint64_t>(group / "memory.limit_in_bytes")) lower(*bytes);
  // The least of all groups above, those outside of what a container sees included.
  std::ifstream stat(group / "memory.stat");
  std::string name;
  for (std::uint64_t value = 0; stat >> name >> value;) {
    if (name == "hierarchical_memory_limit") lower(value);
  }
}

void ReadProcessors1(const Path& group, CgroupLimits& limits) {
  const auto quota = ReadNumber<double>(group / "cpu.cfs_quota_us");
  const auto period = ReadNumber<double>(group / "cpu.cfs_period_us");
  if (quota && period) LowerProcessors(limits, *quota, *period);
}

using Read = void (*)(const Path& group, CgroupLimits& limits);

// The group at `path` below `root` and all those above it.
void ReadAll(const Path& root, std::string_view path, Read read, CgroupLimits& limits) {
  read(root, limits);
  Path group = root;
  for (const Path& part : Path(path).relative_path()) {
    if (part == "..") break;  // a group outside of what this process sees
    group /= part;
    read(group, limits);
  }
}

struct Controller {
  std::string_view name;  // in the list of version 1
  Read read;
};
constexpr Controller kControllers[] = {{"memory", ReadMemory1}, {"cpu", ReadProcessors1}};

}  // namespace

CgroupLimits ReadCgroupLimits(const Path& root, const Path& self) {
  CgroupLimits limits;
  ReadVersion2(root, limits);
  std::ifstream file(self);
  for (std::string line; std::getline(file, line);) {
    const std::string_view text = line;
    const std::size_t first = text.find(':'), second = first == text.npos ? text.npos : text.find(':', first + 1);
    if (second == text.npos) continue;
    const std::string_view names = text.substr(first + 1, second - first - 1), path = text.substr(second + 1);
    if (names.empty()) {
      // Beside controllers of version 1 the tree of version 2 has a folder of its own.
      for (const Path& tree : {root, root / "unified"}) ReadAll(tree, path, ReadVersion2, limits);
      continue;
    }
    const std::string list = "," + std::string(names) + ",";
    for (const Controller& controller : kControllers) {
      if (list.find("," + std::string(controller.name) + ",") == list.npos) continue;
      for (const std::string_view folder : {names, controller.name})
        ReadAll(root / Path(folder), path, controller.read, limits);
    }
  }
  return limits;
}

int ProcessorsWithin(int processors, const CgroupLimits& limits) {
  if (limits.processors && *limits.processors < processors) processors = static_cast<int>(*limits.processors);
  return std::max(1, processors);
}

}  // namespace galley
