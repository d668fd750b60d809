// SPDX-License-Identifier: Apache-2.0
// Life and death of requests: arrival, queue, timers, the one terminal event, and the return of resources.
#include "galley/sched/scheduler.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <string>

#include "galley/base/check.h"
#include "galley/base/math.h"
#include "galley/kv/index.h"

namespace galley::sched {
namespace {

constexpr std::array<std::string_view, 4> kReasonLabels = {"stop", "length", "cancelled", "error"};
constexpr std::array<std::string_view, 6> kStateLabels = {"waiting",  "awaiting_prefix", "prefilling",
                                                          "decoding", "preempted",       "ended"};

// Rounds towards minus infinity; with nothing to divide by, every value is a window of its own.
TimeUs FloorDiv(TimeUs value, TimeUs by) {
  if (by <= 0) return value;
  return value >= 0 ? value / by : -((-value + by - 1) / by);
}

}  // namespace

std::string_view Label(FinishReason reason) {
  return kReasonLabels[static_cast<std::size_t>(reason)];
}

std::string_view StateLabel(const State& state) {
  return kStateLabels[state.index()];
}

void StepPlan::Reserve(int slots, int rows) {
  const auto most = static_cast<std::size_t>(slots);
  decode.reserve(most);
  prefill.reserve(static_cast<std::size_t>(std::min(slots, rows)));
  draws.reserve(most);
  tables.reserve(most);
  // Rows that follow each other cross one block border more, at most, than they fill blocks.
  blocks.reserve(most + static_cast<std::size_t>(rows / kv::kBlockTokens));
}

void StepPlan::Reset(StepId step) {
  id = step;
  ops.clear();
  decode.clear();
  prefill.clear();
  draws.clear();
  tables.clear();
  blocks.clear();
  decode_rows = prefill_rows = prefill_work = short_of_blocks = over_capacity = 0;
  predicted_us = 0;
}

Result<std::unique_ptr<Scheduler>> Scheduler::Create(const SchedulerOptions& options) {
  RETURN_IF_ERROR(options.Validate());
  return std::unique_ptr<Scheduler>(new Scheduler(options));
}

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      cache_(options.blocks),
      slots_(options.slots),
      snapshots_(options.snapshots),
      cost_(options.decode_cost, options.prefill_cost),
      plans_(static_cast<std::size_t>(options.steps_in_flight_max) + 1) {
  decoding_.reserve(static_cast<std::size_t>(options.slots));
  ready_.reserve(static_cast<std::size_t>(options.slots));
  needy_.reserve(static_cast<std::size_t>(options.slots));
  for (StepPlan& plan : plans_) plan.Reserve(options.slots, options.step_rows_max);
  outputs_.tokens.reserve(static_cast<std::size_t>(options.slots));
  outputs_.token_ids.reserve(static_cast<std::size_t>(options.slots) * static_cast<std::size_t>(1 + options.drafts));
}

Scheduler::~Scheduler() {
  // Handles go back before their pools die, whatever was still running.
  retiring_.clear();
  sequences_.Clear();
}

Status Scheduler::CheckRequest(const Request& request) const {
  const auto length = static_cast<std::int64_t>(request.prompt.size());
  if (length == 0) return Err(ErrorCode::kInvalidArgument, "is empty; at least one token is needed", "prompt");
  if (request.max_tokens < 1) {
    return Err(ErrorCode::kInvalidArgument, fmt::format("is {}; must be at least 1", request.max_tokens), "max_tokens");
  }
  if (request.n < 1 || request.n > options_.branches_max) {
    return Err(ErrorCode::kInvalidArgument, fmt::format("is {}; must be 1 to {}", request.n, options_.branches_max),
               "n");
  }
  if (static_cast<std::int64_t>(request.keys.blocks.size()) != length / kv::kBlockTokens) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("covers {} blocks, but the prompt has {} full ones", request.keys.blocks.size(),
                           length / kv::kBlockTokens),
               "keys");
  }
  const bool ascending = std::ranges::is_sorted(request.snapshot_points, std::less_equal<>()) &&
                         (request.snapshot_points.empty() ||
                          (request.snapshot_points.front() >= 1 && request.snapshot_points.back() <= length));
  if (!ascending) {
    return Err(ErrorCode::kInvalidArgument, fmt::format("must ascend within 1 to {}, the prompt's length", length),
               "snapshot_points");
  }
  const std::int64_t total = length + request.max_tokens;
  if (total > options_.max_seq_len) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("the prompt's {} tokens and {} more make {}; this model holds {}. Shorten the prompt or "
                           "lower max_tokens",
                           length, request.max_tokens, total, options_.max_seq_len),
               "prompt");
  }
  const std::int64_t blocks = CeilDiv<std::int64_t>(total - 1, kv::kBlockTokens);
  if (blocks > options_.blocks) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("the prompt's {} tokens and {} more need {} blocks of {} tokens; this server has {}. "
                           "Shorten the prompt or lower max_tokens",
                           length, request.max_tokens, blocks, kv::kBlockTokens, options_.blocks),
               "prompt");
  }
  if (waiting_ >= options_.queue_max) {
    return Err(ErrorCode::kResourceExhausted,
               fmt::format("{} requests are waiting, the most that may; try again later", waiting_), "queue");
  }
  if (waiting_ > 0 && waiting_tokens_ + length > options_.queue_tokens_max) {
    return Err(ErrorCode::kResourceExhausted,
               fmt::format("{} prompt tokens are waiting and {} more exceed the limit of {}; try again later",
                           waiting_tokens_, length, options_.queue_tokens_max),
               "queue");
  }
  return {};
}

