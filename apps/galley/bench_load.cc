// SPDX-License-Identifier: Apache-2.0
#include "bench_load.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "galley/model/config.h"
#include "galley/text/tokenizer.h"

namespace galley::app {
namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

double ProcessorSeconds() {
  rusage usage{};
  (void)getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// What one request went through. Written by the engine's thread until `ended`.
struct Track {
  Clock::time_point submitted, last;
  std::int64_t tokens = 0;
  double ttft_s = 0, e2e_s = 0;
  engine::StartedEvent start;
};

// The state that the client shares with the engine's thread.
struct Client {
  std::mutex mutex;
  std::condition_variable wake;
  int ended = 0;
  std::int64_t output_tokens = 0;
  std::optional<Error> failure;
  std::vector<Track> tracks;
  std::vector<double> gaps;

  void Take(Track& track, const engine::EngineEvent& event);
};

void Client::Take(Track& track, const engine::EngineEvent& event) {
  const Clock::time_point now = Clock::now();
  if (const auto* started = std::get_if<engine::StartedEvent>(&event)) {
    track.start = *started;
  } else if (std::holds_alternative<engine::TokenEvent>(event)) {
    std::lock_guard lock(mutex);
    ++output_tokens;
    if (track.tokens++ == 0) {
      track.ttft_s = Since(track.submitted, now);
    } else {
      gaps.push_back(Since(track.last, now));
    }
    track.last = now;
  } else if (const auto* finished = std::get_if<engine::FinishedEvent>(&event)) {
    if (!finished->request_done) return;
    std::lock_guard lock(mutex);
    track.e2e_s = Since(track.submitted, now);
    if (finished->reason == sched::FinishReason::kError && !failure) failure = finished->error;
    ++ended;
    wake.notify_all();
  }
}

engine::EngineRequest MakeRequest(const BenchRequest& bench, const LoadOptions& options) {
  engine::EngineRequest request;
  request.prompt_ids = bench.prompt;
  request.sampling.temperature = options.temperature;
  request.sampling.seed = bench.seed;
  request.max_tokens = bench.max_tokens;
  request.use_cache = options.use_cache;
  request.cache_salt = options.cache_salt;
  return request;
}

// The engine updates its statistics after it has delivered a step's events.
engine::EngineStats StatsAfter(const engine::Engine& engine, std::int64_t finished) {
  engine::EngineStats stats = engine.stats();
  for (int tries = 0; tries < 10'000 && stats.scheduler.finished < finished; ++tries) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    stats = engine.stats();
  }
  return stats;
}

LoadResult Summarise(Client& client, std::span<const BenchRequest> requests) {
  LoadResult result;
  result.requests = static_cast<int>(requests.size());
  std::vector<double> ttft, e2e;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Track& track = client.tracks[i];
    const auto prompt = static_cast<std::int64_t>(requests[i].prompt.size());
    result.prompt_tokens += prompt;
    result.output_tokens += track.tokens;
    ttft.push_back(track.ttft_s);
    e2e.push_back(track.e2e_s);
    result.cached_tokens += track.start.cached_tokens;
    result.replayed_tokens += track.start.replayed_tokens;
    result.prompt_rows_planned += prompt - track.start.cached_tokens + track.start.replayed_tokens;
    result.decode_rows_planned += track.tokens - 1;
    result.hits_whole += track.start.hit_limit == "none" ? 1 : 0;
    ++result.hit_limits[track.start.hit_limit];
    result.cached_of.push_back(track.start.cached_tokens);
  }
  result.ttft_s = PercentilesOf(std::move(ttft));
  result.e2e_s = PercentilesOf(std::move(e2e));
  result.itl_s = PercentilesOf(std::move(client.gaps));
  return result;
}

}  // namespace

Percentiles PercentilesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto rank = [&](double share) {
    const auto place = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
    return values[std::max<std::size_t>(place, 1) - 1];
  };
  double sum = 0;
  for (const double value : values) sum += value;
  return {.mean = sum / static_cast<double>(values.size()),
          .p50 = rank(0.5),
          .p90 = rank(0.9),
          .p99 = rank(0.99),
          .most = values.back()};
}

