// SPDX-License-Identifier: Apache-2.0
// Exactness against what the reference tools gave for thousands of texts (folders recipe, nano and golden beside the
// checkout).
#include <gtest/gtest.h>

#include "galley/text/compressed_ids.h"
#include "galley/text/test_data.h"
#include "galley/text/tokenizer.h"

namespace galley::text {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;

std::string TextOf(const json& line) {
  if (line.contains("text")) return line["text"];
  std::string text;
  for (int i = line["repeat"][1]; i > 0; --i) text += line["repeat"][0].get<std::string>();
  return text;
}

// The V4 tokenizer: V4.1's with some added tokens put back.
std::string V4TokenizerJson() {
  json file = json::parse(test::ReleasedTokenizerJson());
  const json delta = json::parse(test::ReadFile(test::SharedFile("recipe/tokenizer_v4_delta.json")));
  for (const json& token : delta["added_tokens"]) {
    for (json& old : file["added_tokens"]) {
      if (old["id"] == token["id"]) old = token;
    }
  }
  return file.dump();
}

TEST(TokenizerVectors, EveryLineOfTokenize) {
  GALLEY_NEEDS_SHARED("recipe/tokenizer.json.xz");
  const Tokenizer tokenizer = test::MustLoad(test::ReleasedTokenizerJson());
  EXPECT_EQ(tokenizer.vocab_size(), 129280);
  EXPECT_TRUE(tokenizer.has_official_split());
  Encoder encoder(tokenizer);
  int compared = 0, refused = 0;
  for (const std::string& text_line : test::Lines(test::ReadFile(test::SharedFile("recipe/tokenize.jsonl")))) {
    const json line = json::parse(text_line, nullptr, /*allow_exceptions=*/false);
    if (line.is_discarded()) {  // a lone surrogate is refused where the text is read, as by the reference tool
      EXPECT_NE(text_line.find("\"group\":\"surrogate\""), std::string::npos) << text_line;
      ++refused;
      continue;
    }
    const std::string text = TextOf(line);
    const Ids full = line["ids"];
    const Ids plain = line.contains("plain") ? line["plain"].get<Ids>() : full;
    ASSERT_EQ(*tokenizer.Encode(text, AddedTokens::kMatch), full) << line["id"];
    ASSERT_EQ(*tokenizer.Encode(text), plain) << line["id"];
    ASSERT_EQ(*encoder.Encode(text, AddedTokens::kMatch), full) << line["id"] << " with a used cache";
    ASSERT_EQ(*encoder.Encode(text), plain) << line["id"] << " with a used cache";
    ASSERT_EQ(*tokenizer.Decode(full), text) << line["id"];
    ++compared;
  }
  EXPECT_EQ(compared, 2285);
  EXPECT_EQ(refused, 4);
}

TEST(TokenizerVectors, SameTextThroughPcre2) {
  GALLEY_NEEDS_SHARED("recipe/tokenizer.json.xz");
  json file = json::parse(test::ReleasedTokenizerJson());
  // A pattern that matches nothing makes the set unknown, so PCRE2 runs all of it.
  std::vector<std::string> patterns = test::OfficialPatterns();
  patterns.emplace_back("(?!)");
  file["pre_tokenizer"] = test::PreTokenizerJson(patterns);
  const Tokenizer tokenizer = test::MustLoad(file.dump());
  EXPECT_FALSE(tokenizer.has_official_split());
  for (const std::string& text_line : test::Lines(test::ReadFile(test::SharedFile("recipe/tokenize.jsonl")))) {
    const json line = json::parse(text_line, nullptr, /*allow_exceptions=*/false);
    if (line.is_discarded()) continue;
    const std::string text = TextOf(line);
    if (text.find("\u180E") != std::string::npos) continue;  // white space to PCRE2 alone
    ASSERT_EQ(*tokenizer.Encode(text, AddedTokens::kMatch), line["ids"].get<Ids>()) << line["id"];
  }
}

TEST(TokenizerVectors, AddedTokens) {
  GALLEY_NEEDS_SHARED("recipe/tokenizer.json.xz");
  const Tokenizer tokenizer = test::MustLoad(test::ReleasedTokenizerJson());
  const json tokens = json::parse(test::ReadFile(test::SharedFile("recipe/added_tokens.json")));
  ASSERT_EQ(tokens.size(), 1283U);
  for (const json& token : tokens) {
    const std::string content = token["content"];
    const TokenId id = token["id"];
    EXPECT_EQ(tokenizer.IdOf(content), id);
    EXPECT_EQ(tokenizer.AddedIdOf(content), id);
    EXPECT_EQ(tokenizer.TokenBytes(id), content);
    EXPECT_EQ(tokenizer.Spelling(id), content);
    EXPECT_TRUE(tokenizer.is_added(id));
    EXPECT_EQ(tokenizer.is_special(id), token["special"].get<bool>());
    EXPECT_EQ(*tokenizer.Encode(content, AddedTokens::kMatch), Ids{id});
    const Ids plain_ids = *tokenizer.Encode(content);
    for (const TokenId plain : plain_ids) EXPECT_FALSE(tokenizer.is_added(plain)) << content;
  }
}

TEST(TokenizerVectors, EveryOrdinaryTokenIsItsOwnEncodingWhenItIsOnePiece) {
  GALLEY_NEEDS_SHARED("recipe/tokenizer.json.xz");
  const Tokenizer tokenizer = test::MustLoad(test::ReleasedTokenizerJson());
  Encoder encoder(tokenizer, {.cache_slots = 0});
  int whole = 0;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    ASSERT_TRUE(tokenizer.has_token(id));
    const std::string_view bytes = *tokenizer.TokenBytes(id);
    EXPECT_EQ(tokenizer.IdOf(*tokenizer.Spelling(id)), id);
    if (tokenizer.is_added(id) || encoder.SplitEnds(bytes)->size() != 1) continue;
    ASSERT_EQ(*encoder.Encode(bytes), Ids{id}) << id;
    ++whole;
  }
  EXPECT_GT(whole, 120000);
}

