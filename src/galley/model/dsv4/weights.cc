// SPDX-License-Identifier: Apache-2.0
#include "galley/model/dsv4/weights.h"

#include <fmt/core.h>

#include <optional>
#include <string>

#include "galley/base/check.h"

namespace galley::model {
namespace {

// Uploads tensors by name and keeps the first error, so that the list of weights reads as a list.
class Loader {
 public:
  Loader(const Checkpoint& checkpoint, backend::Backend& backend) : checkpoint_(checkpoint), backend_(backend) {}

  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

  template <typename T>
  const T* Array(const std::string& name) {
    const TensorView view = checkpoint_.Find(name);
    CHECK(view.empty() || sizeof(T) == Info(view.dtype).bytes) << name << " is " << Info(view.dtype).safetensors_name;
    return static_cast<const T*>(Place(name, view, [&] { return backend_.Upload(view); }));
  }
  const std::uint8_t* Table(const std::string& name) {
    const TensorView view = checkpoint_.Find(name);
    return static_cast<const std::uint8_t*>(Place(name, view, [&] { return backend_.UploadTable(view); }));
  }

  // `name` without its suffix: NAME.weight and, for quantised formats, NAME.scale.
  backend::Weight Matrix(const std::string& name, backend::MatrixUse use = backend::MatrixUse::kEveryStep) {
    const TensorView view = checkpoint_.Find(name + ".weight");
    backend::Weight weight;
    if (!view.empty()) {
      weight.rows = view.dim(0);
      weight.cols = view.dim(1) * (view.dtype == DType::kI8 ? 2 : 1);
      weight.format = FormatOf(view.dtype);
    }
    weight.data = Place(name + ".weight", view, [&] { return backend_.UploadMatrix(view, use); });
    if (weight.format == backend::WeightFormat::kFp8Block32 || weight.format == backend::WeightFormat::kMxfp4) {
      const TensorView scales = checkpoint_.Find(name + ".scale");
      weight.scales = static_cast<const std::uint8_t*>(
          Place(name + ".scale", scales, [&] { return backend_.UploadScales(scales, view, use); }));
    }
    return weight;
  }

  backend::ExpertWeights Expert(const std::string& prefix, backend::MatrixUse use) {
    return {.w1 = Matrix(prefix + ".w1", use), .w2 = Matrix(prefix + ".w2", use), .w3 = Matrix(prefix + ".w3", use)};
  }

 private:
  static backend::WeightFormat FormatOf(DType dtype) {
    switch (dtype) {
      case DType::kF32:
        return backend::WeightFormat::kF32;
      case DType::kBF16:
        return backend::WeightFormat::kBF16;
      case DType::kF8E4M3:
        return backend::WeightFormat::kFp8Block32;
      case DType::kI8:
        return backend::WeightFormat::kMxfp4;
      default:
        CHECK(false) << "no weight format for " << Info(dtype).safetensors_name;
        return {};
    }
  }

  template <typename Upload>
  const void* Place(const std::string& name, const TensorView& view, Upload&& upload) {
    CHECK(!view.empty()) << "checkpoint passed its check without " << name;
    Result<const void*> placed = upload();
    if (placed) return *placed;
    if (!error_) error_ = placed.error();
    return nullptr;
  }

