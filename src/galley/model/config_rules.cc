// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>

#include "galley/model/config_file.h"
#include "galley/model/engram_primes.h"

namespace galley::model {
namespace {

// Collects the problems of one rule with field names in the file's spelling.
struct Report {
  Spelling spelling;
  std::vector<std::string> problems;

  [[nodiscard]] std::string_view Name(std::string_view flat) const { return FieldName(flat, spelling); }
  void Add(std::string_view flat, std::string message) {
    problems.push_back(fmt::format("{}: {}", Name(flat), message));
  }
};

struct Rule {
  std::array<std::string_view, 10> fields;  // that the rule reads, flat names; the rest empty
  void (*check)(const Config&, Report&);
};

void RequireMultiple(Report& report, std::string_view flat, int value, int of, std::string_view why) {
  if (value % of != 0) report.Add(flat, fmt::format("{} is not a multiple of {}, {}", value, of, why));
}

// Quantised matrices have one scale per 32 values along their input.
void CheckGroups(const Config& c, Report& report) {
  constexpr std::string_view kWhy = "the group that shares one scale";
  RequireMultiple(report, "dim", c.dim, 32, kWhy);
  RequireMultiple(report, "moe_inter_dim", c.moe_inter_dim, 32, kWhy);
  RequireMultiple(report, "q_lora_rank", c.q_lora_rank, 32, kWhy);
  RequireMultiple(report, "o_lora_rank", c.o_lora_rank, 32, kWhy);
  RequireMultiple(report, "head_dim", c.head_dim, 32, kWhy);
  RequireMultiple(report, "index_head_dim", c.index_head_dim, 32, kWhy);
}

void CheckHeads(const Config& c, Report& report) {
  if (c.n_heads % c.o_groups != 0) {
    report.Add("o_groups", fmt::format("{} does not divide {}, {}", c.o_groups, report.Name("n_heads"), c.n_heads));
  }
  RequireMultiple(report, "rope_head_dim", c.rope_head_dim, 2, "a rotated pair");
  const int least = std::min(c.head_dim, c.index_head_dim);
  if (c.rope_head_dim > least) {
    report.Add("rope_head_dim",
               fmt::format("{} exceeds the smaller of {} {} and {} {}", c.rope_head_dim, report.Name("head_dim"),
                           c.head_dim, report.Name("index_head_dim"), c.index_head_dim));
  }
}

void CheckExperts(const Config& c, Report& report) {
  if (c.n_activated_experts > c.n_routed_experts) {
    report.Add("n_activated_experts", fmt::format("{} of only {} experts", c.n_activated_experts, c.n_routed_experts));
  }
  // A limit on the list of tensors that a few bytes of JSON can make the loader build.
  constexpr std::int64_t kExpertsMax = 200'000;
  if (const std::int64_t experts = std::int64_t{c.n_layers} * c.n_routed_experts; experts > kExpertsMax) {
    report.Add("n_routed_experts", fmt::format("{} experts in {} layers are {}; the limit is {}", c.n_routed_experts,
                                               c.n_layers, experts, kExpertsMax));
  }
}

void CheckDraftExperts(const Config& c, Report& report) {
  if (c.dspark.n_activated_experts > c.dspark.n_routed_experts) {
    report.Add("dspark_n_activated_experts",
               fmt::format("{} of only {} experts", c.dspark.n_activated_experts, c.dspark.n_routed_experts));
  }
}

bool IsAscending(const std::vector<int>& list) {
  return std::adjacent_find(list.begin(), list.end(), std::greater_equal<>()) == list.end();
}

// A list of layers: ascending without repeats, inside the backbone.
void CheckLayerList(const Config& c, std::string_view flat, const std::vector<int>& list, Report& report) {
  if (!IsAscending(list)) report.Add(flat, fmt::format("{} is not ascending", list));
  for (const int layer : list) {
    if (layer >= c.n_layers) {
      report.Add(flat, fmt::format("layer {} does not exist; {} is {}", layer, report.Name("n_layers"), c.n_layers));
    }
  }
}

void CheckLayerLists(const Config& c, Report& report) {
  CheckLayerList(c, "kv_source_layers", c.kv_source_layers, report);
  CheckLayerList(c, "index_source_layers", c.index_source_layers, report);
}

void CheckRatioCount(const Config& c, Report& report) {
  const std::size_t expected = static_cast<std::size_t>(c.n_layers) + static_cast<std::size_t>(c.dspark.n_stages);
  if (c.compress_ratios.size() != expected) {
    report.Add("compress_ratios", fmt::format("{} entries; {} layers and {} draft stages need {}",
                                              c.compress_ratios.size(), c.n_layers, c.dspark.n_stages, expected));
    return;
  }
  for (std::size_t i = static_cast<std::size_t>(c.n_layers); i < expected; ++i) {
    if (c.compress_ratios[i] != 0) {
      report.Add("compress_ratios",
                 fmt::format("entry {} belongs to a draft stage and must be 0, not {}", i, c.compress_ratios[i]));
    }
  }
}

// Last element of the ascending `list` that is at or before `layer`, or -1.
int LastAtOrBefore(const std::vector<int>& list, int layer) {
  const auto after = std::upper_bound(list.begin(), list.end(), layer);
  return after == list.begin() ? -1 : *std::prev(after);
}

// Which layer's compressed KV and top-k list each layer reads: its own, or that of the last source before it.
void CheckSharing(const Config& c, Report& report) {
  if (c.compress_ratios.size() < static_cast<std::size_t>(c.n_layers)) return;
  if (!IsAscending(c.kv_source_layers) || !IsAscending(c.index_source_layers)) return;
  const auto ratio = [&](int layer) { return c.compress_ratios[static_cast<std::size_t>(layer)]; };
  for (const int source : c.kv_source_layers) {
    if (source < c.n_layers && ratio(source) == 0) {
      report.Add("kv_source_layers", fmt::format("layer {} has compress ratio 0 and so nothing to own", source));
    }
  }
  for (const int source : c.index_source_layers) {
    if (source < c.n_layers && ratio(source) == 0) {
      report.Add("index_source_layers", fmt::format("layer {} has compress ratio 0 and so nothing to index", source));
    }
  }
  for (int layer = 0; layer < c.n_layers; ++layer) {
    if (ratio(layer) == 0) continue;
    const int owner = LastAtOrBefore(c.kv_source_layers, layer);
    if (owner < 0) {
      report.Add("kv_source_layers",
                 fmt::format("layer {} has compress ratio {} but no owner at or before it", layer, ratio(layer)));
    } else if (ratio(owner) != ratio(layer)) {
      report.Add("compress_ratios", fmt::format("layer {} has ratio {}, but its owner, layer {}, has {}", layer,
                                                ratio(layer), owner, ratio(owner)));
    } else if (LastAtOrBefore(c.index_source_layers, layer) < owner) {
      report.Add("index_source_layers",
                 fmt::format("layer {} reads the KV of layer {}, but no layer from {} to {} runs an indexer", layer,
                             owner, owner, layer));
    }
  }
}

void CheckCandidates(const Config& c, Report& report) {
  const auto ratio_1 = [&](int layer) {
    return static_cast<std::size_t>(layer) < c.compress_ratios.size() &&
           c.compress_ratios[static_cast<std::size_t>(layer)] == 1;
  };
  if (c.kv_source_layers.empty() || c.candidate_source_layer != c.kv_source_layers.back() ||
      !ratio_1(c.candidate_source_layer)) {
    report.Add("candidate_source_layer",
               fmt::format("{} is not the last of {} {} with compress ratio 1", c.candidate_source_layer,
                           report.Name("kv_source_layers"), c.kv_source_layers));
  }
  for (const int source : c.kv_source_layers) {
    if (source != c.candidate_source_layer && ratio_1(source)) {
      report.Add("kv_source_layers",
                 fmt::format("layer {} has compress ratio 1; only the candidate source may", source));
    }
  }
  // With fewer reachable positions a query could not fill its list: the last block may hold one only.
  const std::int64_t reach = std::int64_t{c.candidate_topk_blocks} * c.candidate_block_size;
  const std::int64_t needed = std::int64_t{c.index_topk} + c.candidate_block_size - 1;
  if (reach < needed) {
    report.Add("candidate_topk_blocks",
               fmt::format("{} blocks of {} positions are {}; {} {} needs {}", c.candidate_topk_blocks,
                           c.candidate_block_size, reach, report.Name("index_topk"), c.index_topk, needed));
  }
}

void CheckRope(const Config& c, Report& report) {
  if (c.beta_fast <= c.beta_slow) {
    report.Add("beta_fast", fmt::format("{} is not above {} {}", c.beta_fast, report.Name("beta_slow"), c.beta_slow));
    return;
  }
  const auto corner = [&](double beta) {
    return c.rope_head_dim * std::log(static_cast<double>(c.original_seq_len) / (2 * std::numbers::pi * beta)) /
           (2 * std::log(c.compress_rope_theta));
  };
  const double low = std::max(0.0, std::floor(corner(c.beta_fast)));
  const double high = std::min(c.rope_head_dim - 1.0, std::ceil(corner(c.beta_slow)) + 0.0);
  if (low > high) {
    report.Add("original_seq_len",
               fmt::format("{} leaves no frequency between the YaRN corners {} and {}", c.original_seq_len, low, high));
  }
}

void CheckTokenIds(const Config& c, Report& report) {
  const auto check = [&](std::string_view flat, TokenId id) {
    if (id >= c.vocab_size) {
      report.Add(flat, fmt::format("{} is outside the vocabulary of {} tokens", id, c.vocab_size));
    }
  };
  check("bos_token_id", c.bos_token_id);
  check("eos_token_id", c.eos_token_id);
  check("pad_token_id", c.pad_token_id);
  check("image_token_id", c.image_token_id);
  if (!c.engram.layer_ids.empty()) check("engram_pad_id", c.engram.pad_id);
  if (c.dspark.n_stages > 0) check("dspark_noise_token_id", c.dspark.noise_token_id);
}

void CheckEngram(const Config& c, Report& report) {
  const EngramConfig& e = c.engram;
  CheckLayerList(c, "engram_layer_ids", e.layer_ids, report);
  for (const int layer : e.layer_ids) {
    // Rows of a truncated prompt that skip the decoder have no n-grams there.
    if (layer < c.decoder_start()) continue;
    report.Add("engram_layer_ids", fmt::format("layer {} lies in the decoder, which starts at {} {}; Engram works in "
                                               "the encoder only",
                                               layer, report.Name("candidate_source_layer"), c.decoder_start()));
  }
  RequireMultiple(report, "engram_head_dim", e.head_dim, 32, "the group that shares one scale");
  if (e.compressed_vocab_size > c.vocab_size) {
    report.Add("engram_compressed_vocab_size",
               fmt::format("{} exceeds {} {}", e.compressed_vocab_size, report.Name("vocab_size"), c.vocab_size));
  }
  if (e.num_embeddings.size() != e.layer_ids.size()) {
    report.Add("engram_num_embeddings",
               fmt::format("{} entries for {} Engram layers", e.num_embeddings.size(), e.layer_ids.size()));
    return;
  }
  constexpr std::size_t kColumnsMax = 4096;  // of all layers; bounds the search for primes
  if (e.layer_ids.size() * static_cast<std::size_t>(e.columns()) > kColumnsMax) {
    report.Add("engram_n_heads", fmt::format("{} layers of {} columns exceed the limit of {} columns",
                                             e.layer_ids.size(), e.columns(), kColumnsMax));
    return;
  }
  const std::vector<std::vector<std::int64_t>> primes = EngramPrimes(e);
  for (std::size_t i = 0; i < primes.size(); ++i) {
    const std::int64_t rows = std::accumulate(primes[i].begin(), primes[i].end(), std::int64_t{0});
    if (rows == e.num_embeddings[i]) continue;
    report.Add("engram_num_embeddings",
               fmt::format("{} rows for layer {}, but the {} primes from {} on sum to {}", e.num_embeddings[i],
                           e.layer_ids[i], e.columns(), primes[i].front(), rows));
  }
}

void CheckDraft(const Config& c, Report& report) {
  if (c.dspark.target_layer_ids.empty()) report.Add("dspark_target_layer_ids", "lists no layer");
  CheckLayerList(c, "dspark_target_layer_ids", c.dspark.target_layer_ids, report);
  for (const int layer : c.dspark.target_layer_ids) {
    // All targets are read from the same rows, and of a truncated prompt the decoder has fewer.
    if (layer >= c.decoder_start()) continue;
    report.Add("dspark_target_layer_ids",
               fmt::format("layer {} lies in the encoder; the decoder, which drafts read, starts at {} {}", layer,
                           report.Name("candidate_source_layer"), c.decoder_start()));
  }
}

void CheckVision(const Config& c, Report& report) {
  const VisionConfig& v = c.vision;
  // Each head is two axes of frequencies, each used by two halves.
  if (v.dim % v.n_heads != 0 || v.dim / v.n_heads % 4 != 0) {
    report.Add("vision_dim", fmt::format("{} is not {} heads times a multiple of 4", v.dim, v.n_heads));
  }
}

// Rules about Engram, drafts and vision read fields that are usable only when the part is there.
constexpr Rule kRules[] = {
    {{"dim", "moe_inter_dim", "q_lora_rank", "o_lora_rank", "head_dim", "index_head_dim"}, CheckGroups},
    {{"n_heads", "o_groups", "rope_head_dim", "head_dim", "index_head_dim"}, CheckHeads},
    {{"n_activated_experts", "n_routed_experts", "n_layers"}, CheckExperts},
    {{"n_layers", "kv_source_layers", "index_source_layers"}, CheckLayerLists},
    {{"n_layers", "compress_ratios"}, CheckRatioCount},
    {{"n_layers", "compress_ratios", "kv_source_layers", "index_source_layers"}, CheckSharing},
    {{"compress_ratios", "kv_source_layers", "candidate_source_layer", "candidate_topk_blocks", "candidate_block_size",
      "index_topk"},
     CheckCandidates},
    {{"rope_head_dim", "compress_rope_theta", "original_seq_len", "beta_fast", "beta_slow"}, CheckRope},
    {{"vocab_size"}, CheckTokenIds},
    {{"n_layers", "vocab_size", "candidate_source_layer", "engram_layer_ids", "engram_num_embeddings",
      "engram_max_ngram_size", "engram_vocab_size", "engram_n_heads", "engram_head_dim",
      "engram_compressed_vocab_size"},
     CheckEngram},
    {{"n_layers", "candidate_source_layer", "dspark_target_layer_ids"}, CheckDraft},
    {{"dspark_n_routed_experts", "dspark_n_activated_experts"}, CheckDraftExperts},
    {{"vision_dim", "vision_n_heads"}, CheckVision},
};

bool IsUsable(std::string_view flat, const std::vector<bool>& usable) {
  const auto fields = Fields();
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].flat == flat) return usable[i];
  }
  return false;
}

}  // namespace

std::vector<std::string> BrokenRules(const Config& config, const std::vector<bool>& usable, Spelling spelling) {
  Report report{spelling, {}};
  for (const Rule& rule : kRules) {
    const bool applies = std::all_of(rule.fields.begin(), rule.fields.end(),
                                     [&](std::string_view flat) { return flat.empty() || IsUsable(flat, usable); });
    if (applies) rule.check(config, report);
  }
  return std::move(report.problems);
}

}  // namespace galley::model
