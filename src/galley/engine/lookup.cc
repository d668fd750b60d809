// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/lookup.h"

#include <algorithm>

namespace galley::engine {
namespace {

// Tokens of prompt and output as one sequence.
struct Joined {
  std::span<const TokenId> prompt, output;
  [[nodiscard]] std::size_t size() const { return prompt.size() + output.size(); }
  [[nodiscard]] TokenId operator[](std::size_t i) const {
    return i < prompt.size() ? prompt[i] : output[i - prompt.size()];
  }
};

std::size_t PlaceOf(int matched) {
  return static_cast<std::size_t>(std::clamp(matched, 0, kMatchLongest));
}

}  // namespace

Continuation LookUpContinuation(std::span<const TokenId> prompt, std::span<const TokenId> output, int most,
                                std::vector<TokenId>& scratch) {
  constexpr auto kLongest = static_cast<std::size_t>(kMatchLongest);
  const Joined all{prompt, output};
  const std::size_t size = all.size(), first = size > kLookBack ? size - kLookBack : 0;
  std::size_t best = 0, best_length = 0;  // one past the best occurrence
  // From the newest on, so that of equally long matches the latest wins.
  for (std::size_t end = size - 1; end > first && best_length < kLongest; --end) {
    std::size_t length = 0;
    while (length < kLongest && length < end - first && all[end - 1 - length] == all[size - 1 - length]) ++length;
    if (length > best_length) {
      best = end;
      best_length = length;
    }
  }
  scratch.clear();
  if (best_length == 0) return {};
  // Behind the newest token the copy goes on with itself, as a loop would.
  for (std::size_t i = best; scratch.size() < static_cast<std::size_t>(most); ++i) {
    scratch.push_back(i < size ? all[i] : scratch[i - size]);
  }
  return {.tokens = scratch, .matched = static_cast<int>(best_length)};
}

double LookupChances::Next(int matched) const {
  constexpr double kBelieved = 8;  // tokens that the guess is worth against what is seen
  const std::size_t place = PlaceOf(matched);
  const double guess = static_cast<double>(place) / (static_cast<double>(place) + 1.5);
  const Seen& seen = seen_[place];
  return (seen.accepted + kBelieved * guess) / (seen.verified + kBelieved);
}

void LookupChances::Verified(int matched, int verified, int accepted) {
  constexpr double kKept = 1 - 1.0 / 256;
  for (int i = 0; i < std::min(verified, accepted + 1); ++i) {
    Seen& seen = seen_[PlaceOf(matched + i)];
    seen.verified = seen.verified * kKept + 1;
    seen.accepted = seen.accepted * kKept + (i < accepted ? 1 : 0);
  }
}

}  // namespace galley::engine
