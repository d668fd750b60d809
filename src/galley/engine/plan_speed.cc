// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/plan_speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "galley/model/tensor_list.h"

namespace galley::engine {
namespace {

constexpr double kPage = 4096;

// "4.51 GB"
std::string ToBytes(double bytes) {
  const char* unit = bytes >= 1e9 ? "GB" : bytes >= 1e6 ? "MB" : "kB";
  return fmt::format("{:.3g} {}", bytes / (bytes >= 1e9 ? 1e9 : bytes >= 1e6 ? 1e6 : 1e3), unit);
}

// Of a layer's experts, those that some row chose.
double Touched(const model::Config& config, int rows) {
  const double experts = config.n_routed_experts;
  return experts * (1 - std::pow(1 - config.n_activated_experts / experts, rows));
}

}  // namespace

double StepSpeed::seconds() const {
  return device_bytes / kDeviceRate + std::max(link_bytes / kLinkRate, disk_bytes / kDiskRate);
}

std::string_view StepSpeed::limit() const {
  const double device = device_bytes / kDeviceRate, link = link_bytes / kLinkRate, disk = disk_bytes / kDiskRate;
  if (disk >= link && disk >= device) return "disk";
  return link >= device ? "PCIe" : "device memory";
}

std::vector<StepSpeed> SpeedsOf(const model::Config& config, const MemoryOptions& options,
                                std::initializer_list<int> rows) {
  double experts = 0, others = 0;
  for (const model::ImpliedTensor& tensor : model::ImpliedTensors(config)) {
    const auto bytes = static_cast<double>(ElementCount(tensor.shape)) * static_cast<double>(Info(tensor.dtype).bytes);
    switch (tensor.part) {
      case model::Part::kRoutedExperts:
        experts += bytes;
        break;
      case model::Part::kEmbedding:  // a row a token
      case model::Part::kEngramTables:
      case model::Part::kDraft:
      case model::Part::kVision:
        break;
      default:
        others += bytes;
    }
  }
  const auto part = [experts](std::int64_t bytes) { return std::min(1.0, static_cast<double>(bytes) / experts); };
  const double cached = part(ExpertCacheOf(config, options).bytes()), held = part(options.expert_memory);
  const double table_rows = static_cast<double>(config.engram.layer_ids.size()) * config.engram.columns();
  std::vector<StepSpeed> speeds;
  for (const int count : rows) {
    if (!speeds.empty() && speeds.back().rows >= count) continue;
    StepSpeed& speed = speeds.emplace_back(StepSpeed{.rows = count, .device_bytes = others});
    const double used = experts * Touched(config, count) / config.n_routed_experts;
    const bool read_there = options.experts == WeightPlace::kHost && options.expert_cache == 0;
    speed.device_bytes += read_there ? 0 : used;
    if (options.experts != WeightPlace::kDevice) speed.link_bytes = used * (1 - cached);
    if (options.experts == WeightPlace::kDisk) speed.disk_bytes = used * (1 - std::max(held, cached));
    if (options.engram != WeightPlace::kDevice)
      speed.link_bytes += count * table_rows * config.engram.head_dim * (1 + 1.0 / 32);
    if (options.engram == WeightPlace::kDisk) speed.disk_bytes += count * table_rows * 2 * kPage;
  }
  return speeds;
}

std::string TimeText(double seconds) {
  return seconds < 0.1 ? fmt::format("{:.3g} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}

std::string ToLine(const StepSpeed& speed) {
  std::string line = fmt::format("a step of {} row{} reads {} of device memory", speed.rows, speed.rows == 1 ? "" : "s",
                                 ToBytes(speed.device_bytes));
  if (speed.link_bytes > 0) line += fmt::format(", {} over PCIe", ToBytes(speed.link_bytes));
  const double rate = speed.rows / speed.seconds();
  if (speed.disk_bytes > 0) line += fmt::format(", {} from disk", ToBytes(speed.disk_bytes));
  return line + fmt::format(": {} at least, {:.{}f} tokens/s at most, by {}", TimeText(speed.seconds()), rate,
                            rate < 10 ? 2 : 0, speed.limit());
}

}  // namespace galley::engine
