// SPDX-License-Identifier: Apache-2.0
// What calibration learns from: rounds of speculation over texts that a model continues itself. Runs an engine of its
// own; owned by the calling thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "galley/engine/calibration.h"
#include "galley/engine/engine.h"

namespace galley::engine {

struct RoundsRequest {
  std::vector<std::vector<TokenId>> prompts;
  int tokens = 48;  // continued each
  double temperature = 1;
  std::uint64_t seed = 0;
  // Called now and then with rounds seen so far; false ends the collection early.
  std::function<bool(std::int64_t rounds)> on_progress = {};
};

// Rounds of all prompts, in no particular order. Uses the options' drafter with full drafts. Errors: those of
// Engine::Create and of a request; kUnsupported for a model without a draft head; kCancelled.
[[nodiscard]] Result<std::vector<DraftRound>> CollectRounds(EngineOptions options, const RoundsRequest& request);

// Pieces of `length` tokens of a long text, evenly spread, at most `count`; the begin-of-sentence token comes first.
[[nodiscard]] std::vector<std::vector<TokenId>> CutPrompts(const std::vector<TokenId>& text, std::size_t length,
                                                           std::size_t count, TokenId begin_of_sentence);

}  // namespace galley::engine