void Scheduler::Refuse(RequestId request, Error error) {
  ++stats_.refused;
  ++stats_.finished;
  outputs_.finished.push_back({.request = request,
                               .branch = 0,
                               .reason = FinishReason::kError,
                               .request_done = true,
                               .error = std::move(error)});
}

void Scheduler::Arrive(Request request, TimeUs now) {
  ++stats_.arrived;
  CHECK(!requests_.contains(request.id)) << "request " << request.id.value << " is live already";
  if (Status status = CheckRequest(request); !status) {
    Refuse(request.id, std::move(status).error());
    return;
  }
  auto record = std::make_unique<RequestRecord>();
  record->request = std::move(request);
  record->arrival_us = now;
  const Request& kept = record->request;
  Sequence& sequence = NewSequence(*record, 0);
  const TimeUs virtual_arrival = now - kept.priority * options_.priority_step_us;
  sequence.order = {.window = FloorDiv(virtual_arrival, options_.priority_step_us),
                    .deadline = kept.deadline_us > 0 ? kept.deadline_us : std::numeric_limits<TimeUs>::max(),
                    .virtual_arrival = virtual_arrival,
                    .number = next_number_++,
                    .branch = 0};
  sequence.tokens = kept.prompt;
  sequence.keys = std::move(record->request.keys);
  sequence.limit = sequence.length() + kept.max_tokens;
  sequence.state = Waiting{};
  const TimeUs wait = kept.max_wait_us > 0 ? kept.max_wait_us : options_.max_wait_us;
  SetTimer(sequence.wait_timer, TimerKind::kWait, sequence.id, now + wait);
  if (kept.deadline_us > 0) SetTimer(sequence.deadline_timer, TimerKind::kDeadline, sequence.id, kept.deadline_us);
  ++waiting_;
  waiting_tokens_ += sequence.length();
  Enqueue(sequence);
  requests_.emplace(kept.id, std::move(record));
}

Sequence& Scheduler::NewSequence(RequestRecord& record, int branch) {
  Sequence& sequence = sequences_.New();
  sequence.owner = &record;
  sequence.request = record.request.id;
  sequence.branch = branch;
  record.branches.push_back(sequence.id);
  return sequence;
}

void Scheduler::Cancel(RequestId request) {
  const auto it = requests_.find(request);
  if (it == requests_.end()) return;
  // The record dies with its last branch.
  const std::vector<SequenceId> branches = it->second->branches;
  for (const SequenceId id : branches) End(Get(id), FinishReason::kCancelled);
}

