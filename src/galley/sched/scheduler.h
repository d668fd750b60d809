// SPDX-License-Identifier: Apache-2.0
// The scheduler of one rank: a deterministic state machine. Next(now) plans a step from what is known; Advance tells it
// what happened (an arrival, a cancellation, a step done or failed). It owns the rank's blocks, slots and snapshots and
// hands out plans that are plain data. No clock, no threads, no randomness: the same calls give the same plans.
// Owned and called by the rank thread. docs/scheduler.md states the rules and their bounds.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "galley/base/error.h"
#include "galley/kv/block_cache.h"
#include "galley/kv/index.h"
#include "galley/kv/slot_pool.h"
#include "galley/kv/snapshot_store.h"
#include "galley/sched/cost_curve.h"
#include "galley/sched/options.h"
#include "galley/sched/promise_board.h"
#include "galley/sched/request.h"
#include "galley/sched/sequence.h"
#include "galley/sched/sequence_pool.h"
#include "galley/sched/step_plan.h"
#include "galley/sched/vote.h"

namespace galley::sched {

struct SchedulerStats {
  std::int64_t arrived = 0;
  std::int64_t refused = 0;   // ended before they were queued
  std::int64_t finished = 0;  // requests, refused ones included
  std::int64_t admissions = 0;
  std::int64_t resumes = 0;  // of the admissions
  std::int64_t preemptions = 0;
  std::int64_t forks = 0;
  std::int64_t shared_waits = 0;  // requests that waited for another's blocks
  std::int64_t steps = 0;
  std::int64_t decode_rows = 0;
  std::int64_t prefill_rows = 0;
  std::int64_t tail_rows = 0;
  std::int64_t prompt_tokens = 0;  // of started requests
  std::int64_t cached_tokens = 0;
  std::int64_t replayed_tokens = 0;
  std::int64_t snapshot_saves = 0;
  std::int64_t snapshot_restores = 0;
  std::int64_t decode_waits_longest = 0;     // steps in a row that a ready decode was left out, for whatever reason
  std::array<std::int64_t, 8> hit_limits{};  // started requests by kv::HitLimit
};

class Scheduler {
 public:
  // kInvalidArgument from SchedulerOptions::Validate.
  [[nodiscard]] static Result<std::unique_ptr<Scheduler>> Create(const SchedulerOptions& options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // --- Events. Each may add to outputs(). ---

  // A request that can never run, or finds the queue full, ends at once with an error.
  void Arrive(Request request, TimeUs now);
  // Ends every branch of the request; unknown ids (it ended meanwhile) are ignored.
  void Cancel(RequestId request);
  // Steps end in the order in which they were planned.
  void Advance(const StepDone& done);
  // The step's requests end with `error`; the others go on.
  void Fail(StepId step, const Error& error);

  // --- Planning ---

  // The next step, or null when there is nothing to do or as many steps are in flight as may be. Prompt rows only with
  // `may_prefill`, which ranks that step together vote on.
  [[nodiscard]] const StepPlan* Next(TimeUs now, bool may_prefill = true);
  // First round of the vote about group step `step`.
  [[nodiscard]] RankSummary Summary(std::int64_t step) const;
  // Drops all cached content; running sequences go on with what they hold.
  void ClearCache();

  // --- What came out, and how things stand ---

  [[nodiscard]] const OutputBatch& outputs() const { return outputs_; }
  void ClearOutputs() { outputs_.Clear(); }
  [[nodiscard]] const SchedulerOptions& options() const { return options_; }
  [[nodiscard]] const SchedulerStats& stats() const { return stats_; }
  [[nodiscard]] const kv::BlockCache& cache() const { return cache_; }
  [[nodiscard]] const kv::SlotPool& slots() const { return slots_; }
  [[nodiscard]] const kv::SnapshotStore& snapshots() const { return snapshots_; }
  [[nodiscard]] const StepCost& cost() const { return cost_; }
  [[nodiscard]] int steps_in_flight() const { return static_cast<int>(next_step_ - oldest_step_); }
  [[nodiscard]] int running() const { return static_cast<int>(decoding_.size() + prefilling_.size()); }
  [[nodiscard]] int waiting() const { return waiting_; }  // requests that have not started
  [[nodiscard]] bool idle() const { return requests_.empty() && steps_in_flight() == 0 && pending_ops_.empty(); }
  // Earliest time at which Next would end or wake something although nothing else happens; nothing: never.
  [[nodiscard]] std::optional<TimeUs> next_timer() const;
  // Whether Next(…) would consider the sequence ready to decode: it runs, and is not sure to end with steps in flight.
  [[nodiscard]] static bool ReadyToDecode(const Sequence& sequence);
  // A live sequence, or null.
  [[nodiscard]] const Sequence* Find(SequenceId id) const {
    const Sequence* sequence = sequences_.Find(id);
    return sequence == nullptr || sequence->in<Ended>() ? nullptr : sequence;
  }
  // Every live sequence, in no particular order. For tests and the simulator.
  void ForEach(const std::function<void(const Sequence&)>& visit) const;
  // CHECKs that lists, states, timers and resources agree. Linear in everything; for tests and the simulator.
  void CheckInvariants() const;

 private:
  enum class TimerKind { kWait, kDeadline, kShare };
  enum class Admission { kAdmitted, kAside, kBlocked };
  struct Retiring {
    StepId step;
    int exclusive_blocks;  // that nobody else held when they were given up
    Held held;
    kv::SnapshotRef pin;
  };
  struct Grant {
    Sequence* sequence;
    int rows;
  };
  struct Saving {
    StepId step;  // whose ops make the copy
    SequenceId sequence;
    kv::SnapshotId snapshot;
  };
  struct PrefillBudget {
    std::int64_t work;  // rows, tail rows of truncated prompts counted twice
    int rows;
  };

  explicit Scheduler(const SchedulerOptions& options);

  // scheduler.cc: life and death of requests
  [[nodiscard]] Status CheckRequest(const Request& request) const;
  void Refuse(RequestId request, Error error);
  Sequence& NewSequence(RequestRecord& record, int branch);
  void End(Sequence& sequence, FinishReason reason, Error error = {});
  void Enqueue(Sequence& sequence);
  void Dequeue(Sequence& sequence);
  void Expire(TimeUs now);
  void SetTimer(std::optional<TimeUs>& timer, TimerKind kind, SequenceId sequence, TimeUs when);
  void DropTimer(std::optional<TimeUs>& timer, TimerKind kind, SequenceId sequence);
  void DropTimers(Sequence& sequence);
  void Release(Held held, kv::SnapshotRef pin = {});
  void Retire(StepId step);
  [[nodiscard]] StepId ReleaseStep() const;
  [[nodiscard]] Sequence& Get(SequenceId id) { return *sequences_.Find(id); }

  // scheduler_admit.cc: admission, sharing, preemption
  [[nodiscard]] Sequence* AdmitNext(TimeUs now);
  [[nodiscard]] Admission TryAdmit(Sequence& sequence, TimeUs now);
  [[nodiscard]] bool AwaitPrefix(Sequence& sequence, int hits, TimeUs now);
  void StopAwaiting(Sequence& sequence);
  void WakeAll(const std::vector<SequenceId>& waiters);
  [[nodiscard]] bool FindsBlocks(const Sequence& sequence) const;
  [[nodiscard]] bool HasRoom(const Sequence& sequence, int hits) const;
  // Of a first admission also what the sequence is to record. Gives up blocks of the hit that do not fit.
  struct Start {
    std::optional<kv::RecordedStart> record;
    kv::PrefillPlan plan;
  };
  [[nodiscard]] Start MakeStart(const Sequence& sequence, std::vector<kv::BlockRef>& hit) const;
  [[nodiscard]] kv::PromptFacts Facts(const Sequence& sequence, std::span<const kv::BlockRef> hit) const;
  void StartPrefill(Sequence& sequence, std::vector<kv::BlockRef> table, int hits, kv::PrefillPlan plan);
  void Restore(Sequence& sequence, const Held& held, const kv::PrefillPlan& plan, int hits);
  void ReportStart(Sequence& sequence, const kv::PrefillPlan& plan, kv::HitLimit limit, TimeUs now);
  void RevokePromises(Sequence& sequence, Held& held);
  [[nodiscard]] bool MakeRoom(Sequence& needy, int blocks, const Sequence* oldest);
  void Preempt(Sequence& victim);
  void LeaveRunning(Sequence& sequence);
  [[nodiscard]] Sequence* OldestRunning() const;

  // scheduler_plan.cc: steps
  void PlanDecode(StepPlan& plan);
  void Ration(StepPlan& plan);
  [[nodiscard]] int MissingBlocks(const Sequence& sequence) const;
  void AddDecodeRows(StepPlan& plan, Sequence& sequence);
  void PlanPrefill(StepPlan& plan, TimeUs now);
  [[nodiscard]] PrefillBudget BudgetPrefill(const StepPlan& plan) const;
  [[nodiscard]] int Take(const Sequence& sequence, int taken, PrefillBudget& budget) const;
  void AddPrefillRows(StepPlan& plan, Sequence& sequence, int rows);
  void FinishPrefill(StepPlan& plan, Sequence& sequence);
  void Fork(StepPlan& plan, Sequence& parent);
  void SaveSnapshots(Sequence& sequence, Position begin, Position end);
  void SaveSnapshot(Sequence& sequence, Position position);
  void SendTable(StepPlan& plan, Held& held);

  // scheduler_result.cc: results
  [[nodiscard]] const StepPlan& TakeFront(StepId step);
  void LeaveFlight(const SequenceRows& rows, const StepPlan& plan);
  void Settle(SequenceId id);
  void Append(const DrawResult& draw, const std::vector<TokenId>& token_ids);
  void Publish(Sequence& sequence, Held& held);
  void EnsureKeys(Sequence& sequence, int blocks);

  SchedulerOptions options_;
  kv::BlockCache cache_;
  kv::SlotPool slots_;
  kv::SnapshotStore snapshots_;
  StepCost cost_;
  kv::Sha256 hasher_;
  PromiseBoard promises_;

  std::unordered_map<RequestId, std::unique_ptr<RequestRecord>> requests_;
  SequencePool sequences_;
  std::set<std::pair<OrderKey, SequenceId>> queue_;  // Waiting, and Preempted that may resume
  std::set<std::tuple<TimeUs, SequenceId, TimerKind>> timers_;
  std::vector<Sequence*> decoding_;
  std::vector<Sequence*> prefilling_;

  std::vector<StepPlan> plans_;  // ring
  StepId next_step_ = 0;
  StepId oldest_step_ = 0;            // in flight, if smaller than next_step_
  std::vector<StateOp> pending_ops_;  // for the next plan
  std::vector<Saving> saving_;        // snapshots whose copy is planned or in flight
  bool planning_ = false;
  std::deque<Retiring> retiring_;  // by step
  int blocks_retiring_ = 0;        // blocks that only retiring_ holds
  int blocks_owed_ = 0;            // of those, spoken for in the step being planned
  std::vector<Sequence*> ready_;   // scratch of PlanDecode: these have their blocks
  std::vector<Sequence*> needy_;   // and these lack some
  std::vector<Grant> grants_;      // scratch of PlanPrefill

  OutputBatch outputs_;
  SchedulerStats stats_;
  std::int64_t next_number_ = 0;
  int waiting_ = 0;
  std::int64_t waiting_tokens_ = 0;
  int prefill_waited_steps_ = 0;
};

}  // namespace galley::sched
