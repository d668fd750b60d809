// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cpu/topology.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <thread>

namespace galley::backend::cpu {
namespace {

constexpr const char* kSystemRoot = "/sys/devices/system/cpu";

// Reads an integer at the front of `text` and takes it off; -1 when there is none.
int TakeNumber(std::string_view& text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0) return -1;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

int NodeOf(const std::filesystem::path& processor) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(processor, error)) {
    const std::string name = entry.path().filename().string();
    std::string_view number = name;
    if (!number.starts_with("node")) continue;
    number.remove_prefix(4);
    const int node = TakeNumber(number);
    if (node >= 0 && number.empty()) return node;
  }
  return 0;
}

std::vector<int> AllowedProcessors() {
  std::vector<int> allowed;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) allowed.push_back(i);
    }
  }
  if (allowed.empty()) {  // a machine larger than the set
    allowed.resize(std::max(1u, std::thread::hardware_concurrency()));
    std::iota(allowed.begin(), allowed.end(), 0);
  }
  return allowed;
}

}  // namespace

std::vector<int> ParseProcessorList(std::string_view list) {
  constexpr int kProcessorsMax = 1 << 16;
  std::vector<int> numbers;
  while (true) {
    const int first = TakeNumber(list);
    if (first < 0) return numbers;
    int last = first;
    if (list.starts_with('-')) {
      list.remove_prefix(1);
      last = TakeNumber(list);
    }
    for (int i = first; i <= last && i < kProcessorsMax; ++i) numbers.push_back(i);
    if (!list.starts_with(',')) return numbers;
    list.remove_prefix(1);
  }
}

std::vector<Core> FindCores(const std::filesystem::path& root, std::span<const int> allowed) {
  std::set<int> taken;  // processors whose core is in the list
  std::vector<Core> cores;
  for (const int processor : allowed) {
    if (taken.contains(processor)) continue;
    const std::filesystem::path folder = root / ("cpu" + std::to_string(processor));
    std::ifstream file(folder / "topology" / "thread_siblings_list");
    std::string list;
    std::getline(file, list);
    for (const int sibling : ParseProcessorList(list)) taken.insert(sibling);
    cores.push_back({processor, NodeOf(folder)});
  }
  std::stable_sort(cores.begin(), cores.end(), [](const Core& a, const Core& b) { return a.node < b.node; });
  return cores;
}

Placement PlaceOn(std::span<const Core> cores, int asked, const CgroupLimits& limits, bool whole_machine) {
  const auto count = static_cast<int>(cores.size());
  Placement placement;
  placement.threads = asked > 0 ? asked : ProcessorsWithin(count, limits);
  const bool several_nodes = !cores.empty() && cores.front().node != cores.back().node;
  if (asked == 0 && several_nodes && whole_machine && placement.threads == count)
    placement.processors.assign(cores.begin(), cores.end());
  return placement;
}

Placement PlaceThreads(int asked) {
  const std::vector<int> allowed = AllowedProcessors();
  // Not by what the C library counts: some versions count the affinity mask.
  std::ifstream file(std::filesystem::path(kSystemRoot) / "online");
  std::string list;
  std::getline(file, list);
  const std::vector<int> online = ParseProcessorList(list);
  return PlaceOn(FindCores(kSystemRoot, allowed), asked, ReadCgroupLimits(),
                 !online.empty() && allowed.size() >= online.size());
}

}  // namespace galley::backend::cpu