void Scheduler::End(Sequence& sequence, FinishReason reason, Error error) {
  RequestRecord& record = *sequence.owner;
  if (Held* held = sequence.held()) {
    RevokePromises(sequence, *held);
    LeaveRunning(sequence);
    if (record.request.snapshot_at_end && (reason == FinishReason::kStop || reason == FinishReason::kLength)) {
      SaveSnapshot(sequence, sequence.length() - 1);
    }
    Release(std::move(*held));
  } else if (sequence.in<AwaitingPrefix>()) {
    StopAwaiting(sequence);
  } else {
    Dequeue(sequence);
  }
  if (!record.started && sequence.branch == 0) {
    --waiting_;
    waiting_tokens_ -= static_cast<std::int64_t>(record.request.prompt.size());
  }
  DropTimers(sequence);
  sequence.state = Ended{};
  sequence.owner = nullptr;
  const RequestId request = record.request.id;
  std::erase(record.branches, sequence.id);
  const bool done = record.branches.empty();
  outputs_.finished.push_back({.request = request,
                               .branch = sequence.branch,
                               .reason = reason,
                               .request_done = done,
                               .error = std::move(error)});
  if (done) {
    ++stats_.finished;
    requests_.erase(request);
  }
  if (sequence.steps_in_flight == 0) sequences_.Free(sequence);
}

void Scheduler::Enqueue(Sequence& sequence) {
  queue_.insert({sequence.order, sequence.id});
}

void Scheduler::Dequeue(Sequence& sequence) {
  queue_.erase({sequence.order, sequence.id});
}

void Scheduler::SetTimer(std::optional<TimeUs>& timer, TimerKind kind, SequenceId sequence, TimeUs when) {
  DropTimer(timer, kind, sequence);
  timer = when;
  timers_.insert({when, sequence, kind});
}

void Scheduler::DropTimer(std::optional<TimeUs>& timer, TimerKind kind, SequenceId sequence) {
  if (timer) timers_.erase({*timer, sequence, kind});
  timer.reset();
}

void Scheduler::DropTimers(Sequence& sequence) {
  DropTimer(sequence.wait_timer, TimerKind::kWait, sequence.id);
  DropTimer(sequence.deadline_timer, TimerKind::kDeadline, sequence.id);
  DropTimer(sequence.share_timer, TimerKind::kShare, sequence.id);
}

std::optional<TimeUs> Scheduler::next_timer() const {
  if (timers_.empty()) return std::nullopt;
  return std::get<0>(*timers_.begin());
}

void Scheduler::Expire(TimeUs now) {
  while (!timers_.empty() && std::get<0>(*timers_.begin()) <= now) {
    const auto [when, id, kind] = *timers_.begin();
    Sequence& sequence = Get(id);
    const TimeUs waited = now - sequence.owner->arrival_us;
    if (kind == TimerKind::kWait) {
      End(sequence, FinishReason::kError,
          {ErrorCode::kDeadline,
           fmt::format("waited {} ms for its first row, longer than it may; the server is overloaded", waited / 1000),
           "max_wait"});
    } else if (kind == TimerKind::kDeadline) {
      End(sequence, FinishReason::kError,
          {ErrorCode::kDeadline,
           fmt::format("was not finished {} ms after its arrival, when it was due", waited / 1000), "deadline"});
    } else {
      // The block that it waits for: worth waiting on only while its owner gets ahead.
      auto& awaiting = std::get<AwaitingPrefix>(sequence.state);
      const Held* owner = Get(promises_.owner(awaiting.key)).held();
      if (owner != nullptr && owner->computed > awaiting.owner_computed) {
        awaiting.owner_computed = owner->computed;
        SetTimer(sequence.share_timer, TimerKind::kShare, id, now + options_.share_wait_us);
      } else {
        sequence.no_share = true;
        StopAwaiting(sequence);
        Enqueue(sequence);
      }
    }
  }
}

