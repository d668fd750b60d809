// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
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
  // The largest number first, in lanes, and then the first place that has it.
  constexpr std::size_t kLanes = 16;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  std::array<float, kLanes> lanes;
  lanes.fill(kNone);
  std::size_t at = 0;
  for (; at + kLanes <= logits.size(); at += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) lanes[l] = logits[at + l] > lanes[l] ? logits[at + l] : lanes[l];
  }
  float largest = kNone;
  for (; at < logits.size(); ++at) largest = logits[at] > largest ? logits[at] : largest;
  for (const float lane : lanes) largest = lane > largest ? lane : largest;
  if (largest == kNone) return std::nullopt;
  for (at = 0; at + kLanes <= logits.size(); at += kLanes) {
    int found = 0;
    for (std::size_t l = 0; l < kLanes; ++l) found |= logits[at + l] == largest ? 1 : 0;
    if (found != 0) break;
  }
  while (logits[at] != largest) ++at;
  return static_cast<TokenId>(at);
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

// Random words of the tokens 4 * group to 4 * group + 3.
std::array<std::uint32_t, 4> Words(std::uint64_t seed, Position position, std::uint32_t group, NoiseStream stream) {
  return Philox4x32(
      {group, static_cast<std::uint32_t>(position),
       static_cast<std::uint32_t>(static_cast<std::uint64_t>(position) >> 32), static_cast<std::uint32_t>(stream)},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}
double ToUniform(std::uint32_t word) {
  return (static_cast<double>(word) + 0.5) * 0x1p-32;
}
// All 32 bits, and log1p: precision lies at the small end, where the winner is decided.
double ToNoise(double uniform) {
  return -std::log1p(-uniform);
}

double Uniform(std::uint64_t seed, Position position, std::uint32_t token, NoiseStream stream) {
  return ToUniform(Words(seed, position, token / 4, stream)[token % 4]);
}

// Draws among tokens that come in ascending order: the largest probability by noise, of equal ones the lowest id.
class Race {
 public:
  explicit Race(const SampleParams& params) : params_(params) {}

  [[nodiscard]] double UniformOf(TokenId id) {
    const auto token = static_cast<std::uint32_t>(id);
    if (token / 4 != group_) {
      group_ = token / 4;
      words_ = Words(params_.seed, params_.position, group_, NoiseStream::kSample);
    }
    return ToUniform(words_[token % 4]);
  }
  // Noise is never less than its uniform number, so most candidates have lost before the logarithm, or the exponential
  // of `probability_most`, is taken. The margin is for roundings.
  [[nodiscard]] bool Loses(double probability_most, double uniform) const {
    return probability_most < winner_ * uniform * (1 - 1e-12);
  }
  void Enter(TokenId id, double probability, double uniform) {
    const double score = probability / ToNoise(uniform);
    if (score > winner_ || (score == winner_ && id < drawn_)) {
      winner_ = score;
      drawn_ = id;
    }
  }
  [[nodiscard]] TokenId drawn() const { return drawn_; }

 private:
  const SampleParams& params_;
  std::uint32_t group_ = ~std::uint32_t{0};
  std::array<std::uint32_t, 4> words_{};
  double winner_ = -1;
  TokenId drawn_ = 0;
};

// At least e^x, and at most four times as much; x <= 0.
double ExpAtMost(double x) {
  constexpr double kLog2E = 1.4426950408889634;
  const auto power = static_cast<std::int64_t>(std::max(x, -700.0) * kLog2E) + 1;  // truncated towards zero
  return std::bit_cast<double>(static_cast<std::uint64_t>(power + 1023) << 52);
}

// A draw from all tokens, with the outcome of the filters if they kept every one.
TokenId DrawUnfiltered(std::span<const float> logits, TokenId best, const SampleParams& params) {
  Race race(params);
  const auto largest = static_cast<double>(logits[static_cast<std::size_t>(best)]);
  const auto temperature = static_cast<double>(params.temperature);
  // The most likely token first: it makes nearly all others lose without further ado.
  race.Enter(best, 1, race.UniformOf(best));
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double x = (static_cast<double>(logits[i]) - largest) / temperature;
    const auto id = static_cast<TokenId>(i);
    const double uniform = race.UniformOf(id);
    if (!(x <= 0) || race.Loses(ExpAtMost(x), uniform)) continue;  // NaN never wins
    const double probability = std::exp(x);
    if (probability > 0) race.Enter(id, probability, uniform);
  }
  return race.drawn();
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

void ChangeRow(std::span<const float> logits, const RowChanges& changes, std::vector<float>& changed) {
  const auto bit = [](const std::uint32_t* words, std::size_t i) { return (words[i / 32] >> (i % 32) & 1u) != 0; };
  const auto repetition = [&](std::size_t i) {
    return changes.repeated != nullptr && bit(changes.repeated, i) ? changes.repetition : 1.0f;
  };
  changed.assign(logits.begin(), logits.end());
  if (changes.repeated != nullptr) {
    for (std::size_t i = 0; i < changed.size(); ++i) {
      if (bit(changes.repeated, i)) changed[i] = ChangedLogit(logits[i], changes.repetition, {});
    }
  }
  for (const LogitChange& change : changes.logits) {
    const auto i = static_cast<std::size_t>(change.id);
    changed[i] = ChangedLogit(logits[i], repetition(i), change);
  }
  if (changes.allowed == nullptr) return;
  for (std::size_t first = 0; first < changed.size(); first += 32) {
    const std::uint32_t word = changes.allowed[first / 32];
    if (word == 0xFFFFFFFFu) continue;
    const std::size_t end = std::min(first + 32, changed.size());
    for (std::size_t i = first; i < end; ++i) {
      if ((word >> (i % 32) & 1u) == 0) changed[i] = -std::numeric_limits<float>::infinity();
    }
  }
}

double SampleNoise(std::uint64_t seed, Position position, TokenId id, NoiseStream stream) {
  return ToNoise(Uniform(seed, position, static_cast<std::uint32_t>(id), stream));
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

  if (params.top_k <= 0 && params.top_p >= 1.0f && params.min_p <= 0.0f) return DrawUnfiltered(logits, *best, params);
  Filter(logits, largest, params, scratch);
  Race race(params);
  for (const Candidate& c : scratch) {
    const double uniform = race.UniformOf(c.id);
    if (!race.Loses(c.probability, uniform)) race.Enter(c.id, c.probability, uniform);
  }
  return race.drawn();
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
