// SPDX-License-Identifier: Apache-2.0
// Time of planning alone: one Next and one Advance, with so many sequences decoding and so many requests waiting behind
// them, one step in flight. Building the result is the executor's work and is not timed. Times are of the thread's
// processor clock, so that other work on the machine does not count.
//   build/release/bench/sched_bench
#include <benchmark/benchmark.h>

#include <time.h>

#include <deque>
#include <memory>

#include "galley/sched/scheduler.h"

namespace galley::sched {
namespace {

Request MakeRequest(std::int64_t id, int length, int max_tokens) {
  Request request;
  request.id = RequestId(id);
  request.prompt.resize(static_cast<std::size_t>(length));
  for (int i = 0; i < length; ++i) request.prompt[static_cast<std::size_t>(i)] = static_cast<TokenId>(id * 977 + i);
  request.keys = kv::MakeKeyChain({}, request.prompt);
  request.max_tokens = max_tokens;
  return request;
}

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Bench {
 public:
  Bench(int running, int waiting, int drafts) {
    SchedulerOptions options;
    options.slots = running;
    options.blocks = running * 40;
    options.drafts = drafts;
    options.step_rows_max = 16'384 + running * (1 + drafts);
    options.queue_max = 1 << 20;
    options.queue_tokens_max = 1LL << 40;
    scheduler_ = std::move(*Scheduler::Create(options));
    for (int i = 0; i < running; ++i) scheduler_->Arrive(MakeRequest(i, 200, 4500), 0);
    while (scheduler_->waiting() > 0) Step();
    for (int i = 0; i < waiting; ++i) scheduler_->Arrive(MakeRequest(running + i, 1000, 100), 0);
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

void BM_NextAndAdvance(benchmark::State& state) {
  Bench bench(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), static_cast<int>(state.range(2)));
  for (auto _ : state) state.SetIterationTime(bench.Step());
  state.counters["us_per_sequence"] =
      benchmark::Counter(static_cast<double>(state.range(0)) * 1e-6,
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_NextAndAdvance)
    ->ArgNames({"running", "waiting", "drafts"})
    ->Args({128, 0, 0})
    ->Args({512, 0, 0})
    ->Args({1024, 0, 0})
    ->Args({1024, 100, 0})
    ->Args({1024, 10'000, 0})
    ->Args({1024, 10'000, 5})
    ->Args({2048, 10'000, 0})
    ->Args({4096, 10'000, 0})
    ->Iterations(2000)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace galley::sched

BENCHMARK_MAIN();
