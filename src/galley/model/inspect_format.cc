// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "galley/io/json_writer.h"
#include "galley/io/text.h"
#include "galley/model/inspect.h"

namespace galley::model {
namespace {

std::string Scaled(double value, double step, std::initializer_list<std::string_view> units) {
  auto unit = units.begin();
  while (value >= step && std::next(unit) != units.end()) {
    value /= step;
    ++unit;
  }
  return unit == units.begin() ? fmt::format("{:.0f}{}", value, *unit) : fmt::format("{:.2f}{}", value, *unit);
}

std::string Bytes(std::int64_t bytes) {
  return Scaled(static_cast<double>(bytes), 1000, {" B", " kB", " MB", " GB", " TB", " PB"});
}

std::string Count(std::int64_t count) {
  return Scaled(static_cast<double>(count), 1000, {"", " k", " M", " bn", " tn"});
}

std::string Layers(const std::vector<int>& layers) {
  return fmt::format("layer{} {}", layers.size() == 1 ? "" : "s", fmt::join(layers, ", "));
}

// Contexts to show the cost of: three usual lengths as far as the model goes, and its own limit.
std::vector<std::int64_t> Contexts(const Config& config) {
  std::vector<std::int64_t> lengths;
  for (const std::int64_t tokens : {std::int64_t{1} << 12, std::int64_t{1} << 17, std::int64_t{1} << 20}) {
    if (config.max_seq_len == 0 || tokens <= config.max_seq_len) lengths.push_back(tokens);
  }
  if (config.max_seq_len > 0 && (lengths.empty() || lengths.back() != config.max_seq_len)) {
    lengths.push_back(config.max_seq_len);
  }
  return lengths;
}

class Text {
 public:
  void Heading(std::string_view heading) { fmt::format_to(std::back_inserter(out_), "\n{}\n", heading); }
  void Row(std::string_view name, const std::string& value) {
    fmt::format_to(std::back_inserter(out_), "  {:<18} {}\n", name, value);
  }
  void Line(const std::string& line) { out_ += line + '\n'; }
  [[nodiscard]] std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

void WriteArchitecture(Text& text, const Config& c) {
  text.Heading("Architecture");
  text.Row("layers", fmt::format("{}: encoder 0 to {}, decoder {} to {}", c.n_layers, c.decoder_start() - 1,
                                 c.decoder_start(), c.n_layers - 1));
  text.Row("hidden size", fmt::format("{}, {} residual copies", c.dim, c.hc_mult));
  text.Row("attention",
           fmt::format("{} heads x {} (RoPE {}), query rank {}, output {} groups x {}, window {}", c.n_heads,
                       c.head_dim, c.rope_head_dim, c.q_lora_rank, c.o_groups, c.o_lora_rank, c.window_size));
  text.Row("indexer", fmt::format("{}: {} heads x {}, top {}; candidates {} blocks x {} from layer {}",
                                  Layers(c.index_source_layers), c.index_n_heads, c.index_head_dim, c.index_topk,
                                  c.candidate_topk_blocks, c.candidate_block_size, c.candidate_source_layer));
  text.Row("experts", fmt::format("{} routed, {} active, {} shared, width {}", c.n_routed_experts,
                                  c.n_activated_experts, c.n_shared_experts, c.moe_inter_dim));
  const EngramConfig& e = c.engram;
  text.Row("Engram", e.layer_ids.empty()
                         ? "none"
                         : fmt::format("{}: n-grams to {}, {} heads x {}, {} rows", Layers(e.layer_ids),
                                       e.max_ngram_size, e.n_heads, e.head_dim, fmt::join(e.num_embeddings, " and ")));
  const DSparkConfig& d = c.dspark;
  text.Row("drafts", d.n_stages == 0 ? "none"
                                     : fmt::format("DSpark, {} stages, block {}, from {}, {} experts, {} active",
                                                   d.n_stages, d.block_size, Layers(d.target_layer_ids),
                                                   d.n_routed_experts, d.n_activated_experts));
  const VisionConfig& v = c.vision;
  text.Row("vision", v.n_layers == 0
                         ? "none"
                         : fmt::format("{} blocks of {}, {} heads, patches of {} pixels, up to {} tokens an image",
                                       v.n_layers, v.dim, v.n_heads, v.patch_size, v.max_image_tokens));
  text.Row("vocabulary", fmt::format("{} tokens", c.vocab_size));
  text.Row("positions", c.max_seq_len == 0 ? "not stated" : fmt::format("{}", c.max_seq_len));
}

void WriteSize(Text& text, const ModelSize& size) {
  text.Heading("Weights");
  const auto row = [&](std::string_view name, const PartSize& part) {
    text.Line(fmt::format("  {:<18} {:>8} {:>16} {:>12} {:>16}", name, part.tensors, Count(part.parameters),
                          Bytes(part.bytes), Count(part.active)));
  };
  text.Line(
      fmt::format("  {:<18} {:>8} {:>16} {:>12} {:>16}", "part", "tensors", "parameters", "size", "active a token"));
  for (int i = 0; i < kParts; ++i) {
    const PartSize& part = size.parts[static_cast<std::size_t>(i)];
    if (part.tensors > 0) row(Name(static_cast<Part>(i)), part);
  }
  row("total", size.total);
  text.Line(fmt::format("  A prompt token outside the decoder tail uses {} parameters.", Count(size.encoder_active)));
}

void WriteKv(Text& text, const Config& config, const KvCost& kv) {
  text.Heading("KV memory");
  for (const OwnerCost& owner : kv.owners) {
    text.Row(fmt::format("owner layer {}", owner.layer),
             fmt::format("ratio {}, {:g} B a token", owner.ratio, owner.bytes_per_token()));
  }
  text.Row("all owners", fmt::format("{:g} B a token", kv.history_bytes_per_token));
  text.Row("block", fmt::format("{} tokens, {} B", backend::kBlockTokens, kv.block_bytes));
  text.Row("slot of a sequence",
           fmt::format("{} B: windows {}, compressor {}, Engram ids {}, drafts {}", kv.slot_bytes(), kv.window_bytes,
                       kv.compressor_bytes, kv.engram_bytes, kv.draft_bytes));
  for (const std::int64_t tokens : Contexts(config)) {
    text.Row(fmt::format("at {} tokens", tokens), fmt::format("{} and the slot, {}", Bytes(kv.HistoryBytes(tokens)),
                                                              Bytes(kv.HistoryBytes(tokens) + kv.slot_bytes())));
  }
}

// Every value of the config that inspect shows, for programs.
void WriteConfigJson(io::JsonWriter& json, const Config& c) {
  struct Entry {
    std::string_view name;
    std::int64_t value;
  };
  const std::array entries = {Entry{"layers", c.n_layers},
                              Entry{"decoder_start", c.decoder_start()},
                              Entry{"hidden_size", c.dim},
                              Entry{"residual_copies", c.hc_mult},
                              Entry{"attention_heads", c.n_heads},
                              Entry{"head_dim", c.head_dim},
                              Entry{"rope_head_dim", c.rope_head_dim},
                              Entry{"query_rank", c.q_lora_rank},
                              Entry{"output_groups", c.o_groups},
                              Entry{"output_rank", c.o_lora_rank},
                              Entry{"window", c.window_size},
                              Entry{"index_heads", c.index_n_heads},
                              Entry{"index_head_dim", c.index_head_dim},
                              Entry{"index_topk", c.index_topk},
                              Entry{"routed_experts", c.n_routed_experts},
                              Entry{"active_experts", c.n_activated_experts},
                              Entry{"shared_experts", c.n_shared_experts},
                              Entry{"expert_width", c.moe_inter_dim},
                              Entry{"draft_stages", c.dspark.n_stages},
                              Entry{"draft_block", c.dspark.block_size},
                              Entry{"vision_layers", c.vision.n_layers},
                              Entry{"vocabulary", c.vocab_size},
                              Entry{"positions", c.max_seq_len}};
  json.BeginObject();
  for (const Entry& entry : entries) json.Key(entry.name).Int(entry.value);
  const auto list = [&](std::string_view name, const std::vector<int>& values) {
    json.Key(name).BeginArray();
    for (const int value : values) json.Int(value);
    json.EndArray();
  };
  list("compress_ratios", c.compress_ratios);
  list("kv_owner_layers", c.kv_source_layers);
  list("index_layers", c.index_source_layers);
  list("engram_layers", c.engram.layer_ids);
  json.EndObject();
}

void WritePartJson(io::JsonWriter& json, const PartSize& part) {
  json.BeginObject();
  json.Key("tensors").Int(part.tensors).Key("parameters").Int(part.parameters);
  json.Key("bytes").Int(part.bytes).Key("active_parameters").Int(part.active);
  json.EndObject();
}

// "routed experts" → "routed_experts"
std::string JsonKey(Part part) {
  std::string key(Name(part));
  std::replace(key.begin(), key.end(), ' ', '_');
  std::transform(key.begin(), key.end(), key.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c | 0x20) : c; });
  return key;
}

void WriteSizeJson(io::JsonWriter& json, const ModelSize& size) {
  json.BeginObject();
  for (int i = 0; i < kParts; ++i) {
    const PartSize& part = size.parts[static_cast<std::size_t>(i)];
    if (part.tensors == 0) continue;
    json.Key(JsonKey(static_cast<Part>(i)));
    WritePartJson(json, part);
  }
  json.Key("total");
  WritePartJson(json, size.total);
  json.Key("encoder_active_parameters").Int(size.encoder_active);
  json.EndObject();
}

void WriteKvJson(io::JsonWriter& json, const Config& config, const KvCost& kv) {
  json.BeginObject();
  json.Key("owners").BeginArray();
  for (const OwnerCost& owner : kv.owners) {
    json.BeginObject().Key("layer").Int(owner.layer).Key("ratio").Int(owner.ratio);
    json.Key("bytes_per_token").Double(owner.bytes_per_token()).EndObject();
  }
  json.EndArray();
  json.Key("history_bytes_per_token").Double(kv.history_bytes_per_token);
  json.Key("block_tokens").Int(backend::kBlockTokens).Key("block_bytes").Int(kv.block_bytes);
  json.Key("slot_bytes").Int(kv.slot_bytes()).Key("slot").BeginObject();
  json.Key("window_bytes").Int(kv.window_bytes).Key("compressor_bytes").Int(kv.compressor_bytes);
  json.Key("engram_bytes").Int(kv.engram_bytes).Key("draft_bytes").Int(kv.draft_bytes);
  json.EndObject();
  json.Key("contexts").BeginArray();
  for (const std::int64_t tokens : Contexts(config)) {
    json.BeginObject().Key("tokens").Int(tokens).Key("history_bytes").Int(kv.HistoryBytes(tokens));
    json.Key("total_bytes").Int(kv.HistoryBytes(tokens) + kv.slot_bytes()).EndObject();
  }
  json.EndArray();
  json.EndObject();
}

}  // namespace

