// SPDX-License-Identifier: Apache-2.0
// What a finished step changes: tokens, published blocks, snapshots, and resources that nothing in flight reads any
// more.
#include <algorithm>

#include "galley/base/check.h"
#include "galley/kv/index.h"
#include "galley/sched/scheduler.h"

namespace galley::sched {

const StepPlan& Scheduler::TakeFront(StepId step) {
  CHECK(step == oldest_step_ && step < next_step_) << "step " << step << " is not the oldest in flight";
  ++oldest_step_;
  return plans_[static_cast<std::size_t>(step) % plans_.size()];
}

void Scheduler::Advance(const StepDone& done) {
  const StepPlan& plan = TakeFront(done.step);
  CHECK(done.draws.size() == plan.draws.size()) << done.draws.size() << " results, " << plan.draws.size() << " draws";
  for (std::size_t i = 0; i < plan.draws.size(); ++i) CHECK(done.draws[i].sequence == plan.draws[i]) << "draw " << i;
  cost_.Observe(plan.decode_rows, plan.prefill_work, static_cast<double>(done.elapsed_us));
  std::erase_if(saving_, [&](const Saving& saving) {
    if (saving.step != done.step) return false;
    snapshots_.Commit(saving.snapshot);
    return true;
  });
  for (const StateOp& op : plan.ops) --Get(op.sequence).steps_in_flight;
  for (std::size_t i = 0; i < plan.decode.size(); ++i) {
    if (i + kPrefetchDistance < plan.decode.size()) {
      Prefetch(&Get(plan.decode[i + kPrefetchDistance].sequence));
    }
    if (i + kPrefetchTokensDistance < plan.decode.size()) {
      PrefetchTokens(&Get(plan.decode[i + kPrefetchTokensDistance].sequence));
    }
    const SequenceRows& rows = plan.decode[i];
    LeaveFlight(rows, plan);
    Append(done.draws[kv::Idx(rows.first_draw)], done.token_ids);
  }
  for (const SequenceRows& rows : plan.prefill) {
    LeaveFlight(rows, plan);
    Sequence& sequence = Get(rows.sequence);
    if (Held* held = sequence.held()) {
      held->computed = std::max(held->computed, rows.end());
      Publish(sequence, *held);
    }
    for (int i = 0; i < rows.draws; ++i) {
      Append(done.draws[kv::Idx(rows.first_draw + i)], done.token_ids);
    }
    if (rows.draws == 0) Settle(rows.sequence);
  }
  for (const StateOp& op : plan.ops) Settle(op.sequence);
  Retire(done.step);
}

// Takes the step off the accounts of the sequences that have rows or draws in it.
void Scheduler::LeaveFlight(const SequenceRows& rows, const StepPlan& plan) {
  --Get(rows.sequence).steps_in_flight;
  const bool decode = &rows >= plan.decode.data() && &rows < plan.decode.data() + plan.decode.size();
  for (int i = 0; i < rows.draws; ++i) {
    const SequenceId id = plan.draws[kv::Idx(rows.first_draw + i)];
    Sequence& sequence = Get(id);
    if (id != rows.sequence) --sequence.steps_in_flight;
    sequence.pending_least -= 1;
    sequence.pending_most -= decode ? rows.rows : 1;
  }
}

// A sequence that has left a step: its place may be free now, or it may resume.
void Scheduler::Settle(SequenceId id) {
  Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr || sequence->steps_in_flight > 0) return;
  if (sequence->in<Ended>()) {
    sequences_.Free(*sequence);
  } else if (sequence->in<Preempted>()) {
    Enqueue(*sequence);
  }
}

