// SPDX-License-Identifier: Apache-2.0
// How a token is chosen from one row of logits: the rule that every backend implements, written for the host. Pure.
//
// Order: changes of the request (RowChanges), temperature, min-p, top-k, top-p (over what top-k left, renormalised),
// draw. Ties go to the lower id. The draw is Gumbel-max with noise that depends on (seed, position, token id) and
// nothing else, so it does not change with the batch, with filters that other requests use, or with how often one has
// drawn before.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "galley/base/strong_id.h"

namespace galley::backend {

struct SampleParams {
  float temperature = 1.0f;  // 0: the largest logit
  int top_k = 0;             // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  std::uint64_t seed = 0;
  Position position = 0;  // of the token that is drawn
};

// What a request changes of one token's logit.
struct LogitChange {
  TokenId id = 0;
  float bias = 0;     // added
  float penalty = 0;  // subtracted, after the repetition penalty
};
// What a request changes of a row of logits before anything else: of each token the bias, then the repetition penalty,
// which divides positive logits and multiplies others, then the other penalties; and tokens that may not come.
struct RowChanges {
  // Bits, of token i bit i mod 32 of word i / 32; [MaskWords(vocab)].
  const std::uint32_t* allowed = nullptr;   // tokens that may come; null: all
  const std::uint32_t* repeated = nullptr;  // that the repetition penalty is for; null: none
  float repetition = 1;
  std::span<const LogitChange> logits;  // of different tokens

  [[nodiscard]] bool empty() const { return allowed == nullptr && repeated == nullptr && logits.empty(); }
};
[[nodiscard]] constexpr std::size_t MaskWords(int vocab_size) {
  return (static_cast<std::size_t>(vocab_size) + 31) / 32;
}
// Of one logit before and after; `repetition` is 1 for tokens that were not seen.
[[nodiscard]] constexpr float ChangedLogit(float logit, float repetition, const LogitChange& change) {
  logit += change.bias;
  logit = logit > 0 ? logit / repetition : logit * repetition;
  return logit - change.penalty;
}
// The row with everything applied, in `changed`.
void ChangeRow(std::span<const float> logits, const RowChanges& changes, std::vector<float>& changed);

inline constexpr int kAlternativesMax = 20;
inline constexpr TokenId kNothingLeft = -1;  // the changes leave no token
inline constexpr TokenId kBrokenRow = -2;    // no logit is a number above minus infinity

// A draw from row `row` of some logits.
struct DrawRequest {
  std::int32_t row = 0;
  SampleParams params;
  RowChanges changes;
  TokenId given = -1;  // not negative: nothing is drawn, this token's log-probability is asked for
  // Log-probabilities are those of the row as it is, before changes, temperature and filters.
  int alternatives = -1;  // how many of the most likely tokens to report, up to kAlternativesMax; -1: no logprobs
};
struct DrawnToken {
  TokenId id = 0;  // or kNothingLeft, kBrokenRow
  float logprob = 0;
};

// A token that a row can draw, and how likely.
struct TokenChance {
  TokenId id = 0;
  double probability = 0;
};
struct RankedToken {
  TokenId id = 0;
  float logprob = 0;
};
// Functions below that look at every token work in memory of the caller's, one place a token, so that whoever draws
// again and again allocates once.

// nullopt when no logit is a number above minus infinity: that row has no next token.
[[nodiscard]] std::optional<TokenId> SampleRow(std::span<const float> logits, const SampleParams& params,
                                               std::vector<TokenChance>& scratch);

// Every token that SampleRow can draw, ascending, after temperature and filters; probabilities add up to 1. Empty when
// the row has no next token. Lies in `scratch`.
[[nodiscard]] std::span<const TokenChance> SampleChances(std::span<const float> logits, const SampleParams& params,
                                                         std::vector<TokenChance>& scratch);

// Natural logarithm of softmax(logits)[id], before temperature and filters.
[[nodiscard]] float LogProbability(std::span<const float> logits, TokenId id);
// The `count` most likely tokens, most likely first. Lies in `scratch`.
[[nodiscard]] std::span<const RankedToken> TopTokens(std::span<const float> logits, int count,
                                                     std::vector<RankedToken>& scratch);

// Draws of different kinds at one position do not share noise.
enum class NoiseStream : std::uint32_t {
  kSample = 0,
  kAccept = 1,    // whether rejection sampling keeps a draft
  kResidual = 2,  // what it draws instead
};

// Exponential noise of mean 1 that belongs to a token: p / noise is largest for the token drawn.
[[nodiscard]] double SampleNoise(std::uint64_t seed, Position position, TokenId id,
                                 NoiseStream stream = NoiseStream::kSample);
// Uniform in (0, 1), one number a position.
[[nodiscard]] double AcceptNoise(std::uint64_t seed, Position position);

}  // namespace galley::backend
