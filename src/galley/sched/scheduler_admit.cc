// SPDX-License-Identifier: Apache-2.0
// Who gets slots and blocks: admission from the queue, waiting for blocks that another sequence computes, preemption.
#include <algorithm>
#include <tuple>

#include "galley/base/check.h"
#include "galley/base/math.h"
#include "galley/kv/index.h"
#include "galley/sched/scheduler.h"

namespace galley::sched {
namespace {

// Heads of the queue that one step looks at when they step aside one after the other, so that a step's planning time
// does not depend on how many requests wait.
constexpr int kAdmissionScan = 64;

}  // namespace

// The first in the queue that can run now. Nobody is let past a head that has to wait for room, or it would wait for
// ever; a head that waits for another's blocks steps aside, because that one is running.
Sequence* Scheduler::AdmitNext(TimeUs now) {
  for (int scanned = 0; scanned < kAdmissionScan && !queue_.empty(); ++scanned) {
    Sequence& head = Get(queue_.begin()->second);
    switch (TryAdmit(head, now)) {
      case Admission::kAdmitted:
        return &head;
      case Admission::kBlocked:
        return nullptr;
      case Admission::kAside:
        break;
    }
  }
  return nullptr;
}

// Prompt logprobs need every prompt row computed in this very run; their output is cached content like any other.
bool Scheduler::FindsBlocks(const Sequence& sequence) const {
  const Request& request = sequence.owner->request;
  return request.use_cache && !(request.prompt_logprobs && sequence.generated() == 0);
}

Scheduler::Admission Scheduler::TryAdmit(Sequence& sequence, TimeUs now) {
  if (slots_.available() == 0) return Admission::kBlocked;
  const bool finds = FindsBlocks(sequence);
  EnsureKeys(sequence, static_cast<int>(sequence.length() / kv::kBlockTokens));
  const int probed = finds ? cache_.Probe(sequence.keys, sequence.tokens, sequence.known_hits) : 0;
  sequence.known_hits = probed;
  if (finds && AwaitPrefix(sequence, probed, now)) return Admission::kAside;
  if (!HasRoom(sequence, probed)) return Admission::kBlocked;

  kv::Hit hit;
  if (finds) {
    hit = cache_.Lookup(sequence.keys, sequence.tokens);
    if (sequence.no_share && hit.limit == kv::HitLimit::kNeverSeen) hit.limit = kv::HitLimit::kShareTimeout;
  } else {
    hit.limit = sequence.owner->request.use_cache ? kv::HitLimit::kPromptLogprobs : kv::HitLimit::kOptOut;
  }
  Start start = MakeStart(sequence, hit.blocks);
  const int hits = static_cast<int>(hit.blocks.size());
  const int blocks = static_cast<int>(CeilDiv<Position>(sequence.length(), kv::kBlockTokens));
  // A probe trusts the tokens behind its hint; the lookup compares them and may have found less.
  if (!cache_.Allocate(blocks - hits, hit.blocks)) {
    kv::ReleaseTail(hit.blocks);
    sequence.known_hits = 0;
    return Admission::kBlocked;
  }
  Dequeue(sequence);
  if (start.record) sequence.start = std::move(start.record);
  ReportStart(sequence, start.plan, hit.limit, now);
  StartPrefill(sequence, std::move(hit.blocks), hits, std::move(start.plan));
  return Admission::kAdmitted;
}

// Blocks for the whole prompt, and for each running sequence a block to grow into, so that an admission is not paid for
// with a preemption a few steps later.
bool Scheduler::HasRoom(const Sequence& sequence, int hits) const {
  const int needed = static_cast<int>(CeilDiv<Position>(sequence.length(), kv::kBlockTokens)) - hits;
  const int headroom = std::min(running(), options_.blocks / 16);
  if (cache_.available() < needed + headroom) return false;
  if (cache_.available() >= needed + headroom + hits) return true;
  return cache_.available() - cache_.CountCached(sequence.keys, hits) >= needed + headroom;
}

// Steps aside when the block after the hit is being computed by another sequence. Waits for the last block of the run
// that others have promised.
bool Scheduler::AwaitPrefix(Sequence& sequence, int hits, TimeUs now) {
  const auto& keys = sequence.keys.blocks;
  if (sequence.no_share || hits == static_cast<int>(keys.size())) return false;
  const SequenceId owner = promises_.owner(keys[kv::Idx(hits)]);
  if (!owner.valid()) return false;
  int last = hits;
  while (last + 1 < static_cast<int>(keys.size()) && promises_.owner(keys[kv::Idx(last + 1)]) == owner) ++last;
  Dequeue(sequence);
  const Held* held = Get(owner).held();
  sequence.state = AwaitingPrefix{.key = keys[kv::Idx(last)], .owner_computed = held->computed};
  promises_.Wait(keys[kv::Idx(last)], sequence.id);
  SetTimer(sequence.share_timer, TimerKind::kShare, sequence.id, now + options_.share_wait_us);
  ++stats_.shared_waits;
  return true;
}

// Leaves the board; the caller says what comes next.
void Scheduler::StopAwaiting(Sequence& sequence) {
  promises_.StopWaiting(std::get<AwaitingPrefix>(sequence.state).key, sequence.id);
  DropTimer(sequence.share_timer, TimerKind::kShare, sequence.id);
  if (sequence.start) {
    sequence.state = Preempted{};
  } else {
    sequence.state = Waiting{};
  }
}

void Scheduler::WakeAll(const std::vector<SequenceId>& waiters) {
  for (const SequenceId id : waiters) {
    Sequence& sequence = Get(id);
    DropTimer(sequence.share_timer, TimerKind::kShare, id);
    if (sequence.start) {
      sequence.state = Preempted{};
    } else {
      sequence.state = Waiting{};
    }
    Enqueue(sequence);
  }
}

kv::PromptFacts Scheduler::Facts(const Sequence& sequence, std::span<const kv::BlockRef> hit) const {
  const Request& request = sequence.owner->request;
  kv::PromptFacts facts{.length = sequence.length(),
                        .hit = static_cast<Position>(hit.size()) * kv::kBlockTokens,
                        .all_rows = request.prompt_logprobs,
                        .found = kv::LineageOf(cache_, hit)};
  for (const Position point : request.snapshot_points) {
    if (snapshots_.total() == 0 || facts.length - point > options_.replay.window) continue;
    facts.save_at = point;
    break;
  }
  return facts;
}

Scheduler::Start Scheduler::MakeStart(const Sequence& sequence, std::vector<kv::BlockRef>& hit) const {
  const bool again = sequence.owner->request.prompt_logprobs && sequence.generated() == 0;
  if (sequence.start && !again) {
    // The same tokens computed by others, from another start, are not the same bytes.
    kv::ReleaseTail(hit, kv::Idx(kv::CountOfLineage(cache_, hit, sequence.start->lineage)));
    const Position found = static_cast<Position>(hit.size()) * kv::kBlockTokens;
    return {.record = {}, .plan = kv::PlanResume(options_.replay, *sequence.start, sequence.length(), found)};
  }
  kv::PromptFacts facts = Facts(sequence, hit);
  if (FindsBlocks(sequence) && snapshots_.ready() > 0) {
    const Position without = kv::PlanStart(options_.replay, facts).passes.front().begin;
    const auto found =
        snapshots_.Find(sequence.keys, sequence.tokens, static_cast<int>(hit.size()), std::max<Position>(1, without));
    const int own = found ? kv::CountOfLineage(cache_, hit, found->lineage) : 0;
    if (found && own >= found->position / kv::kBlockTokens) {
      kv::PromptFacts restored = Facts(sequence, std::span(hit).first(kv::Idx(own)));
      restored.snapshot = found;
      if (kv::SnapshotPays(options_.replay, restored)) {
        kv::ReleaseTail(hit, kv::Idx(own));
        facts = std::move(restored);
      }
    }
  }
  return {.record = kv::RecordStart(options_.replay, facts), .plan = kv::PlanStart(options_.replay, facts)};
}

void Scheduler::ReportStart(Sequence& sequence, const kv::PrefillPlan& plan, kv::HitLimit limit, TimeUs now) {
  ++stats_.admissions;
  RequestRecord& record = *sequence.owner;
  if (record.started) {
    ++stats_.resumes;
    return;
  }
  record.started = true;
  DropTimer(sequence.wait_timer, TimerKind::kWait, sequence.id);
  --waiting_;
  waiting_tokens_ -= sequence.length();
  stats_.prompt_tokens += sequence.length();
  stats_.cached_tokens += plan.hit;
  stats_.replayed_tokens += plan.replayed_rows();
  ++stats_.hit_limits[static_cast<std::size_t>(limit)];
  outputs_.started.push_back({.request = record.request.id,
                              .waited_us = now - record.arrival_us,
                              .kind = plan.kind,
                              .cached_tokens = plan.hit,
                              .replayed_tokens = plan.replayed_rows(),
                              .limit = limit});
}

void Scheduler::StartPrefill(Sequence& sequence, std::vector<kv::BlockRef> table, int hits, kv::PrefillPlan plan) {
  const Request& request = sequence.owner->request;
  // The caller saw that a slot is free.
  Held held{.slot = *slots_.Acquire(),
            .table = std::move(table),
            .published = hits,
            .sent = 0,
            .computed = plan.passes.front().write_from,
            .restart_from = plan.restart_from,
            .encoder_floor = plan.passes.back().encoder_floor,
            .decoder_floor = plan.passes.back().decoder_floor,
            .promised_from = hits,
            .promised_to = hits};
  held.table.reserve(static_cast<std::size_t>(CeilDiv<Position>(sequence.limit, kv::kBlockTokens)));
  sequence.tokens.reserve(static_cast<std::size_t>(sequence.limit));
  sequence.keys.blocks.reserve(static_cast<std::size_t>(sequence.limit / kv::kBlockTokens));
  if (request.use_cache) {
    held.promised_to = static_cast<int>(sequence.length() / kv::kBlockTokens);
    for (int block = hits; block < held.promised_to; ++block) {
      promises_.Promise(sequence.keys.blocks[kv::Idx(block)], sequence.id);
    }
  }
  if (plan.restored > 0) Restore(sequence, held, plan, hits);
  const Position next = plan.passes.front().begin;
  sequence.state =
      Prefilling{.held = std::move(held),
                 .work = std::make_unique<PrefillWork>(PrefillWork{.plan = std::move(plan), .pass = 0, .next = next})};
  sequence.place = static_cast<int>(prefilling_.size());
  prefilling_.push_back(&sequence);
}

// Copies the snapshot into the slot at the head of the step being planned, which runs the first rows.
void Scheduler::Restore(Sequence& sequence, const Held& held, const kv::PrefillPlan& plan, int hits) {
  kv::SnapshotRef pin = snapshots_.Pin(sequence.keys, sequence.tokens, plan.restored);
  const bool partial = plan.restored > Position{hits} * kv::kBlockTokens;
  StepPlan& step = plans_[static_cast<std::size_t>(next_step_) % plans_.size()];
  ++sequence.steps_in_flight;
  step.ops.push_back({.kind = StateOp::Kind::kRestore,
                      .sequence = sequence.id,
                      .from = SlotId(),
                      .to = held.slot.id(),
                      .snapshot = pin.id(),
                      .from_block = BlockId(),
                      .to_block = partial ? held.table[kv::Idx(plan.restored / kv::kBlockTokens)].id() : BlockId(),
                      .position = plan.restored});
  ++stats_.snapshot_restores;
  Release({}, std::move(pin));
}

void Scheduler::RevokePromises(Sequence& sequence, Held& held) {
  for (int block = held.promised_from; block < held.promised_to; ++block) {
    WakeAll(promises_.Settle(sequence.keys.blocks[kv::Idx(block)], sequence.id));
  }
  held.promised_from = held.promised_to;
}

// Takes a running sequence off the list of its state.
void Scheduler::LeaveRunning(Sequence& sequence) {
  std::vector<Sequence*>& list = sequence.in<Decoding>() ? decoding_ : prefilling_;
  list[kv::Idx(sequence.place)] = list.back();
  list[kv::Idx(sequence.place)]->place = sequence.place;
  list.pop_back();
}

Sequence* Scheduler::OldestRunning() const {
  Sequence* oldest = nullptr;
  for (const auto* list : {&decoding_, &prefilling_}) {
    for (Sequence* sequence : *list) {
      if (oldest == nullptr || sequence->order < oldest->order) oldest = sequence;
    }
  }
  return oldest;
}

// Makes `blocks` available to `needy` by preempting others, or preempts `needy` itself. False: not in this step. Blocks
// that a step in flight reads come free only when it retires, so then the needy one sits out, and nobody else takes
// blocks meanwhile. The oldest is never a victim, hence always gets its turn: it finishes, and then the next oldest.
bool Scheduler::MakeRoom(Sequence& needy, int blocks, const Sequence* oldest) {
  if (blocks_owed_ > 0) return false;
  while (cache_.available() < blocks) {
    if (cache_.available() + blocks_retiring_ >= blocks) {
      blocks_owed_ = blocks;
      return false;
    }
    // Lowest priority first, then the shortest output (least is lost), then the latest to arrive.
    const auto rank = [](const Sequence& sequence) {
      return std::make_tuple(sequence.owner->request.priority, sequence.generated(), -sequence.order.virtual_arrival,
                             -sequence.order.number, -sequence.order.branch);
    };
    Sequence* victim = nullptr;
    for (const auto* list : {&decoding_, &prefilling_}) {
      for (Sequence* candidate : *list) {
        if (candidate == oldest) continue;
        if (victim == nullptr || rank(*candidate) < rank(*victim)) victim = candidate;
      }
    }
    if (victim == nullptr) {
      // The oldest runs alone and fits by itself; whatever is missing is about to retire.
      CHECK(!retiring_.empty()) << "sequence " << needy.id.value << " needs " << blocks << " blocks, "
                                << cache_.available() << " of " << cache_.total() << " are available";
      blocks_owed_ = blocks;
      return false;
    }
    Preempt(*victim);
    if (victim == &needy) return false;
  }
  return true;
}

void Scheduler::Preempt(Sequence& victim) {
  ++stats_.preemptions;
  Held held = std::move(*victim.held());
  RevokePromises(victim, held);
  LeaveRunning(victim);
  victim.state = Preempted{};
  victim.known_hits = 0;
  Release(std::move(held));
  if (victim.steps_in_flight == 0) Enqueue(victim);
}

}  // namespace galley::sched
