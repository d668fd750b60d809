// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/engine.h"

#include <fmt/core.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "galley/base/check.h"
#include "galley/base/math.h"
#include "galley/base/rng.h"
#include "galley/engine/executor.h"
#include "galley/engine/logit_rules.h"
#include "galley/engine/token_check.h"
#include "galley/model/config_file.h"
#include "galley/model/model_dir.h"

namespace galley::engine {
namespace {

constexpr int kBranchesMax = 128;

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

Status CheckRequest(const EngineRequest& request, const model::Config& config, std::int64_t max_seq_len) {
  const auto check = [](std::string_view field, std::int64_t value, std::int64_t low, std::int64_t high) -> Status {
    if (value >= low && value <= high) return {};
    return Err(ErrorCode::kInvalidArgument, fmt::format("{} is outside {} … {}", value, low, high), std::string(field));
  };
  RETURN_IF_ERROR(request.sampling.Validate());
  RETURN_IF_ERROR(ValidateRules(request.rules, config.vocab_size));
  const auto length = static_cast<std::int64_t>(request.prompt_ids.size());
  if (length == 0) return Err(ErrorCode::kInvalidArgument, "the prompt has no tokens", "prompt_ids");
  RETURN_IF_ERROR(check("prompt_ids", length, 1, max_seq_len));
  RETURN_IF_ERROR(check("max_tokens", request.max_tokens, 1, 1 << 30));
  RETURN_IF_ERROR(check("min_tokens", request.min_tokens, 0, request.max_tokens));
  RETURN_IF_ERROR(check("n", request.n, 1, kBranchesMax));
  Position before = 0;
  for (const Position point : request.snapshot_points) {
    RETURN_IF_ERROR(check("snapshot_points", point, before + 1, length));
    before = point;
  }
  RETURN_IF_ERROR(CheckPromptIds(request.prompt_ids, config, "prompt_ids"));
  RETURN_IF_ERROR(CheckVocabulary(request.stop_ids, config, "stop_ids"));
  if (!(request.deadline_s >= 0 && request.deadline_s < 1e9)) {
    return Err(ErrorCode::kInvalidArgument, fmt::format("{} is outside [0, 1e9)", request.deadline_s), "deadline_s");
  }
  return {};
}

kv::ReplaySpec ReplayFor(const EngineOptions& options, const model::Config& config) {
  kv::ReplaySpec spec;
  spec.window = config.window_size;
  spec.backtrack = config.dspark.n_stages > 0 ? config.dspark.block_size : 0;
  spec.encoder_layers = config.decoder_start();
  spec.layers = config.n_layers;
  spec.mode = options.replay;
  spec.truncation = options.decoder_keep > 0 ? kv::Truncation::kCompact : kv::Truncation::kOff;
  if (options.decoder_keep > 0) spec.keep = options.decoder_keep;
  return spec;
}

// A restored sequence restarts at most snapshot_depth rows before the snapshot's position: without truncation in every
// layer, with it in the encoder only, because the tail that it runs through the decoder is a new one.
model::RewindRows RewindFor(const kv::ReplaySpec& replay, int snapshots) {
  if (snapshots == 0) return {};
  return {.encoder = replay.snapshot_depth(), .decoder = replay.truncates() ? 0 : replay.snapshot_depth()};
}

std::vector<Position> SnapshotPoints(std::span<const TokenId> prompt, std::optional<TokenId> assistant) {
  const auto last = assistant ? std::find(prompt.rbegin(), prompt.rend(), *assistant) : prompt.rend();
  if (last == prompt.rend()) return {};
  return {static_cast<Position>(prompt.rend() - last)};
}

}  // namespace

std::uint64_t BranchSeed(std::uint64_t seed, int branch) {
  return branch == 0 ? seed : MixBits(seed + MixBits(static_cast<std::uint64_t>(branch)));
}

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
  std::optional<TokenId> assistant_id;  // ends a prompt; constant
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

void Engine::Impl::TakeEvents() {
  std::deque<Arrival> arrived;
  std::deque<RequestId> cancelled;
  bool end_all = false;
  {
    std::lock_guard lock(mutex);
    arrived.swap(arrivals);
    cancelled.swap(cancellations);
    outcome_ready = false;
    end_all = stopping;
  }
  for (Arrival& arrival : arrived) {
    live.emplace(arrival.request.id, Live{std::move(arrival.context), std::move(arrival.sink), {}, {}});
    scheduler->Arrive(std::move(arrival.request), Now());
  }
  for (const RequestId id : cancelled) scheduler->Cancel(id);
  if (end_all) {
    for (const auto& [id, request] : live) scheduler->Cancel(id);
  }
}

StepJob Engine::Impl::MakeJob(const sched::StepPlan& plan) const {
  StepJob job{.plan = plan, .prefill_tokens = {}, .prefill_earlier = {}, .draws = {}};
  const Position look_back = std::max(0, loaded.config().engram.max_ngram_size - 1);
  for (const sched::SequenceRows& rows : plan.prefill) {
    const sched::Sequence* sequence = scheduler->Find(rows.sequence);
    CHECK(sequence != nullptr) << "a planned sequence is not live";
    const Position earlier = std::min(look_back, rows.begin);
    const auto first = sequence->tokens.begin() + (rows.begin - earlier);
    job.prefill_tokens.emplace_back(first, first + earlier + rows.rows);
    job.prefill_earlier.push_back(static_cast<int>(earlier));
  }
  for (const sched::SequenceId id : plan.draws) {
    const sched::Sequence* sequence = scheduler->Find(id);
    CHECK(sequence != nullptr) << "a planned draw has no live sequence";
    const auto found = live.find(sequence->owner->request.id);
    CHECK(found != live.end()) << "a planned draw has no request";
    // pending_most counts this draw too; nothing before it means that the sequence has not drawn at all.
    const bool first = sequence->generated() == 0 && sequence->pending_most <= 1;
    job.draws.push_back({.context = found->second.context, .branch = sequence->branch, .first = first});
  }
  return job;
}

void Engine::Impl::TakeOutcome(StepOutcome outcome) {
  const sched::StepPlan plan = std::move(in_flight.front());
  in_flight.pop_front();
  CHECK(plan.id == outcome.step) << "step " << outcome.step << " ended before step " << plan.id;
  if (!outcome.status) {
    ++stats.steps_failed;
    scheduler->Fail(outcome.step, outcome.status.error());
    return;
  }
  for (std::size_t i = 0; i < plan.draws.size(); ++i) {
    const sched::Sequence* sequence = scheduler->Find(plan.draws[i]);
    if (sequence == nullptr) continue;  // ended while the step ran; the scheduler drops the draw as well
    const auto found = live.find(sequence->owner->request.id);
    if (found == live.end()) continue;
    if (!outcome.tokens[i]) found->second.failed[sequence->branch] = outcome.tokens[i].error();
    found->second.drawn[sequence->branch].push_back(std::move(outcome.tokens[i]));
  }
  scheduler->Advance(outcome.done);
}

void Engine::Impl::ReportFinished(const sched::Finished& event) {
  const auto found = live.find(event.request);
  if (found == live.end()) return;
  FinishedEvent out{
      .branch = event.branch, .reason = event.reason, .request_done = event.request_done, .error = event.error};
  if (const auto failed = found->second.failed.find(event.branch); failed != found->second.failed.end()) {
    out.reason = sched::FinishReason::kError;
    out.error = failed->second;
  }
  found->second.sink(out);
  if (!event.request_done) return;
  live.erase(found);
  std::lock_guard lock(mutex);
  --open_requests;
  drained.notify_all();
}

// Turns what the scheduler reports into events of the requests.
void Engine::Impl::Report() {
  const sched::OutputBatch batch = scheduler->outputs();
  scheduler->ClearOutputs();
  for (const sched::Started& event : batch.started) {
    const auto found = live.find(event.request);
    if (found == live.end()) continue;
    found->second.sink(StartedEvent{.waited_s = static_cast<double>(event.waited_us) * 1e-6,
                                    .kind = std::string(kv::Label(event.kind)),
                                    .cached_tokens = event.cached_tokens,
                                    .replayed_tokens = event.replayed_tokens,
                                    .hit_limit = std::string(kv::Label(event.limit))});
  }
  for (const sched::Tokens& event : batch.tokens) {
    const auto found = live.find(event.request);
    if (found == live.end()) continue;
    auto& drawn = found->second.drawn[event.branch];
    for (int i = 0; i < event.count; ++i) {
      CHECK(!drawn.empty()) << "the scheduler reports a token that was not drawn";
      Result<GeneratedToken> token = std::move(drawn.front());
      drawn.pop_front();
      if (token) found->second.sink(TokenEvent{.branch = event.branch, .token = std::move(*token)});
    }
  }
  for (const sched::Finished& event : batch.finished) ReportFinished(event);
}

void Engine::Impl::UpdateStats() {
  std::lock_guard lock(mutex);
  stats.scheduler = scheduler->stats();
  stats.running = scheduler->running();
  stats.waiting = scheduler->waiting();
}

void Engine::Impl::Loop() {
  while (true) {
    TakeEvents();
    while (std::optional<StepOutcome> outcome = executor->Take()) TakeOutcome(std::move(*outcome));
    bool planned = false;
    if (const sched::StepPlan* plan = scheduler->Next(Now()); plan != nullptr) {
      in_flight.push_back(*plan);
      executor->Enqueue(MakeJob(*plan));
      planned = true;
    }
    Report();
    UpdateStats();
    if (planned) continue;

    std::unique_lock lock(mutex);
    if (stopping && in_flight.empty()) return;
    const auto ready = [this] {
      return outcome_ready || !arrivals.empty() || !cancellations.empty() || (stopping && in_flight.empty());
    };
    if (const std::optional<sched::TimeUs> timer = scheduler->next_timer()) {
      wake.wait_for(lock, std::chrono::microseconds(std::max<sched::TimeUs>(*timer - Now(), 0)), ready);
    } else {
      wake.wait(lock, ready);
    }
  }
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->closed = true;
    impl_->stopping = true;
  }
  impl_->wake.notify_all();
  if (impl_->thread.joinable()) impl_->thread.join();
  impl_->executor.reset();
}

