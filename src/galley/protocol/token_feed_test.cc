// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/token_feed.h"

#include <gtest/gtest.h>

#include "galley/text/test_data.h"

namespace galley::protocol {
namespace {

constexpr TokenId kEnd = 300, kUser = 301, kThinkEnd = 302, kNothing = 299;

// Bytes with their own ids, and three added tokens.
const text::Tokenizer& Bytes() {
  static const text::Tokenizer tokenizer = [] {
    nlohmann::json json = text::test::ByteTokenizerJson();
    json["added_tokens"] = {text::test::AddedTokenJson(kEnd, "<｜end▁of▁sentence｜>", true),
                            text::test::AddedTokenJson(kUser, "<｜User｜>", true),
                            text::test::AddedTokenJson(kThinkEnd, "</think>", false)};
    return text::test::MustLoad(json.dump());
  }();
  return tokenizer;
}

std::vector<OutputPiece> Push(TokenFeed& feed, std::vector<TokenId> ids) {
  Result<std::vector<OutputPiece>> pieces = feed.Push(ids);
  EXPECT_TRUE(pieces.has_value());
  return pieces ? *std::move(pieces) : std::vector<OutputPiece>();
}

TEST(TokenFeed, HoldsIdsUntilTheirCharacterIsWhole) {
  TokenFeed feed(Bytes(), {});
  EXPECT_TRUE(Push(feed, {'a', 0xE2, 0x82}).empty());
  const std::vector<OutputPiece> pieces = Push(feed, {0xAC});
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].text, "a€");
  EXPECT_EQ(pieces[0].tokens, 4);
  EXPECT_EQ(pieces[0].source, PieceSource::kOrdinary);
  EXPECT_TRUE(Push(feed, {0xE2}).empty());
  const std::vector<OutputPiece> rest = feed.Flush();
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].text, "\uFFFD");
  EXPECT_TRUE(feed.Flush().empty());
}

TEST(TokenFeed, GivesUpOnBytesThatNeverBecomeACharacter) {
  TokenFeed feed(Bytes(), {});
  std::size_t pieces = 0;
  for (int i = 0; i < 200; ++i) pieces += Push(feed, {0x80}).size();
  EXPECT_GE(pieces, 3u);
}

TEST(TokenFeed, SeparatesAddedTokensAndMarksThoseThatAnswersDoNotShow) {
  TokenFeed feed(Bytes(), {});
  const std::vector<OutputPiece> pieces = Push(feed, {'a', 'b', kThinkEnd, kUser, 'c'});
  ASSERT_EQ(pieces.size(), 4u);
  EXPECT_EQ(pieces[0].text, "ab");
  EXPECT_EQ(pieces[1].text, "</think>");
  EXPECT_EQ(pieces[1].source, PieceSource::kAdded);
  EXPECT_FALSE(pieces[1].control);
  EXPECT_TRUE(pieces[2].control);
  EXPECT_EQ(pieces[3].text, "c");

  TokenFeed asked(Bytes(), {"<｜User｜>"});
  EXPECT_FALSE(Push(asked, {kUser})[0].control);
}

TEST(TokenFeed, EndsAtEndOfSentenceAndCountsWhatNoPieceHas) {
  TokenFeed feed(Bytes(), {});
  const std::vector<OutputPiece> pieces = Push(feed, {'a', kNothing, 0xE2, kEnd, 'b'});
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].text, "a\uFFFD");
  EXPECT_TRUE(feed.ended());
  EXPECT_EQ(feed.uncounted(), 2);
  EXPECT_TRUE(Push(feed, {'c'}).empty());
  EXPECT_TRUE(feed.Flush().empty());
}

TEST(TokenFeed, LogprobsBelongToIds) {
  TokenFeed feed(Bytes(), {});
  EXPECT_EQ(feed.Push(std::vector<TokenId>{'a'}, {{}, {}}).error().code, ErrorCode::kInvalidArgument);
  const auto pieces = feed.Push(std::vector<TokenId>{'a', 0xE2}, {{-1, {{'a', -1.0}, {kNothing, -2.0}}}, {-3}});
  ASSERT_TRUE(pieces.has_value());
  EXPECT_TRUE(pieces->empty());
  const std::vector<OutputPiece> rest = feed.Flush();
  ASSERT_EQ(rest[0].logprobs.size(), 2u);
  EXPECT_EQ(rest[0].logprobs[0].bytes, "a");
  EXPECT_EQ(rest[0].logprobs[0].top.size(), 1u);
  EXPECT_EQ(rest[0].logprobs[1].bytes, "\xE2");
}

}  // namespace
}  // namespace galley::protocol
