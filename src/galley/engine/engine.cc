// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/engine.h"

#include <algorithm>

#include "galley/base/log.h"
#include "galley/base/range.h"
#include "galley/engine/engine_impl.h"
#include "galley/model/config_file.h"
#include "galley/model/model_dir.h"

namespace galley::engine {
namespace {

constexpr std::int64_t kQueueMax = 1 << 28;  // requests

kv::ReplaySpec ReplayFor(const EngineOptions& options, const SpeculationOptions& speculation,
                         const model::Config& config) {
  kv::ReplaySpec spec;
  spec.window = config.window_size;
  spec.backtrack = std::max(speculation.draft_tokens, config.dspark.n_stages > 0 ? config.dspark.block_size : 0);
  spec.encoder_layers = config.decoder_start();
  spec.layers = config.n_layers;
  spec.mode = options.replay;
  spec.truncation = options.decoder_keep > 0 ? kv::Truncation::kCompact : kv::Truncation::kOff;
  if (options.decoder_keep > 0) spec.keep = options.decoder_keep;
  return spec;
}

// Adds an event to what came of its request so far.
void Collect(const EngineEvent& event, EngineResult& result) {
  if (const auto* started = std::get_if<StartedEvent>(&event)) {
    result.start = *started;
  } else if (const auto* prompt = std::get_if<PromptEvent>(&event)) {
    result.prompt_logprobs.insert(result.prompt_logprobs.end(), prompt->tokens.begin(), prompt->tokens.end());
  } else if (const auto* token = std::get_if<TokenEvent>(&event)) {
    BranchResult& branch = result.branches[static_cast<std::size_t>(token->branch)];
    branch.tokens.push_back(token->token);
    branch.text += token->text;
  } else if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
    BranchResult& branch = result.branches[static_cast<std::size_t>(finished->branch)];
    branch.reason = finished->reason;
    branch.error = finished->error;
    branch.text += finished->text;
    branch.stop_string = finished->stop_string;
    branch.stop_id = finished->stop_id;
    branch.speculation = finished->speculation;
  }
}

// A restored sequence restarts at most snapshot_depth rows before the snapshot's position: without truncation in every
// layer, with it in the encoder only, because the tail that it runs through the decoder is a new one.
model::RewindRows RewindFor(const kv::ReplaySpec& replay, int snapshots, int drafts) {
  if (snapshots == 0) return {.encoder = 0, .decoder = 0, .drafts = drafts};
  return {.encoder = replay.snapshot_depth(),
          .decoder = replay.truncates() ? 0 : replay.snapshot_depth(),
          .drafts = drafts};
}

// Options that depend on the model.
struct Resolved {
  SpeculationOptions speculation;
  kv::ReplaySpec replay;
};

Result<Resolved> Resolve(const EngineOptions& options, const model::Config& config) {
  Resolved resolved;
  ASSIGN_OR_RETURN(resolved.speculation, options.speculation.Resolve(config));
  resolved.replay = ReplayFor(options, resolved.speculation, config);
  RETURN_IF_ERROR(resolved.replay.Validate());
  return resolved;
}

LoadOptions LoadOptionsFor(const EngineOptions& options, const Resolved& resolved) {
  const SpeculationOptions& speculation = resolved.speculation;
  return {.model_dir = options.model_dir,
          .device = options.device,
          .rows_max = options.step_rows_max,
          .logit_rows_max = options.max_seqs * (1 + speculation.draft_tokens),
          .sequences_max = options.max_seqs,
          .blocks = options.blocks,
          .drafts = speculation.draft_tokens > 0 && speculation.mode != SpeculationMode::kNgram,
          .rewind = RewindFor(resolved.replay, options.snapshots, speculation.draft_tokens),
          .window_places = 0,
          .max_seq_len = options.max_seq_len,
          .grammar_cache = options.grammar_cache,
          .longest = 0,
          .snapshots = options.snapshots,
          .memory_limit = options.memory_limit,
          .on_load = options.on_load,
          .wrap_backend = options.wrap_backend};
}

}  // namespace

Result<MemoryPlan> PlanMemory(const EngineOptions& options, const model::Config& config) {
  ASSIGN_OR_RETURN(const Resolved resolved, Resolve(options, config));
  ASSIGN_OR_RETURN(const Sizing sizing, SizeFor(LoadOptionsFor(options, resolved), config));
  return PlanMemory(config, sizing.memory);
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->closed = true;
    impl_->cancel_all = true;
    impl_->stopping = true;
  }
  impl_->wake.notify_all();
  if (impl_->thread.joinable()) impl_->thread.join();
  impl_->executor.reset();
}

