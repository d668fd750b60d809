// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/draft_rounds.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace galley::engine {
namespace {

// Shared by the engine's threads and the caller until the engine is gone.
struct Collected {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<DraftRound> rounds;
  std::size_t ended = 0;
  Error error;
  bool failed = false;
};

}  // namespace

Result<std::vector<DraftRound>> CollectRounds(EngineOptions options, const RoundsRequest& request) {
  Collected collected;
  options.speculation = {.mode = SpeculationMode::kDspark, .on_round = [&collected](DraftRound round) {
                           std::lock_guard lock(collected.mutex);
                           collected.rounds.push_back(std::move(round));
                         }};
  options.queue_max = std::max(options.queue_max, static_cast<int>(request.prompts.size()));  // all are sent at once
  ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(options));
  std::vector<RequestId> ids;
  for (const std::vector<TokenId>& prompt : request.prompts) {
    EngineRequest one;
    one.prompt_ids = prompt;
    one.sampling.temperature = request.temperature;
    one.sampling.seed = request.seed + ids.size();
    one.max_tokens = request.tokens;
    one.stop_ids = {engine->config().eos_token_id};
    ASSIGN_OR_RETURN(const RequestId id, engine->Submit(std::move(one), [&collected](const EngineEvent& event) {
      const auto* end = std::get_if<FinishedEvent>(&event);
      if (end == nullptr) return;
      std::lock_guard lock(collected.mutex);
      if (end->reason == sched::FinishReason::kError) {
        collected.failed = true;
        collected.error = end->error;
      }
      ++collected.ended;
      collected.changed.notify_all();
    }));
    ids.push_back(id);
  }
  bool cancelled = false;
  std::unique_lock lock(collected.mutex);
  while (collected.ended < ids.size()) {
    collected.changed.wait_for(lock, std::chrono::milliseconds(200));
    const auto rounds = static_cast<std::int64_t>(collected.rounds.size());
    if (cancelled || !request.on_progress) continue;
    lock.unlock();
    if (!request.on_progress(rounds)) {
      cancelled = true;
      for (const RequestId id : ids) engine->Cancel(id);
    }
    lock.lock();
  }
  if (cancelled) return Err(ErrorCode::kCancelled, "calibration was ended early; nothing was written");
  if (collected.failed) return Err(std::move(collected.error));
  return std::move(collected.rounds);
}

std::vector<std::vector<TokenId>> CutPrompts(const std::vector<TokenId>& text, std::size_t length, std::size_t count,
                                             TokenId begin_of_sentence) {
  std::vector<std::vector<TokenId>> prompts;
  if (text.empty() || length == 0) return prompts;
  const std::size_t pieces = std::min(std::max<std::size_t>(text.size() / length, 1), count);
  for (std::size_t i = 0; i < pieces; ++i) {
    const std::size_t begin = pieces == 1 ? 0 : i * (text.size() - std::min(length, text.size())) / (pieces - 1);
    std::vector<TokenId>& prompt = prompts.emplace_back();
    prompt.push_back(begin_of_sentence);
    for (std::size_t k = begin; k < std::min(begin + length, text.size()); ++k) prompt.push_back(text[k]);
  }
  return prompts;
}

}  // namespace galley::engine
