// SPDX-License-Identifier: Apache-2.0
#include "galley/model/tensor_list.h"

#include <fmt/format.h>

#include <array>

#include "galley/base/check.h"
#include "galley/base/math.h"

namespace galley::model {
namespace {

constexpr std::int64_t kBlock = 32;  // values that share one scale, in both directions of an FP8 matrix

// Appends tensors below a name prefix such as "layers.3.".
class ListBuilder {
 public:
  explicit ListBuilder(const Config& config) : c_(config) {}

  void At(std::string prefix, int layer) {
    prefix_ = std::move(prefix);
    layer_ = layer;
  }
  // Draft stages repeat the tensors of a layer; all of them count as the draft head.
  void CountAs(Part part) { all_of_ = part; }
  void CountByPart() { all_of_ = static_cast<Part>(kParts); }

  void Plain(std::string_view name, DType dtype, Shape shape, Part part) {
    const std::int64_t parameters = ElementCount(shape);
    Add(name, dtype, std::move(shape), part, parameters);
  }
  void Bf16(std::string_view name, Shape shape, Part part) { Plain(name, DType::kBF16, std::move(shape), part); }
  void F32(std::string_view name, Shape shape, Part part) { Plain(name, DType::kF32, std::move(shape), part); }

  // FP8 matrix with one scale per 32 x 32 block.
  void Fp8(std::string_view name, std::int64_t out, std::int64_t in, Part part) {
    Plain(fmt::format("{}.weight", name), DType::kF8E4M3, {out, in}, part);
    Scale(name, {CeilDiv(out, kBlock), CeilDiv(in, kBlock)}, part);
  }
  // Table of FP8 rows with one scale per 32 values of a row.
  void Fp8Rows(std::string_view name, std::int64_t rows, std::int64_t width, Part part) {
    Plain(fmt::format("{}.weight", name), DType::kF8E4M3, {rows, width}, part);
    Scale(name, {rows, CeilDiv(width, kBlock)}, part);
  }
  // Packed FP4 matrix, two values a byte, with one scale per 32 values of a row.
  void Fp4(std::string_view name, std::int64_t out, std::int64_t in, Part part) {
    Add(fmt::format("{}.weight", name), DType::kI8, {out, in / 2}, part, out * in);
    Scale(name, {out, in / kBlock}, part);
  }

  void Layer(int layer);
  void DraftStage(int stage);
  void Vision();
  [[nodiscard]] std::vector<ImpliedTensor> Take() { return std::move(list_); }

 private:
  void Add(std::string_view name, DType dtype, Shape shape, Part part, std::int64_t parameters) {
    const Part counted = static_cast<int>(all_of_) < kParts ? all_of_ : part;
    list_.push_back({prefix_ + std::string(name), dtype, std::move(shape), counted, layer_, parameters});
  }
  void Scale(std::string_view name, Shape shape, Part part) {
    Add(fmt::format("{}.scale", name), DType::kE8M0, std::move(shape), part, 0);
  }
  void Block(int routed_experts);
  void Experts(int routed_experts);
  void Owner(bool has_gate);
  void Engram(std::int64_t rows);

