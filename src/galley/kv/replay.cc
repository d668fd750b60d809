// SPDX-License-Identifier: Apache-2.0
#include "galley/kv/replay.h"

#include <algorithm>
#include <array>

#include "galley/base/check.h"
#include "galley/base/range.h"

namespace galley::kv {
namespace {

constexpr std::array<std::string_view, 4> kKindLabels = {"cold", "bounded", "exact", "snapshot"};

Position TailStart(const ReplaySpec& spec, const PromptFacts& facts) {
  return spec.truncates() && !facts.all_rows ? std::max<Position>(0, facts.length - spec.keep) : 0;
}

// First row that must come out as in an undisturbed run: where history ends, or where the tail begins, which without
// truncation is the last row.
Position Anchor(const ReplaySpec& spec, const PromptFacts& facts, Position history) {
  return std::min(history, facts.length - (spec.truncates() ? spec.keep : 1));
}

Position ReplayStart(const ReplaySpec& spec, const PromptFacts& facts) {
  if (facts.hit == 0) return 0;
  Position start = spec.mode == ReplayMode::kBounded ? Anchor(spec, facts, facts.hit - spec.window)
                                                     : Anchor(spec, facts, facts.hit) - spec.exact_warm_rows();
  // A snapshot near the prompt's end costs a few more rows now and spares the next turn its whole replay.
  if (facts.save_at && facts.length - *facts.save_at <= spec.window) {
    start = std::min(start, *facts.save_at - spec.snapshot_depth() - spec.warm_rows());
  }
  return std::max<Position>(0, start);
}

// Without truncation the last row still has to run, to draw from it.
Position SnapshotStart(const ReplaySpec& spec, const PromptFacts& facts) {
  const Position latest = spec.truncates() ? facts.length - spec.keep : facts.length - 1;
  return std::min(facts.snapshot->position, std::max<Position>(0, latest));
}

bool SnapshotFits(const ReplaySpec& spec, const PromptFacts& facts) {
  return facts.snapshot && facts.snapshot->position <= facts.length &&
         SnapshotStart(spec, facts) >= facts.snapshot->restart_from;
}

template <typename Count>
std::int64_t SumPasses(const std::vector<PrefillPass>& passes, Count count) {
  std::int64_t sum = 0;
  for (const PrefillPass& pass : passes) sum += std::max<std::int64_t>(0, count(pass));
  return sum;
}

}  // namespace

Status ReplaySpec::Validate() const {
  RETURN_IF_ERROR(CheckRange("window", window, 1, 1 << 20));
  RETURN_IF_ERROR(CheckRange("backtrack", backtrack, 0, 64));
  RETURN_IF_ERROR(CheckRange("layers", layers, 1, 1024));
  RETURN_IF_ERROR(CheckRange("encoder_layers", encoder_layers, 1, layers));
  if (!truncates()) return {};
  if (encoder_layers == layers) {
    return Err(ErrorCode::kInvalidArgument, "is compact, but the model has no decoder layers; use off", "truncation");
  }
  // The first generated token sees a whole window of tail rows.
  return CheckRange("keep", keep, window, 1 << 20);
}

std::string_view NumericClass(const ReplaySpec& spec) {
  return spec.mode == ReplayMode::kBounded ? "bounded" : "exact";
}

std::string_view Label(StartKind kind) {
  return kKindLabels[static_cast<std::size_t>(kind)];
}

std::int64_t PrefillPlan::encoder_rows() const {
  return SumPasses(passes, [](const PrefillPass& pass) { return pass.end - pass.begin; });
}

std::int64_t PrefillPlan::decoder_rows() const {
  return SumPasses(passes, [](const PrefillPass& pass) { return pass.end - std::max(pass.begin, pass.tail_from); });
}

std::int64_t PrefillPlan::replayed_rows() const {
  return SumPasses(passes, [](const PrefillPass& pass) { return std::min(pass.end, pass.write_from) - pass.begin; });
}

RecordedStart RecordStart(const ReplaySpec& spec, const PromptFacts& facts) {
  RecordedStart start{.kind = StartKind::kCold,
                      .prompt_length = facts.length,
                      .hit = facts.hit,
                      .tail_start = TailStart(spec, facts),
                      .replay_start = ReplayStart(spec, facts),
                      .lineage = facts.found};
  if (SnapshotFits(spec, facts)) {
    start.kind = StartKind::kSnapshot;
    start.hit = std::max(facts.hit, facts.snapshot->position);
    start.replay_start = SnapshotStart(spec, facts);
    start.lineage = facts.snapshot->lineage;
  } else if (start.replay_start > 0) {
    start.kind = spec.mode == ReplayMode::kBounded ? StartKind::kBounded : StartKind::kExact;
  }
  // Rows that begin at 0 over history that is as if cold are cold themselves.
  const bool own =
      start.kind != StartKind::kSnapshot && facts.hit > 0 && (start.replay_start > 0 || !start.lineage.empty());
  if (spec.mode == ReplayMode::kBounded && own) {
    AppendOrigin(start.lineage, {.from = facts.hit, .begin = start.replay_start});
  }
  return start;
}

PrefillPlan PlanStart(const ReplaySpec& spec, const PromptFacts& facts) {
  CHECK(facts.length >= 1 && facts.hit >= 0 && facts.hit <= facts.length) << facts.length << " " << facts.hit;
  CHECK(!facts.all_rows || (facts.hit == 0 && !facts.snapshot));
  const RecordedStart start = RecordStart(spec, facts);
  const bool truncated = spec.truncates() && !facts.all_rows;
  const Position floor = start.kind == StartKind::kSnapshot ? facts.snapshot->encoder_floor : start.replay_start;
  PrefillPlan plan{.kind = start.kind, .hit = start.hit};
  if (start.kind == StartKind::kSnapshot) {
    plan.restored = facts.snapshot->position;
    plan.restart_from = facts.snapshot->restart_from;
  } else if (start.replay_start > 0) {
    plan.restart_from = start.replay_start + spec.warm_rows();
  }
  plan.passes.push_back({.begin = start.replay_start,
                         .end = facts.length,
                         .write_from = start.hit,
                         .tail_from = truncated ? start.tail_start : start.replay_start,
                         .encoder_floor = floor,
                         .decoder_floor = truncated ? start.tail_start : floor});
  return plan;
}

bool SnapshotPays(const ReplaySpec& spec, const PromptFacts& facts) {
  if (!SnapshotFits(spec, facts)) return false;
  return SnapshotStart(spec, facts) >= ReplayStart(spec, facts);
}

PrefillPlan PlanResume(const ReplaySpec& spec, const RecordedStart& start, Position length, Position hit) {
  CHECK(length >= start.prompt_length && hit <= length) << length << " " << start.prompt_length << " " << hit;
  PrefillPlan plan{.kind = start.kind, .hit = hit};
  // History that the first run found and that was evicted: what each earlier origin computed, again from its start.
  for (std::size_t i = 0; i < start.lineage.size(); ++i) {
    const Position end = start.lineage[i].from;
    if (hit >= end) continue;
    const Origin origin = i == 0 ? Origin{} : start.lineage[i - 1];
    const Position begin = std::max(origin.begin, hit - spec.exact_warm_rows());
    plan.passes.push_back({.begin = begin,
                           .end = end,
                           .write_from = hit,
                           .tail_from = spec.truncates() ? end : begin,
                           .encoder_floor = begin,
                           .decoder_floor = begin});
    hit = end;
  }
  const Position first = start.lineage.empty() ? 0 : start.lineage.back().begin;
  // Rows long enough before the end no longer reach it through the windows, in the decoder as in the encoder.
  const Position tail_from =
      spec.truncates() ? std::max(start.tail_start, length - 1 - spec.decoder_warm_rows()) : std::min(hit, length - 1);
  const Position anchor = std::min(hit, tail_from);
  const Position begin = std::max(first, anchor - spec.exact_warm_rows());
  plan.restart_from = begin == 0 ? 0 : begin + spec.exact_warm_rows();
  plan.passes.push_back({.begin = begin,
                         .end = length,
                         .write_from = hit,
                         .tail_from = spec.truncates() ? tail_from : begin,
                         .encoder_floor = begin,
                         .decoder_floor = spec.truncates() ? tail_from : begin});
  return plan;
}

}  // namespace galley::kv