// Commits drawn tokens. Sequences that ended meanwhile drop them; preempted ones keep them.
void Scheduler::Append(const DrawResult& draw, const std::vector<TokenId>& token_ids) {
  Sequence& sequence = Get(draw.sequence);
  if (!sequence.in<Ended>()) {
    const int count = static_cast<int>(std::min<Position>(draw.count, sequence.limit - sequence.length()));
    const auto first = token_ids.begin() + draw.first;
    outputs_.tokens.push_back({.request = sequence.request,
                               .branch = sequence.branch,
                               .first = static_cast<int>(outputs_.token_ids.size()),
                               .count = count});
    for (int i = 0; i < count; ++i) {
      sequence.tokens.push_back(first[i]);
      outputs_.token_ids.push_back(first[i]);
    }
    if (Held* held = sequence.held()) {
      // Rows of all tokens but the newest have been computed.
      held->computed = std::max(held->computed, sequence.length() - 1);
      Publish(sequence, *held);
    }
    if (draw.stop && count == draw.count) {
      sequence.pending_most += draw.dropped;  // rows in flight lie behind what was dropped
      End(sequence, FinishReason::kStop);
    } else if (sequence.length() == sequence.limit) {
      End(sequence, FinishReason::kLength);
    }
  }
  Settle(draw.sequence);
}

// Shares the blocks that have become full. One whose key is taken stays private, and so does what follows it.
void Scheduler::Publish(Sequence& sequence, Held& held) {
  const int full = static_cast<int>(held.computed / kv::kBlockTokens);
  if (held.published >= full || !sequence.owner->request.use_cache) return;
  EnsureKeys(sequence, full);
  const std::span<const TokenId> tokens(sequence.tokens);
  for (; held.published < full; ++held.published) {
    const int block = held.published;
    const BlockId parent = block == 0 ? BlockId() : held.table[static_cast<std::size_t>(block) - 1].id();
    const auto begin = static_cast<std::size_t>(block) * kv::kBlockTokens;
    (void)cache_.Publish(held.table[kv::Idx(block)].id(), sequence.keys.blocks[kv::Idx(block)], parent,
                         sequence.keys.parent(block), tokens.subspan(begin, kv::kBlockTokens),
                         kv::OriginAt(sequence.start->lineage, Position{block} * kv::kBlockTokens));
    WakeAll(promises_.Settle(sequence.keys.blocks[kv::Idx(block)], sequence.id));
    held.promised_from = std::max(held.promised_from, std::min(block + 1, held.promised_to));
  }
}

void Scheduler::EnsureKeys(Sequence& sequence, int blocks) {
  // Images lie in the prompt, whose keys came with the request.
  for (int block = static_cast<int>(sequence.keys.blocks.size()); block < blocks; ++block) {
    const Position begin = Position{block} * kv::kBlockTokens;
    const std::span<const TokenId> tokens(sequence.tokens);
    sequence.keys.blocks.push_back(kv::ChildKey(hasher_, sequence.keys.parent(block),
                                                tokens.subspan(static_cast<std::size_t>(begin), kv::kBlockTokens),
                                                begin, {}));
  }
}

void Scheduler::Fail(StepId step, const Error& error) {
  const StepPlan& plan = TakeFront(step);
  std::vector<SequenceId> failed = plan.draws;
  for (const StateOp& op : plan.ops) {
    failed.push_back(op.sequence);
    --Get(op.sequence).steps_in_flight;
  }
  for (const auto* list : {&plan.decode, &plan.prefill}) {
    for (const SequenceRows& rows : *list) {
      failed.push_back(rows.sequence);
      LeaveFlight(rows, plan);
    }
  }
  std::ranges::sort(failed);
  failed.erase(std::unique(failed.begin(), failed.end()), failed.end());
  // Copies made by this step, and later copies of state that it was to compute, are worth nothing.
  std::erase_if(saving_, [&](const Saving& saving) {
    if (saving.step != step && !std::ranges::binary_search(failed, saving.sequence)) return false;
    snapshots_.Abandon(saving.snapshot);
    return true;
  });
  for (const SequenceId id : failed) {
    Sequence& sequence = Get(id);
    if (!sequence.in<Ended>()) End(sequence, FinishReason::kError, error);
    Settle(id);
  }
  Retire(step);
}

}  // namespace galley::sched
