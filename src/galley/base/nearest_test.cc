// SPDX-License-Identifier: Apache-2.0
#include "galley/base/nearest.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace galley {
namespace {

TEST(EditDistance, CountsEdits) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("abc", ""), 3);
  EXPECT_EQ(EditDistance("top-k", "top-p"), 1);     // replace
  EXPECT_EQ(EditDistance("seed", "seeed"), 1);      // insert
  EXPECT_EQ(EditDistance("thread", "threads"), 1);  // insert at the end
  EXPECT_EQ(EditDistance("chta", "chat"), 1);       // swap
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);  // two replacements, one insertion
}

TEST(EditDistance, IsSymmetricAndBoundedByTheLongerWord) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto word = [&] {
    std::string text(random() % 8, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int i = 0; i < 500; ++i) {
    const std::string a = word(), b = word();
    EXPECT_EQ(EditDistance(a, b), EditDistance(b, a)) << a << " " << b;
    EXPECT_LE(EditDistance(a, b), static_cast<int>(std::max(a.size(), b.size()))) << a << " " << b;
    EXPECT_EQ(EditDistance(a, b) == 0, a == b) << a << " " << b;
  }
}

TEST(Nearest, SuggestsOnlyWhatIsNear) {
  const std::string_view words[] = {"generate", "chat", "tokenize"};
  EXPECT_EQ(Nearest("genrate", words), "generate");
  EXPECT_EQ(Nearest("tokenise", words), "tokenize");
  EXPECT_EQ(Nearest("cat", words), "chat");
  EXPECT_EQ(Nearest("serve", words), std::nullopt);
  EXPECT_EQ(Nearest("", words), std::nullopt);
  EXPECT_EQ(Nearest(std::string(100'000, 'a'), words), std::nullopt);  // a megabyte of flag costs nothing
  EXPECT_EQ(Nearest("cat", {}), std::nullopt);
}

TEST(Nearest, TakesTheFirstOfEquals) {
  const std::string_view words[] = {"top-p", "top-k"};
  EXPECT_EQ(Nearest("top-x", words), "top-p");
}

TEST(Suggestion, IsAPhraseOrNothing) {
  const std::string_view words[] = {"seed"};
  EXPECT_EQ(Suggestion("sed", words, "--"), " (did you mean --seed?)");
  EXPECT_EQ(Suggestion("temperature", words), "");
}

}  // namespace
}  // namespace galley
