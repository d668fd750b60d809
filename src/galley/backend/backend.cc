// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/backend.h"

#include <optional>
#include <span>
#include <vector>

namespace galley::backend {

// For backends whose memory the host can read.
Status Backend::Draw(const DrawArgs& args) {
  const auto vocab = static_cast<std::size_t>(args.vocab);
  std::vector<TokenChance> chances;
  std::vector<RankedToken> ranked;
  std::vector<float> changed;
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.count); ++i) {
    const DrawRequest& request = args.requests[i];
    const std::span<const float> row(args.logits + static_cast<std::size_t>(request.row) * vocab, vocab);
    DrawnToken& drawn = args.drawn[i];
    drawn = {.id = request.given, .logprob = 0};
    if (request.given < 0) {
      std::span<const float> logits = row;
      if (!request.changes.empty()) {
        ChangeRow(row, request.changes, changed);
        logits = changed;
      }
      drawn.id = SampleRow(logits, request.params, chances).value_or(kNothingLeft);
      if (drawn.id < 0 && !SampleRow(row, {.temperature = 0}, chances)) drawn.id = kBrokenRow;
    }
    if (request.alternatives < 0) continue;
    if (drawn.id >= 0) drawn.logprob = LogProbability(row, drawn.id);
    const std::span<const RankedToken> top = TopTokens(row, request.alternatives, ranked);
    for (std::size_t j = 0; j < static_cast<std::size_t>(request.alternatives); ++j) {
      args.ranked[i * kAlternativesMax + j] = j < top.size() ? top[j] : RankedToken{.id = -1, .logprob = 0};
    }
  }
  return {};
}

}  // namespace galley::backend