Result<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  RETURN_IF_ERROR(CheckRange("queue_max", options.queue_max, 0, kQueueMax));
  RETURN_IF_ERROR(CheckRealRange("itl_target_s", options.itl_target_s, 0, 1000));
  RETURN_IF_ERROR(model::CheckModelDir(options.model_dir));
  ASSIGN_OR_RETURN(const model::LoadedConfig config, model::LoadConfig(options.model_dir));
  ASSIGN_OR_RETURN(const Resolved resolved, Resolve(options, config.config));
  ASSIGN_OR_RETURN(LoadedModel loaded, LoadedModel::Load(LoadOptionsFor(options, resolved)));
  auto impl = std::make_unique<Impl>(std::move(loaded), options);
  ASSIGN_OR_RETURN(impl->digest, DigestModel(options.model_dir));
  impl->assistant_id = impl->loaded.tokenizer().AddedIdOf("<｜Assistant｜>");
  sched::SchedulerOptions scheduling;
  scheduling.blocks = impl->loaded.state().blocks();
  scheduling.slots = options.max_seqs;
  scheduling.snapshots = options.snapshots;
  scheduling.step_rows_max = options.step_rows_max;
  scheduling.drafts = resolved.speculation.draft_tokens;
  scheduling.steps_in_flight_max = options.synchronous ? 1 : 2;
  // The last token of a sequence is never run, so it needs no position.
  scheduling.max_seq_len = impl->loaded.max_seq_len() + 1;
  // Small steps keep room for one decode with its drafts.
  scheduling.prefill_rows_min =
      std::clamp(options.step_rows_max - 1 - scheduling.drafts, 1, scheduling.prefill_rows_min);
  scheduling.itl_target_us = static_cast<sched::TimeUs>(options.itl_target_s * 1e6);
  // Submit keeps to the limit; the scheduler cannot tell yet which of those that arrive together will run at once.
  scheduling.queue_max = options.queue_max + options.max_seqs;
  scheduling.replay = resolved.replay;
  ASSIGN_OR_RETURN(impl->scheduler, sched::Scheduler::Create(scheduling));
  Impl* shared = impl.get();
  impl->executor = std::make_unique<Executor>(impl->loaded,
                                              ExecutorOptions{.slots = options.max_seqs,
                                                              .snapshots = options.snapshots,
                                                              .steps = scheduling.steps_in_flight_max,
                                                              .speculation = resolved.speculation,
                                                              .model_dir = options.model_dir},
                                              [shared] {
                                                {
                                                  std::lock_guard lock(shared->mutex);
                                                  shared->outcome_ready = true;
                                                }
                                                shared->wake.notify_all();
                                              });
  RETURN_IF_ERROR(impl->executor->Prepare());
  log::Info("{}", ToText(impl->loaded.memory_plan(), MemoryLimit(options.memory_limit)));
  impl->UpdateStats();  // what there is can be asked before the first step
  impl->thread = std::thread([shared] { shared->Loop(); });
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

const model::Config& Engine::config() const {
  return impl_->loaded.config();
}
const text::Tokenizer& Engine::tokenizer() const {
  return impl_->loaded.tokenizer();
}
const MemoryPlan& Engine::memory_plan() const {
  return impl_->loaded.memory_plan();
}
const Compute& Engine::compute() const {
  return impl_->loaded.compute();
}
std::int64_t Engine::memory_limit() const {
  return MemoryLimit(impl_->options.memory_limit);
}

std::int64_t Engine::max_seq_len() const {
  return impl_->loaded.max_seq_len();
}

void Engine::ClearCache() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->clear_cache = true;
  }
  impl_->wake.notify_all();
}

EngineStats Engine::stats() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

void Engine::Stop() {
  std::unique_lock lock(impl_->mutex);
  impl_->closed = true;
  impl_->cancel_all = true;
  impl_->wake.notify_all();
  impl_->request_ended.wait(lock, [this] { return impl_->open_requests == 0; });
}

void Engine::Drain() {
  std::unique_lock lock(impl_->mutex);
  impl_->closed = true;
  impl_->request_ended.wait(lock, [this] { return impl_->open_requests == 0; });
}

Result<std::vector<EngineResult>> Engine::Generate(std::vector<EngineRequest> requests) {
  std::vector<EngineResult> results(requests.size());
  std::mutex mutex;
  std::condition_variable done;
  std::size_t open = requests.size();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EngineResult& result = results[i];
    result.branches.resize(static_cast<std::size_t>(std::clamp(requests[i].n, 1, kBranchesMax)));
    const auto sink = [&result, &mutex, &done, &open](const EngineEvent& event) {
      Collect(event, result);
      const auto* finished = std::get_if<FinishedEvent>(&event);
      if (finished == nullptr || !finished->request_done) return;
      std::lock_guard lock(mutex);
      --open;
      done.notify_all();
    };
    Result<RequestId> id = Submit(requests[i], sink);
    while (!id && id.error().code == ErrorCode::kResourceExhausted) {
      {
        std::unique_lock lock(impl_->mutex);
        impl_->request_ended.wait(lock, [this] { return impl_->HasRoom() || impl_->closed; });
      }
      id = Submit(requests[i], sink);
    }
    if (id) continue;
    for (BranchResult& branch : result.branches) {
      branch.reason = sched::FinishReason::kError;
      branch.error = id.error();
    }
    std::lock_guard lock(mutex);
    --open;
  }
  std::unique_lock lock(mutex);
  done.wait(lock, [&open] { return open == 0; });
  return results;
}

}  // namespace galley::engine
