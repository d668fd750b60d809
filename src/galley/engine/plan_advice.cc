// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/plan_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <vector>

#include "galley/backend/memory_formats.h"
#include "galley/base/check.h"

namespace galley::engine {
namespace {

constexpr std::int64_t kKiB = 1024, kMiB = 1024 * kKiB;

// How an option makes items of a kind smaller.
enum class Unit {
  kNothing,  // none does
  kCount,    // the item's count
  kBytes,    // its bytes, of which `least` remain
  kRows,     // one of its `smaller`
};

struct Lowering {
  Unit unit = Unit::kNothing;
  std::int64_t count_least = 0;
  std::string_view what = {}, option = {};
  std::string_view other = {};  // options of other commands for the same
};

// By MemoryKind.
constexpr std::array<Lowering, 7> kLowerings = {{
    {.unit = Unit::kBytes},  // of weights: what and by which option stands in the item
    {},
    {.unit = Unit::kRows,
     .what = "the rows of a step",
     .option = "--step-rows",
     .other = "; of generate and chat: --prefill-chunk"},
    {.unit = Unit::kCount,
     .count_least = 1,
     .what = "the tokens to hold",
     .option = "--blocks",
     .other = ", or lower --max-seq-len; of plan: --max-tokens"},
    {.unit = Unit::kCount, .count_least = 1, .what = "the sequences that run at once", .option = "--max-seqs"},
    {.unit = Unit::kCount, .what = "the saved slots", .option = "--snapshots"},
    {.unit = Unit::kBytes, .what = "the cache of compiled grammars", .option = "--grammar-cache"},
}};

const Lowering& LoweringOf(const MemoryItem& item) {
  return kLowerings[static_cast<std::size_t>(item.kind)];
}

bool Moves(const MemoryItem& item) {
  return !item.remedy.empty();
}

// What its option can free, at most.
std::int64_t MostFreed(const MemoryItem& item) {
  const Lowering& lowering = LoweringOf(item);
  switch (lowering.unit) {
    case Unit::kCount:
      return std::max<std::int64_t>(item.count - lowering.count_least, 0) * item.each;
    case Unit::kRows:
      return item.smaller.empty() ? 0 : item.bytes() - item.smaller.back().bytes;
    case Unit::kBytes:
      return Moves(item) || item.kind != MemoryKind::kWeights || !item.lowered_by.empty() ? item.bytes() - item.least
                                                                                          : 0;
    default:
      return 0;
  }
}

// As an option takes it, rounded down: "6120MiB".
std::string BytesValue(std::int64_t bytes, std::int64_t least) {
  if (bytes < kKiB) return "0";
  const std::int64_t whole = bytes / kMiB * kMiB;
  return whole >= std::max(least, 16 * kMiB) ? fmt::format("{}MiB", bytes / kMiB) : fmt::format("{}KiB", bytes / kKiB);
}

// To lower `item`, so that at least `freed` bytes become free.
std::string ToLower(const MemoryItem& item, std::int64_t freed) {
  if (Moves(item)) return fmt::format("{}, which take {}", item.remedy, SizeText(item.bytes()));
  const Lowering& lowering = LoweringOf(item);
  const std::int64_t room = item.bytes() - freed;
  std::string value, shown;
  switch (lowering.unit) {
    case Unit::kCount: {
      value = fmt::format("{}", room / item.each);
      shown = item.kind == MemoryKind::kBlocks ? fmt::format("{}", room / item.each * backend::kBlockTokens) : value;
      break;
    }
    case Unit::kRows: {
      const auto fits = std::ranges::find_if(item.smaller, [&](const StepRows& step) { return step.bytes <= room; });
      CHECK(fits != item.smaller.end());
      shown = value = fmt::format("{}", fits->rows);
      break;
    }
    default:
      value = BytesValue(room, item.least);
      shown = SizeText(room);
  }
  const bool weights = item.kind == MemoryKind::kWeights;
  return fmt::format("lower {}, which take {}, to {} ({} {}{})", weights ? item.lowers : lowering.what,
                     SizeText(item.bytes()), shown, weights ? item.lowered_by : lowering.option, value, lowering.other);
}

// What of experts would lie in memory if they were on disk and `spare` bytes more than are needed became free.
std::string ExpertsHeld(const MemoryItem& item, std::int64_t spare, std::int64_t limit) {
  if (!Moves(item) || item.least == 0) return "";
  const std::int64_t held = std::max(std::min(item.least + spare, limit / 2), item.least);
  return fmt::format(", of which {} would be held in memory", SizeText(held));
}

}  // namespace

std::string SizeText(std::int64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string AdviceFor(std::span<const MemoryItem> items, std::int64_t limit) {
  constexpr std::size_t kChoicesMax = 3;
  std::vector<const MemoryItem*> choices;
  std::int64_t total = 0, freed_most = 0;
  for (const MemoryItem& item : items) {
    total += item.bytes();
    freed_most += MostFreed(item);
    if (MostFreed(item) > 0) choices.push_back(&item);
  }
  const std::int64_t excess = total - limit;
  if (freed_most < excess)
    return fmt::format("choose a smaller model or a machine with more memory: {} are needed whatever else is lowered",
                       SizeText(total - freed_most));
  std::ranges::stable_sort(choices, std::greater(), [](const MemoryItem* item) { return MostFreed(*item); });
  std::vector<const MemoryItem*> enough;
  std::ranges::copy_if(choices, std::back_inserter(enough),
                       [&](const MemoryItem* item) { return MostFreed(*item) >= excess; });
  // What only makes something smaller costs less than what moves weights.
  std::stable_partition(enough.begin(), enough.end(), [](const MemoryItem* item) { return !Moves(*item); });
  std::string advice;
  for (std::size_t i = 0; i < std::min(enough.size(), kChoicesMax); ++i) {
    advice += (i > 0 ? ", or " : "") + ToLower(*enough[i], excess) +
              ExpertsHeld(*enough[i], MostFreed(*enough[i]) - excess, limit);
  }
  if (!enough.empty()) return advice;
  // The largest, and no more than are needed; the last no further than it must be.
  std::vector<const MemoryItem*> needed;
  std::int64_t freed = 0;
  for (const MemoryItem* item : choices) {
    if (freed >= excess) break;
    needed.push_back(item);
    freed += MostFreed(*item);
  }
  const std::int64_t spare = Moves(*needed.back()) ? freed - excess : 0;
  for (const MemoryItem* item : needed) {
    const std::int64_t own = MostFreed(*item) - (item == needed.back() ? freed - excess : 0);
    advice += (advice.empty() ? "" : ", and ") + ToLower(*item, own) + ExpertsHeld(*item, spare, limit);
  }
  return advice;
}

}  // namespace galley::engine
