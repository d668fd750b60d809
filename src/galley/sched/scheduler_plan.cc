// SPDX-License-Identifier: Apache-2.0
// Making a step: every decode-ready sequence first, then prompt rows within the budgets of rows and of time.
#include <algorithm>

#include "galley/base/check.h"
#include "galley/base/math.h"
#include "galley/kv/index.h"
#include "galley/sched/scheduler.h"

namespace galley::sched {

const StepPlan* Scheduler::Next(TimeUs now, bool may_prefill) {
  if (steps_in_flight() >= options_.steps_in_flight_max) return nullptr;
  // Asked before anything changes, like Summary(): a prompt that is preempted or expires below has waited in this step.
  const bool prompts = !prefilling_.empty() || !queue_.empty();
  Expire(now);
  StepPlan& plan = plans_[static_cast<std::size_t>(next_step_) % plans_.size()];
  plan.Reset(next_step_);
  planning_ = true;
  std::swap(plan.ops, pending_ops_);
  blocks_owed_ = 0;
  PlanDecode(plan);
  if (may_prefill) PlanPrefill(plan, now);
  prefill_waited_steps_ = prompts && plan.prefill.empty() ? prefill_waited_steps_ + 1 : 0;
  planning_ = false;
  if (plan.empty()) return nullptr;
  plan.predicted_us = static_cast<TimeUs>(cost_.Predict(plan.decode_rows, plan.prefill_work));
  ++next_step_;
  ++stats_.steps;
  stats_.decode_rows += plan.decode_rows;
  stats_.prefill_rows += plan.prefill_rows;
  return &plan;
}

RankSummary Scheduler::Summary(std::int64_t step) const {
  const bool work = !prefilling_.empty() || (!queue_.empty() && slots_.available() > 0);
  return {.step = step, .prefill_work = work, .prefill_waited_steps = prefill_waited_steps_};
}

bool Scheduler::ReadyToDecode(const Sequence& sequence) {
  return sequence.in<Decoding>() && sequence.length() + sequence.pending_least < sequence.limit;
}

void Scheduler::PlanDecode(StepPlan& plan) {
  ready_.clear();
  needy_.clear();
  const auto capacity = static_cast<std::size_t>(options_.decode_capacity());
  // Where neither rows nor blocks can run short, one walk does: rows go into the plan as they are met. A step adds
  // fewer rows to a sequence than a block holds, so nobody lacks more than two.
  const bool roomy =
      decoding_.size() <= capacity && static_cast<std::size_t>(cache_.available()) >= 2 * decoding_.size();
  int missing = 0;
  for (std::size_t i = 0; i < decoding_.size(); ++i) {
    if (i + kPrefetchDistance < decoding_.size()) Prefetch(decoding_[i + kPrefetchDistance]);
    Sequence* const sequence = decoding_[i];
    if (!ReadyToDecode(*sequence)) continue;
    const int blocks = MissingBlocks(*sequence);
    missing += blocks;
    if (blocks == 0 && roomy) {
      AddDecodeRows(plan, *sequence);
    } else {
      (blocks == 0 ? ready_ : needy_).push_back(sequence);
    }
  }
  if (missing > cache_.available()) {
    CHECK(!roomy) << missing << " blocks are missing";
    Ration(plan);
  } else {
    for (Sequence* const sequence : needy_) {
      CHECK(cache_.Allocate(MissingBlocks(*sequence), sequence->held()->table));
      ready_.push_back(sequence);
    }
  }
  if (ready_.size() > capacity) {
    // Turns: whoever was planned longest ago comes first.
    std::ranges::sort(ready_, [](const Sequence* a, const Sequence* b) {
      return std::tie(a->last_planned, a->order) < std::tie(b->last_planned, b->order);
    });
    plan.over_capacity = static_cast<int>(ready_.size() - capacity);
    ready_.resize(capacity);
  }
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    if (i + kPrefetchDistance < ready_.size()) Prefetch(ready_[i + kPrefetchDistance]);
    AddDecodeRows(plan, *ready_[i]);
  }
}

// Blocks that the table lacks for the most rows that the next step can need: what is in flight may be accepted whole.
int Scheduler::MissingBlocks(const Sequence& sequence) const {
  const Position end = std::min(sequence.length() + sequence.pending_most + options_.drafts, sequence.limit - 1);
  const auto blocks = static_cast<int>(CeilDiv<Position>(end, kv::kBlockTokens));
  return std::max(0, blocks - static_cast<int>(std::get<Decoding>(sequence.state).held.table.size()));
}