TEST(TokenizerVectors, RenderedPromptsWithSpecialRanges) {
  GALLEY_NEEDS_SHARED("recipe/render.jsonl.xz");
  const Tokenizer v41 = test::MustLoad(test::ReleasedTokenizerJson());
  const Tokenizer v4 = test::MustLoad(V4TokenizerJson());
  EXPECT_EQ(v4.IdOf("<｜image｜>"), 129279);
  EXPECT_FALSE(v4.IdOf("<｜System｜>").has_value());
  Encoder encoder_v41(v41), encoder_v4(v4);
  int compared = 0, refused = 0;
  for (const std::string& line : test::Lines(test::ReadXz(test::SharedFile("recipe/render.jsonl.xz")))) {
    const json expect = json::parse(line)["expect"];
    if (!expect.contains("special_ranges")) continue;
    std::vector<ByteRange> ranges;
    for (const json& range : expect["special_ranges"]) ranges.push_back({range[0], range[1]});
    Encoder& encoder = expect["model_version"] == "v4" ? encoder_v4 : encoder_v41;
    const auto ids = encoder.EncodeWithSpecialRanges(expect["prompt"].get<std::string>(), ranges);
    if (expect.contains("render_error")) {
      EXPECT_FALSE(ids);
      ++refused;
    } else if (expect.contains("ids")) {
      ASSERT_TRUE(ids) << ids.error().ToString();
      ASSERT_EQ(*ids, expect["ids"].get<Ids>()) << line.substr(0, 80);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 974);
  EXPECT_EQ(refused, 1);  // the one case whose image spelling is not in the tokenizer
}

TEST(TokenizerVectors, NanoPrompts) {
  GALLEY_NEEDS_SHARED("nano/golden.json");
  const Tokenizer tokenizer = test::NanoTokenizer();
  EXPECT_TRUE(tokenizer.has_official_split());
  const json golden = json::parse(test::ReadFile(test::SharedFile("nano/golden.json")));
  const json& prompts = golden.contains("prompts") ? golden["prompts"] : golden;
  int compared = 0;
  for (const json& prompt : prompts) {
    const Ids ids = prompt["ids"];
    EXPECT_EQ(*tokenizer.Encode(prompt["prompt"].get<std::string>(), AddedTokens::kMatch), ids);
    EXPECT_EQ(*tokenizer.Decode(ids), prompt["prompt"].get<std::string>());
    EXPECT_EQ(*tokenizer.Decode(prompt["greedy"].get<Ids>()), prompt["text"].get<std::string>());
    ++compared;
  }
  EXPECT_EQ(compared, 8);
}

TEST(CompressedIdsVectors, ReleasedTokenizer) {
  GALLEY_NEEDS_SHARED("recipe/engram_compressed_ids.npy.xz");
  const Tokenizer tokenizer = test::MustLoad(test::ReleasedTokenizerJson());
  const std::string npy = test::ReadXz(test::SharedFile("recipe/engram_compressed_ids.npy.xz"));
  constexpr std::size_t kCount = 129280;
  ASSERT_GT(npy.size(), 4 * kCount);
  std::vector<std::int32_t> expected(kCount);  // the data is the end of the file, after a header of text
  std::memcpy(expected.data(), npy.data() + npy.size() - 4 * kCount, 4 * kCount);
  const CompressedIds map = BuildCompressedIds(tokenizer, kCount);
  EXPECT_EQ(map.distinct, 99092);
  EXPECT_EQ(map.ids[2], 2);
  EXPECT_EQ(map.ids, expected);
}

TEST(CompressedIdsVectors, ProbeTokenizer) {
  GALLEY_NEEDS_SHARED("golden/v41_probe/tokenizer.json");
  const Tokenizer tokenizer = test::MustLoad(test::ReadFile(test::SharedFile("golden/v41_probe/tokenizer.json")));
  EXPECT_EQ(BuildCompressedIds(tokenizer, tokenizer.vocab_size()).distinct, 429);
}

}  // namespace
}  // namespace galley::text
