// SPDX-License-Identifier: Apache-2.0
#include "galley/model/inspect.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "galley/model/model_dir.h"

namespace galley::model {
namespace {

// Parameters of one tensor that a decoded token uses.
std::int64_t ActiveParameters(const ImpliedTensor& tensor, const Config& config) {
  switch (tensor.part) {
    case Part::kEmbedding:
      return config.dim;  // one row
    case Part::kEngramTables:
      return tensor.parameters == 0 ? 0 : config.engram.columns() * config.engram.head_dim;
    case Part::kRoutedExperts:
      // Every expert is as large as the others, so the layer's sum is a whole number of experts.
      return tensor.parameters * config.n_activated_experts;
    case Part::kDraft:
    case Part::kVision:
      return 0;
    default:
      return tensor.parameters;
  }
}

bool RunsInEncoder(const ImpliedTensor& tensor, int decoder_start) {
  if (tensor.layer < 0) return tensor.part == Part::kEmbedding;
  if (tensor.layer != decoder_start) return tensor.layer < decoder_start;
  constexpr std::string_view kAtDecoderStart[] = {".hc_attn", ".attn_norm", ".attn.compressor.", ".attn.indexer.wk.",
                                                  ".attn.indexer.k_norm."};
  return std::any_of(std::begin(kAtDecoderStart), std::end(kAtDecoderStart),
                     [&](std::string_view piece) { return tensor.name.find(piece) != std::string::npos; });
}

}  // namespace

ModelSize ComputeModelSize(const Config& config) {
  ModelSize size;
  std::int64_t encoder_experts = 0;
  for (const ImpliedTensor& tensor : ImpliedTensors(config)) {
    PartSize& part = size.parts[static_cast<std::size_t>(tensor.part)];
    const std::int64_t active = ActiveParameters(tensor, config);
    part.tensors += 1;
    part.parameters += tensor.parameters;
    part.bytes += ElementCount(tensor.shape) * static_cast<std::int64_t>(Info(tensor.dtype).bytes);
    part.active += active;
    if (active != 0 && RunsInEncoder(tensor, config.decoder_start())) {
      (tensor.part == Part::kRoutedExperts ? encoder_experts : size.encoder_active) += active;
    }
  }
  size.parts[static_cast<std::size_t>(Part::kRoutedExperts)].active /= config.n_routed_experts;
  size.encoder_active += encoder_experts / config.n_routed_experts;
  for (const PartSize& part : size.parts) {
    size.total.tensors += part.tensors;
    size.total.parameters += part.parameters;
    size.total.bytes += part.bytes;
    size.total.active += part.active;
  }
  return size;
}

InspectReport Inspect(const std::filesystem::path& dir) {
  InspectReport report;
  report.dir = dir;
  if (Status status = CheckModelDir(dir); !status) {
    report.problems.push_back(std::move(status).error());
    return report;
  }
  if (Result<LoadedConfig> loaded = LoadConfig(dir); loaded) {
    report.config_files = std::move(loaded->files);
    report.unknown_fields = std::move(loaded->unknown);
    report.size = ComputeModelSize(loaded->config);
    report.kv = ComputeKvCost(loaded->config);
    report.config = std::move(loaded->config);
  } else {
    report.problems.push_back(std::move(loaded).error());
  }
  const io::ShardSet shards = io::OpenShards(dir);
  report.files = static_cast<std::int64_t>(shards.files.size());
  report.file_bytes = static_cast<std::int64_t>(shards.total_bytes);
  report.tensors = static_cast<std::int64_t>(shards.tensors.size());
  report.problems.insert(report.problems.end(), shards.problems.begin(), shards.problems.end());
  if (report.config && !shards.files.empty()) {
    const TensorCheck check = CheckTensors(ImpliedTensors(*report.config), shards, dir);
    report.problems.insert(report.problems.end(), check.problems.begin(), check.problems.end());
  }
  return report;
}

}  // namespace galley::model