// Not every sequence in needy_ can have its blocks: the oldest takes first, and whoever comes up short may preempt.
void Scheduler::Ration(StepPlan& plan) {
  const Sequence* const oldest = OldestRunning();
  std::ranges::sort(needy_, [](const Sequence* a, const Sequence* b) { return a->order < b->order; });
  for (Sequence* const sequence : needy_) {
    if (!sequence->in<Decoding>()) continue;  // has just been preempted
    const int blocks = MissingBlocks(*sequence);
    if (MakeRoom(*sequence, blocks, oldest)) {
      CHECK(cache_.Allocate(blocks, sequence->held()->table));
      ready_.push_back(sequence);
    } else if (sequence->in<Decoding>()) {
      ++plan.short_of_blocks;
    }
  }
  std::erase_if(ready_, [](const Sequence* sequence) { return !sequence->in<Decoding>(); });
}

void Scheduler::AddDecodeRows(StepPlan& plan, Sequence& sequence) {
  Held& held = *sequence.held();
  const Position begin = sequence.length() - 1 + sequence.pending_least;
  const Position row_limit = sequence.limit - 1;  // the last token is never fed back
  const int rows = static_cast<int>(std::min<Position>(1 + options_.drafts, row_limit - begin));
  SendTable(plan, held);
  plan.decode.push_back({.sequence = sequence.id,
                         .request = sequence.request,
                         .branch = sequence.branch,
                         .slot = held.slot.id(),
                         .begin = begin,
                         .rows = rows,
                         .row_limit = row_limit,
                         .write_from = 0,
                         .tail_from = 0,
                         .encoder_floor = held.encoder_floor,
                         .decoder_floor = held.decoder_floor,
                         .first_draw = static_cast<int>(plan.draws.size()),
                         .draws = 1});
  plan.draws.push_back(sequence.id);
  plan.decode_rows += rows;
  if (sequence.last_planned >= 0) {
    stats_.decode_waits_longest = std::max(stats_.decode_waits_longest, next_step_ - sequence.last_planned - 1);
  }
  sequence.last_planned = next_step_;
  ++sequence.steps_in_flight;
  sequence.pending_least += 1;
  sequence.pending_most += rows;
}

// The entries of the sequence's table that the device has not seen.
void Scheduler::SendTable(StepPlan& plan, Held& held) {
  const int size = static_cast<int>(held.table.size());
  if (held.sent == size) return;
  plan.tables.push_back({.slot = held.slot.id(),
                         .first = held.sent,
                         .offset = static_cast<int>(plan.blocks.size()),
                         .count = size - held.sent});
  for (; held.sent < size; ++held.sent) plan.blocks.push_back(held.table[kv::Idx(held.sent)].id());
}

Scheduler::PrefillBudget Scheduler::BudgetPrefill(const StepPlan& plan) const {
  const int factor = options_.replay.truncates() ? 2 : 1;
  const int rows = options_.step_rows_max - plan.decode_rows;
  std::int64_t work = std::int64_t{rows} * factor;
  if (!plan.decode.empty()) {
    const std::int64_t least = std::int64_t{options_.prefill_rows_min} * factor;
    work = std::max(least, cost_.PrefillWithin(static_cast<double>(options_.itl_target_us), plan.decode_rows, work));
  }
  return {.work = work, .rows = rows};
}

// Rows that the sequence's next chunk, which has `taken` already, can grow by within the budget, which is charged.
int Scheduler::Take(const Sequence& sequence, int taken, PrefillBudget& budget) const {
  const PrefillWork& state = *std::get<Prefilling>(sequence.state).work;
  const kv::PrefillPass& pass = state.current();
  Position end = pass.end;
  if (state.in_last_pass()) {
    // A snapshot can be taken as long as no more rows follow its position than rejected drafts could take back.
    for (const Position point : sequence.owner->request.snapshot_points) {
      if (snapshots_.total() == 0 || point <= state.next) continue;
      if (end > point + options_.replay.backtrack) end = point;
      break;
    }
  }
  const Position begin = state.next + taken;
  std::int64_t rows = std::min<std::int64_t>(end - begin, budget.rows);
  const bool counted = options_.replay.truncates();
  const auto work = [&](std::int64_t count) {
    return counted ? count + std::max<std::int64_t>(0, begin + count - std::max(begin, pass.tail_from)) : count;
  };
  if (work(rows) > budget.work) {
    const std::int64_t before_tail = std::max<std::int64_t>(0, std::min(end, pass.tail_from) - begin);
    rows = budget.work <= before_tail || !counted ? budget.work : before_tail + (budget.work - before_tail) / 2;
  }
  budget.rows -= static_cast<int>(rows);
  budget.work -= work(rows);
  return static_cast<int>(rows);
}

