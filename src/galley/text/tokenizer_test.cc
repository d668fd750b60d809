// SPDX-License-Identifier: Apache-2.0
#include "galley/text/tokenizer.h"

#include <gtest/gtest.h>

#include <thread>

#include "galley/text/test_data.h"

namespace galley::text {
namespace {

using Ids = std::vector<TokenId>;

// Ids of bytes, as in ByteTokenizerJson.
Ids ByteIds(std::string_view text) {
  Ids ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

TEST(Tokenizer, MergesInOrderOfRankThenFromTheLeft) {
  const Tokenizer t = test::MustLoad(test::ByteTokenizerJson({{"a", "b"}, {"b", "c"}, {"ab", "c"}, {"b", "b"}}).dump());
  // ids: ab 256, bc 257, abc 258, bb 259
  EXPECT_EQ(*t.Encode("abc"), Ids{258});         // ab first (rank 0), then ab+c
  EXPECT_EQ(*t.Encode("bbc"), (Ids{'b', 257}));  // bc (rank 1) before bb (rank 3)
  EXPECT_EQ(*t.Encode("bbb"), (Ids{259, 'b'}));  // equal ranks: the leftmost
  EXPECT_EQ(*t.Encode("abab"), (Ids{256, 256}));
  EXPECT_EQ(*t.Encode(""), Ids{});
}

TEST(Tokenizer, BothMergeSpellingsMeanTheSame) {
  nlohmann::json file = test::ByteTokenizerJson({{" ", "t"}, {"h", "e"}, {" t", "he"}});
  const Tokenizer pairs = test::MustLoad(file.dump());
  for (nlohmann::json& merge : file["model"]["merges"]) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  const Tokenizer strings = test::MustLoad(file.dump());
  EXPECT_EQ(*pairs.Encode(" the"), Ids{258});
  EXPECT_EQ(*strings.Encode(" the"), Ids{258});
}

TEST(Tokenizer, UsersCannotSpellAddedTokens) {
  nlohmann::json file = test::ByteTokenizerJson({{"<", "u"}});
  file["added_tokens"] = {test::AddedTokenJson(300, "<u>", true), test::AddedTokenJson(301, "<b>", false)};
  const Tokenizer t = test::MustLoad(file.dump());
  EXPECT_EQ(*t.Encode("x<u>"), (Ids{'x', 256, '>'}));
  EXPECT_EQ(*t.Encode("x<u><b>", AddedTokens::kMatch), (Ids{'x', 300, 301}));
  EXPECT_TRUE(t.is_special(300));
  EXPECT_FALSE(t.is_special(301));
  EXPECT_TRUE(t.is_added(301));
  EXPECT_EQ(*t.Decode(Ids{'x', 300, 301}), "x<u><b>");
  EXPECT_EQ(*t.Decode(Ids{'x', 300, 301}, SpecialTokens::kSkip), "x<b>");
}

TEST(Tokenizer, AddedTokensMatchLeftmostLongestInTwoPasses) {
  nlohmann::json file = test::ByteTokenizerJson();
  file["added_tokens"] = {
      test::AddedTokenJson(300, "ab", false, /*normalized=*/false), test::AddedTokenJson(301, "abcd", false, false),
      test::AddedTokenJson(302, "zab", false, /*normalized=*/true), test::AddedTokenJson(303, "qq", false, true)};
  const Tokenizer t = test::MustLoad(file.dump());
  const auto match = [&](std::string_view text) { return *t.Encode(text, AddedTokens::kMatch); };
  EXPECT_EQ(match("abc"), (Ids{300, 'c'}));
  EXPECT_EQ(match("abcd"), Ids{301});        // the longest at one place
  EXPECT_EQ(match("zab"), (Ids{'z', 300}));  // the first pass goes first, although zab starts further left
  EXPECT_EQ(match("zaqqb"), (Ids{'z', 'a', 303, 'b'}));
  EXPECT_EQ(match("abab"), (Ids{300, 300}));
  EXPECT_EQ(match("a"), Ids{'a'});  // the text ends inside a spelling
}

TEST(Tokenizer, SegmentsAreEncodedApart) {
  nlohmann::json file = test::ByteTokenizerJson({{"a", "b"}});
  file["added_tokens"] = {test::AddedTokenJson(300, "<u>", true)};
  const Tokenizer t = test::MustLoad(file.dump());
  const Segment segments[] = {{"<u>", true}, {"<u>", false}, {"a", false}, {"b", false}};
  EXPECT_EQ(*t.EncodeSegments(segments), (Ids{300, '<', 'u', '>', 'a', 'b'}));  // no merge across segments
  const ByteRange ranges[] = {{0, 3}, {8, 11}};
  EXPECT_EQ(*t.EncodeWithSpecialRanges("<u><u>ab<u>", ranges), (Ids{300, '<', 'u', '>', 256, 300}));
  EXPECT_EQ(*t.EncodeWithSpecialRanges("ab", {}), Ids{256});
}

TEST(Tokenizer, WrongSpecialSegmentsAreErrors) {
  nlohmann::json file = test::ByteTokenizerJson();
  file["added_tokens"] = {test::AddedTokenJson(300, "<u>", true)};
  const Tokenizer t = test::MustLoad(file.dump());
  const Segment unknown[] = {{"<v>", true}};
  EXPECT_EQ(t.EncodeSegments(unknown).error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(t.EncodeSegments(unknown).error().message.find("\"<v>\""), std::string::npos);
  const Segment ordinary[] = {{"a", true}};  // a token, but not an added one
  EXPECT_FALSE(t.EncodeSegments(ordinary));
  const std::vector<std::vector<ByteRange>> wrong = {{{0, 4}}, {{0, 0}}, {{2, 1}}, {{0, 3}, {2, 3}}, {{3, 6}, {0, 3}}};
  for (const auto& ranges : wrong) EXPECT_FALSE(t.EncodeWithSpecialRanges("<u>", ranges));
}

TEST(Tokenizer, IdsWithoutTokens) {
  nlohmann::json file = test::ByteTokenizerJson();
  file["added_tokens"] = {test::AddedTokenJson(300, "<u>", true)};
  const Tokenizer t = test::MustLoad(file.dump());
  EXPECT_EQ(t.vocab_size(), 301);
  for (const TokenId id : {-1, 256, 299, 301, 0x7FFFFFFF, -0x7FFFFFFF}) {
    EXPECT_FALSE(t.has_token(id));
    EXPECT_FALSE(t.is_added(id));
    EXPECT_FALSE(t.is_special(id));
    EXPECT_FALSE(t.TokenBytes(id).has_value());
    EXPECT_FALSE(t.Spelling(id).has_value());
    const auto text = t.Decode(Ids{'a', id});
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(text.error().message.find("at index 1 has no token"), std::string::npos) << text.error().message;
  }
}

TEST(Tokenizer, SpellingsAndBytes) {
  nlohmann::json file = test::ByteTokenizerJson({{" ", "t"}});
  file["model"]["vocab"]["<｜x｜>"] = 257;  // ordinary, but outside the byte-level alphabet: no text encodes to it
  file["added_tokens"] = {test::AddedTokenJson(300, "Ġt x", false), test::AddedTokenJson(301, "éx", false)};
  const Tokenizer t = test::MustLoad(file.dump());
  EXPECT_EQ(t.Spelling(256), "Ġt");
  EXPECT_EQ(t.TokenBytes(256), " t");
  EXPECT_EQ(t.IdOf("Ġt"), 256);
  EXPECT_FALSE(t.IdOf(" t").has_value());
  EXPECT_EQ(t.TokenBytes(257), "<｜x｜>");
  EXPECT_EQ(t.IdOf("<｜x｜>"), 257);
  EXPECT_FALSE(t.AddedIdOf("<｜x｜>").has_value());
  // Added tokens bypass the byte-level alphabet, in which "Ġ" would be a space and "é" the byte E9.
  EXPECT_EQ(*t.Decode(Ids{300, 301}), "Ġt xéx");
  EXPECT_EQ(t.IdOf("éx"), 301);
  EXPECT_EQ(t.TokenBytes(0xE9), "\xE9");
}

TEST(Tokenizer, SpaceOfHelloWorldStays) {
  const Tokenizer t = test::NanoTokenizer();
  const Ids ids = *t.Encode("hello world");
  EXPECT_EQ(*t.Decode(ids), "hello world");
  EXPECT_EQ(test::JoinBytes(t, ids), "hello world");
}

// Anything goes in; the bytes of the tokens are the bytes of the text, and no added token comes out.
TEST(Tokenizer, AnyBytesAreEncodedWithoutLoss) {
  test::Random random(4103);
  const Tokenizer t = test::NanoTokenizer();
  Encoder encoder(t);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (unsigned n = random() % 80; n > 0; --n) {
      if (random() % 4 == 0) {
        text.push_back(static_cast<char>(random() % 256));
      } else if (random() % 8 == 0) {
        text += "<｜User｜>";
      } else {
        AppendUtf8(text, test::InterestingChars()[random() % test::InterestingChars().size()]);
      }
    }
    const Ids ids = *encoder.Encode(text);
    ASSERT_EQ(test::JoinBytes(t, ids), text) << "round " << round;
    for (const TokenId id : ids) ASSERT_FALSE(t.is_added(id));
    ASSERT_EQ(*t.Encode(text), ids) << "a fresh encoder gives the same";
    ASSERT_EQ(*t.Decode(ids), ReplaceInvalidUtf8(text));
    ASSERT_EQ(test::JoinBytes(t, *encoder.Encode(text, AddedTokens::kMatch)), text);
  }
}

// The surrogates that an escape of a JSON text may spell, as bytes: invalid UTF-8, kept as they are.
TEST(Tokenizer, EncodedSurrogatesAreKeptAsBytes) {
  const Tokenizer t = test::MustLoad(test::ByteTokenizerJson().dump());
  const std::string_view text = "a\xED\xA0\x80z";
  EXPECT_FALSE(ValidateUtf8(text, "text"));
  EXPECT_EQ(*t.Encode(text), ByteIds(text));
}

TEST(Encoder, TinyCachesGiveTheSameIds) {
  const Tokenizer t = test::NanoTokenizer();
  std::string text;
  for (int i = 0; i < 500; ++i) text += "The cat " + std::to_string(i * 37) + " sat, on_the(mat)\n  and\tslept 猫。";
  const Ids expected = *Encoder(t, {.cache_slots = 0}).Encode(text);
  for (const std::size_t slots : {1U, 2U, 16U, 1000U}) {
    Encoder encoder(t, {.cache_slots = slots});
    EXPECT_EQ(*encoder.Encode(text), expected) << slots;
    EXPECT_EQ(*encoder.Encode(text), expected) << slots;
    EXPECT_TRUE(slots < 16 || encoder.work().cache_hits > 0) << slots;
  }
}

TEST(Encoder, PiecesThatDifferInTrailingNulsDiffer) {
  nlohmann::json file = test::ByteTokenizerJson();
  file["pre_tokenizer"] = test::PreTokenizerJson({"a\\x00*"});
  const Tokenizer t = test::MustLoad(file.dump());
  Encoder encoder(t);
  for (const std::size_t nuls : {0U, 1U, 2U, 1U, 0U}) {
    const std::string text = "a" + std::string(nuls, '\0');
    EXPECT_EQ(*encoder.Encode(text), ByteIds(text));
  }
}

TEST(Encoder, SurvivesTheTokenizerMoving) {
  Tokenizer t = test::NanoTokenizer();
  Encoder encoder(t);
  const Ids before = *encoder.Encode("Once upon a time");
  const Tokenizer moved = std::move(t);
  EXPECT_EQ(*encoder.Encode("Once upon a time"), before);
}

TEST(Encoder, OneTokenizerServesManyThreads) {
  const Tokenizer t = test::NanoTokenizer();
  const std::string text = "Once upon a time, there was a 猫 named <think> 1234.\n";
  const Ids expected = *t.Encode(text);
  std::vector<std::thread> threads;
  std::array<int, 4> wrong{};
  for (int& count : wrong) {
    threads.emplace_back([&] {
      Encoder encoder(t);
      for (int i = 0; i < 200; ++i) count += *encoder.Encode(text) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : wrong) EXPECT_EQ(count, 0);
}

TEST(Tokenizer, LoadNamesTheMissingFile) {
  const auto t = Tokenizer::Load(std::filesystem::path(GALLEY_SOURCE_DIR) / "models/absent/tokenizer.json");
  ASSERT_FALSE(t);
  EXPECT_EQ(t.error().code, ErrorCode::kNotFound);
  EXPECT_NE(t.error().where.find("models/absent/tokenizer.json"), std::string::npos);
}

}  // namespace
}  // namespace galley::text
