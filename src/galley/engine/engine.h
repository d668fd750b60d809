// SPDX-License-Identifier: Apache-2.0
// The engine: many requests at once over one model. Submit, Cancel and stats may be called from any thread; events
// arrive on the engine's own thread, in order, and exactly one terminal event ends each branch of a request. Times are
// seconds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "galley/base/error.h"
#include "galley/base/strong_id.h"
#include "galley/engine/constraint.h"
#include "galley/engine/device_options.h"
#include "galley/engine/generator.h"
#include "galley/engine/memory_plan.h"
#include "galley/engine/speculation.h"
#include "galley/engine/stop_strings.h"  // limits of stop_strings and banned_words
#include "galley/io/weight_file.h"
#include "galley/kv/block_key.h"
#include "galley/kv/replay.h"
#include "galley/sched/scheduler.h"

namespace galley::backend {
class Backend;
}

namespace galley::engine {

struct EngineOptions {
  std::filesystem::path model_dir;
  DeviceOptions device = {};
  std::int64_t max_seq_len = 0;    // 0: what the config states
  int max_seqs = 16;               // sequences that run at once
  int step_rows_max = 512;         // rows of one step, prompts and decodes together
  std::int64_t grammar_cache = 0;  // bytes of the caller's GrammarCompiler, which the memory plan counts
  int blocks = 0;                  // history blocks of 128 tokens; 0: enough for max_seqs sequences of max_seq_len
  int snapshots = 0;               // saved slots, kept where a next turn will match; 0: off
  kv::ReplayMode replay = kv::ReplayMode::kBounded;
  int decoder_keep = 0;        // decoder truncation: prompt rows that run the decoder layers; 0: all
  double itl_target_s = 0.05;  // predicted step time that prefill chunks are cut to while sequences decode
  int queue_max = 4096;
  SpeculationOptions speculation;
  std::int64_t memory_limit = 0;  // bytes that the memory plan may take; 0: what the process may use
  // Told how much of the weights has been copied, if the backend copies them, and (0, 0) before; false ends Create with
  // kCancelled. Runs on the thread that calls Create.
  io::Progress on_load = {};
  // Puts something around the backend, for tests and tracing; empty: nothing.
  std::function<std::unique_ptr<backend::Backend>(std::unique_ptr<backend::Backend>)> wrap_backend = {};
  bool synchronous = false;  // plan a step only when the one before has ended; same tokens, for debugging
};

// The memory plan of an engine with these options, without loading anything; model_dir is not read. Errors:
// kInvalidArgument naming an option.
[[nodiscard]] Result<MemoryPlan> PlanMemory(const EngineOptions& options, const model::Config& config);

// Changes to the logits before a draw, in this order: ids that must not come, bias, repetition, frequency and presence.
struct LogitRules {
  std::vector<std::pair<TokenId, float>> bias = {};
  std::vector<TokenId> allowed_ids = {};  // empty: every id
  std::vector<TokenId> banned_ids = {};
  double repetition_penalty = 1.0;  // over prompt and output: positive logits are divided, negative multiplied
  double frequency_penalty = 0.0;   // times the count in the output
  double presence_penalty = 0.0;    // once for each token in the output
};

inline constexpr std::int64_t kStopIdsMax = 1024;

struct EngineRequest {
  std::vector<TokenId> prompt_ids;
  SamplingParams sampling;
  LogitRules rules;
  int max_tokens = 256;
  int min_tokens = 0;  // stop ids cannot be drawn before, and text before is not searched for stop strings
  std::vector<TokenId> stop_ids = {};
  std::vector<std::string> stop_strings = {};      // end the text before them, wherever tokens begin and end
  std::optional<TokenId> stop_strings_after = {};  // searched for only behind this token: behind the reasoning, say
  std::vector<std::string> banned_words = {};      // strings that the output never holds
  std::shared_ptr<const TokenConstraint> constraint = {};  // in its start state; see constraint.h
  // -1: none; else log-probabilities of the prompt's tokens, each given those before it, and of this many alternatives,
  // up to 20. Every prompt row then runs all layers and no prefix is looked up.
  int prompt_logprobs = -1;
  int n = 1;  // branches that share the prompt; branch j draws with BranchSeed(seed, j)
  int priority = 0;
  double deadline_s = 0;  // from now; 0: none
  bool use_cache = true;
  bool report_prefill = false;  // send PrefillEvents
  // Prompt lengths at which a next turn will match, ascending; empty: after the prompt's last <｜Assistant｜>, since
  // later prompts drop the reasoning that follows. For engines with snapshots.
  std::vector<Position> snapshot_points = {};
  bool output_is_kept = false;  // the next turn will hold the whole output: a snapshot is taken at its end too
  std::string cache_salt = {};  // requests share cached prefixes only with equal salts
};

// The backend that a name stands for: "cpu" for "auto", else the name itself.
[[nodiscard]] std::string_view BackendName(std::string_view asked);

// Seed of a branch: the request's own for branch 0.
[[nodiscard]] std::uint64_t BranchSeed(std::uint64_t seed, int branch);

struct StartedEvent {
  double waited_s = 0;
  std::string kind;                  // of start: cold, bounded, exact, snapshot
  std::int64_t cached_tokens = 0;    // prompt tokens whose history was found
  std::int64_t replayed_tokens = 0;  // of those, run again to rebuild state
  std::string hit_limit;             // why no more were found
};
// Log-probabilities of prompt tokens, in order and each once, before the first token that is drawn; in as many events
// as the prompt had chunks.
struct PromptEvent {
  Position first = 1;  // of tokens[0]; position 0 has nothing before it and so no probability
  std::vector<GeneratedToken> tokens = {};
};
// How far the prompt has got, after each of its chunks; only with EngineRequest::report_prefill.
struct PrefillEvent {
  Position done = 0;
  Position total = 0;
};
// The texts of a branch's events joined are its output: valid UTF-8, without stop ids, up to the stop string. What may
// still become part of one, or is half a character, is held back until later events.
struct TokenEvent {
  int branch = 0;
  GeneratedToken token;
  std::string text = {};  // that became certain with this token
};
struct FinishedEvent {
  int branch = 0;
  sched::FinishReason reason = sched::FinishReason::kStop;
  bool request_done = false;                    // no branch is left
  Error error = {};                             // with kError
  std::string text = {};                        // that was held back to the end
  std::optional<std::size_t> stop_string = {};  // index of the one that ended the branch
  std::optional<TokenId> stop_id = {};          // or the id
  SpeculationCounts speculation = {};           // drafts of this branch
};
using EngineEvent = std::variant<StartedEvent, PrefillEvent, PromptEvent, TokenEvent, FinishedEvent>;

// Runs on the engine's thread; must not block and must not call the engine other than Submit and Cancel.
using EventSink = std::function<void(const EngineEvent&)>;

struct BranchResult {
  std::vector<GeneratedToken> tokens;
  std::string text;
  sched::FinishReason reason = sched::FinishReason::kStop;
  Error error;
  std::optional<std::size_t> stop_string;  // as in FinishedEvent
  std::optional<TokenId> stop_id;
  SpeculationCounts speculation;
};
struct EngineResult {
  StartedEvent start;
  std::vector<GeneratedToken> prompt_logprobs;  // of positions 1, 2 and on
  std::vector<BranchResult> branches;
};

struct EngineStats {
  sched::SchedulerStats scheduler;
  SpeculationCounts speculation;
  int draft_budget = 0;            // drafts that the last step was to verify
  std::int64_t draft_budgets = 0;  // of all steps together
  double draft_saved_s = 0;        // time that drafts have saved, by the planner's own cost curve; negative: cost
  int running = 0;
  int waiting = 0;
  int block_tokens = kv::kBlockTokens;
  int blocks_total = 0;
  int blocks_active = 0;  // held by sequences or by a step that runs
  int blocks_cached = 0;  // held by nobody, with content that can be hit
  int steps_failed = 0;
  int slots_free = 0;
};

class Engine {
 public:
  // Errors: those of LoadedModel::Load, among them a memory plan that does not fit; kInvalidArgument naming an option.
  [[nodiscard]] static Result<std::unique_ptr<Engine>> Create(const EngineOptions& options);
  // Ends what is running with kCancelled.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] const model::Config& config() const;
  [[nodiscard]] const text::Tokenizer& tokenizer() const;
  // Longest sequence, prompt and output, in tokens.
  [[nodiscard]] std::int64_t max_seq_len() const;
  // What was taken at start; nothing is added while the engine runs.
  [[nodiscard]] const MemoryPlan& memory_plan() const;
  [[nodiscard]] std::int64_t memory_limit() const;
  [[nodiscard]] const Compute& compute() const;

  // Errors, without any event: kInvalidArgument naming field, value and limit; kResourceExhausted when as many requests
  // wait as may; kUnavailable after Drain or Stop. What is refused later (never fits) comes as FinishedEvents with
  // kError.
  [[nodiscard]] Result<RequestId> Submit(EngineRequest request, EventSink sink);
  void Cancel(RequestId request);
  [[nodiscard]] EngineStats stats() const;
  // Forgets all cached prefixes, soon after the call; running sequences go on with what they hold.
  void ClearCache();
  // Takes no more requests and returns when those accepted have ended.
  void Drain();
  // Takes no more requests, cancels those accepted and returns when they have ended.
  void Stop();

  // Offline: all requests together, as many at once as the queue holds; results in their order.
  [[nodiscard]] Result<std::vector<EngineResult>> Generate(std::vector<EngineRequest> requests);

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace galley::engine