// The oldest prompt gets half of the budget; the rest goes to the prompts with fewest rows left, then to new ones from
// the queue, and what nobody wants back to the oldest. So a short prompt does not wait for a long one to end, and a
// long one moves at half speed at least however many short ones arrive.
void Scheduler::PlanPrefill(StepPlan& plan, TimeUs now) {
  PrefillBudget budget = BudgetPrefill(plan);
  grants_.clear();
  for (Sequence* sequence : prefilling_) grants_.push_back({sequence, 0});
  const bool admits = blocks_owed_ == 0;  // else the blocks that come free are spoken for
  if (grants_.empty() && admits) {
    if (Sequence* first = AdmitNext(now)) grants_.push_back({first, 0});
  }
  if (grants_.empty()) return;
  const auto oldest = std::ranges::min_element(
      grants_, [](const Grant& a, const Grant& b) { return a.sequence->order < b.sequence->order; });
  std::iter_swap(grants_.begin(), oldest);
  const auto rows_left = [](const Grant& grant) {
    const PrefillWork& state = *std::get<Prefilling>(grant.sequence->state).work;
    return state.plan.passes.back().end - state.next;
  };
  std::sort(grants_.begin() + 1, grants_.end(), [&](const Grant& a, const Grant& b) {
    return std::make_tuple(rows_left(a), a.sequence->order) < std::make_tuple(rows_left(b), b.sequence->order);
  });
  PrefillBudget half{.work = budget.work - budget.work / 2, .rows = budget.rows - budget.rows / 2};
  budget.work -= half.work;
  budget.rows -= half.rows;
  grants_[0].rows = Take(*grants_[0].sequence, 0, half);
  budget.work += half.work;
  budget.rows += half.rows;
  for (std::size_t i = 1; i < grants_.size(); ++i) grants_[i].rows = Take(*grants_[i].sequence, 0, budget);
  while (admits && budget.rows > 0 && budget.work > 1) {
    Sequence* const next = AdmitNext(now);
    if (next == nullptr) break;
    grants_.push_back({next, Take(*next, 0, budget)});
  }
  grants_[0].rows += Take(*grants_[0].sequence, grants_[0].rows, budget);
  for (const Grant& grant : grants_) {
    if (grant.rows > 0) AddPrefillRows(plan, *grant.sequence, grant.rows);
  }
}

void Scheduler::AddPrefillRows(StepPlan& plan, Sequence& sequence, int rows) {
  PrefillWork& state = *std::get<Prefilling>(sequence.state).work;
  Held& held = *sequence.held();
  const kv::PrefillPass& pass = state.current();
  const Position begin = state.next, end = state.next + rows;
  SendTable(plan, held);
  const bool last = state.in_last_pass() && end == pass.end;
  plan.prefill.push_back({.sequence = sequence.id,
                          .request = sequence.request,
                          .branch = sequence.branch,
                          .slot = held.slot.id(),
                          .begin = begin,
                          .rows = rows,
                          .row_limit = pass.end,
                          .write_from = pass.write_from,
                          .tail_from = pass.tail_from,
                          .encoder_floor = pass.encoder_floor,
                          .decoder_floor = pass.decoder_floor,
                          .first_draw = static_cast<int>(plan.draws.size()),
                          .draws = 0});
  const int tail = static_cast<int>(std::max<Position>(0, end - std::max(begin, pass.tail_from)));
  stats_.tail_rows += tail;
  plan.prefill_rows += rows;
  plan.prefill_work += rows + (options_.replay.truncates() ? tail : 0);
  sequence.last_planned = next_step_;
  ++sequence.steps_in_flight;
  state.next = end;
  if (state.in_last_pass()) SaveSnapshots(sequence, begin, end);
  if (last) {
    FinishPrefill(plan, sequence);
  } else if (end == pass.end) {
    ++state.pass;
    state.next = state.current().begin;
  }
}

// The prompt's last row is planned: its logits give the first token of every branch, which decode from the next step
// on.
void Scheduler::FinishPrefill(StepPlan& plan, Sequence& sequence) {
  plan.draws.push_back(sequence.id);
  sequence.pending_least += 1;
  sequence.pending_most += 1;
  Held held = std::move(std::get<Prefilling>(sequence.state).held);
  LeaveRunning(sequence);
  sequence.state = Decoding{.held = std::move(held)};
  sequence.place = static_cast<int>(decoding_.size());
  decoding_.push_back(&sequence);
  if (!sequence.owner->forked) Fork(plan, sequence);
  plan.prefill.back().draws = static_cast<int>(plan.draws.size()) - plan.prefill.back().first_draw;
}