std::string ToText(const InspectReport& report) {
  Text text;
  const std::size_t count = report.problems.size();
  text.Line(
      fmt::format("{}: {}, {}", io::Printable(report.dir.native(), 1000),
                  report.config ? "DeepSeek-V4.1" : "not a readable DeepSeek-V4.1 model",
                  count == 0 ? std::string("complete") : fmt::format("{} problem{}", count, count == 1 ? "" : "s")));
  if (!report.config_files.empty()) text.Row("config", fmt::format("{}", fmt::join(report.config_files, ", ")));
  text.Row("files", fmt::format("{}, {}, {} tensors", report.files, Bytes(report.file_bytes), report.tensors));
  if (!report.weights_digest.empty()) text.Row("digest", report.weights_digest);
  if (count > 0) {
    text.Heading("Problems");
    for (const Error& problem : report.problems) text.Line("  - " + problem.ToString());
  }
  if (report.config) WriteArchitecture(text, *report.config);
  if (report.size) WriteSize(text, *report.size);
  if (report.config && report.kv) WriteKv(text, *report.config, *report.kv);
  if (!report.unknown_fields.empty()) {
    text.Heading("Unknown fields of the config, ignored");
    for (const std::string& field : report.unknown_fields) text.Line("  " + field);
  }
  return text.Take();
}

