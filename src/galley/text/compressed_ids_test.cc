// SPDX-License-Identifier: Apache-2.0
#include "galley/text/compressed_ids.h"

#include <gtest/gtest.h>

#include "galley/text/test_data.h"

namespace galley::text {
namespace {

TEST(EngramFold, Rules) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"Hello", "hello"},
      {" Hello ", "hello"},  // trimmed
      {"É", "e"},            // decomposed, mark removed
      {"e\u0301", "e"},
      {"ﬁ", "fi"},     // compatibility decomposition
      {"Ａ１", "a1"},  // full width
      {"①", "1"},
      {"İ", "i"},  // decomposes into I and a dot above, so no i with a dot is left
      {"Σ", "σ"},  // no special form at the end of a word
      {"ΑΣ", "ασ"},
      {"가", "\u1100\u1161"},  // Hangul stays decomposed
      {"a \t\r\n b", "a b"},   // runs of white space
      {"\n", " "},             // exactly one space stays
      {" \t ", " "},
      {"\u00A0", " "},  // a no-break space is a space after decomposition
      {"\u00A0\u00A0", " "},
      {"\u3000a\u2003", "a"},
      {"a\u000Bb", "a\u000Bb"},  // a vertical tab is not collapsed
      {"\u000Ba\u0085", "a"},    // but trimmed, as all white space
      {"\u0301", ""},            // nothing is left
      {"\u0903\u20DD", ""},      // spacing and enclosing marks too
      {"\uE000", " "},           // the placeholder itself, as in the reference
      {"中文", "中文"},
      {"\U0001F600", "\U0001F600"},
      {"", ""},
  };
  for (const auto& [text, folded] : cases) {
    EXPECT_EQ(EngramFold(text), folded) << text;
  }
}

// Characters that Unicode 14 does not know fold to themselves with every version of the system's library.
TEST(EngramFold, NewCharactersStay) {
  for (const std::string_view text : {"\U00010D50", "\U0001CCD6", "\uA7DC", "\U0001E030"})
    EXPECT_EQ(EngramFold(text), text);
}

TEST(CompressedIds, NumbersKeysByFirstAppearance) {
  nlohmann::json file = test::ByteTokenizerJson({{"a", "b"}, {"A", "b"}, {" ", "a"}, {"\xC3", "\x89"}});
  file["added_tokens"] = {test::AddedTokenJson(262, "<AB>", true), test::AddedTokenJson(263, "<ab>", false)};
  const Tokenizer t = test::MustLoad(file.dump());
  const CompressedIds map = BuildCompressedIds(t, 266);
  ASSERT_EQ(map.ids.size(), 266U);
  const auto id = [&](int i) { return map.ids[static_cast<std::size_t>(i)]; };
  EXPECT_EQ(id(0), 0);
  EXPECT_EQ(id('a'), id('A'));
  EXPECT_EQ(id(256), id(257));  // ab, Ab
  EXPECT_EQ(id(258), id('a'));  // " a"
  EXPECT_EQ(id(259), id('e'));  // É
  EXPECT_EQ(id(' '), id('\n'));
  EXPECT_NE(id(0x80), id(0x81));  // not UTF-8 alone: each keeps its own spelling
  EXPECT_EQ(id(262), id(263));    // special tokens are folded like text
  EXPECT_EQ(id(260), id(261));    // no token: the empty text
  EXPECT_EQ(id(264), id(260));
  EXPECT_EQ(id(265), id(260));  // beyond the tokenizer
  EXPECT_NE(id(260), id(' '));
  EXPECT_EQ(map.distinct, 1 + *std::max_element(map.ids.begin(), map.ids.end()));
}

TEST(CompressedIds, NanoHasTheCountOfItsConfig) {
  const Tokenizer t = test::NanoTokenizer();
  EXPECT_TRUE(CompressedIdsFor(t, 2560, 2124));
  const auto wrong = CompressedIdsFor(t, 2560, 99092);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(
      wrong.error().ToString(),
      "engram_compressed_vocab_size: the tokenizer gives 2124 compressed ids for a vocabulary of 2560, the config "
      "states 99092; use the tokenizer.json that belongs to the model");
}

}  // namespace
}  // namespace galley::text
