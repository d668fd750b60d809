// SPDX-License-Identifier: Apache-2.0
// What an Engine consists of. Private to the engine's sources: engine.cc makes and ends it, engine_submit.cc takes
// requests on the caller's thread, engine_loop.cc is the engine's own thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "galley/engine/engine.h"
#include "galley/engine/executor.h"

namespace galley::engine {

struct Arrival {
  sched::Request request;
  std::shared_ptr<const DrawContext> context;
  EventSink sink;
};

// A request that has not ended, as the engine's thread keeps it.
struct Live {
  std::shared_ptr<const DrawContext> context;
  EventSink sink;
  // Tokens drawn but not yet reported, by branch: the scheduler decides which of them count.
  std::map<int, std::deque<Result<GeneratedToken>>> drawn;
  std::map<int, Error> failed;  // branches whose draw failed
};

struct Engine::Impl {
  Impl(LoadedModel model, const EngineOptions& in) : loaded(std::move(model)), options(in) {}

  // --- Shared between threads, guarded by mutex ---
  mutable std::mutex mutex;
  std::condition_variable wake;  // of the engine's thread
  std::condition_variable drained;
  std::deque<Arrival> arrivals;
  std::deque<RequestId> cancellations;
  bool outcome_ready = false;
  bool closed = false;  // takes no more requests
  bool stopping = false;
  std::int64_t next_id = 0;
  std::int64_t open_requests = 0;
  EngineStats stats;

  // --- The engine's thread only ---
  LoadedModel loaded;
  EngineOptions options;
  std::unique_ptr<sched::Scheduler> scheduler;
  std::unique_ptr<Executor> executor;
  std::unordered_map<RequestId, Live> live;
  std::deque<sched::StepPlan> in_flight;
  std::thread thread;

  [[nodiscard]] static sched::TimeUs Now() {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  void Loop();
  void TakeEvents();
  void TakeOutcome(StepOutcome outcome);
  [[nodiscard]] StepJob MakeJob(const sched::StepPlan& plan) const;
  void Report();
  void ReportFinished(const sched::Finished& event);
  void UpdateStats();
};

}  // namespace galley::engine
