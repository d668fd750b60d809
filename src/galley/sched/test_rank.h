// SPDX-License-Identifier: Apache-2.0
// A scheduler with a trivial executor, for tests: every draw gives the next number, nothing is computed.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "galley/sched/scheduler.h"

namespace galley::sched {

inline kv::BlockKey TestRoot(const std::string& salt = "") {
  return kv::RootKey({.model = "test",
                      .weights_digest = "",
                      .tokenizer_digest = "",
                      .layout = "",
                      .dtype = "",
                      .numeric_class = "",
                      .shard = "",
                      .salt = salt});
}

// `shared` tokens that all prompts have in common, then tokens of this `id` only.
inline std::vector<TokenId> TestPrompt(int length, int shared, std::int64_t id) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(length));
  for (int i = 0; i < length; ++i) {
    tokens[static_cast<std::size_t>(i)] = i < shared ? i : static_cast<TokenId>(1'000'000 + 5000 * id + i);
  }
  return tokens;
}

class TestRank {
 public:
  explicit TestRank(const SchedulerOptions& options) {
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
  void Finish(int accepted = 1, bool stop = false) {
    const StepPlan plan = std::move(in_flight.front());
    in_flight.pop_front();
    StepDone done{.step = plan.id, .elapsed_us = elapsed_us, .draws = {}, .token_ids = {}};
    for (std::size_t i = 0; i < plan.draws.size(); ++i) {
      const int count = i < plan.decode.size() ? std::min(accepted, plan.decode[i].rows) : 1;
      done.draws.push_back(
          {.sequence = plan.draws[i], .first = static_cast<int>(done.token_ids.size()), .count = count, .stop = stop});
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

inline SchedulerOptions TestOptions() {
  SchedulerOptions options;
  options.blocks = 256;
  options.slots = 64;
  options.step_rows_max = 2048;
  return options;
}

}  // namespace galley::sched
