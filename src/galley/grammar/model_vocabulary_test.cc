// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/model_vocabulary.h"

#include "galley/grammar/test_support.h"
#include "galley/text/tokenizer.h"

namespace galley::grammar {
namespace {

TEST(ModelVocabulary, AddedTokensAreControlTokensAndBytesAreDecoded) {
  const auto tokenizer = text::Tokenizer::Load(std::string(GALLEY_SOURCE_DIR) + "/models/nano/tokenizer.json");
  ASSERT_TRUE(tokenizer.has_value());
  const std::vector<TokenId> ends = {1};
  const auto made = VocabularyOf(*tokenizer, ends, 2600);
  ASSERT_TRUE(made.has_value());
  const Vocabulary& vocabulary = *made->vocabulary;
  EXPECT_EQ(vocabulary.size(), 2600u);  // padded to the model's logits
  EXPECT_TRUE(vocabulary.is_end(1));
  EXPECT_EQ(vocabulary.bytes(554), "Once");
  EXPECT_EQ(vocabulary.bytes(550), " upon");
  std::size_t found = 0;
  for (const Marker& marker : made->markers) {
    EXPECT_TRUE(vocabulary.is_special(marker.token));
    EXPECT_TRUE(vocabulary.bytes(marker.token).empty());
    found += marker.text == "｜DSML｜" || marker.text == "</think>" ? 1 : 0;
  }
  EXPECT_EQ(found, 2u);
}

TEST(ModelVocabulary, IdsOutsideTheModelAreRefused) {
  const auto tokenizer = text::Tokenizer::Load(std::string(GALLEY_SOURCE_DIR) + "/models/nano/tokenizer.json");
  const std::vector<TokenId> far = {99999}, negative = {-1}, one = {1};
  EXPECT_FALSE(VocabularyOf(*tokenizer, far).has_value());
  EXPECT_FALSE(VocabularyOf(*tokenizer, negative).has_value());
  EXPECT_FALSE(VocabularyOf(*tokenizer, one, 100).has_value());
}

TEST(ModelVocabulary, AVocabularyFileIsChecked) {
  const auto read = [](std::string_view json) { return ReadVocabularyFile(json).has_value(); };
  EXPECT_TRUE(read(R"({"vocab_size":2,"eos":[1],"special":[1],"names":{"1":"end"},"tokens":["YQ==",null]})"));
  EXPECT_FALSE(read(R"({"vocab_size":1,"eos":[],"special":[],"tokens":["YQ==",null]})"));
  EXPECT_FALSE(read(R"({"eos":[2],"special":[],"tokens":["YQ==",null]})"));
  EXPECT_FALSE(read(R"({"eos":[-1],"special":[],"tokens":["YQ=="]})"));
  EXPECT_FALSE(read(R"({"eos":[],"special":[],"names":{"7":"x"},"tokens":["YQ=="]})"));
  EXPECT_FALSE(read(R"({"eos":[],"tokens":[]})"));
  EXPECT_FALSE(read("[1]"));
  EXPECT_FALSE(read("{"));
}

TEST(Base64, RoundTripsEveryLength) {
  std::string bytes;
  for (int i = 0; i < 70; ++i) {
    EXPECT_EQ(Base64Decode(Base64Encode(bytes)), bytes);
    bytes.push_back(static_cast<char>(i * 37));
  }
  EXPECT_EQ(Base64Encode("Ma"), "TWE=");
}

}  // namespace
}  // namespace galley::grammar
