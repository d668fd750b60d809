// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/generator.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>

#include "galley/base/range.h"
#include "galley/engine/engine.h"
#include "galley/engine/token_check.h"

namespace galley::engine {
namespace {

using Clock = std::chrono::steady_clock;

// Rows that a step needs at least: a prompt's, a decode's, and its drafts'.
constexpr int kStepRowsMin = 8;
// How often a caller who waits for a step is asked whether to go on.
constexpr std::chrono::milliseconds kPoll{20};

double SecondsBetween(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Events of one request, from the engine's thread to the caller's.
class Mailbox {
 public:
  void Put(const EngineEvent& event) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(event);
    }
    changed_.notify_one();
  }
  // Nothing when none came for a while.
  [[nodiscard]] std::optional<EngineEvent> Take() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPoll, [this] { return !events_.empty(); })) return std::nullopt;
    EngineEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<EngineEvent> events_;
};

// One request at a time through an engine. Replay after a prefix hit is exact, so that an answer does not depend on
// what was asked before.
class EngineGenerator final : public Generator {
 public:
  EngineGenerator(std::unique_ptr<Engine> engine, std::int64_t max_seq_len)
      : engine_(std::move(engine)), max_seq_len_(max_seq_len) {}

  [[nodiscard]] const model::Config& config() const override { return engine_->config(); }
  [[nodiscard]] const text::Tokenizer& tokenizer() const override { return engine_->tokenizer(); }
  [[nodiscard]] Result<GenerateResult> Generate(const GenerateRequest& request) override;

 private:
  [[nodiscard]] Status Check(const GenerateRequest& request) const;

  std::unique_ptr<Engine> engine_;
  std::int64_t max_seq_len_;
};

Status EngineGenerator::Check(const GenerateRequest& request) const {
  RETURN_IF_ERROR(request.sampling.Validate());
  RETURN_IF_ERROR(CheckRange("max-tokens", request.max_tokens, 1, 1 << 30));
  if (request.prompt_ids.empty())
    return Err(ErrorCode::kInvalidArgument, "the prompt has no tokens; give some text", "prompt");
  RETURN_IF_ERROR(CheckPromptIds(request.prompt_ids, config(), "prompt"));
  const auto length = static_cast<std::int64_t>(request.prompt_ids.size());
  if (length > max_seq_len_) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("{} tokens do not fit the context of {}; shorten the prompt or raise --max-seq-len", length,
                           max_seq_len_),
               "prompt");
  }
  return {};
}

Result<GenerateResult> EngineGenerator::Generate(const GenerateRequest& request) {
  RETURN_IF_ERROR(Check(request));
  EngineRequest ask;
  ask.prompt_ids = request.prompt_ids;
  ask.sampling = request.sampling;
  // The last token drawn is never run, so one more than the room in the context can be drawn.
  const std::int64_t room = max_seq_len_ - static_cast<std::int64_t>(request.prompt_ids.size()) + 1;
  ask.max_tokens = static_cast<int>(std::min<std::int64_t>(request.max_tokens, room));
  ask.stop_ids = request.stop_ids;
  ask.constraint = request.constraint;
  ask.report_prefill = request.on_prefill != nullptr;

  const auto mailbox = std::make_shared<Mailbox>();
  const Clock::time_point start = Clock::now();
  ASSIGN_OR_RETURN(const RequestId id,
                   engine_->Submit(std::move(ask), [mailbox](const EngineEvent& event) { mailbox->Put(event); }));
  GenerateResult result;
  Clock::time_point first = start;
  std::optional<FinishReason> ended;  // by the caller; what the engine still says is not heard
  const auto end = [&](FinishReason reason) {
    ended = reason;
    engine_->Cancel(id);
  };
  while (true) {
    if (!ended && request.cancelled && request.cancelled()) end(FinishReason::kCancelled);
    const std::optional<EngineEvent> event = mailbox->Take();
    if (!event) continue;
    if (const auto* finished = std::get_if<FinishedEvent>(&*event)) {
      if (!ended && finished->reason == sched::FinishReason::kError) return Err(finished->error);
      if (result.tokens.empty()) first = Clock::now();
      result.timings = {.prefill_s = SecondsBetween(start, first), .decode_s = SecondsBetween(first, Clock::now())};
      result.finish = ended                                              ? *ended
                      : finished->reason == sched::FinishReason::kLength ? FinishReason::kLength
                                                                         : FinishReason::kStop;
      return result;
    }
    if (ended) continue;
    if (const auto* prefill = std::get_if<PrefillEvent>(&*event)) {
      if (request.on_prefill) request.on_prefill(prefill->done, prefill->total);
    } else if (const auto* token = std::get_if<TokenEvent>(&*event)) {
      if (result.tokens.empty()) first = Clock::now();
      result.tokens.push_back(token->token);
      if (request.on_token && !request.on_token(token->token)) end(FinishReason::kStop);
    }
  }
}

}  // namespace

Status SamplingParams::Validate() const {
  RETURN_IF_ERROR(CheckRealRange("temperature", temperature, 0, 100));
  RETURN_IF_ERROR(CheckRealRange("top-p", top_p, 0, 1, /*low_open=*/true));
  RETURN_IF_ERROR(CheckRealRange("min-p", min_p, 0, 1));
  RETURN_IF_ERROR(CheckRange("top-k", top_k, 0, 1 << 30));
  constexpr auto kSeedMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (seed > kSeedMax) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("{} is outside 0 … {}", static_cast<std::int64_t>(seed), kSeedMax), "seed");
  }
  return CheckRange("logprobs", top_logprobs, -1, kTopLogprobsMax);
}

Result<std::unique_ptr<Generator>> Generator::Create(const GeneratorOptions& options) {
  RETURN_IF_ERROR(CheckRange("decoder-keep", options.decoder_keep, 0, 1 << 30));
  RETURN_IF_ERROR(CheckRange("prefill-chunk", options.prefill_chunk, 1, kStepRowsMax));
  EngineOptions engine;
  engine.model_dir = options.model_dir;
  engine.device = options.device;
  engine.max_seq_len = options.max_seq_len;
  engine.max_seqs = 1;
  engine.step_rows_max = std::max(options.prefill_chunk, kStepRowsMin);
  engine.replay = kv::ReplayMode::kExact;
  engine.decoder_keep = options.decoder_keep;
  engine.speculation = options.speculation;
  engine.on_load = options.on_load;
  ASSIGN_OR_RETURN(std::unique_ptr<Engine> made, Engine::Create(engine));
  const std::int64_t max_seq_len = made->max_seq_len();
  return std::unique_ptr<Generator>(std::make_unique<EngineGenerator>(std::move(made), max_seq_len));
}

}  // namespace galley::engine
