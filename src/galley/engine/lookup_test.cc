// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/lookup.h"

#include <gtest/gtest.h>

namespace galley::engine {
namespace {

std::vector<TokenId> LookUp(std::span<const TokenId> prompt, std::span<const TokenId> output, int most) {
  std::vector<TokenId> scratch = {1, 2};  // of a call before
  const std::span<const TokenId> found = LookUpContinuation(prompt, output, most, scratch).tokens;
  return {found.begin(), found.end()};
}

TEST(Lookup, TakesTheLatestOfTheLongestMatches) {
  const std::vector<TokenId> prompt = {1, 2, 3, 7, 8, 9, 2, 3, 4};
  // "1 2 3" is there once, "2 3" twice: three tokens win over two, though earlier.
  const std::vector<TokenId> longest = {1, 2, 3};
  EXPECT_EQ(LookUp(prompt, longest, 3), (std::vector<TokenId>{7, 8, 9}));
  // "5 2 3" matches "2 3" both times: the later is followed by 4, then by the output, then by the copy itself.
  const std::vector<TokenId> later = {5, 2, 3};
  EXPECT_EQ(LookUp(prompt, later, 5), (std::vector<TokenId>{4, 5, 2, 3, 4}));
  EXPECT_EQ(LookUp(prompt, later, 1), (std::vector<TokenId>{4}));
  const std::vector<TokenId> unknown = {99};
  EXPECT_TRUE(LookUp(prompt, unknown, 5).empty());
  EXPECT_TRUE(LookUp({}, unknown, 5).empty());
  // A run of one token continues itself.
  const std::vector<TokenId> run = {6, 6, 6, 6};
  EXPECT_EQ(LookUp({}, run, 2), (std::vector<TokenId>{6, 6}));
}

TEST(Lookup, ForgetsWhatLiesFarBack) {
  std::vector<TokenId> prompt(kLookBack + 10, 5);
  prompt[0] = 1;
  prompt[1] = 2;
  const std::vector<TokenId> output = {1};
  EXPECT_TRUE(LookUp(prompt, output, 3).empty());
}

TEST(Lookup, SaysHowLongTheMatchIs) {
  std::vector<TokenId> scratch;
  const std::vector<TokenId> prompt = {1, 2, 3, 7, 8}, output = {4, 2, 3};
  EXPECT_EQ(LookUpContinuation(prompt, output, 2, scratch).matched, 2);
  const std::vector<TokenId> period(200, 6);
  EXPECT_EQ(LookUpContinuation({}, period, 2, scratch).matched, kMatchLongest);
  const std::vector<TokenId> unknown = {99};
  EXPECT_EQ(LookUpContinuation(prompt, unknown, 2, scratch).matched, 0);
}

// A longer match is likelier before anything is seen; then what is seen counts, of each length by itself: of matches of
// two tokens one of four goes on. A guess of 2 / 3.5 is worth 8 tokens, and 1,000 that are seen about 250.
TEST(Lookup, ChancesFollowWhatIsSeen) {
  LookupChances chances;
  for (int matched = 0; matched < kMatchLongest; ++matched) EXPECT_LT(chances.Next(matched), chances.Next(matched + 1));
  const double three = chances.Next(3), four = chances.Next(4);
  for (int round = 0; round < 1000; ++round) chances.Verified(2, 1, round % 4 == 0 ? 1 : 0);
  EXPECT_NEAR(chances.Next(2), 0.25, 0.03);
  EXPECT_EQ(chances.Next(3), three);
  // The second token of a continuation has a match longer by one; what follows a rejected one says nothing.
  for (int round = 0; round < 1000; ++round) chances.Verified(2, 5, 1);
  EXPECT_GT(chances.Next(2), 0.9);
  EXPECT_LT(chances.Next(3), 0.1);
  EXPECT_EQ(chances.Next(4), four);
}

}  // namespace
}  // namespace galley::engine
