// SPDX-License-Identifier: Apache-2.0
// How a token is chosen from one row of logits: the rule that every backend implements, written for the host. Pure.
//
// Order: temperature, min-p, top-k, top-p (over what top-k left, renormalised), draw. Ties go to the lower id. The draw
// is Gumbel-max with noise that depends on (seed, position, token id) and nothing else, so it does not change with the
// batch, with filters that other requests use, or with how often one has drawn before.
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
