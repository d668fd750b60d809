// SPDX-License-Identifier: Apache-2.0
// Planning under load, for the benchmark and the test of its bound: so many sequences decoding, so many requests
// waiting behind them, one step in flight. Building the result is the executor's work and is not timed. Times are of
// the thread's processor clock, so that other work on the machine does not count.
#pragma once

#include <time.h>

#include <deque>
#include <memory>
#include <utility>

#include "galley/sched/scheduler.h"

namespace galley::sched {

inline Request MakeLoadRequest(std::int64_t id, int length, int max_tokens) {
  Request request;
  request.id = RequestId(id);
  request.prompt.resize(static_cast<std::size_t>(length));
  for (int i = 0; i < length; ++i) request.prompt[static_cast<std::size_t>(i)] = static_cast<TokenId>(id * 977 + i);
  request.keys = kv::MakeKeyChain({}, request.prompt);
  request.max_tokens = max_tokens;
  return request;
}

inline double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class PlanningLoad {
 public:
  PlanningLoad(int running, int waiting, int drafts) {
    SchedulerOptions options;
    options.slots = running;
    options.blocks = running * 40;
    options.drafts = drafts;
    options.step_rows_max = 16'384 + running * (1 + drafts);
    options.queue_max = 1 << 20;
    options.queue_tokens_max = 1LL << 40;
    scheduler_ = std::move(*Scheduler::Create(options));
    for (int i = 0; i < running; ++i) scheduler_->Arrive(MakeLoadRequest(i, 200, 4500), 0);
    while (scheduler_->waiting() > 0) Step();
    for (int i = 0; i < waiting; ++i) scheduler_->Arrive(MakeLoadRequest(running + i, 1000, 100), 0);
    for (int i = 0; i < 130; ++i) Step();
  }

  // Seconds of Next and Advance.
  double Step() {
    const double begin = ThreadSeconds();
    const StepPlan* plan = scheduler_->Next(now_++);
    double seconds = ThreadSeconds() - begin;
    if (plan != nullptr) Run(*plan);
    if (in_flight_.size() == 2) {
      const double advance = ThreadSeconds();
      scheduler_->Advance(in_flight_.front());
      seconds += ThreadSeconds() - advance;
      in_flight_.pop_front();
    }
    scheduler_->ClearOutputs();
    return seconds;
  }

 private:
  void Run(const StepPlan& plan) {
    StepDone done{.step = plan.id, .elapsed_us = 1000, .draws = {}, .token_ids = {}};
    for (const SequenceId id : plan.draws) {
      done.draws.push_back(
          {.sequence = id, .first = static_cast<int>(done.token_ids.size()), .count = 1, .stop = false});
      done.token_ids.push_back(token_++ % 50'000);
    }
    in_flight_.push_back(std::move(done));
  }

  std::unique_ptr<Scheduler> scheduler_;
  std::deque<StepDone> in_flight_;
  TimeUs now_ = 0;
  TokenId token_ = 0;
};

}  // namespace galley::sched