Result<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  RETURN_IF_ERROR(model::CheckModelDir(options.model_dir));
  ASSIGN_OR_RETURN(const model::LoadedConfig config, model::LoadConfig(options.model_dir));
  const kv::ReplaySpec replay = ReplayFor(options, config.config);
  RETURN_IF_ERROR(replay.Validate());
  ASSIGN_OR_RETURN(LoadedModel loaded, LoadedModel::Load({.model_dir = options.model_dir,
                                                          .backend = options.backend,
                                                          .threads = options.threads,
                                                          .rows_max = options.step_rows_max,
                                                          .logit_rows_max = options.max_seqs,
                                                          .sequences_max = options.max_seqs,
                                                          .blocks = options.blocks,
                                                          .drafts = false,
                                                          .rewind = RewindFor(replay, options.snapshots),
                                                          .window_places = 0,
                                                          .max_seq_len = options.max_seq_len,
                                                          .longest = 0}));
  auto impl = std::make_unique<Impl>(std::move(loaded), options);
  impl->assistant_id = impl->loaded.tokenizer().AddedIdOf("<｜Assistant｜>");
  sched::SchedulerOptions scheduling;
  scheduling.blocks = impl->loaded.state().blocks();
  scheduling.slots = options.max_seqs;
  scheduling.snapshots = options.snapshots;
  scheduling.step_rows_max = options.step_rows_max;
  scheduling.steps_in_flight_max = options.synchronous ? 1 : 2;
  scheduling.max_seq_len = impl->loaded.max_seq_len();
  scheduling.itl_target_us = static_cast<sched::TimeUs>(options.itl_target_s * 1e6);
  scheduling.queue_max = options.queue_max;
  scheduling.replay = replay;
  ASSIGN_OR_RETURN(impl->scheduler, sched::Scheduler::Create(scheduling));
  Impl* shared = impl.get();
  impl->executor = std::make_unique<Executor>(impl->loaded, options.max_seqs, options.snapshots, [shared] {
    {
      std::lock_guard lock(shared->mutex);
      shared->outcome_ready = true;
    }
    shared->wake.notify_all();
  });
  RETURN_IF_ERROR(impl->executor->Prepare());
  impl->thread = std::thread([shared] { shared->Loop(); });
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

