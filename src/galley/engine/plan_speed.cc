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

StepSpeed SpeedOf(const model::Config& config, const MemoryOptions& options, int rows) {
  StepSpeed speed{.rows = rows};
  double experts = 0;
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
        speed.device_bytes += bytes;
    }
  }
  const double used = experts * Touched(config, rows) / config.n_routed_experts;
  speed.device_bytes += options.experts == WeightPlace::kHost && options.expert_cache == 0 ? 0 : used;
  if (options.experts != WeightPlace::kDevice) {
    const double cached = std::min(1.0, static_cast<double>(ExpertCacheOf(config, options).bytes()) / experts);
    speed.link_bytes = used * (1 - cached);
    if (options.experts == WeightPlace::kDisk) {
      const double held = std::min(1.0, static_cast<double>(options.expert_memory) / experts);
      speed.disk_bytes = used * (1 - std::max(held, cached));
    }
  }
  const double table_rows =
      static_cast<double>(rows) * static_cast<double>(config.engram.layer_ids.size()) * config.engram.columns();
  const double row_bytes = config.engram.head_dim * (1 + 1.0 / 32);
  if (options.engram != WeightPlace::kDevice) speed.link_bytes += table_rows * row_bytes;
  if (options.engram == WeightPlace::kDisk) speed.disk_bytes += table_rows * 2 * kPage;
  return speed;
}

std::string ToLine(const StepSpeed& speed) {
  std::string line = fmt::format("a step of {} row{} reads {} of device memory", speed.rows, speed.rows == 1 ? "" : "s",
                                 ToBytes(speed.device_bytes));
  if (speed.link_bytes > 0) line += fmt::format(", {} over PCIe", ToBytes(speed.link_bytes));
  if (speed.disk_bytes > 0) line += fmt::format(", {} from disk", ToBytes(speed.disk_bytes));
  return line + fmt::format(": {:.3g} ms at least, {:.0f} tokens/s at most, by {}", speed.seconds() * 1e3,
                            speed.rows / speed.seconds(), speed.limit());
}

}  // namespace galley::engine
