// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <map>

#include "galley/backend/expert_store.h"
#include "galley/backend/memory_formats.h"
#include "galley/base/math.h"
#include "galley/base/memory.h"
#include "galley/engine/plan_advice.h"
#include "galley/engine/plan_speed.h"
#include "galley/io/json_writer.h"
#include "galley/model/dsv4/state.h"
#include "galley/model/tensor_list.h"

namespace galley::engine {
namespace {

constexpr std::array<std::string_view, 7> kKinds = {"weights", "tables",    "workspace", "blocks",
                                                    "slots",   "snapshots", "grammars"};

// The least that --step-rows takes.
constexpr int kStepRowsLeast = 129;

// "4.5 %", "24 %"
std::string Percent(double share) {
  return fmt::format("{:.{}f} %", 100 * share, share < 0.1 ? 1 : 0);
}

// Routed experts of layers and draft stages.
std::int64_t CountOf(const model::Config& config) {
  return std::int64_t{config.n_layers} * config.n_routed_experts +
         std::int64_t{config.dspark.n_stages} * config.dspark.n_routed_experts;
}

// Codes of half a byte, and a scale for 32 of them.
std::int64_t ExpertBytes(const model::Config& config) {
  const std::int64_t values = 3 * std::int64_t{config.dim} * config.moe_inter_dim;
  return values / 2 + values / 32;
}

// Part of all routed experts that so many of them are.
double ShareOf(const model::Config& config, std::int64_t count) {
  return std::min(1.0, static_cast<double>(count) / static_cast<double>(CountOf(config)));
}

double HeldShare(const model::Config& config, std::int64_t memory) {
  return ShareOf(config, memory / ExpertRoomOf(config));
}

// What one token reads of experts on disk when all are used alike.
std::string ExpertsNote(const model::Config& config, double missing) {
  const double used =
      static_cast<double>(std::int64_t{config.n_layers} * config.n_activated_experts * ExpertBytes(config));
  const double missed = used * missing;
  return fmt::format(
      "a token uses {} of routed experts; with {} of all in memory and every one used alike, it reads {} of that from "
      "disk: {} a token at 1 GB/s, less when it uses the same experts as those before (--expert-memory holds more)",
      SizeText(static_cast<std::int64_t>(used)), Percent(1 - missing), SizeText(static_cast<std::int64_t>(missed)),
      TimeText(missed / 1e9));
}

std::string EngramNote(const model::Config& config, bool ahead) {
  const std::int64_t rows = static_cast<std::int64_t>(config.engram.layer_ids.size()) * config.engram.columns();
  return fmt::format("a token reads {} rows of Engram tables, each of them up to two pages from disk, {}", rows,
                     ahead ? "all asked for when the token is known" : "one after the other when they are used");
}

std::string Remedy(model::Part part, bool on_device) {
  switch (part) {
    case model::Part::kRoutedExperts:
      return on_device ? "keep routed experts in main memory or on disk (--experts host or disk)"
                       : "keep routed experts on disk (--experts disk)";
    case model::Part::kEngramTables:
      return on_device ? "keep Engram tables in main memory or on disk (--engram host or disk)"
                       : "keep Engram tables on disk (--engram disk)";
    default:
      return "";
  }
}

// What a model has of a part, and in which number formats.
struct PartSum {
  std::int64_t bytes = 0;
  std::vector<std::string_view> formats;
};

// Of what is loaded. The experts of draft stages lie with the others; the vision tower is left in its file.
std::map<model::Part, PartSum> SumParts(const model::Config& config) {
  std::map<model::Part, PartSum> parts;
  for (const model::ImpliedTensor& tensor : model::ImpliedTensors(config)) {
    if (tensor.part == model::Part::kVision) continue;
    const bool drafts_expert = tensor.name.find(".ffn.experts.") != std::string::npos;
    PartSum& sum = parts[drafts_expert ? model::Part::kRoutedExperts : tensor.part];
    sum.bytes += ElementCount(tensor.shape) * static_cast<std::int64_t>(Info(tensor.dtype).bytes);
    const std::string_view format = Info(tensor.dtype).safetensors_name;
    if (std::find(sum.formats.begin(), sum.formats.end(), format) == sum.formats.end()) sum.formats.push_back(format);
  }
  return parts;
}

// Experts on disk, and those of them that are held. More than all of them is never taken.
MemoryItem ExpertsOnDisk(const model::Config& config, std::int64_t memory, std::int64_t all_bytes) {
  const std::int64_t held = std::min(memory, CountOf(config) * ExpertRoomOf(config));
  return {.kind = MemoryKind::kWeights,
          .name = fmt::format("{}: {} of {}, the rest on disk", model::Name(model::Part::kRoutedExperts),
                              Percent(HeldShare(config, memory)), SizeText(all_bytes)),
          .count = 1,
          .each = held,
          .lowers = "the memory for routed experts",
          .lowered_by = "--expert-memory",
          .least = std::min(held, kExpertsLeast * ExpertRoomOf(config))};
}

// One row for each part of the model.
void AddWeights(const model::Config& config, const MemoryOptions& options, MemoryPlan& plan) {
  for (const auto& [part, sum] : SumParts(config)) {
    const WeightPlace place = part == model::Part::kRoutedExperts  ? options.experts
                              : part == model::Part::kEngramTables ? options.engram
                                                                   : WeightPlace::kDevice;
    if (part == model::Part::kRoutedExperts && place == WeightPlace::kDisk) {
      plan.items.push_back(ExpertsOnDisk(config, options.expert_memory, sum.bytes));
      if (const double missing = MissingShares(config, options).main_memory; missing > 0)
        plan.notes.push_back(ExpertsNote(config, missing));
      continue;
    }
    MemoryItem& item = plan.items.emplace_back();
    if (part == model::Part::kEngramTables && place == WeightPlace::kDisk) {
      item.name = fmt::format("{}: {} on disk", model::Name(part), SizeText(sum.bytes));
      item.each = 0;
      plan.notes.push_back(EngramNote(config, options.reads_weights_ahead));
      continue;
    }
    item.name = fmt::format("{} ({})", model::Name(part), fmt::join(sum.formats, " "));
    item.each = sum.bytes;
    item.on_device = options.own_memory && place == WeightPlace::kDevice;
    if (options.reads_weights_ahead) item.remedy = Remedy(part, item.on_device);
    if (part == model::Part::kRoutedExperts && !item.on_device) item.least = kExpertsLeast * ExpertRoomOf(config);
  }
}

// What placement takes beside the weights.
void AddCopies(const model::Config& config, const MemoryOptions& options, MemoryPlan& plan) {
  if (const MemoryItem cache = ExpertCacheOf(config, options); cache.bytes() > 0) {
    plan.items.push_back(cache);
    plan.notes.push_back(
        "each layer of a step waits for its router's choice and for the experts to be copied, so steps are not "
        "recorded (--cuda-graphs)");
  }
  if (options.own_memory && options.engram == WeightPlace::kDisk) {
    const auto& engram = config.engram;
    const auto row = static_cast<std::int64_t>(sizeof(std::int32_t)) + engram.head_dim + engram.head_dim / 32;
    plan.items.push_back({.kind = MemoryKind::kWorkspace,
                          .name = "Engram rows of a step, read from disk",
                          .count = options.model.rows_max,
                          .each = static_cast<std::int64_t>(engram.layer_ids.size()) * engram.columns() * row});
  }
}

// The workspace of steps of fewer rows: halves of the largest power of two below, and the least.
Result<std::vector<StepRows>> SmallerSteps(const model::Config& config, model::ModelOptions options) {
  std::vector<StepRows> steps;
  while (options.rows_max > kStepRowsLeast) {
    const auto power = static_cast<int>(std::bit_floor(static_cast<unsigned>(options.rows_max - 1)));
    options.rows_max = std::max(power, kStepRowsLeast);
    ASSIGN_OR_RETURN(const model::ModelMemory memory, model::Model::PlanMemory(config, options));
    steps.push_back({.rows = options.rows_max, .bytes = static_cast<std::int64_t>(memory.workspace)});
  }
  return steps;
}

// Of one memory.
Status FitsOne(const MemoryPlan& plan, std::int64_t limit, bool on_device) {
  const auto sum = [&](auto&& counts) {
    std::int64_t bytes = 0;
    for (const MemoryItem& item : plan.items) bytes += item.on_device == on_device && counts(item) ? item.bytes() : 0;
    return bytes;
  };
  const auto of = [](MemoryKind kind) { return [kind](const MemoryItem& item) { return item.kind == kind; }; };
  const std::int64_t total = sum([](const MemoryItem&) { return true; });
  if (total <= limit) return {};
  const std::int64_t fixed = sum(of(MemoryKind::kWeights)) + sum(of(MemoryKind::kTables));
  std::vector<MemoryItem> items = plan.items;
  std::erase_if(items, [&](const MemoryItem& item) { return item.on_device != on_device; });
  const std::string advice = (fixed > limit ? "the weights alone do not fit, so " : "") + AdviceFor(items, limit);
  std::string parts;
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
    const std::int64_t bytes = sum(of(static_cast<MemoryKind>(kind)));
    if (bytes > 0)
      fmt::format_to(std::back_inserter(parts), "{}{} {}", parts.empty() ? "" : ", ", kKinds[kind], SizeText(bytes));
  }
  const std::string_view where = !plan.own_memory ? "" : on_device ? " of device memory" : " of main memory";
  return Err(ErrorCode::kResourceExhausted,
             fmt::format("{}{} are planned ({}), but {} may be used; {}", SizeText(total), where, parts,
                         SizeText(limit), advice),
             "memory");
}

}  // namespace