std::string ToJson(const InspectReport& report) {
  io::JsonWriter json;
  json.BeginObject();
  json.Key("directory").String(report.dir.native()).Key("ok").Bool(report.ok());
  json.Key("architecture");
  report.config ? json.String("deepseek_v41") : json.Null();
  json.Key("problems").BeginArray();
  for (const Error& problem : report.problems) {
    json.BeginObject().Key("code").String(Info(problem.code).label);
    json.Key("where").String(problem.where).Key("message").String(problem.message).EndObject();
  }
  json.EndArray();
  const auto strings = [&](std::string_view name, const std::vector<std::string>& values) {
    json.Key(name).BeginArray();
    for (const std::string& value : values) json.String(value);
    json.EndArray();
  };
  strings("config_files", report.config_files);
  strings("unknown_fields", report.unknown_fields);
  json.Key("files").Int(report.files).Key("file_bytes").Int(report.file_bytes).Key("tensors").Int(report.tensors);
  if (!report.weights_digest.empty()) json.Key("weights_digest").String(report.weights_digest);
  if (report.config) {
    json.Key("config");
    WriteConfigJson(json, *report.config);
  }
  if (report.size) {
    json.Key("weights");
    WriteSizeJson(json, *report.size);
  }
  if (report.config && report.kv) {
    json.Key("kv");
    WriteKvJson(json, *report.config, *report.kv);
  }
  json.EndObject();
  return json.Take();
}

}  // namespace galley::model
