// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/plan_speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "galley/engine/plan_advice.h"
#include "galley/model/tensor_list.h"

namespace galley::engine {
namespace {

constexpr double kPage = 4096;

std::string ToBytes(double bytes) {
  return SizeText(static_cast<std::int64_t>(bytes));
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
  const MissingExperts missing = MissingShares(config, options);
  const double table_rows = static_cast<double>(config.engram.layer_ids.size()) * config.engram.columns();
  std::vector<StepSpeed> speeds;
  for (const int count : rows) {
    if (!speeds.empty() && speeds.back().rows >= count) continue;
    StepSpeed& speed = speeds.emplace_back(StepSpeed{.rows = count, .device_bytes = others});
    const double used = experts * Touched(config, count) / config.n_routed_experts;
    const bool read_there = options.experts == WeightPlace::kHost && options.expert_cache == 0;
    speed.device_bytes += read_there ? 0 : used;
    if (options.experts != WeightPlace::kDevice) speed.link_bytes = used * missing.device;
    if (options.experts == WeightPlace::kDisk) speed.disk_bytes = used * missing.main_memory;
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
  return line + fmt::format(": about {}, {:.{}f} tokens/s, by {}", TimeText(speed.seconds()), rate, rate < 10 ? 2 : 0,
                            speed.limit());
}

std::string SpeedsNote() {
  return fmt::format(
      "these are bytes over rates ({:.0f} GB/s of device memory, {:.0f} over PCIe, {:.0f} from disk) with every expert "
      "chosen alike, no bounds: kernels that do not keep up and a slower disk take longer, a faster disk and text that "
      "keeps to some experts less",
      kDeviceRate / 1e9, kLinkRate / 1e9, kDiskRate / 1e9);
}

}  // namespace galley::engine