// Branches share the prompt's full blocks and copy slot and partial block at the head of the next step. A branch that
// finds no slot or block starts out preempted: it knows the prompt and gets its first token like the others.
void Scheduler::Fork(StepPlan& plan, Sequence& parent) {
  RequestRecord& record = *parent.owner;
  record.forked = true;
  const Held& held = *parent.held();
  const int full = static_cast<int>(parent.length() / kv::kBlockTokens);
  const bool partial = parent.length() % kv::kBlockTokens != 0;
  for (int branch = 1; branch < record.request.n; ++branch) {
    Sequence& child = NewSequence(record, branch);
    child.order = parent.order;
    child.order.branch = branch;
    child.tokens.reserve(static_cast<std::size_t>(parent.limit));
    child.tokens = parent.tokens;
    child.keys.root = parent.keys.root;
    child.keys.blocks.reserve(static_cast<std::size_t>(parent.limit / kv::kBlockTokens));
    child.keys.blocks = parent.keys.blocks;
    child.limit = parent.limit;
    child.start = parent.start;
    child.last_planned = next_step_;
    child.steps_in_flight = child.pending_least = child.pending_most = 1;
    child.state = Preempted{};
    if (parent.deadline_timer) {
      SetTimer(child.deadline_timer, TimerKind::kDeadline, child.id, *parent.deadline_timer);
    }
    plan.draws.push_back(child.id);
    ++stats_.forks;
    if (slots_.available() == 0 || cache_.available() < (partial ? 1 : 0)) continue;
    Held own{.slot = *slots_.Acquire(),
             .table = {},
             .published = full,
             .sent = 0,
             .computed = parent.length(),
             .restart_from = held.restart_from,
             .encoder_floor = held.encoder_floor,
             .decoder_floor = held.decoder_floor,
             .promised_from = full,
             .promised_to = full};
    own.table.reserve(static_cast<std::size_t>(CeilDiv<Position>(parent.limit, kv::kBlockTokens)));
    for (int block = 0; block < full; ++block) own.table.push_back(held.table[kv::Idx(block)].Share());
    if (partial) CHECK(cache_.Allocate(1, own.table));
    ++child.steps_in_flight;
    pending_ops_.push_back({.kind = StateOp::Kind::kFork,
                            .sequence = child.id,
                            .from = held.slot.id(),
                            .to = own.slot.id(),
                            .snapshot = kv::SnapshotId(),
                            .from_block = partial ? held.table[kv::Idx(full)].id() : BlockId(),
                            .to_block = partial ? own.table.back().id() : BlockId(),
                            .position = parent.length()});
    child.state = Decoding{.held = std::move(own)};
    child.place = static_cast<int>(decoding_.size());
    decoding_.push_back(&child);
  }
}

// Snapshot points that the rows [begin, end) reach.
void Scheduler::SaveSnapshots(Sequence& sequence, Position begin, Position end) {
  for (const Position point : sequence.owner->request.snapshot_points) {
    if (point > begin && point <= end) SaveSnapshot(sequence, point);
  }
}

void Scheduler::SaveSnapshot(Sequence& sequence, Position position) {
  const Held& held = *sequence.held();
  const Request& request = sequence.owner->request;
  const kv::SnapshotPoint point{
      .position = position,
      .restart_from = std::max(held.restart_from, position - options_.replay.snapshot_depth()),
      .encoder_floor = held.encoder_floor,
      .lineage = sequence.start->lineage};
  if (position < 1 || point.restart_from > position || !request.use_cache) return;
  // Steps in flight go on writing rows behind the position before the copy is made, and may write one more than the
  // rings can take back: the newest token's own.
  if (sequence.pending_most > options_.replay.backtrack + 1) return;
  const int block = static_cast<int>(position / kv::kBlockTokens);
  EnsureKeys(sequence, block);
  const std::optional<kv::SnapshotId> id = snapshots_.Reserve(sequence.keys, sequence.tokens, point);
  if (!id) return;
  const bool partial = position % kv::kBlockTokens != 0;
  ++sequence.steps_in_flight;
  pending_ops_.push_back({.kind = StateOp::Kind::kSave,
                          .sequence = sequence.id,
                          .from = held.slot.id(),
                          .to = SlotId(),
                          .snapshot = *id,
                          .from_block = partial ? held.table[kv::Idx(block)].id() : BlockId(),
                          .to_block = BlockId(),
                          .position = position});
  // The copy runs with the next plan: not with the one being made, whose rows come after its copies.
  saving_.push_back({.step = planning_ ? next_step_ + 1 : next_step_, .sequence = sequence.id, .snapshot = *id});
  ++stats_.snapshot_saves;
}

}  // namespace galley::sched
