// SPDX-License-Identifier: Apache-2.0
// A closed-loop client of the engine: keeps so many requests going until all have ended, and measures. Times are
// seconds of a steady clock, as the client sees them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "bench_workload.h"
#include "galley/base/error.h"
#include "galley/engine/engine.h"

namespace galley::app {

struct Percentiles {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, most = 0;
};
// Nearest rank; zeros when there are no values.
[[nodiscard]] Percentiles PercentilesOf(std::vector<double> values);

struct LoadOptions {
  int concurrency = 1;
  bool use_cache = true;
  std::string cache_salt;  // a new one finds nothing of earlier runs
  double temperature = 1;
};

struct LoadResult {
  double seconds = 0;
  double cpu_seconds = 0;  // of the process's threads together, waiting in loops included
  int requests = 0;
  std::int64_t prompt_tokens = 0, output_tokens = 0;
  Percentiles ttft_s;  // request to first token
  Percentiles itl_s;   // between tokens of one sequence
  Percentiles e2e_s;   // request to end
  std::int64_t cached_tokens = 0, replayed_tokens = 0;
  std::int64_t hits_whole = 0;                     // requests that found every full block of their prompt
  std::map<std::string, std::int64_t> hit_limits;  // requests by the reason why their hit ended
  std::vector<std::int64_t> cached_of;             // tokens found, by request
  std::int64_t prompt_rows_planned = 0;            // that the replay plans of all starts come to
  std::int64_t prompt_rows = 0, decode_rows = 0;   // computed; what preemption made necessary again included
  std::int64_t decode_rows_planned = 0;            // one for each output token but a prompt's first
  std::int64_t steps = 0, preemptions = 0, shared_waits = 0;
  std::int64_t decode_waits_longest = 0;  // of the engine's life so far
  engine::SpeculationCounts speculation;

  [[nodiscard]] double PerSecond(std::int64_t count) const {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0;
  }
};

struct LoadProgress {
  int ended = 0;
  std::int64_t output_tokens = 0;
  double seconds = 0;
};
// Polled some ten times a second; false cancels what runs.
using OnLoadProgress = std::function<bool(const LoadProgress&)>;

// Requires requests and a concurrency of at least 1, and an engine without other traffic. Errors: kCancelled; that of
// the first request that failed.
[[nodiscard]] Result<LoadResult> RunLoad(engine::Engine& engine, std::span<const BenchRequest> requests,
                                         const LoadOptions& options, const OnLoadProgress& on_progress = {});

// Puts a text of the model's own, continued from the bare beginning of a text at temperature 1, in the place of what is
// each prompt's own; the beginning of its group's prefix stays. Equal requests give equal texts. Errors: those of the
// engine.
[[nodiscard]] Status ContinueOwnTexts(engine::Engine& engine, std::span<BenchRequest> requests);

// Ids of ordinary tokens: no control token, which could mean something to the model.
[[nodiscard]] std::vector<TokenId> OrdinaryTokens(const engine::Engine& engine);

}  // namespace galley::app
