// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include "galley/backend/memory_formats.h"
#include "galley/base/memory.h"
#include "galley/io/json_writer.h"
#include "galley/model/dsv4/state.h"
#include "galley/model/tensor_list.h"

namespace galley::engine {
namespace {

struct KindInfo {
  std::string_view label;
  std::string_view option;  // that makes it smaller; empty: none does
};

constexpr std::array<KindInfo, 7> kKinds = {{
    {"weights", ""},
    {"tables", ""},
    {"workspace", "the rows of a step (--step-rows; of generate and chat: --prefill-chunk)"},
    {"blocks", "the tokens to hold (--max-seq-len, --blocks; of plan: --max-tokens)"},
    {"slots", "the sequences that run at once (--max-seqs)"},
    {"snapshots", "the saved slots (--snapshots)"},
    {"grammars", "the cache of compiled grammars (--grammar-cache)"},
}};

// "1.23 GiB", always with the unit that leaves the number readable.
std::string Size(std::int64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

// Null: no option makes any of them smaller.
const MemoryItem* LargestWithOption(const std::vector<MemoryItem>& items) {
  const MemoryItem* largest = nullptr;
  for (const MemoryItem& item : items) {
    if (kKinds[static_cast<std::size_t>(item.kind)].option.empty()) continue;
    if (largest == nullptr || item.bytes() > largest->bytes()) largest = &item;
  }
  return largest;
}

// What one token reads of experts on disk when all are used alike, which is the worst that a long text comes to.
std::string ExpertsNote(const model::Config& config, std::int64_t all, std::int64_t held) {
  const double used = static_cast<double>(all) * config.n_activated_experts / config.n_routed_experts;
  const double missed = used * (1 - static_cast<double>(held) / static_cast<double>(all));
  return fmt::format(
      "a token uses {} of routed experts, and with {:.0f} % of them in memory reads up to {} of that from disk: {:.2f} "
      "s "
      "a token at 1 GB/s; less when it uses the same experts as those before (--expert-memory holds more)",
      Size(static_cast<std::int64_t>(used)), 100 * static_cast<double>(held) / static_cast<double>(all),
      Size(static_cast<std::int64_t>(missed)), missed / 1e9);
}

std::string EngramNote(const model::Config& config, bool ahead) {
  const std::int64_t rows = static_cast<std::int64_t>(config.engram.layer_ids.size()) * config.engram.columns();
  return fmt::format("a token reads {} rows of Engram tables, each of them up to two pages from disk, {}", rows,
                     ahead ? "all asked for when the token is known" : "one after the other when they are used");
}

std::string Remedy(model::Part part) {
  switch (part) {
    case model::Part::kRoutedExperts:
      return "keep routed experts on disk (--experts disk)";
    case model::Part::kEngramTables:
      return "keep Engram tables on disk (--engram disk)";
    default:
      return "";
  }
}

// What to do about weights that are too large by themselves; the largest remedy first, and no more than are needed.
std::string WeightAdvice(std::vector<MemoryItem> items, std::int64_t excess) {
  std::erase_if(items, [](const MemoryItem& item) { return item.remedy.empty(); });
  std::stable_sort(items.begin(), items.end(),
                   [](const MemoryItem& a, const MemoryItem& b) { return a.bytes() > b.bytes(); });
  std::string advice;
  for (const MemoryItem& item : items) {
    if (excess <= 0) break;
    advice += fmt::format("{}{}, which take {}", advice.empty() ? "" : ", and ", item.remedy, Size(item.bytes()));
    excess -= item.bytes();
  }
  if (excess > 0) return "so choose a smaller model or a machine with more memory";
  return "so " + advice;
}

// One row for each part of the model, with the number formats in it.
void AddWeights(const model::Config& config, const MemoryOptions& options, MemoryPlan& plan) {
  std::vector<MemoryItem>& items = plan.items;
  const std::int64_t expert_memory = options.expert_memory;
  struct Sum {
    std::int64_t bytes = 0;
    std::vector<std::string_view> formats;
  };
  std::map<model::Part, Sum> parts;
  for (const model::ImpliedTensor& tensor : model::ImpliedTensors(config)) {
    Sum& sum = parts[tensor.part];
    sum.bytes += ElementCount(tensor.shape) * static_cast<std::int64_t>(Info(tensor.dtype).bytes);
    const std::string_view format = Info(tensor.dtype).safetensors_name;
    if (std::find(sum.formats.begin(), sum.formats.end(), format) == sum.formats.end()) sum.formats.push_back(format);
  }
  for (const auto& [part, sum] : parts) {
    if (part == model::Part::kRoutedExperts && expert_memory >= 0 && expert_memory < sum.bytes) {
      items.push_back({.kind = MemoryKind::kWeights,
                       .name = fmt::format("{}: {:.0f} % of {}, the rest on disk", model::Name(part),
                                           100 * static_cast<double>(expert_memory) / static_cast<double>(sum.bytes),
                                           Size(sum.bytes)),
                       .count = 1,
                       .each = expert_memory,
                       .remedy = "hold fewer experts in memory (--expert-memory)"});
      plan.notes.push_back(ExpertsNote(config, sum.bytes, expert_memory));
      continue;
    }
    if (part == model::Part::kEngramTables && options.engram_on_disk) {
      items.push_back({.kind = MemoryKind::kWeights,
                       .name = fmt::format("{}: {} on disk", model::Name(part), Size(sum.bytes)),
                       .count = 1,
                       .each = 0});
      plan.notes.push_back(EngramNote(config, options.reads_weights_ahead));
      continue;
    }
    items.push_back({.kind = MemoryKind::kWeights,
                     .name = fmt::format("{} ({})", model::Name(part), fmt::join(sum.formats, " ")),
                     .count = 1,
                     .each = sum.bytes,
                     .remedy = options.reads_weights_ahead ? Remedy(part) : ""});
  }
}

}  // namespace

std::string_view Label(MemoryKind kind) {
  return kKinds[static_cast<std::size_t>(kind)].label;
}

std::int64_t MemoryPlan::total() const {
  std::int64_t sum = 0;
  for (const MemoryItem& item : items) sum += item.bytes();
  return sum;
}

std::int64_t MemoryPlan::BytesOf(MemoryKind kind) const {
  std::int64_t sum = 0;
  for (const MemoryItem& item : items) sum += item.kind == kind ? item.bytes() : 0;
  return sum;
}

Status MemoryPlan::Fits(std::int64_t limit) const {
  if (total() <= limit) return {};
  const std::int64_t fixed = BytesOf(MemoryKind::kWeights) + BytesOf(MemoryKind::kTables);
  std::string advice;
  if (fixed > limit) {
    advice = "the weights alone do not fit, " + WeightAdvice(items, fixed - limit);
  } else if (const MemoryItem* largest = LargestWithOption(items); largest != nullptr) {
    const std::int64_t room = limit - (total() - largest->bytes());
    advice = fmt::format("lower {}, which take {}", kKinds[static_cast<std::size_t>(largest->kind)].option,
                         Size(largest->bytes()));
    if (largest->count > 1 && room >= largest->each) {
      advice += fmt::format("; {} {} of {} would fit", room / largest->each, largest->name, largest->count);
    }
  }
  std::string parts;
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
    const std::int64_t bytes = BytesOf(static_cast<MemoryKind>(kind));
    if (bytes > 0)
      fmt::format_to(std::back_inserter(parts), "{}{} {}", parts.empty() ? "" : ", ", kKinds[kind].label, Size(bytes));
  }
  return Err(ErrorCode::kResourceExhausted,
             fmt::format("{} are planned ({}), but {} may be used; {}", Size(total()), parts, Size(limit), advice),
             "memory");
}

Result<MemoryPlan> PlanMemory(const model::Config& config, const MemoryOptions& options) {
  MemoryPlan plan;
  plan.on_host = options.on_host;
  AddWeights(config, options, plan);
  ASSIGN_OR_RETURN(const model::ModelMemory memory, model::Model::PlanMemory(config, options.model));
  const model::StateLayout layout = model::StateLayout::Make(config, options.rewind);
  const auto block = static_cast<std::int64_t>(layout.block_bytes), slot = static_cast<std::int64_t>(layout.slot_bytes);
  plan.tokens = std::int64_t{options.blocks} * backend::kBlockTokens;
  plan.items.push_back(
      {MemoryKind::kTables, "rotary frequencies, Engram ids", 1, static_cast<std::int64_t>(memory.tables)});
  plan.items.push_back(
      {MemoryKind::kWorkspace,
       fmt::format("step of {} rows, {} with logits", options.model.rows_max, options.model.logit_rows_max), 1,
       static_cast<std::int64_t>(memory.workspace)});
  if (options.recorded_step_bytes > 0)
    plan.items.push_back(
        {MemoryKind::kTables, "recorded decode steps (--cuda-graphs)", 1, options.recorded_step_bytes});
  if (options.load_bytes > 0)
    plan.items.push_back({MemoryKind::kTables, "buffers that weights are loaded through", 1, options.load_bytes});
  plan.items.push_back({MemoryKind::kBlocks, "blocks", options.blocks, block});
  plan.items.push_back({MemoryKind::kSlots, "slots", options.slots, slot});
  if (options.snapshots > 0)
    plan.items.push_back({MemoryKind::kSnapshots, "snapshots", options.snapshots, slot + block});
  if (options.grammar_cache > 0)
    plan.items.push_back({MemoryKind::kGrammars, "compiled grammars, at most", 1, options.grammar_cache});
  return plan;
}

std::int64_t MemoryLimit(std::int64_t asked) {
  if (asked > 0) return asked;
  return static_cast<std::int64_t>(std::min<std::uint64_t>(UsableMemoryBytes(), INT64_MAX));
}

std::string BeyondMemoryNote(const MemoryPlan& plan, std::int64_t usable) {
  if (!plan.on_host || plan.total() <= usable) return "";
  return fmt::format(
      "{} are planned and allowed, but the process may use {}: weights beyond that are read from disk again in every "
      "step that needs them (lower --memory-limit to see what else could be done)",
      Size(plan.total()), Size(usable));
}

std::string ToText(const MemoryPlan& plan, std::int64_t limit) {
  std::string out = "Memory plan\n";
  const auto row = [&out](std::string_view kind, std::string_view name, const std::string& count,
                          const std::string& size) {
    fmt::format_to(std::back_inserter(out), "  {:<10} {:<44} {:>22} {:>12}\n", kind, name, count, size);
  };
  for (const MemoryItem& item : plan.items) {
    row(Label(item.kind), item.name, item.count == 1 ? "" : fmt::format("{} x {}", item.count, Size(item.each)),
        Size(item.bytes()));
  }
  row("total", fmt::format("history of {} tokens", plan.tokens), "", Size(plan.total()));
  row("limit", plan.total() <= limit ? "fits" : "does not fit", "", Size(limit));
  for (const std::string& note : plan.notes) fmt::format_to(std::back_inserter(out), "  slow: {}\n", note);
  return out;
}

std::string ToJson(const MemoryPlan& plan, std::int64_t limit) {
  io::JsonWriter json;
  json.BeginObject().Key("items").BeginArray();
  for (const MemoryItem& item : plan.items) {
    json.BeginObject().Key("kind").String(Label(item.kind)).Key("name").String(item.name);
    json.Key("count").Int(item.count).Key("each_bytes").Int(item.each).Key("bytes").Int(item.bytes()).EndObject();
  }
  json.EndArray().Key("notes").BeginArray();
  for (const std::string& note : plan.notes) json.String(note);
  json.EndArray().Key("history_tokens").Int(plan.tokens).Key("total_bytes").Int(plan.total());
  json.Key("limit_bytes").Int(limit).Key("fits").Bool(plan.total() <= limit).EndObject();
  return json.Take();
}

}  // namespace galley::engine