Result<LoadResult> RunLoad(engine::Engine& engine, std::span<const BenchRequest> requests, const LoadOptions& options,
                           const OnLoadProgress& on_progress) {
  constexpr std::chrono::milliseconds kPoll(100);
  const engine::EngineStats stats_before = engine.stats();
  const sched::SchedulerStats& before = stats_before.scheduler;
  Client client;
  client.tracks.resize(requests.size());
  std::vector<RequestId> ids;
  bool cancelled = false;
  std::optional<Error> refused;
  const Clock::time_point begin = Clock::now();
  const double cpu_begin = ProcessorSeconds();
  std::unique_lock lock(client.mutex);
  while (client.ended < static_cast<int>(ids.size()) || (ids.size() < requests.size() && !cancelled && !refused)) {
    const bool more = ids.size() < requests.size() && !cancelled && !refused;
    if (more && static_cast<int>(ids.size()) - client.ended < options.concurrency) {
      Track& track = client.tracks[ids.size()];
      engine::EngineRequest request = MakeRequest(requests[ids.size()], options);
      lock.unlock();
      track.submitted = Clock::now();
      const Result<RequestId> id = engine.Submit(
          std::move(request), [&client, &track](const engine::EngineEvent& event) { client.Take(track, event); });
      lock.lock();
      if (id) {
        ids.push_back(*id);
      } else {
        refused = id.error();
      }
      continue;
    }
    client.wake.wait_for(lock, kPoll);
    if (!on_progress || cancelled) continue;
    const LoadProgress progress{client.ended, client.output_tokens, Since(begin, Clock::now())};
    lock.unlock();
    cancelled = !on_progress(progress);
    if (cancelled) {
      for (const RequestId id : ids) engine.Cancel(id);
    }
    lock.lock();
  }
  const double seconds = Since(begin, Clock::now()), cpu_seconds = ProcessorSeconds() - cpu_begin;
  if (cancelled) return Err(ErrorCode::kCancelled, "interrupted");
  if (refused) return Err(*refused);
  if (client.failure) return Err(*client.failure);

  LoadResult result = Summarise(client, requests);
  result.seconds = seconds;
  result.cpu_seconds = cpu_seconds;
  const engine::EngineStats stats_after = StatsAfter(engine, before.finished + result.requests);
  const sched::SchedulerStats& after = stats_after.scheduler;
  result.speculation = stats_after.speculation;
  result.speculation.Subtract(stats_before.speculation);
  result.prompt_rows = after.prefill_rows - before.prefill_rows;
  result.decode_rows = after.decode_rows - before.decode_rows;
  result.steps = after.steps - before.steps;
  result.preemptions = after.preemptions - before.preemptions;
  result.shared_waits = after.shared_waits - before.shared_waits;
  result.decode_waits_longest = after.decode_waits_longest;
  return result;
}

Status ContinueOwnTexts(engine::Engine& engine, std::span<BenchRequest> requests) {
  std::vector<engine::EngineRequest> writers;
  for (const BenchRequest& request : requests) {
    engine::EngineRequest writer;
    writer.prompt_ids = {engine.config().bos_token_id};
    writer.sampling.temperature = 1;
    writer.sampling.seed = request.seed;
    writer.max_tokens = static_cast<int>(request.prompt.size()) - request.shared;
    writer.use_cache = false;
    writers.push_back(std::move(writer));
  }
  ASSIGN_OR_RETURN(const std::vector<engine::EngineResult> texts, engine.Generate(std::move(writers)));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const engine::BranchResult& text = texts[i].branches.front();
    if (text.reason == sched::FinishReason::kError) return Err(text.error);
    auto at = requests[i].prompt.begin() + requests[i].shared;
    for (const engine::GeneratedToken& token : text.tokens) *at++ = token.id;
  }
  return {};
}

std::vector<TokenId> OrdinaryTokens(const engine::Engine& engine) {
  std::vector<TokenId> ids;
  for (TokenId id = 0; id < static_cast<TokenId>(engine.config().vocab_size); ++id) {
    if (engine.tokenizer().has_token(id) && !engine.tokenizer().is_added(id)) ids.push_back(id);
  }
  return ids;
}

}  // namespace galley::app
