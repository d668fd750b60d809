// SPDX-License-Identifier: Apache-2.0
// Drafts by prompt lookup: what followed an earlier occurrence of the newest tokens, and how often that comes true.
// They cost no pass of a model. Pure; owned by whoever drafts.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "galley/base/strong_id.h"

namespace galley::engine {

inline constexpr std::size_t kLookBack = 8192;  // tokens
inline constexpr int kMatchLongest = 16;

struct Continuation {
  std::span<const TokenId> tokens;  // in the caller's scratch; none without a match
  int matched = 0;                  // newest tokens that are as those before the continuation, up to kMatchLongest
};
// What followed the latest of the longest matches within the last kLookBack tokens. `output`: at least one token.
[[nodiscard]] Continuation LookUpContinuation(std::span<const TokenId> prompt, std::span<const TokenId> output,
                                              int most, std::vector<TokenId>& scratch);

// The chance that a continuation goes on as it did, by the length of the match: a guess at first, then what is seen.
// Its second token, once the first came true, has a match longer by one, and so on.
class LookupChances {
 public:
  [[nodiscard]] double Next(int matched) const;
  // Of a continuation so many tokens were verified and accepted.
  void Verified(int matched, int verified, int accepted);

 private:
  struct Seen {
    double verified = 0, accepted = 0;
  };
  std::array<Seen, kMatchLongest + 1> seen_{};
};

}  // namespace galley::engine