const model::Config& Engine::config() const {
  return impl_->loaded.config();
}
const text::Tokenizer& Engine::tokenizer() const {
  return impl_->loaded.tokenizer();
}

Result<RequestId> Engine::Submit(EngineRequest request, EventSink sink) {
  RETURN_IF_ERROR(CheckRequest(request, config(), impl_->loaded.max_seq_len()));
  const kv::ReplaySpec& replay = impl_->scheduler->options().replay;
  const std::string dir = impl_->options.model_dir.string();
  const kv::BlockKey root = kv::RootKey({.model = "deepseek-v4.1",
                                         .weights_digest = dir,
                                         .tokenizer_digest = dir,
                                         .layout = "galley-1",
                                         .dtype = "fp4-e4m3,fp4-ue8m0",
                                         .numeric_class = kv::NumericClass(replay),
                                         .shard = "",
                                         .salt = request.cache_salt});
  Arrival arrival;
  arrival.request.keys = kv::MakeKeyChain(root, request.prompt_ids);
  arrival.request.prompt = request.prompt_ids;
  arrival.request.max_tokens = request.max_tokens;
  arrival.request.n = request.n;
  arrival.request.priority = request.priority;
  arrival.request.use_cache = request.use_cache;
  if (impl_->options.snapshots > 0) {
    arrival.request.snapshot_points = request.snapshot_points.empty()
                                          ? SnapshotPoints(request.prompt_ids, impl_->assistant_id)
                                          : std::move(request.snapshot_points);
    arrival.request.snapshot_at_end = request.output_is_kept;
  }
  if (request.deadline_s > 0) {
    arrival.request.deadline_us = Impl::Now() + static_cast<sched::TimeUs>(request.deadline_s * 1e6);
  }
  arrival.context = std::make_shared<const DrawContext>(DrawContext{.prompt = std::move(request.prompt_ids),
                                                                    .sampling = request.sampling,
                                                                    .rules = std::move(request.rules),
                                                                    .min_tokens = request.min_tokens,
                                                                    .stop_ids = std::move(request.stop_ids)});
  arrival.sink = std::move(sink);
  RequestId id;
  {
    std::lock_guard lock(impl_->mutex);
    if (impl_->closed) return Err(ErrorCode::kUnavailable, "the engine takes no more requests; it is shutting down");
    id = RequestId(impl_->next_id++);
    ++impl_->open_requests;
    arrival.request.id = id;
    impl_->arrivals.push_back(std::move(arrival));
  }
  impl_->wake.notify_all();
  return id;
}

