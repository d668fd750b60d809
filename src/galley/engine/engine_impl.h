// SPDX-License-Identifier: Apache-2.0
// What an Engine consists of. Private to the engine's sources: engine.cc makes and ends it, engine_submit.cc takes
// requests on the caller's thread, engine_loop.cc is the engine's own thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "galley/engine/banned_words.h"
#include "galley/engine/branch_text.h"
#include "galley/engine/engine.h"
#include "galley/engine/executor.h"
#include "galley/engine/model_digest.h"

namespace galley::engine {

inline constexpr int kBranchesMax = 128;  // n of one request

struct Arrival {
  sched::Request request;
  std::shared_ptr<const DrawContext> context;
  EventSink sink;
};

// One branch of a request that has not ended. Tokens were drawn but not yet reported: the scheduler decides which of
// them count.
struct LiveBranch {
  LiveBranch(const text::Tokenizer& tokenizer, std::shared_ptr<const DrawContext> context)
      : text(tokenizer, std::move(context)) {}

  BranchText text;
  std::vector<TokenEvent> drawn;
  std::size_t reported = 0;  // of drawn
  SpeculationCounts speculation;
  std::optional<Error> failed;  // a draw failed
  bool finished = false;        // its terminal event is out
};

// A request that has not ended, as the engine's thread keeps it.
struct Live {
  std::shared_ptr<const DrawContext> context;
  EventSink sink;
  std::vector<LiveBranch> branches;  // [n]
  Position scored = 1;               // prompt positions below it have been reported with their log-probabilities
};

struct Engine::Impl {
  Impl(LoadedModel model, const EngineOptions& in) : loaded(std::move(model)), options(in) {}

  // --- Shared between threads, guarded by mutex ---
  mutable std::mutex mutex;
  std::condition_variable wake;  // of the engine's thread
  std::condition_variable request_ended;
  std::vector<Arrival> arrivals;
  std::vector<RequestId> cancellations;
  bool outcome_ready = false;
  bool closed = false;  // takes no more requests
  bool cancel_all = false;
  bool stopping = false;
  bool clear_cache = false;
  std::int64_t next_id = 0;
  std::int64_t open_requests = 0;  // whose last event has not returned from its sink
  std::int64_t room_taken = 0;     // as open_requests, but less before the last event: who gets it finds room
  EngineStats stats;
  // Made by the first request that bans words.
  std::once_flag sort_tokens;
  std::unique_ptr<const TokensByBytes> tokens_by_bytes;

  // --- The engine's thread only ---
  LoadedModel loaded;
  EngineOptions options;
  ModelDigest digest;
  std::optional<TokenId> assistant_id;  // ends a prompt; constant
  std::unique_ptr<sched::Scheduler> scheduler;
  std::unique_ptr<Executor> executor;
  std::unordered_map<RequestId, Live> live;
  int steps_failed = 0;
  std::vector<Arrival> arrived;      // scratch of TakeEvents
  std::vector<RequestId> cancelled;  // likewise
  SpeculationCounts speculation;
  int draft_budget = 0;  // as in EngineStats
  std::int64_t draft_budgets = 0;
  double draft_saved_s = 0;
  std::thread thread;

  [[nodiscard]] static sched::TimeUs Now() {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  // Whether one more request may come: those that run, one sequence each, and those that wait. Requires the mutex.
  [[nodiscard]] bool HasRoom() const { return room_taken < std::int64_t{options.queue_max} + options.max_seqs; }

  // engine_submit.cc: whether a request may come now. Requires the mutex. Errors: kUnavailable, kResourceExhausted.
  [[nodiscard]] Status CheckOpen() const;
  // Of block keys. The salt keeps tenants apart.
  [[nodiscard]] kv::BlockKey RootKey(std::string_view salt) const;
  // engine_submit.cc: what the draws and the text need, taken out of the request.
  [[nodiscard]] Result<std::shared_ptr<const DrawContext>> MakeContext(EngineRequest& request);

  // engine_loop.cc
  void Loop();
  void TakeEvents();
  void TakeOutcome(Step& step);
  // Text of the tokens of one draw; cuts the draw where a stop string ends.
  void TakeDraw(const sched::Sequence& sequence, sched::DrawResult& draw, std::span<Result<GeneratedToken>> tokens);
  void ReportPrefill(const sched::StepPlan& plan);
  void CountDrafts(const sched::Sequence& sequence, const sched::DrawResult& draw, const StepOutcome::Drafts& drafts);
  static void ReportScores(Live& request, PromptEvent event);
  void FillJob(const sched::StepPlan& plan, StepJob& job) const;
  void Report();
  void ReportFinished(const sched::Finished& event);
  static void FinishBranch(Live& request, const sched::Finished& event);
  void UpdateStats();
};

}  // namespace galley::engine
