// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app_fixture.h"

namespace galley::app {
namespace {

using ::testing::HasSubstr;

RunOutcome Call(std::vector<std::string> arguments, std::string input = "") {
  FakeModel model;
  return RunApp(model, {.arguments = std::move(arguments), .input = std::move(input)});
}

RunOutcome Check(const std::string& spec, std::vector<std::string> arguments, std::string input = "") {
  const TemporaryFile file(spec);
  arguments.insert(arguments.begin(), {"grammar", "check", file.path()});
  return Call(std::move(arguments), std::move(input));
}

constexpr const char* kAge = R"({"properties":{"age":{"type":"integer","maximum":120}},"required":["age"]})";

TEST(GrammarCheck, SaysWhereAndWhyATextIsRefused) {
  const RunOutcome good = Check(kAge, {R"({"age": 41})"});
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_EQ(good.out, "accepted\n");
  const RunOutcome bad = Check(kAge, {R"({"age": x})"});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.out, HasSubstr("refused at byte 8 (line 1, column 9), in the value at /age: \"x\" cannot stand here\n"
                                 "  {\"age\": x}\n          ^\n"));
  EXPECT_THAT(bad.out, HasSubstr("schema there, at #/properties/age: {\"type\":\"integer\",\"maximum\":120}"));
  EXPECT_EQ(Check(kAge, {}, "{\"age\": 41}\n").out, "accepted\n");
  EXPECT_EQ(Check(kAge, {"-"}, "{\"age\": 41}\n").out, "accepted\n");
  EXPECT_THAT(Check(kAge, {"--json", "{\"age\": 999}"}).out,
              HasSubstr("\"complete\":false,\"prefix\":false,\"bytes_ok\":10"));
}

TEST(GrammarCheck, TakesEveryKindAndTheirOptions) {
  EXPECT_EQ(Check("a+b\n", {"--kind", "regex", "aab"}).exit_code, 0);
  EXPECT_EQ(Check("root ::= \"x\" | \"y\"\n", {"--kind", "ebnf", "z"}).exit_code, 2);
  EXPECT_EQ(Check(R"(["on","off"])", {"--kind", "choice", "off"}).exit_code, 0);
  EXPECT_EQ(
      Check(R"({"mode":"block","tools":[{"name":"f","parameters":{}}]})",
            {"--kind", "dsml", "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"})
          .out,
      "accepted\n");
  const std::string pair = R"({"properties":{"a":{},"b":{}},"required":["a","b"]})";
  EXPECT_EQ(Check(pair, {R"({"b":1,"a":2})"}).exit_code, 2);
  EXPECT_EQ(Check(pair, {"--any-order", R"({"b":1,"a":2})"}).exit_code, 0);
  EXPECT_EQ(Check("{}", {"[ 1 ]"}).exit_code, 2);
  EXPECT_EQ(Check("{}", {"--whitespace", "flexible", "[ 1 ]"}).exit_code, 0);
}

TEST(GrammarCheck, ABadGrammarIsRefusedWithItsPlace) {
  EXPECT_THAT(Check(R"({"properties":{"a":{"type":"strin"}}})", {"1"}).err, HasSubstr("#/properties/a"));
  EXPECT_THAT(Check("a(?=b)", {"--kind", "regex", "1"}).err, HasSubstr("byte 1"));
  EXPECT_EQ(Check("{\"type\":", {"1"}).exit_code, 2);
  EXPECT_EQ(Check(R"({"frobnicate":1})", {"1"}).exit_code, 2);
  const RunOutcome lenient = Check(R"({"frobnicate":1})", {"--lenient", "1"});
  EXPECT_EQ(lenient.exit_code, 0);
  EXPECT_THAT(lenient.err, HasSubstr("frobnicate"));
  EXPECT_EQ(Call({"grammar", "check", "/nonexistent", "1"}).exit_code, 3);
  EXPECT_EQ(Call({"grammar"}).exit_code, 2);
  EXPECT_EQ(Call({"grammar", "check"}).exit_code, 2);
}

TEST(GrammarServe, AnswersLineByLineWithTheModelsVocabulary) {
  const RunOutcome outcome =
      Call({"grammar-serve"},
           "{\"op\":\"hello\"}\nbroken\n{\"op\":\"compile\",\"kind\":\"choice\",\"spec\":[\"Once upon\"]}\n"
           "{\"op\":\"fast_forward\"}\n{\"op\":\"quit\"}\n{\"op\":\"hello\"}\n");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\"vocab_size\":2560,\"eos\":[1]"));
  EXPECT_THAT(outcome.out, HasSubstr("\"code\":\"bad_json\""));
  EXPECT_THAT(outcome.out, HasSubstr("{\"ok\":true,\"tokens\":[554,550],\"text\":\"Once upon\"}\n"));
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 5);  // nothing after quit
}

TEST(GrammarServe, TakesAVocabularyFile) {
  const TemporaryFile vocabulary(R"({"eos":[1],"special":[],"tokens":["YQ==",null]})");
  EXPECT_THAT(Call({"grammar-serve", "--vocab", vocabulary.path()}, "{\"op\":\"hello\"}").out,
              HasSubstr("\"vocab_size\":2"));
  const TemporaryFile broken("{");
  EXPECT_EQ(Call({"grammar-serve", "--vocab", broken.path()}).exit_code, 2);
  EXPECT_EQ(Call({"grammar-serve", "--tokenizer", "/nonexistent"}).exit_code, 3);
}

}  // namespace
}  // namespace galley::app