  const Config& c_;
  std::string prefix_;
  int layer_ = -1;
  Part all_of_ = static_cast<Part>(kParts);
  std::vector<ImpliedTensor> list_;
};

// What a backbone layer and a draft stage share: attention, mHC sites, norms and experts.
void ListBuilder::Block(int routed_experts) {
  const std::int64_t heads_dim = std::int64_t{c_.n_heads} * c_.head_dim;
  Fp8("attn.wq_a", c_.q_lora_rank, c_.dim, Part::kAttention);
  Fp8("attn.wq_b", heads_dim, c_.q_lora_rank, Part::kAttention);
  Fp8("attn.wkv", c_.head_dim, c_.dim, Part::kAttention);
  Fp8("attn.wo_a", std::int64_t{c_.o_groups} * c_.o_lora_rank, heads_dim / c_.o_groups, Part::kAttention);
  Fp8("attn.wo_b", c_.dim, std::int64_t{c_.o_groups} * c_.o_lora_rank, Part::kAttention);
  Bf16("attn.q_norm.weight", {c_.q_lora_rank}, Part::kAttention);
  Bf16("attn.kv_norm.weight", {c_.head_dim}, Part::kAttention);
  F32("attn.attn_sink", {c_.n_heads}, Part::kAttention);
  Bf16("attn_norm.weight", {c_.dim}, Part::kNorms);
  Bf16("ffn_norm.weight", {c_.dim}, Part::kNorms);
  // pre and post of each copy and the matrix between copies.
  const std::int64_t coefficients = (2 + c_.hc_mult) * c_.hc_mult;
  for (const std::string_view site : {"hc_attn", "hc_ffn"}) {
    F32(fmt::format("{}_fn", site), {coefficients, std::int64_t{c_.hc_mult} * c_.dim}, Part::kMhc);
    F32(fmt::format("{}_base", site), {coefficients}, Part::kMhc);
    F32(fmt::format("{}_scale", site), {3}, Part::kMhc);
  }
  Experts(routed_experts);
}

void ListBuilder::Experts(int routed_experts) {
  Bf16("ffn.gate.weight", {routed_experts, c_.dim}, Part::kRouter);
  F32("ffn.gate.bias", {routed_experts}, Part::kRouter);
  if (c_.vision.n_layers > 0) F32("ffn.gate.bias_vl", {routed_experts}, Part::kRouter);
  for (int expert = 0; expert < routed_experts; ++expert) {
    const std::string name = fmt::format("ffn.experts.{}.", expert);
    Fp4(name + "w1", c_.moe_inter_dim, c_.dim, Part::kRoutedExperts);
    Fp4(name + "w2", c_.dim, c_.moe_inter_dim, Part::kRoutedExperts);
    Fp4(name + "w3", c_.moe_inter_dim, c_.dim, Part::kRoutedExperts);
  }
  Fp8("ffn.shared_experts.w1", c_.moe_inter_dim, c_.dim, Part::kSharedExperts);
  Fp8("ffn.shared_experts.w2", c_.dim, c_.moe_inter_dim, Part::kSharedExperts);
  Fp8("ffn.shared_experts.w3", c_.moe_inter_dim, c_.dim, Part::kSharedExperts);
}

// The compressor and index keys of a layer that owns compressed KV; only ratio 2 weighs its two tokens by a gate.
void ListBuilder::Owner(bool has_gate) {
  Bf16("attn.compressor.wkv.weight", {c_.head_dim, c_.dim}, Part::kCompressor);
  if (has_gate) Bf16("attn.compressor.wgate.weight", {c_.head_dim, c_.dim}, Part::kCompressor);
  Bf16("attn.compressor.norm.weight", {c_.head_dim}, Part::kCompressor);
  Bf16("attn.indexer.wk.weight", {c_.index_head_dim, c_.head_dim}, Part::kIndexer);
  Bf16("attn.indexer.k_norm.weight", {c_.index_head_dim}, Part::kIndexer);
}

void ListBuilder::Engram(std::int64_t rows) {
  const EngramConfig& e = c_.engram;
  Fp8Rows("engram.embed", rows, e.head_dim, Part::kEngramTables);
  // One key per residual copy and one value.
  Fp8("engram.wkv", std::int64_t{c_.hc_mult + 1} * c_.dim, std::int64_t{e.columns()} * e.head_dim, Part::kEngram);
  Bf16("engram.q_weight", {c_.hc_mult, c_.dim}, Part::kEngram);
  Bf16("engram.k_weight", {c_.hc_mult, c_.dim}, Part::kEngram);
}

void ListBuilder::Layer(int layer) {
  At(fmt::format("layers.{}.", layer), layer);
  if (const int index = c_.engram_index(layer); index >= 0) {
    Engram(c_.engram.num_embeddings[static_cast<std::size_t>(index)]);
  }
  Block(c_.n_routed_experts);
  if (c_.is_kv_source(layer)) Owner(c_.compress_ratios[static_cast<std::size_t>(layer)] == 2);
  if (c_.is_index_source(layer)) {
    Fp8("attn.indexer.wq_b", std::int64_t{c_.index_n_heads} * c_.index_head_dim, c_.q_lora_rank, Part::kIndexer);
    Bf16("attn.indexer.weights_proj.weight", {c_.index_n_heads, c_.dim}, Part::kIndexer);
  }
}

void ListBuilder::DraftStage(int stage) {
  const DSparkConfig& d = c_.dspark;
  At(fmt::format("mtp.{}.", stage), stage);
  CountAs(Part::kDraft);
  if (stage == 0) {
    Fp8("main_proj", c_.dim, static_cast<std::int64_t>(d.target_layer_ids.size()) * c_.dim, Part::kDraft);
    Bf16("main_norm.weight", {c_.dim}, Part::kDraft);
  }
  Block(d.n_routed_experts);
  if (stage == d.n_stages - 1) {
    Bf16("norm.weight", {c_.dim}, Part::kDraft);
    Bf16("markov_head.embed.weight", {c_.vocab_size, d.markov_rank}, Part::kDraft);
    Bf16("markov_head.head.weight", {c_.vocab_size, d.markov_rank}, Part::kDraft);
    Bf16("confidence_head.proj.weight", {1, c_.dim + d.markov_rank}, Part::kDraft);
  }
  CountByPart();
}

void ListBuilder::Vision() {
  const VisionConfig& v = c_.vision;
  const auto bf16 = [&](std::string_view name, Shape shape) { Bf16(name, std::move(shape), Part::kVision); };
  At("vision.", -1);
  bf16("patch_embed.proj.weight", {v.dim, std::int64_t{3} * v.patch_size * v.patch_size});
  bf16("patch_embed.proj.bias", {v.dim});
  for (int block = 0; block < v.n_layers; ++block) {
    At(fmt::format("vision.blocks.{}.", block), block);
    bf16("norm1.weight", {v.dim});
    bf16("attn.wqkv.weight", {std::int64_t{3} * v.dim, v.dim});
    bf16("attn.wqkv.bias", {std::int64_t{3} * v.dim});
    bf16("attn.wo.weight", {v.dim, v.dim});
    bf16("attn.wo.bias", {v.dim});
    bf16("norm2.weight", {v.dim});
    bf16("mlp.w1.weight", {std::int64_t{2} * v.inter_dim, v.dim});
    bf16("mlp.w2.weight", {v.dim, v.inter_dim});
  }
  At("", -1);
  bf16("vision.norm.weight", {v.dim});
  const std::int64_t cell = std::int64_t{v.downsample_ratio} * v.downsample_ratio * v.dim;
  bf16("aligner.w1.weight", {c_.dim, cell});
  bf16("aligner.w1.bias", {c_.dim});
  bf16("aligner.w2.weight", {c_.dim, c_.dim});
  bf16("aligner.w2.bias", {c_.dim});
  for (const std::string_view name : {"image_start", "image_newline", "image_end"}) bf16(name, {c_.dim});
}

}  // namespace

std::string_view Name(Part part) {
  constexpr std::array<std::string_view, kParts> kNames = {
      "embedding", "output head",    "norms",          "attention", "compressor",    "indexer",    "mHC",
      "router",    "routed experts", "shared experts", "Engram",    "Engram tables", "draft head", "vision"};
  const auto index = static_cast<std::size_t>(part);
  CHECK(index < kNames.size()) << "part " << index;
  return kNames[index];
}

std::vector<ImpliedTensor> ImpliedTensors(const Config& config) {
  ListBuilder list(config);
  list.Bf16("embed.weight", {config.vocab_size, config.dim}, Part::kEmbedding);
  for (int layer = 0; layer < config.n_layers; ++layer) list.Layer(layer);
  list.At("", -1);
  list.Bf16("norm.weight", {config.dim}, Part::kNorms);
  list.Bf16("head.weight", {config.vocab_size, config.dim}, Part::kHead);
  for (int stage = 0; stage < config.dspark.n_stages; ++stage) list.DraftStage(stage);
  if (config.vision.n_layers > 0) list.Vision();
  return list.Take();
}

}  // namespace galley::model
