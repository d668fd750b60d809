// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/output_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "galley/text/utf8.h"

namespace galley::engine {
namespace {

// The tokenizer of the small model: byte tokens for what its vocabulary does not spell.
class OutputStreamTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    Result<text::Tokenizer> loaded =
        text::Tokenizer::Load(std::string(GALLEY_SOURCE_DIR) + "/models/nano/tokenizer.json");
    ASSERT_TRUE(loaded.has_value()) << loaded.error().ToString();
    tokenizer_ = std::make_unique<text::Tokenizer>(std::move(*loaded));
  }
  static void TearDownTestSuite() { tokenizer_.reset(); }

  static std::vector<TokenId> Ids(std::string_view text, text::AddedTokens added = text::AddedTokens::kAsText) {
    return *tokenizer_->Encode(text, added);
  }

  struct Outcome {
    std::string text;
    std::optional<std::size_t> stopped;
  };
  static Outcome Feed(const StopSet& stops, const std::vector<TokenId>& ids) {
    OutputStream stream(*tokenizer_, stops);
    Outcome outcome;
    for (const TokenId id : ids) {
      const Result<std::string> piece = stream.Append(id);
      EXPECT_TRUE(piece.has_value());
      EXPECT_TRUE(text::IsValidUtf8(*piece));
      outcome.text += *piece;
    }
    outcome.text += stream.Finish();
    outcome.stopped = stream.stopped();
    return outcome;
  }

  static std::unique_ptr<text::Tokenizer> tokenizer_;
};

std::unique_ptr<text::Tokenizer> OutputStreamTest::tokenizer_;

TEST_F(OutputStreamTest, GivesTheTextOfTheTokens) {
  const std::string text = "Once upon a time, 日本語 🙂 naïve.";
  EXPECT_EQ(Feed(StopSet(), Ids(text)).text, text);
}

TEST_F(OutputStreamTest, StopsAcrossTokensOfOneByte) {
  // One token a byte: every byte of the text is a token border, also inside the characters.
  const std::string text = "ab日🙂é!";
  std::vector<TokenId> ids;
  for (TokenId id = 0; ids.size() < text.size() && id < tokenizer_->vocab_size();) {
    const std::string_view wanted(text.data() + ids.size(), 1);
    id = tokenizer_->TokenBytes(id) == wanted && !tokenizer_->is_added(id) ? (ids.push_back(id), 0) : id + 1;
  }
  ASSERT_EQ(ids.size(), text.size()) << "the vocabulary has a token for every byte";
  EXPECT_EQ(Feed(StopSet(), ids).text, text);
  for (const std::string stop : {"日", "🙂é", "b日🙂", "!", "é!"}) {
    const StopSet set = *StopSet::Create(std::vector<std::string>{stop});
    const Outcome outcome = Feed(set, ids);
    EXPECT_EQ(outcome.text, text.substr(0, text.find(stop))) << stop;
    EXPECT_EQ(outcome.stopped, 0u);
  }
}

TEST_F(OutputStreamTest, ControlTokensAreSpelledAndBreakStopStrings) {
  const StopSet set = *StopSet::Create(std::vector<std::string>{"ab", "User"});
  // "a", <｜User｜>, "b": "ab" does not stand there, and "User" is only the spelling of a control token.
  std::vector<TokenId> ids = Ids("a");
  const std::vector<TokenId> rest = Ids("<｜User｜>b", text::AddedTokens::kMatch);
  ids.insert(ids.end(), rest.begin(), rest.end());
  const Outcome outcome = Feed(set, ids);
  EXPECT_EQ(outcome.text, "a<｜User｜>b");
  EXPECT_EQ(outcome.stopped, std::nullopt);
}

TEST_F(OutputStreamTest, ACharacterBrokenByAControlTokenIsReplaced) {
  std::vector<TokenId> ids = Ids("🙂");
  ASSERT_GT(ids.size(), 1u) << "the emoji takes several tokens";
  ids.resize(1);
  ids.push_back(*tokenizer_->AddedIdOf("<｜User｜>"));
  EXPECT_EQ(Feed(StopSet(), ids).text, "\xEF\xBF\xBD<｜User｜>");
  ids.pop_back();
  EXPECT_EQ(Feed(StopSet(), ids).text, "\xEF\xBF\xBD");
}

TEST_F(OutputStreamTest, NothingFollowsAStop) {
  const StopSet set = *StopSet::Create(std::vector<std::string>{" upon"});
  OutputStream stream(*tokenizer_, set);
  std::string text;
  for (const TokenId id : Ids("Once upon a time")) text += *stream.Append(id);
  text += *stream.Append(*tokenizer_->AddedIdOf("<｜User｜>"));
  text += stream.Finish();
  EXPECT_EQ(text, "Once");
  EXPECT_EQ(stream.stopped(), 0u);
}

TEST_F(OutputStreamTest, AnUnknownIdIsAnError) {
  const StopSet none;
  OutputStream stream(*tokenizer_, none);
  EXPECT_FALSE(stream.Append(tokenizer_->vocab_size()).has_value());
  EXPECT_FALSE(stream.Append(-1).has_value());
  EXPECT_EQ(*stream.Append(Ids("Once").front()), "Once");
}

}  // namespace
}  // namespace galley::engine
