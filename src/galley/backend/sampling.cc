// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "galley/base/rng.h"

namespace galley::backend {
namespace {

// Its probability is exp((logit - largest) / temperature), which is one up to the common factor.
using Candidate = TokenChance;

bool MoreLikely(const Candidate& a, const Candidate& b) {
  return a.probability > b.probability || (a.probability == b.probability && a.id < b.id);
}

// Index of the largest number, NaN never counting; nullopt when all are minus infinity or NaN.
std::optional<TokenId> ArgMax(std::span<const float> logits) {
  std::optional<TokenId> best;
  float largest = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > largest) {
      largest = logits[i];
      best = static_cast<TokenId>(i);
    }
  }
  return best;
}

void KeepTopK(std::vector<Candidate>& candidates, std::size_t k) {
  if (k == 0 || k >= candidates.size()) return;
  std::nth_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(k), candidates.end(),
                   MoreLikely);
  candidates.resize(k);
}

// The smallest set of most likely tokens that holds at least the share `top_p`; the token that crosses it stays.
void KeepTopP(std::vector<Candidate>& candidates, float top_p) {
  if (top_p >= 1.0f) return;
  std::sort(candidates.begin(), candidates.end(), MoreLikely);
  double total = 0;
  for (const Candidate& c : candidates) total += c.probability;
  double sum = 0;
  std::size_t kept = 0;
  while (kept < candidates.size() && sum < static_cast<double>(top_p) * total) sum += candidates[kept++].probability;
  candidates.resize(std::max<std::size_t>(kept, 1));
}

double LogSumExp(std::span<const float> logits, float largest) {
  double sum = 0;
  for (const float logit : logits) {
    if (!std::isnan(logit)) sum += std::exp(static_cast<double>(logit) - static_cast<double>(largest));
  }
  return static_cast<double>(largest) + std::log(sum);
}

double Uniform(std::uint64_t seed, Position position, std::uint32_t token, NoiseStream stream) {
  const auto words = Philox4x32(
      {token / 4, static_cast<std::uint32_t>(position),
       static_cast<std::uint32_t>(static_cast<std::uint64_t>(position) >> 32), static_cast<std::uint32_t>(stream)},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return (static_cast<double>(words[token % 4]) + 0.5) * 0x1p-32;
}

// Candidates of a row whose largest logit is finite, after every filter.
void Filter(std::span<const float> logits, double largest, const SampleParams& params,
            std::vector<Candidate>& candidates) {
  candidates.clear();
  candidates.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double weight =
        std::exp((static_cast<double>(logits[i]) - largest) / static_cast<double>(params.temperature));
    if (weight > 0 && weight >= static_cast<double>(params.min_p))
      candidates.push_back({static_cast<TokenId>(i), weight});
  }
  KeepTopK(candidates, static_cast<std::size_t>(std::max(params.top_k, 0)));
  KeepTopP(candidates, params.top_p);
}

}  // namespace

double SampleNoise(std::uint64_t seed, Position position, TokenId id, NoiseStream stream) {
  // All 32 bits, and log1p: precision lies at the small end, where the winner is decided.
  return -std::log1p(-Uniform(seed, position, static_cast<std::uint32_t>(id), stream));
}

double AcceptNoise(std::uint64_t seed, Position position) {
  return Uniform(seed, position, 0, NoiseStream::kAccept);
}

std::optional<TokenId> SampleRow(std::span<const float> logits, const SampleParams& params,
                                 std::vector<TokenChance>& scratch) {
  const std::optional<TokenId> best = ArgMax(logits);
  if (!best || params.temperature <= 0.0f) return best;
  const auto largest = static_cast<double>(logits[static_cast<std::size_t>(*best)]);
  if (std::isinf(largest)) return best;

  TokenId drawn = *best;
  double winner = -1;
  Filter(logits, largest, params, scratch);
  for (const Candidate& c : scratch) {
    const double score = c.probability / SampleNoise(params.seed, params.position, c.id);
    if (score > winner || (score == winner && c.id < drawn)) {
      winner = score;
      drawn = c.id;
    }
  }
  return drawn;
}

std::span<const TokenChance> SampleChances(std::span<const float> logits, const SampleParams& params,
                                           std::vector<TokenChance>& scratch) {
  scratch.clear();
  const std::optional<TokenId> best = ArgMax(logits);
  if (!best) return {};
  const auto largest = static_cast<double>(logits[static_cast<std::size_t>(*best)]);
  if (params.temperature <= 0.0f || std::isinf(largest)) {
    scratch.push_back({.id = *best, .probability = 1});
    return scratch;
  }
  Filter(logits, largest, params, scratch);
  std::sort(scratch.begin(), scratch.end(), [](const Candidate& x, const Candidate& y) { return x.id < y.id; });
  double total = 0;
  for (const Candidate& c : scratch) total += c.probability;
  for (Candidate& c : scratch) c.probability /= total;
  return scratch;
}

float LogProbability(std::span<const float> logits, TokenId id) {
  const std::optional<TokenId> best = ArgMax(logits);
  if (!best) return -std::numeric_limits<float>::infinity();
  const double total = LogSumExp(logits, logits[static_cast<std::size_t>(*best)]);
  return static_cast<float>(static_cast<double>(logits[static_cast<std::size_t>(id)]) - total);
}

std::span<const RankedToken> TopTokens(std::span<const float> logits, int count, std::vector<RankedToken>& scratch) {
  const std::optional<TokenId> best = ArgMax(logits);
  if (!best || count <= 0) return {};
  const double total = LogSumExp(logits, logits[static_cast<std::size_t>(*best)]);
  std::vector<RankedToken>& tokens = scratch;
  tokens.clear();
  tokens.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) continue;
    tokens.push_back({static_cast<TokenId>(i), static_cast<float>(static_cast<double>(logits[i]) - total)});
  }
  const auto kept = std::min(tokens.size(), static_cast<std::size_t>(count));
  std::partial_sort(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(kept), tokens.end(),
                    [&logits](const RankedToken& a, const RankedToken& b) {
                      const float x = logits[static_cast<std::size_t>(a.id)],
                                  y = logits[static_cast<std::size_t>(b.id)];
                      return x > y || (x == y && a.id < b.id);
                    });
  tokens.resize(kept);
  return tokens;
}

}  // namespace galley::backend
