// SPDX-License-Identifier: Apache-2.0
// A scheduler with a trivial executor, for tests: every draw gives the next number, nothing is computed.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "galley/kv/test_keys.h"
#include "galley/sched/scheduler.h"

namespace galley::sched {

using kv::TestPrompt;
using kv::TestRoot;

class TestRank {
 public:
  // What the options leave open is 256 blocks, 64 slots and 2,048 rows a step.
  explicit TestRank(SchedulerOptions options = {}) {
    if (options.blocks == 0) options.blocks = 256;
    if (options.slots == 0) options.slots = 64;
    if (options.step_rows_max == SchedulerOptions().step_rows_max) options.step_rows_max = 2048;
    Result<std::unique_ptr<Scheduler>> made = Scheduler::Create(options);
    EXPECT_TRUE(made) << made.error().ToString();
    scheduler_ = std::move(*made);
  }

  Scheduler& operator*() { return *scheduler_; }
  Scheduler* operator->() { return scheduler_.get(); }

  static Request Make(std::int64_t id, std::vector<TokenId> prompt, int max_tokens = 4) {
    Request request;
    request.id = RequestId(id);
    request.keys = kv::MakeKeyChain(TestRoot(), prompt);
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    return request;
  }
  void Submit(Request request) {
    scheduler_->Arrive(std::move(request), now);
    Collect();
  }
  void Submit(std::int64_t id, std::vector<TokenId> prompt, int max_tokens = 4) {
    Submit(Make(id, std::move(prompt), max_tokens));
  }
  void Cancel(std::int64_t id) {
    scheduler_->Cancel(RequestId(id));
    Collect();
  }

  // Plans a step; null when there is none. The copy stays valid.
  const StepPlan* Plan(bool may_prefill = true) {
    const StepPlan* plan = scheduler_->Next(now, may_prefill);
    Collect();
    if (plan == nullptr) return nullptr;
    in_flight.push_back(*plan);
    for (const SequenceRows& rows : plan->prefill) rows_of[rows.request] += rows.rows;
    return &in_flight.back();
  }
  // Ends the oldest step in flight; every draw yields `accepted` tokens, and ends its sequence if `stop`.
  // `dropped`: tokens that the device went on by behind a stop.
  void Finish(int accepted = 1, bool stop = false, int dropped = 0) {
    const StepPlan plan = std::move(in_flight.front());
    in_flight.pop_front();
    StepDone done{.step = plan.id, .elapsed_us = elapsed_us, .draws = {}, .token_ids = {}};
    for (std::size_t i = 0; i < plan.draws.size(); ++i) {
      const int count = i < plan.decode.size() ? std::min(accepted, plan.decode[i].rows) : 1;
      done.draws.push_back({.sequence = plan.draws[i],
                            .first = static_cast<int>(done.token_ids.size()),
                            .count = count,
                            .stop = stop,
                            .dropped = dropped});
      for (int k = 0; k < count; ++k) done.token_ids.push_back(next_token++);
    }
    scheduler_->Advance(done);
    Collect();
  }
  void Fail() {
    const StepId step = in_flight.front().id;
    in_flight.pop_front();
    scheduler_->Fail(step, {ErrorCode::kDevice, "fault", "step"});
    Collect();
  }
  // One synchronous step; false when there was nothing to do.
  bool Step() {
    if (Plan() == nullptr) return false;
    Finish();
    now += 1000;
    return true;
  }
  int RunAll(int most = 100'000) {
    int steps = 0;
    while (steps < most && (Step() || !in_flight.empty())) ++steps;
    return steps;
  }
  // Of what has started.
  [[nodiscard]] const Started& StartOf(std::int64_t id) const { return started.at(RequestId(id)); }
  [[nodiscard]] std::int64_t RowsOf(std::int64_t id) const { return rows_of.at(RequestId(id)); }
  [[nodiscard]] const std::vector<TokenId>& TokensOf(std::int64_t id, int branch = 0) const {
    return tokens.at({RequestId(id), branch});
  }
  [[nodiscard]] std::string StateOf(std::int64_t id, int branch = 0) const {
    std::string label = "none";
    scheduler_->ForEach([&](const Sequence& sequence) {
      if (sequence.request == RequestId(id) && sequence.branch == branch) label = StateLabel(sequence.state);
    });
    return label;
  }
  void ExpectAllFree() {
    EXPECT_EQ(scheduler_->cache().active(), 0);
    EXPECT_EQ(scheduler_->slots().available(), scheduler_->slots().total());
    scheduler_->CheckInvariants();
  }

  TimeUs now = 0;
  TimeUs elapsed_us = 0;
  TokenId next_token = 0;
  std::deque<StepPlan> in_flight;
  std::map<RequestId, Started> started;
  std::map<RequestId, std::int64_t> rows_of;  // prefill rows planned
  std::map<std::pair<RequestId, int>, std::vector<TokenId>> tokens;
  std::vector<Finished> finished;

 private:
  void Collect() {
    const OutputBatch& batch = scheduler_->outputs();
    for (const Started& event : batch.started) EXPECT_TRUE(started.emplace(event.request, event).second);
    for (const Tokens& event : batch.tokens) {
      auto& list = tokens[{event.request, event.branch}];
      list.insert(list.end(), batch.token_ids.begin() + event.first,
                  batch.token_ids.begin() + event.first + event.count);
    }
    finished.insert(finished.end(), batch.finished.begin(), batch.finished.end());
    scheduler_->ClearOutputs();
  }

  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace galley::sched