  const Checkpoint& checkpoint_;
  backend::Backend& backend_;
  std::optional<Error> error_;
};

MhcWeights LoadMhc(Loader& load, const std::string& prefix) {
  return {.fn = load.Array<float>(prefix + "_fn"),
          .base = load.Array<float>(prefix + "_base"),
          .scale = load.Array<float>(prefix + "_scale")};
}

AttentionWeights LoadAttention(Loader& load, const std::string& prefix, const Config& config, int layer) {
  AttentionWeights w;
  w.wq_a = load.Matrix(prefix + "wq_a");
  w.wq_b = load.Matrix(prefix + "wq_b");
  w.wkv = load.Matrix(prefix + "wkv");
  w.wo_a = load.Matrix(prefix + "wo_a");
  w.wo_b = load.Matrix(prefix + "wo_b");
  w.q_norm = load.Array<BFloat16>(prefix + "q_norm.weight");
  w.kv_norm = load.Array<BFloat16>(prefix + "kv_norm.weight");
  w.sink = load.Array<float>(prefix + "attn_sink");
  if (config.is_kv_source(layer)) {
    w.compressor.wkv = load.Matrix(prefix + "compressor.wkv");
    if (config.compress_ratios[static_cast<std::size_t>(layer)] > 1) {
      w.compressor.wgate = load.Matrix(prefix + "compressor.wgate");
    }
    w.compressor.norm = load.Array<BFloat16>(prefix + "compressor.norm.weight");
    w.compressor.index_wk = load.Matrix(prefix + "indexer.wk");
    w.compressor.index_norm = load.Array<BFloat16>(prefix + "indexer.k_norm.weight");
  }
  if (config.is_index_source(layer)) {
    w.indexer.wq_b = load.Matrix(prefix + "indexer.wq_b");
    w.indexer.weights_proj = load.Matrix(prefix + "indexer.weights_proj");
  }
  return w;
}

MoeWeights LoadMoe(Loader& load, const std::string& prefix, int experts, bool image_bias) {
  MoeWeights w;
  w.gate = load.Matrix(prefix + "gate");
  w.bias = load.Array<float>(prefix + "gate.bias");
  if (image_bias) w.image_bias = load.Array<float>(prefix + "gate.bias_vl");
  for (int e = 0; e < experts; ++e) {
    w.routed.push_back(load.Expert(fmt::format("{}experts.{}", prefix, e), backend::MatrixUse::kChosen));
  }
  w.shared = load.Expert(prefix + "shared_experts", backend::MatrixUse::kEveryStep);
  return w;
}

EngramWeights LoadEngram(Loader& load, const std::string& prefix) {
  EngramWeights w;
  w.codes = load.Table(prefix + "embed.weight");
  w.scales = load.Table(prefix + "embed.scale");
  w.wkv = load.Matrix(prefix + "wkv");
  w.q_weight = load.Array<BFloat16>(prefix + "q_weight");
  w.k_weight = load.Array<BFloat16>(prefix + "k_weight");
  return w;
}

// What every block has. `layer` counts draft stages after the layers of the backbone.
LayerWeights LoadBlock(Loader& load, const std::string& prefix, const Config& config, int layer) {
  const int experts = layer < config.n_layers ? config.n_routed_experts : config.dspark.n_routed_experts;
  LayerWeights block;
  block.hc_attn = LoadMhc(load, prefix + "hc_attn");
  block.hc_ffn = LoadMhc(load, prefix + "hc_ffn");
  block.attn_norm = load.Array<BFloat16>(prefix + "attn_norm.weight");
  block.ffn_norm = load.Array<BFloat16>(prefix + "ffn_norm.weight");
  block.attention = LoadAttention(load, prefix + "attn.", config, layer);
  block.moe = LoadMoe(load, prefix + "ffn.", experts, config.vision.n_layers > 0);
  return block;
}

DraftWeights LoadDraft(Loader& load, const Config& config) {
  DraftWeights draft;
  const int stages = config.dspark.n_stages;
  if (stages == 0) return draft;
  for (int s = 0; s < stages; ++s) {
    draft.stages.push_back(LoadBlock(load, fmt::format("mtp.{}.", s), config, config.n_layers + s));
  }
  const std::string last = fmt::format("mtp.{}.", stages - 1);
  draft.main_proj = load.Matrix("mtp.0.main_proj");
  draft.main_norm = load.Array<BFloat16>("mtp.0.main_norm.weight");
  draft.norm = load.Array<BFloat16>(last + "norm.weight");
  draft.markov_embed = load.Matrix(last + "markov_head.embed");
  draft.markov_head = load.Matrix(last + "markov_head.head");
  draft.confidence = load.Matrix(last + "confidence_head.proj");
  return draft;
}

}  // namespace

Result<Weights> Weights::Load(const Checkpoint& checkpoint, backend::Backend& backend) {
  const Config& config = checkpoint.config();
  Loader load(checkpoint, backend);
  Weights weights;
  weights.embed = load.Array<BFloat16>("embed.weight");
  weights.norm = load.Array<BFloat16>("norm.weight");
  weights.head = load.Matrix("head");
  for (int i = 0; i < config.n_layers; ++i) {
    LayerWeights layer = LoadBlock(load, fmt::format("layers.{}.", i), config, i);
    if (config.engram_index(i) >= 0) layer.engram = LoadEngram(load, fmt::format("layers.{}.engram.", i));
    weights.layers.push_back(std::move(layer));
  }
  weights.draft = LoadDraft(load, config);
  if (load.error()) return Err(*load.error());
  for (const LayerWeights& layer : weights.layers) backend.ExpectExperts(layer.moe.routed);
  for (const LayerWeights& stage : weights.draft.stages) backend.ExpectExperts(stage.moe.routed);
  RETURN_IF_ERROR(backend.FinishUploads());
  return weights;
}

}  // namespace galley::model
