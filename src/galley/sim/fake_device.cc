// SPDX-License-Identifier: Apache-2.0
#include "galley/sim/fake_device.h"

#include <fmt/core.h>

#include <algorithm>

#include "galley/base/rng.h"

namespace galley::sim {

using kv::kBlockTokens;

std::uint64_t NextEntry(std::uint64_t previous, TokenId token, Position position) {
  return MixBits(previous ^ MixBits((static_cast<std::uint64_t>(token) << 32) ^ static_cast<std::uint64_t>(position)));
}

Draw DrawToken(const Script& script, int branch, std::uint64_t entry) {
  const std::uint64_t bits = MixBits(entry ^ MixBits(script.seed + static_cast<std::uint64_t>(branch)));
  return {.token = static_cast<TokenId>(bits % 50'000),
          .stop = script.stop_one_in > 0 && (bits >> 32) % static_cast<std::uint64_t>(script.stop_one_in) == 0};
}

std::vector<TokenId> ExpectedOutput(const Script& script, int branch, std::span<const TokenId> prompt, int max_tokens) {
  std::uint64_t entry = 0;
  Position position = 0;
  for (const TokenId token : prompt) entry = NextEntry(entry, token, position++);
  std::vector<TokenId> output;
  while (static_cast<int>(output.size()) < max_tokens) {
    const Draw draw = DrawToken(script, branch, entry);
    output.push_back(draw.token);
    if (draw.stop) break;
    entry = NextEntry(entry, draw.token, position++);
  }
  return output;
}

FakeDevice::FakeDevice(const sched::SchedulerOptions& options, double acceptance, std::uint64_t seed, Complain complain)
    : options_(options),
      acceptance_(acceptance),
      seed_(seed),
      complain_(std::move(complain)),
      history_(static_cast<std::size_t>(options.blocks) * kBlockTokens),
      flavours_(history_.size()),
      slots_(static_cast<std::size_t>(options.slots)),
      snapshots_(static_cast<std::size_t>(options.snapshots)) {
  const kv::ReplaySpec& replay = options.replay;
  // As deep as the need, which snapshots deepen, and what rejected drafts can overwrite.
  const int depth = replay.window + replay.backtrack + (options.snapshots > 0 ? replay.snapshot_depth() : 0);
  for (Slot& slot : slots_) {
    slot.encoder.rows.resize(static_cast<std::size_t>(depth));
    slot.decoder.rows.resize(static_cast<std::size_t>(depth));
  }
}

double FakeDevice::Uniform() {
  return static_cast<double>(MixBits(seed_ ^ MixBits(draws_++)) >> 11) * 0x1p-53;
}

sched::StepDone FakeDevice::Run(const sched::StepPlan& plan, const sched::Scheduler& scheduler,
                                const std::function<Script(RequestId)>& script) {
  scheduler_ = &scheduler;
  sched::StepDone done{.step = plan.id, .elapsed_us = 0, .draws = {}, .token_ids = {}};
  done.draws.resize(plan.draws.size());
  for (const sched::StateOp& op : plan.ops) Apply(op);
  for (const sched::TableUpdate& update : plan.tables) {
    auto& table = slots_[static_cast<std::size_t>(update.slot.value)].table;
    table.resize(static_cast<std::size_t>(update.first));
    const auto first = plan.blocks.begin() + update.offset;
    table.insert(table.end(), first, first + update.count);
  }
  for (const sched::SequenceRows& rows : plan.decode) {
    if (const sched::Sequence* sequence = scheduler.Find(rows.sequence)) {
      RunDecode(rows, *sequence, script(rows.request), done);
    } else {
      complain_(fmt::format("step {} decodes an ended sequence", plan.id));
    }
  }
  for (const sched::SequenceRows& rows : plan.prefill) {
    if (const sched::Sequence* sequence = scheduler.Find(rows.sequence)) {
      RunPrefill(rows, plan, *sequence, script(rows.request), done);
    } else {
      complain_(fmt::format("step {} prefills an ended sequence", plan.id));
    }
  }
  return done;
}

void FakeDevice::Apply(const sched::StateOp& op) {
  const auto block = [&](BlockId id) { return history_.begin() + std::ptrdiff_t{id.value} * kBlockTokens; };
  const auto flavours = [&](BlockId id) { return flavours_.begin() + std::ptrdiff_t{id.value} * kBlockTokens; };
  const auto slot = [&](SlotId id) -> Slot& { return slots_[static_cast<std::size_t>(id.value)]; };
  using Kind = sched::StateOp::Kind;
  if (op.kind == Kind::kFork) {
    slot(op.to).encoder = slot(op.from).encoder;
    slot(op.to).decoder = slot(op.from).decoder;
    if (op.to_block.valid()) {
      std::copy_n(block(op.from_block), kBlockTokens, block(op.to_block));
      std::copy_n(flavours(op.from_block), kBlockTokens, flavours(op.to_block));
    }
    return;
  }
  Snapshot& snapshot = snapshots_[static_cast<std::size_t>(op.snapshot.value)];
  if (op.kind == Kind::kSave) {
    snapshot.encoder = slot(op.from).encoder;
    snapshot.decoder = slot(op.from).decoder;
    snapshot.has_partial = op.from_block.valid();
    if (snapshot.has_partial) {
      snapshot.partial.assign(block(op.from_block), block(op.from_block) + kBlockTokens);
      snapshot.partial_flavours.assign(flavours(op.from_block), flavours(op.from_block) + kBlockTokens);
    }
    return;
  }
  slot(op.to).encoder = snapshot.encoder;
  slot(op.to).decoder = snapshot.decoder;
  if (!op.to_block.valid()) return;
  if (!snapshot.has_partial) complain_("restores a partial block that was not saved");
  if (!snapshot.has_partial) return;
  std::ranges::copy(snapshot.partial, block(op.to_block));
  std::ranges::copy(snapshot.partial_flavours, flavours(op.to_block));
}

std::uint64_t* FakeDevice::Entry(const sched::SequenceRows& rows, Position position) {
  const std::optional<std::size_t> place = Place(rows, position);
  return place ? &history_[*place] : nullptr;
}

std::optional<std::size_t> FakeDevice::Place(const sched::SequenceRows& rows, Position position) {
  const auto& table = slots_[static_cast<std::size_t>(rows.slot.value)].table;
  const auto index = static_cast<std::size_t>(position / kBlockTokens);
  if (index >= table.size()) {
    complain_(fmt::format("sequence {} has no block for position {}", rows.sequence.value, position));
    return std::nullopt;
  }
  return static_cast<std::size_t>(table[index].value) * kBlockTokens +
         static_cast<std::size_t>(position % kBlockTokens);
}

void FakeDevice::Flavour(const sched::SequenceRows& rows, const kv::RecordedStart& start, Position position) {
  const std::optional<std::size_t> before = position > 0 ? Place(rows, position - 1) : std::nullopt;
  const std::optional<std::size_t> place = Place(rows, position);
  if (!place) return;
  const auto begin = static_cast<std::uint64_t>(kv::OriginAt(start.lineage, position).begin);
  const std::uint64_t flavour = MixBits((before ? flavours_[*before] : 0) ^ MixBits(begin + 1));
  if (position >= rows.write_from) {
    flavours_[*place] = flavour;
  } else if (flavours_[*place] != flavour) {
    complain_(fmt::format("row {} of sequence {} replays over history of other runs than recorded", position,
                          rows.sequence.value));
  }
}

void FakeDevice::Store(Ring& ring, Position position, std::uint64_t entry) {
  ring.rows[static_cast<std::size_t>(position) % ring.rows.size()] = {position, entry};
}

void FakeDevice::CheckWindow(const Ring& ring, const sched::SequenceRows& rows, Position position, Position floor,
                             const char* name) {
  const Position oldest = std::max(floor, position - options_.replay.window + 1);
  for (const Position seen : {oldest, position - 1}) {
    if (seen >= position || seen < oldest) continue;
    const RingRow& row = ring.rows[static_cast<std::size_t>(seen) % ring.rows.size()];
    const std::uint64_t* const entry = Entry(rows, seen);
    if (row.position != seen || entry == nullptr || row.entry != *entry) {
      complain_(fmt::format("{} row {} of sequence {} sees position {} in its window, but the ring holds {} of {}",
                            name, position, rows.sequence.value, seen, row.position,
                            row.position == seen ? "another prefix" : "that prefix or another"));
      return;
    }
  }
}

std::uint64_t FakeDevice::RunRow(const sched::SequenceRows& rows, const sched::Sequence& sequence, Position position,
                                 TokenId token) {
  const kv::ReplaySpec& replay = options_.replay;
  const kv::RecordedStart& start = *sequence.start;
  Slot& slot = slots_[static_cast<std::size_t>(rows.slot.value)];
  ++encoder_rows_;
  const std::uint64_t* const before = position > 0 ? Entry(rows, position - 1) : nullptr;
  const std::uint64_t previous = before != nullptr ? *before : 0;
  const std::uint64_t entry = NextEntry(previous, token, position);

  if (position == rows.encoder_floor) {
    // The recorded start is right by definition; any other restart needs rows to warm up.
    const bool recorded = position == 0 || std::ranges::any_of(start.lineage, [position](const kv::Origin& origin) {
                            return origin.begin == position;
                          });
    slot.encoder.exact_from = recorded ? position : position + replay.exact_warm_rows();
  }
  CheckWindow(slot.encoder, rows, position, rows.encoder_floor, "encoder");
  const bool matters = position >= rows.write_from || (replay.truncates() && position >= rows.tail_from);
  if (matters && position < slot.encoder.exact_from) {
    complain_(fmt::format("row {} of sequence {} is used, but exact only from {}", position, rows.sequence.value,
                          slot.encoder.exact_from));
  }
  Store(slot.encoder, position, entry);

  if (position >= rows.tail_from) {
    if (position == rows.decoder_floor) {
      const bool recorded = position == start.tail_start || !replay.truncates();
      slot.decoder.exact_from = recorded ? position : position + replay.decoder_warm_rows();
    }
    CheckWindow(slot.decoder, rows, position, rows.decoder_floor, "decoder");
    Store(slot.decoder, position, entry);
  }
  std::uint64_t* const place = Entry(rows, position);
  if (place == nullptr) return entry;
  Flavour(rows, start, position);
  if (position < rows.write_from) {
    if (*place != entry) complain_(fmt::format("replayed row {} finds another prefix in its block", position));
    return entry;
  }
  const BlockId block = slot.table[static_cast<std::size_t>(position / kBlockTokens)];
  if (scheduler_->cache().published(block)) {
    complain_(fmt::format("row {} of sequence {} writes into published block {}", position, rows.sequence.value,
                          block.value));
  }
  *place = entry;
  return entry;
}

void FakeDevice::RunPrefill(const sched::SequenceRows& rows, const sched::StepPlan& plan,
                            const sched::Sequence& sequence, const Script& script, sched::StepDone& done) {
  std::uint64_t entry = 0;
  for (Position position = rows.begin; position < rows.end(); ++position) {
    entry = RunRow(rows, sequence, position, sequence.tokens[static_cast<std::size_t>(position)]);
  }
  if (rows.draws == 0) return;
  const auto prompt = static_cast<Position>(sequence.owner->request.prompt.size());
  if (const std::optional<std::size_t> place = Place(rows, prompt - 1)) {
    const auto [first, fresh] = prompt_flavours_.emplace(rows.request, flavours_[*place]);
    if (first->second != flavours_[*place]) {
      complain_(fmt::format("sequence {} resumes with history of other runs than it began with", rows.sequence.value));
    }
  }
  const Slot& slot = slots_[static_cast<std::size_t>(rows.slot.value)];
  const Position exact_from = options_.replay.truncates() ? slot.decoder.exact_from : slot.encoder.exact_from;
  if (rows.end() - 1 < exact_from) {
    complain_(fmt::format("sequence {} draws from row {}, but rows are exact only from {}", rows.sequence.value,
                          rows.end() - 1, exact_from));
  }
  for (int i = rows.first_draw; i < rows.first_draw + rows.draws; ++i) {
    const sched::SequenceId id = plan.draws[static_cast<std::size_t>(i)];
    const sched::Sequence* branch = scheduler_->Find(id);
    const Draw draw = DrawToken(script, branch == nullptr ? 0 : branch->branch, entry);
    live_[id] = {.length = rows.end() + 1, .last = draw.token};
    done.draws[static_cast<std::size_t>(i)] = {
        .sequence = id, .first = static_cast<int>(done.token_ids.size()), .count = 1, .stop = draw.stop};
    done.token_ids.push_back(draw.token);
  }
}

void FakeDevice::RunDecode(const sched::SequenceRows& rows, const sched::Sequence& sequence, const Script& script,
                           sched::StepDone& done) {
  Live& live = live_[rows.sequence];
  const Position begin = live.length - 1;
  if (begin < rows.begin)
    complain_(fmt::format("sequence {} decodes from {}, not {}", rows.sequence.value, begin, rows.begin));
  sched::DrawResult result{
      .sequence = rows.sequence, .first = static_cast<int>(done.token_ids.size()), .count = 0, .stop = false};
  TokenId token = live.last;
  bool accepted = true;
  for (int i = 0; i < rows.rows && begin + i < rows.row_limit; ++i) {
    const Draw draw = DrawToken(script, rows.branch, RunRow(rows, sequence, begin + i, token));
    if (accepted) {
      ++live.length;
      live.last = draw.token;
      if (!result.stop) {
        done.token_ids.push_back(draw.token);
        ++result.count;
        result.stop = draw.stop;
      } else {
        ++result.dropped;
      }
      accepted = Uniform() < acceptance_ && !(result.stop && script.stops_at_once);
    }
    token = accepted ? draw.token : draw.token + 50'000;  // the draft that the next row checks
  }
  done.draws[static_cast<std::size_t>(rows.first_draw)] = result;
}

}  // namespace galley::sim