void Engine::Cancel(RequestId request) {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->cancellations.push_back(request);
  }
  impl_->wake.notify_all();
}

EngineStats Engine::stats() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

void Engine::Drain() {
  std::unique_lock lock(impl_->mutex);
  impl_->closed = true;
  impl_->drained.wait(lock, [this] { return impl_->open_requests == 0; });
}

Result<std::vector<EngineResult>> Engine::Generate(std::vector<EngineRequest> requests) {
  std::vector<EngineResult> results(requests.size());
  std::mutex mutex;
  std::condition_variable done;
  std::size_t open = requests.size();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EngineResult& result = results[i];
    result.branches.resize(static_cast<std::size_t>(std::max(requests[i].n, 0)));
    const auto sink = [&result, &mutex, &done, &open](const EngineEvent& event) {
      if (const auto* started = std::get_if<StartedEvent>(&event)) {
        result.start = *started;
      } else if (const auto* token = std::get_if<TokenEvent>(&event)) {
        result.branches[static_cast<std::size_t>(token->branch)].tokens.push_back(token->token);
      } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
        BranchResult& branch = result.branches[static_cast<std::size_t>(finished->branch)];
        branch.reason = finished->reason;
        branch.error = finished->error;
        if (!finished->request_done) return;
        std::lock_guard lock(mutex);
        --open;
        done.notify_all();
      }
    };
    const Result<RequestId> id = Submit(std::move(requests[i]), sink);
    if (!id) {
      for (BranchResult& branch : result.branches) branch = {{}, sched::FinishReason::kError, id.error()};
      std::lock_guard lock(mutex);
      --open;
    }
  }
  std::unique_lock lock(mutex);
  done.wait(lock, [&open] { return open == 0; });
  return results;
}

}  // namespace galley::engine
