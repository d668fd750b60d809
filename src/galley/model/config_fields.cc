// SPDX-License-Identifier: Apache-2.0
#include "galley/model/config_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "galley/base/check.h"

namespace galley::model {
namespace {

// Where a field goes, a fold over member pointers: At<&Config::dim>() or, inside a part, At<&Config::engram,
// &EngramConfig::n_heads>().
template <auto... kPath>
constexpr FieldTarget At() {
  return +[](Config & config) -> auto& {
    return (config.*....*kPath);
  };
}

template <auto kMember>
constexpr FieldTarget Engram() {
  return At<&Config::engram, kMember>();
}
template <auto kMember>
constexpr FieldTarget Draft() {
  return At<&Config::dspark, kMember>();
}
template <auto kMember>
constexpr FieldTarget Vision() {
  return At<&Config::vision, kMember>();
}

// Upper limits keep every product of shapes far inside std::int64_t (the widest, all experts of all layers, stays below
// 2^60) and every vector length inside int. They are a few times what the largest published model needs.
constexpr double kTokenMax = 1 << 24, kDimMax = 1 << 16, kTiny = 1e-37;
constexpr double kTableRowsMax = 2147483647;  // Engram's row numbers are 32-bit on devices
constexpr auto kReq = Presence::kRequired, kOpt = Presence::kOptional, kEng = Presence::kEngram,
               kDra = Presence::kDraft, kVis = Presence::kVision;

// clang-format off
constexpr Field kFields[] = {
    {"vocab_size", "text_config.vocab_size", kReq, 1, kTokenMax, At<&Config::vocab_size>()},
    {"dim", "text_config.hidden_size", kReq, 32, kDimMax, At<&Config::dim>()},
    {"moe_inter_dim", "text_config.moe_intermediate_size", kReq, 32, kDimMax, At<&Config::moe_inter_dim>()},
    {"n_layers", "text_config.num_hidden_layers", kReq, 1, 256, At<&Config::n_layers>()},
    {"n_heads", "text_config.num_attention_heads", kReq, 1, 1024, At<&Config::n_heads>()},
    {"n_routed_experts", "text_config.n_routed_experts", kReq, 1, 4096, At<&Config::n_routed_experts>()},
    {"n_shared_experts", "text_config.n_shared_experts", kReq, 1, 1, At<&Config::n_shared_experts>()},
    {"n_activated_experts", "text_config.num_experts_per_tok", kReq, 1, 64, At<&Config::n_activated_experts>()},
    {"gate_temp", "text_config.gate_temp", kOpt, 1e-6, 1e6, At<&Config::gate_temp>()},
    {"route_scale", "text_config.routed_scaling_factor", kReq, 1e-6, 1e6, At<&Config::route_scale>()},
    {"swiglu_limit", "text_config.swiglu_limit", kReq, 1e-3, 1e6, At<&Config::swiglu_limit>()},
    {"q_lora_rank", "text_config.q_lora_rank", kReq, 32, kDimMax, At<&Config::q_lora_rank>()},
    {"head_dim", "text_config.head_dim", kReq, 32, 4096, At<&Config::head_dim>()},
    {"rope_head_dim", "text_config.qk_rope_head_dim", kReq, 2, 4096, At<&Config::rope_head_dim>()},
    {"norm_eps", "text_config.rms_norm_eps", kReq, kTiny, 0.1, At<&Config::norm_eps>()},
    {"o_groups", "text_config.o_groups", kReq, 1, 1024, At<&Config::o_groups>()},
    {"o_lora_rank", "text_config.o_lora_rank", kReq, 32, kDimMax, At<&Config::o_lora_rank>()},
    {"window_size", "text_config.sliding_window", kReq, 1, 1 << 16, At<&Config::window_size>()},
    {"compress_ratios", "text_config.compress_ratios", kReq, 0, 2, At<&Config::compress_ratios>()},
    {"kv_source_layers", "text_config.kv_source_layer_ids", kReq, 0, 255, At<&Config::kv_source_layers>()},
    {"index_source_layers", "text_config.index_source_layer_ids", kReq, 0, 255, At<&Config::index_source_layers>()},
    {"candidate_source_layer", "text_config.candidate_source_layer_id", kReq, 0, 255,
     At<&Config::candidate_source_layer>()},
    {"candidate_topk_blocks", "text_config.candidate_topk_blocks", kReq, 1, 1 << 20,
     At<&Config::candidate_topk_blocks>()},
    {"candidate_block_size", "text_config.candidate_block_size", kReq, 1, 1 << 10, At<&Config::candidate_block_size>()},
    {"rope_theta", "text_config.rope_theta", kReq, 2, 1e12, At<&Config::rope_theta>()},
    {"compress_rope_theta", "text_config.compress_rope_theta", kReq, 2, 1e12, At<&Config::compress_rope_theta>()},
    {"original_seq_len", "text_config.rope_scaling.original_max_position_embeddings", kReq, 1, 1 << 30,
     At<&Config::original_seq_len>()},
    {"rope_factor", "text_config.rope_scaling.factor", kReq, 1, 1e6, At<&Config::rope_factor>()},
    {"beta_fast", "text_config.rope_scaling.beta_fast", kReq, 1e-3, 1e6, At<&Config::beta_fast>()},
    {"beta_slow", "text_config.rope_scaling.beta_slow", kReq, 1e-3, 1e6, At<&Config::beta_slow>()},
    {"index_n_heads", "text_config.index_n_heads", kReq, 1, 1024, At<&Config::index_n_heads>()},
    {"index_head_dim", "text_config.index_head_dim", kReq, 32, 4096, At<&Config::index_head_dim>()},
    {"index_topk", "text_config.index_topk", kReq, 1, 1 << 20, At<&Config::index_topk>()},
    {"hc_mult", "text_config.hc_mult", kReq, 4, 4, At<&Config::hc_mult>()},
    {"hc_sinkhorn_iters", "text_config.hc_sinkhorn_iters", kReq, 1, 1000, At<&Config::hc_sinkhorn_iters>()},
    {"hc_eps", "text_config.hc_eps", kReq, kTiny, 0.1, At<&Config::hc_eps>()},
    {"max_seq_len", "text_config.max_position_embeddings", kOpt, 1, 1 << 30, At<&Config::max_seq_len>()},
    {"bos_token_id", "bos_token_id", kOpt, 0, kTokenMax, At<&Config::bos_token_id>()},
    {"eos_token_id", "eos_token_id", kOpt, 0, kTokenMax, At<&Config::eos_token_id>()},
    {"pad_token_id", "pad_token_id", kOpt, 0, kTokenMax, At<&Config::pad_token_id>()},
    {"image_token_id", "image_token_id", kVis, 0, kTokenMax, At<&Config::image_token_id>()},

    {"engram_layer_ids", "text_config.engram_layer_ids", kOpt, 0, 255, Engram<&EngramConfig::layer_ids>()},
    {"engram_num_embeddings", "text_config.engram_num_embeddings", kEng, 1, kTableRowsMax,
     Engram<&EngramConfig::num_embeddings>()},
    {"engram_max_ngram_size", "text_config.engram_max_ngram_size", kEng, 2, 8, Engram<&EngramConfig::max_ngram_size>()},
    {"engram_vocab_size", "text_config.engram_vocab_size", kEng, 2, 1 << 30, Engram<&EngramConfig::vocab_size>()},
    {"engram_n_heads", "text_config.engram_n_heads", kEng, 1, 64, Engram<&EngramConfig::n_heads>()},
    {"engram_head_dim", "text_config.engram_head_dim", kEng, 32, 4096, Engram<&EngramConfig::head_dim>()},
    {"engram_pad_id", "text_config.engram_pad_token_id", kEng, 0, kTokenMax, Engram<&EngramConfig::pad_id>()},
    {"engram_compressed_vocab_size", "text_config.engram_compressed_vocab_size", kEng, 1, kTokenMax,
     Engram<&EngramConfig::compressed_vocab_size>()},

    {"n_mtp_layers", "text_config.num_nextn_predict_layers", kOpt, 0, 16, Draft<&DSparkConfig::n_stages>()},
    {"dspark_block_size", "text_config.dspark_block_size", kDra, 1, 64, Draft<&DSparkConfig::block_size>()},
    {"dspark_noise_token_id", "text_config.dspark_noise_token_id", kDra, 0, kTokenMax,
     Draft<&DSparkConfig::noise_token_id>()},
    {"dspark_target_layer_ids", "text_config.dspark_target_layer_ids", kDra, 0, 255,
     Draft<&DSparkConfig::target_layer_ids>()},
    {"dspark_markov_rank", "text_config.dspark_markov_rank", kDra, 1, kDimMax, Draft<&DSparkConfig::markov_rank>()},
    {"dspark_n_routed_experts", "text_config.dspark_n_routed_experts", kDra, 1, 4096,
     Draft<&DSparkConfig::n_routed_experts>()},
    {"dspark_n_activated_experts", "text_config.dspark_num_experts_per_tok", kDra, 1, 64,
     Draft<&DSparkConfig::n_activated_experts>()},

    {"vision_n_layers", "vision_config.num_hidden_layers", kVis, 1, 256, Vision<&VisionConfig::n_layers>()},
    {"vision_dim", "vision_config.hidden_size", kVis, 1, kDimMax, Vision<&VisionConfig::dim>()},
    {"vision_n_heads", "vision_config.num_attention_heads", kVis, 1, 1024, Vision<&VisionConfig::n_heads>()},
    {"vision_inter_dim", "vision_config.intermediate_size", kVis, 1, kDimMax, Vision<&VisionConfig::inter_dim>()},
    {"vision_patch_size", "vision_config.patch_size", kVis, 1, 256, Vision<&VisionConfig::patch_size>()},
    {"vision_rope_theta", "vision_config.rope_theta", kVis, 2, 1e12, Vision<&VisionConfig::rope_theta>()},
    {"vision_downsample_ratio", "vision_config.downsample_ratio", kVis, 1, 16,
     Vision<&VisionConfig::downsample_ratio>()},
    // One image token, one row end, start and end: no image has fewer than four positions.
    {"vision_max_n_token", "vision_config.max_image_tokens", kVis, 4, 1 << 20,
     Vision<&VisionConfig::max_image_tokens>()},
    {"vision_min_pixels", "vision_config.min_pixels", kVis, 0, 1 << 30, Vision<&VisionConfig::min_pixels>()},
};

constexpr FixedField kFixedFields[] = {
    {"dtype", "", "\"fp8\""},
    {"expert_dtype", "quantization_config.expert_dtype", "\"fp4\""},
    {"scale_fmt", "quantization_config.scale_fmt", "\"ue8m0\""},
    {"", "quantization_config.quant_method", "\"fp8\""},
    {"", "quantization_config.activation_scheme", "\"dynamic\""},
    {"", "quantization_config.weight_block_size", "[32, 32]"},
    {"score_func", "text_config.scoring_func", "\"sqrtsoftplus\""},
    {"norm_topk_prob", "text_config.norm_topk_prob", "true"},
    {"", "text_config.topk_method", "\"noaux_tc\""},
    {"", "text_config.hidden_act", "\"silu\""},
    {"", "text_config.attention_bias", "false"},
    {"", "text_config.num_key_value_heads", "1"},
    {"", "text_config.tie_word_embeddings", "false"},
    {"", "text_config.rope_scaling.rope_type", "\"yarn\""},
    {"", "text_config.rope_scaling.type", "\"yarn\""},
    {"", "text_config.model_type", "\"deepseek_v41_text\""},
    {"", "vision_config.model_type", "\"deepseek_v41_vision\""},
    {"vision_max_wh_ratio", "vision_config.max_wh_ratio", "null"},
};
// clang-format on

constexpr std::string_view kIgnored[] = {
    "architectures",
    "model_type",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "text_config.attention_dropout",
    "text_config.initializer_range",
    "text_config.use_cache",
};

}  // namespace

std::span<const Field> Fields() {
  return kFields;
}

std::span<const FixedField> FixedFields() {
  return kFixedFields;
}

bool IsIgnoredField(std::string_view path) {
  return std::find(std::begin(kIgnored), std::end(kIgnored), path) != std::end(kIgnored);
}

std::string_view FieldName(std::string_view flat, Spelling spelling) {
  const auto* field = std::ranges::find(kFields, flat, &Field::flat);
  CHECK(field != std::end(kFields)) << "no field " << flat;
  return spelling == Spelling::kFlat ? field->flat : field->nested;
}

std::string FieldText(const Field& field, const Config& config) {
  // The accessors give mutable references; this one only reads.
  auto& source = const_cast<Config&>(config);
  return std::visit([&](auto target) { return fmt::format("{}", target(source)); }, field.target);
}

}  // namespace galley::model
