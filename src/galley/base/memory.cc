// SPDX-License-Identifier: Apache-2.0
#include "galley/base/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "galley/base/cgroup.h"

namespace galley {

std::uint64_t UsableMemoryBytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  std::uint64_t usable = UINT64_MAX;
  if (pages > 0 && page_bytes > 0) usable = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes);
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    usable = std::min<std::uint64_t>(usable, limit.rlim_cur);
  }
  if (const auto group = ReadCgroupLimits().memory_bytes) usable = std::min(usable, *group);
  return usable;
}

}  // namespace galley
