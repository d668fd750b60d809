// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app_fixture.h"

namespace galley::app {
namespace {

using ::testing::HasSubstr;

RunOutcome Tokenize(std::vector<std::string> arguments, std::string input = "") {
  FakeModel model;
  arguments.insert(arguments.begin(), "tokenize");
  RunOutcome outcome = RunApp(model, {.arguments = std::move(arguments), .input = std::move(input)});
  EXPECT_TRUE(model.created.empty()) << "no weights are needed";
  return outcome;
}

TEST(Tokenize, EncodesAndDecodes) {
  EXPECT_EQ(Tokenize({"Once", "upon a time"}).out, "[554,550,259,495]\n");
  EXPECT_EQ(Tokenize({}, "Once upon a time").out, "[554,550,259,495]\n");
  EXPECT_EQ(Tokenize({"--count", "Once upon a time"}).out, "4\n");
  EXPECT_EQ(Tokenize({"--decode", "554", "550", "259", "495"}).out, "Once upon a time");
  EXPECT_EQ(Tokenize({"--decode"}, "[554, 550, 259, 495]\n").out, "Once upon a time");
  EXPECT_EQ(Tokenize({"--decode", "554,550"}).out, "Once upon");
  EXPECT_EQ(Tokenize({"--json", "Once upon"}).out, "{\"ids\":[554,550],\"count\":2}\n");
  EXPECT_EQ(Tokenize({"--json", "--decode", "554"}).out, "{\"text\":\"Once\"}\n");
  EXPECT_EQ(Tokenize({""}).out, "[]\n");
}

TEST(Tokenize, RoundTripsByteForByte) {
  const std::string text = "line one\r\n\n  日本語 🙂\t\n";
  EXPECT_EQ(Tokenize({"--decode"}, Tokenize({}, text).out).out, text);
}

TEST(Tokenize, ControlTokensOnlyWhenAskedFor) {
  EXPECT_EQ(Tokenize({"--special", "<｜User｜>"}).out, "[2546]\n");
  const std::string plain = Tokenize({"<｜User｜>"}).out;
  EXPECT_NE(plain, "[2546]\n");
  EXPECT_EQ(Tokenize({"--decode"}, plain).out, "<｜User｜>");
}

TEST(Tokenize, TableShowsPositionIdAndSpelling) {
  EXPECT_EQ(Tokenize({"--tokens", "--special", "Once upon<｜User｜>"}).out,
            "     0     554  Once\n     1     550  Ġupon\n     2    2546  <｜User｜>  (control)\n");
  EXPECT_THAT(Tokenize({"--tokens", "--json", "--special", "<｜User｜>"}).out,
              HasSubstr("\"tokens\":[{\"id\":2546,\"spelling\":\"<｜User｜>\",\"added\":true}]"));
}

TEST(Tokenize, TakesATokenizerFileOrDirectory) {
  const std::string dir = NanoDir().string();
  EXPECT_EQ(Tokenize({"--tokenizer", dir + "/tokenizer.json", "Once"}).out, "[554]\n");
  EXPECT_EQ(Tokenize({"--tokenizer", dir, "Once"}).out, "[554]\n");
  EXPECT_EQ(Tokenize({"--model", dir, "Once"}).out, "[554]\n");
  EXPECT_EQ(Tokenize({"--model", "/nonexistent", "Once"}).exit_code, 3);
}

TEST(Tokenize, RefusesWhatIsNoId) {
  EXPECT_THAT(Tokenize({"--decode", "12", "x3"}).err, HasSubstr("id 1: \"x3\" is not a token id"));
  EXPECT_THAT(Tokenize({"--decode", "--", "-1"}).err, HasSubstr("\"-1\" is not a token id"));
  EXPECT_THAT(Tokenize({"--decode", "99999999999"}).err, HasSubstr("is not a token id"));
  EXPECT_EQ(Tokenize({"--decode", "1000000"}).exit_code, 2);
  EXPECT_EQ(Tokenize({"--decode", "--count", "1"}).exit_code, 2);
  EXPECT_EQ(Tokenize({}, "\xFF").exit_code, 2);
}

}  // namespace
}  // namespace galley::app