// The last step that may still touch resources given up now. Copies waiting for the next plan will touch them too.
StepId Scheduler::ReleaseStep() const {
  const bool planned_ops = planning_ && !plans_[static_cast<std::size_t>(next_step_) % plans_.size()].ops.empty();
  return pending_ops_.empty() && !planned_ops ? next_step_ - 1 : next_step_;
}

void Scheduler::Release(Held held, kv::SnapshotRef pin) {
  const StepId step = ReleaseStep();
  if (step < oldest_step_) {
    kv::ReleaseTail(held.table);
    return;
  }
  int exclusive = 0;
  for (const kv::BlockRef& block : held.table) exclusive += cache_.ref_count(block.id()) == 1 ? 1 : 0;
  blocks_retiring_ += exclusive;
  retiring_.push_back({.step = step, .exclusive_blocks = exclusive, .held = std::move(held), .pin = std::move(pin)});
}

void Scheduler::Retire(StepId step) {
  while (!retiring_.empty() && retiring_.front().step <= step) {
    blocks_retiring_ -= retiring_.front().exclusive_blocks;
    kv::ReleaseTail(retiring_.front().held.table);
    retiring_.pop_front();
  }
}

void Scheduler::ClearCache() {
  cache_.Clear();
  snapshots_.Clear();
}

void Scheduler::ForEach(const std::function<void(const Sequence&)>& visit) const {
  for (const Sequence* sequence : sequences_.all()) {
    if (sequence != nullptr && !sequence->in<Ended>()) visit(*sequence);
  }
}

void Scheduler::CheckInvariants() const {
  cache_.CheckInvariants();
  int held_slots = 0, decoding = 0, prefilling = 0, queued = 0, unstarted = 0;
  std::size_t timers = 0;
  for (const Sequence* entry : sequences_.all()) {
    if (entry == nullptr) continue;
    const Sequence& sequence = *entry;
    CHECK(sequence.in<Ended>() == (sequence.owner == nullptr)) << StateLabel(sequence.state);
    CHECK(sequence.steps_in_flight > 0 || (!sequence.in<Ended>() && sequence.pending_most == 0))
        << sequence.id.value << " " << StateLabel(sequence.state) << " " << sequence.steps_in_flight << " "
        << sequence.pending_least << " " << sequence.pending_most;
    held_slots += sequence.held() != nullptr ? 1 : 0;
    decoding += sequence.in<Decoding>() ? 1 : 0;
    prefilling += sequence.in<Prefilling>() ? 1 : 0;
    const bool in_queue = queue_.contains({sequence.order, sequence.id});
    const bool should = sequence.in<Waiting>() || (sequence.in<Preempted>() && sequence.steps_in_flight == 0);
    CHECK(in_queue == should) << "sequence " << sequence.id.value << " is " << StateLabel(sequence.state);
    queued += in_queue ? 1 : 0;
    if (sequence.owner != nullptr && !sequence.owner->started && sequence.branch == 0) ++unstarted;
    timers += (sequence.wait_timer ? 1u : 0u) + (sequence.deadline_timer ? 1u : 0u) + (sequence.share_timer ? 1u : 0u);
    if (sequence.in<AwaitingPrefix>()) {
      CHECK(promises_.owner(std::get<AwaitingPrefix>(sequence.state).key).valid()) << "waits for nobody";
    }
  }
  CHECK(decoding == static_cast<int>(decoding_.size()) && prefilling == static_cast<int>(prefilling_.size()));
  CHECK(queued == static_cast<int>(queue_.size())) << queued << " " << queue_.size();
  CHECK(unstarted == waiting_) << unstarted << " " << waiting_;
  CHECK(timers == timers_.size()) << timers << " " << timers_.size();
  for (const Retiring& retiring : retiring_) held_slots += retiring.held.slot.valid() ? 1 : 0;
  CHECK(held_slots + slots_.available() == slots_.total()) << held_slots << " + " << slots_.available();
  for (std::size_t i = 0; i < decoding_.size(); ++i) CHECK(decoding_[i]->place == static_cast<int>(i));
  for (std::size_t i = 0; i < prefilling_.size(); ++i) CHECK(prefilling_[i]->place == static_cast<int>(i));
}

}  // namespace galley::sched