std::string_view Label(MemoryKind kind) {
  return kKinds[static_cast<std::size_t>(kind)];
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

std::int64_t MemoryPlan::DeviceBytes() const {
  std::int64_t sum = 0;
  for (const MemoryItem& item : items) sum += item.on_device ? item.bytes() : 0;
  return sum;
}

Status MemoryPlan::Fits(std::int64_t limit) const {
  RETURN_IF_ERROR(FitsOne(*this, limit, false));
  return device_limit > 0 ? FitsOne(*this, device_limit, true) : Status();
}

std::int64_t ExpertRoomOf(const model::Config& config) {
  return static_cast<std::int64_t>(backend::ExpertRoom(static_cast<std::size_t>(ExpertBytes(config))));
}

Result<std::int64_t> ExpertMemoryThatFits(const model::Config& config, MemoryOptions options, std::int64_t limit) {
  options.expert_memory = 0;
  ASSIGN_OR_RETURN(const MemoryPlan others, PlanMemory(config, options));
  return std::max(std::min(limit / 2, limit - others.HostBytes()), kExpertsLeast * ExpertRoomOf(config));
}

MemoryItem ExpertCacheOf(const model::Config& config, const MemoryOptions& options) {
  constexpr std::int64_t kAlignment = 256;  // of each array
  MemoryItem cache{.kind = MemoryKind::kWeights,
                   .name = "places for chosen routed experts (--expert-cache)",
                   .count = 0,
                   .each = 0,
                   .on_device = true,
                   .lowers = "the places for chosen routed experts",
                   .lowered_by = "--expert-cache"};
  if (!options.own_memory || options.experts == WeightPlace::kDevice) return cache;
  if (options.experts == WeightPlace::kHost && options.expert_cache == 0) return cache;
  const std::int64_t values = std::int64_t{config.dim} * config.moe_inter_dim;
  const auto aligned = [](std::int64_t bytes) { return CeilDiv(bytes, kAlignment) * kAlignment; };
  cache.each = 3 * (aligned(values / 2) + aligned(values / 32));
  cache.least = config.n_routed_experts * cache.each;
  cache.count = std::max<std::int64_t>(options.expert_cache / cache.each, config.n_routed_experts);
  return cache;
}

MissingExperts MissingShares(const model::Config& config, const MemoryOptions& options) {
  if (options.experts == WeightPlace::kDevice) return {};
  const double missing = 1 - ShareOf(config, ExpertCacheOf(config, options).count);
  if (options.experts == WeightPlace::kHost) return {.device = missing};
  return {.device = missing, .main_memory = std::min(missing, 1 - HeldShare(config, options.expert_memory))};
}

Result<MemoryPlan> PlanMemory(const model::Config& config, const MemoryOptions& options) {
  MemoryPlan plan;
  plan.own_memory = options.own_memory;
  AddWeights(config, options, plan);
  AddCopies(config, options, plan);
  ASSIGN_OR_RETURN(const model::ModelMemory memory, model::Model::PlanMemory(config, options.model));
  const model::StateLayout layout = model::StateLayout::Make(config, options.rewind);
  const auto block = static_cast<std::int64_t>(layout.block_bytes), slot = static_cast<std::int64_t>(layout.slot_bytes);
  plan.tokens = std::int64_t{options.blocks} * backend::kBlockTokens;
  const auto add = [&](MemoryKind kind, std::string name, std::int64_t count, std::int64_t each,
                       bool on_device = true) {
    plan.items.push_back({.kind = kind,
                          .name = std::move(name),
                          .count = count,
                          .each = each,
                          .on_device = on_device && options.own_memory});
  };
  add(MemoryKind::kTables, "rotary frequencies, Engram ids", 1, static_cast<std::int64_t>(memory.tables));
  add(MemoryKind::kWorkspace,
      fmt::format("step of {} rows, {} with logits", options.model.rows_max, options.model.logit_rows_max), 1,
      static_cast<std::int64_t>(memory.workspace));
  ASSIGN_OR_RETURN(plan.items.back().smaller, SmallerSteps(config, options.model));
  if (options.recorded_step_bytes > 0)
    add(MemoryKind::kTables, "recorded decode steps (--cuda-graphs)", 1, options.recorded_step_bytes);
  if (options.load_bytes > 0) {
    add(MemoryKind::kTables, "buffers that weights are loaded through", 1,
        options.load_bytes - options.load_device_bytes, false);
    add(MemoryKind::kTables, "buffers that weights are loaded through", 1, options.load_device_bytes);
  }
  add(MemoryKind::kBlocks, "blocks", options.blocks, block);
  add(MemoryKind::kSlots, "slots", options.slots, slot);
  if (options.snapshots > 0) add(MemoryKind::kSnapshots, "snapshots", options.snapshots, slot + block);
  if (options.grammar_cache > 0)
    add(MemoryKind::kGrammars, "compiled grammars, at most", 1, options.grammar_cache, false);
  if (options.own_memory)
    plan.speeds = SpeedsOf(config, options, {1, options.model.sequences_max, options.model.rows_max});
  return plan;
}

std::int64_t MemoryLimit(std::int64_t asked) {
  if (asked > 0) return asked;
  return static_cast<std::int64_t>(std::min<std::uint64_t>(UsableMemoryBytes(), INT64_MAX));
}

std::string BeyondMemoryNote(const MemoryPlan& plan, std::int64_t usable) {
  if (plan.own_memory || plan.total() <= usable) return "";
  return fmt::format(
      "{} are planned and allowed, but the process may use {}: weights beyond that are read from disk again in every "
      "step that needs them (lower --memory-limit to see what else could be done)",
      SizeText(plan.total()), SizeText(usable));
}

std::string ToText(const MemoryPlan& plan, std::int64_t limit) {
  std::string out = "Memory plan\n";
  const auto row = [&out](std::string_view kind, std::string_view name, const std::string& count,
                          const std::string& size) {
    fmt::format_to(std::back_inserter(out), "  {:<10} {:<44} {:>22} {:>12}\n", kind, name, count, size);
  };
  const auto rows_of = [&](bool on_device) {
    for (const MemoryItem& item : plan.items) {
      if (item.on_device != on_device) continue;
      row(Label(item.kind), item.name, item.count == 1 ? "" : fmt::format("{} x {}", item.count, SizeText(item.each)),
          SizeText(item.bytes()));
    }
  };
  const std::string history = fmt::format("history of {} tokens", plan.tokens);
  if (plan.own_memory) {
    out += " on the device\n";
    rows_of(true);
    row("total", history, "", SizeText(plan.DeviceBytes()));
    const bool fits = plan.DeviceBytes() <= plan.device_limit;
    if (plan.ChecksDevice()) {
      row("limit", fits ? "fits" : "does not fit", "", SizeText(plan.device_limit));
    } else {
      out += "  limit      not checked: there is no GPU here (--device-memory BYTES says what it has)\n";
    }
    out += " in main memory\n";
  }
  rows_of(false);
  row("total", plan.own_memory ? "" : history, "", SizeText(plan.HostBytes()));
  row("limit", plan.HostBytes() <= limit ? "fits" : "does not fit", "", SizeText(limit));
  for (const std::string& note : plan.notes) fmt::format_to(std::back_inserter(out), "  slow: {}\n", note);
  for (const StepSpeed& speed : plan.speeds) fmt::format_to(std::back_inserter(out), "  speed: {}\n", ToLine(speed));
  if (!plan.speeds.empty()) fmt::format_to(std::back_inserter(out), "  speed: {}\n", SpeedsNote());
  return out;
}

std::string ToJson(const MemoryPlan& plan, std::int64_t limit) {
  io::JsonWriter json;
  json.BeginObject().Key("items").BeginArray();
  for (const MemoryItem& item : plan.items) {
    json.BeginObject().Key("kind").String(Label(item.kind)).Key("name").String(item.name);
    if (plan.own_memory) json.Key("place").String(item.on_device ? "device" : "host");
    json.Key("count").Int(item.count).Key("each_bytes").Int(item.each).Key("bytes").Int(item.bytes()).EndObject();
  }
  json.EndArray().Key("notes").BeginArray();
  for (const std::string& note : plan.notes) json.String(note);
  json.EndArray().Key("history_tokens").Int(plan.tokens).Key("total_bytes").Int(plan.total());
  if (plan.own_memory) {
    json.Key("device_bytes").Int(plan.DeviceBytes()).Key("host_bytes").Int(plan.HostBytes());
    json.Key("device_limit_bytes").Int(plan.device_limit).Key("device_checked").Bool(plan.ChecksDevice());
    json.Key("speeds").BeginArray();
    for (const StepSpeed& speed : plan.speeds) {
      const auto bytes = [](double value) { return static_cast<std::int64_t>(value); };
      json.BeginObject().Key("rows").Int(speed.rows).Key("device_bytes").Int(bytes(speed.device_bytes));
      json.Key("link_bytes").Int(bytes(speed.link_bytes)).Key("disk_bytes").Int(bytes(speed.disk_bytes));
      json.Key("seconds").Double(speed.seconds()).Key("limit").String(speed.limit()).EndObject();
    }
    json.EndArray();
  }
  json.Key("limit_bytes").Int(limit).Key("fits").Bool(plan.Fits(limit).has_value()).EndObject();
  return json.Take();
}

}  // namespace galley::engine
