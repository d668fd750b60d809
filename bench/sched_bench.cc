// SPDX-License-Identifier: Apache-2.0
// Time of planning alone: one Next and one Advance (planning_load.h).
//   build/release/bench/sched_bench
#include <benchmark/benchmark.h>

#include "planning_load.h"

namespace galley::sched {
namespace {

void BM_NextAndAdvance(benchmark::State& state) {
  PlanningLoad load(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)),
                    static_cast<int>(state.range(2)));
  for (auto _ : state) state.SetIterationTime(load.Step());
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
    ->Args({8192, 10'000, 0})
    ->Iterations(1000)
    ->Repetitions(3)
    ->ReportAggregatesOnly()
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace galley::sched

BENCHMARK_MAIN();
