// SPDX-License-Identifier: Apache-2.0
// What a grammar may cost while it is compiled and while it runs, and that one request's cost is no other's.
#include "galley/grammar/limits.h"

#include <fmt/format.h>

#include "galley/base/rng.h"
#include "galley/grammar/test_support.h"

namespace galley::grammar {
namespace {

using testing::CompileText;
using testing::MaskOf;

std::vector<std::uint32_t> TokensOf(const Grammar& grammar, std::string_view text) {
  return grammar.vocabulary->Greedy(text);
}

// The states behind "a" and k more letters are the sets of places at which an a stood: 2^12 of them, which no small
// limit holds. "b" ends at once.
constexpr std::string_view kHungry = "b|(?:c|d)*c(?:c|d){11}a";

TEST(Limits, OneRequestsStatesAreNoBurdenOfAnother) {
  CompileOptions options;
  options.limits.dfa_states_max = 2000;
  auto grammar = CompileText("regex", kHungry, options);
  ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
  Matcher modest(*grammar);
  const std::vector<MaskWord> start = MaskOf(modest);
  ASSERT_EQ(modest.Accept(TokensOf(*grammar, "cddc")), TokensOf(*grammar, "cddc").size());
  const std::vector<MaskWord> middle = MaskOf(modest);
  // Forty requests with letters of their own: none needs so many states alone, all together do several times over.
  const std::uint64_t before = grammar->program->generation();
  std::uint64_t draw = 1;
  for (int request = 0; request < 40; ++request) {
    Matcher other(*grammar);
    for (int i = 0; i < 60; ++i) {
      draw = MixBits(draw);
      ASSERT_TRUE(other.Accept(TokensOf(*grammar, draw % 2 == 0 ? "c" : "d")[0])) << other.FailureText();
    }
  }
  EXPECT_GT(grammar->program->generation(), before) << "the limit was not reached: the test shows nothing";
  EXPECT_FALSE(modest.failed());
  EXPECT_EQ(MaskOf(modest), middle);
  modest.Reset();
  EXPECT_EQ(MaskOf(modest), start);
}

TEST(Limits, WhoNeedsTooMuchAtOnceFailsAlone) {
  CompileOptions options;
  options.limits.dfa_states_max = 1000;
  // Every letter behind "a" is one more of a count, so 1,500 of them need more states than there may be.
  auto grammar = CompileText("regex", "b+|a[xy]{0,5000}c", options);
  ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
  Matcher hungry(*grammar), modest(*grammar);
  ASSERT_TRUE(modest.Accept(TokensOf(*grammar, "b")[0]));
  const std::vector<MaskWord> wanted = MaskOf(modest);
  ASSERT_GT(CountTokens(wanted), 0u);
  ASSERT_TRUE(hungry.Accept(TokensOf(*grammar, "a")[0]));
  for (int i = 0; i < 1500 && hungry.Accept(TokensOf(*grammar, "x")[0]); ++i) {
  }
  ASSERT_TRUE(hungry.failed());
  EXPECT_NE(hungry.FailureText().find("1000 states in one lexeme (dfa_states_max)"), std::string::npos)
      << hungry.FailureText();
  EXPECT_EQ(CountTokens(MaskOf(hungry)), 0u);
  EXPECT_FALSE(hungry.Accept(TokensOf(*grammar, "x")[0]));
  EXPECT_FALSE(modest.failed());
  EXPECT_EQ(MaskOf(modest), wanted);
  EXPECT_TRUE(modest.Accept(TokensOf(*grammar, "b")[0]));
  EXPECT_FALSE(Matcher(*grammar).failed());
}

TEST(Limits, AMatcherThatWasForkedGoesOnAfterARenewal) {
  auto grammar = CompileText("json_schema", R"({"type":"array","items":{"type":"string","maxLength":9}})");
  ASSERT_TRUE(grammar.has_value());
  Matcher matcher(*grammar);
  ASSERT_EQ(matcher.Accept(TokensOf(*grammar, "[\"ab\", \"c")), TokensOf(*grammar, "[\"ab\", \"c").size());
  const auto fork = matcher.Fork();
  ASSERT_TRUE(fork->Accept(TokensOf(*grammar, "d")[0]));
  const std::vector<MaskWord> one = MaskOf(matcher), other = MaskOf(*fork);
  grammar->program->Renew();
  EXPECT_EQ(MaskOf(*fork), other);
  EXPECT_EQ(MaskOf(matcher), one);
  fork->Rollback(1);
  EXPECT_EQ(MaskOf(*fork), one);
  fork->Rollback(1000);
  EXPECT_EQ(MaskOf(*fork), MaskOf(*std::make_unique<Matcher>(*grammar)));
}

std::string Joined(int count, const std::function<std::string(int)>& part) {
  std::string out;
  for (int i = 0; i < count; ++i) out += (i == 0 ? "" : ",") + part(i);
  return out;
}

// Each took from 250 MB to 6 GB, or many seconds, before what grows was counted where it grows. The meter's own account
// stands for the memory, so the test is the same on every machine.
TEST(Limits, HostileSpecificationsAreRefusedWhileTheyGrow) {
  struct Case {
    std::string_view kind;
    std::string spec;
    std::string_view named;
  };
  const auto number = [](int i) { return std::to_string(i); };
  const auto quoted = [](int i) { return fmt::format("\"v{}\"", i); };
  const std::string million(1'000'000, 'a');
  std::string classes;
  for (int i = 0; i < 30'000; ++i) classes += "\\p{L}";
  const std::vector<Case> cases = {
      {"json_schema", "{\"enum\":[" + Joined(260'000, number) + "]}", "250000 JSON values (json_values_max)"},
      {"json_schema", "{\"enum\":[" + Joined(25'000, number) + "]}", "nfa_states_max"},
      {"json_schema", "{\"const\":\"" + million + million + "\"}", "compile_bytes_max"},
      {"json_schema",
       "{\"enum\":[" + Joined(30'000, quoted) + "],\"anyOf\":[" +
           Joined(3'000, [](int i) { return fmt::format("{{\"minLength\":{}}}", i % 3); }) + "]}",
       "compile_bytes_max"},
      {"json_schema",
       "{\"properties\":{\"" + million + "\":{\"properties\":{" +
           Joined(1'000, [](int i) { return fmt::format("\"b{0}\":{{\"minLength\":{0}}}", i); }) + "}}}}",
       "compile_bytes_max"},
      {"choice", "[\"" + million + million + "\"]", "compile_bytes_max"},
      {"regex", classes, "compile_bytes_max"},
      {"regex", million, "nfa_states_max"},
      {"regex", "(?i)" + million, "nfa_states_max"},
      {"ebnf", "root ::= \"" + million + "\"", "nfa_states_max"},
      {"structural_tag", R"({"format":{"type":"const_string","value":")" + std::string(300'000, 'a') + R"("}})",
       "nfa_states_max"}};
  for (const Case& test : cases) {
    const auto grammar = CompileText(test.kind, test.spec);
    ASSERT_FALSE(grammar.has_value()) << test.kind << " " << test.spec.substr(0, 40);
    EXPECT_EQ(grammar.error().code, CompileCode::kTooComplex) << grammar.error().message;
    EXPECT_NE(grammar.error().message.find(test.named), std::string::npos) << grammar.error().message;
  }
}

// Every limit that an operator can set, on a small specification that meets it where compiling, or a mask, ends.
TEST(Limits, AreSetByNameAndNamedWhereTheyAreReached) {
  struct Case {
    std::string_view limit, kind, spec;
  };
  const Case cases[] = {
      {"nesting_max=2", "regex", "(((a)))"},
      {"json_values_max=3", "json_schema", R"({"enum":[1,2,3]})"},
      {"nfa_states_max=10", "regex", "abcdefghijklmnop"},
      {"dfa_states_max=20", "regex", "[ab]{300}c"},
      {"goals_max=2", "json_schema", R"({"properties":{"a":{"minLength":1},"b":{"minLength":2},"c":{"minLength":3}}})"},
      {"branches_max=2", "json_schema", R"({"anyOf":[{"minLength":5},{"minimum":5},{"minItems":5}]})"},
      {"array_states_max=10", "json_schema", R"({"type":"array","contains":{"const":1},"minContains":50})"},
      {"state_items_max=3", "json_schema", "{}"},
      {"steps_max=100", "json_schema", "{}"},
      {"mask_steps_max=10", "json_schema", "{}"},
      {"spec_bytes_max=4", "regex", "abcdefg"},
      {"compile_bytes_max=1KiB", "regex", "[ab]{300}c"},
      {"lexeme_bytes_max=1KiB", "json_schema", R"({"type":"string","format":"email"})"},
      {"matcher_bytes_max=1,call_bytes_max=1KiB", "json_schema", R"({"type":"object","minProperties":1})"},
  };
  for (const auto& [given, kind, spec] : cases) {
    CompileOptions options;
    const std::string text(given);
    ASSERT_TRUE(SetLimits({&text, 1}, options.limits)) << given;
    const std::string_view name = given.substr(0, given.find('='));
    auto value = ParseJson(kind == "json_schema" ? spec : JsonQuote(spec), options.limits.nesting_max,
                           options.limits.json_values_max);
    if (!value) {
      EXPECT_NE(value.error().message.find(name), std::string::npos) << value.error().message;
      continue;
    }
    const auto grammar = CompileKind(kind, *value, {}, options, testing::Vocab1k().vocabulary);
    if (!grammar) {
      EXPECT_EQ(grammar.error().code, CompileCode::kTooComplex) << given;
      EXPECT_NE(grammar.error().message.find(name), std::string::npos) << grammar.error().message;
      continue;
    }
    Matcher matcher(*grammar);
    static_cast<void>(MaskOf(matcher));
    EXPECT_TRUE(matcher.failed()) << given;
    EXPECT_NE(matcher.FailureText().find(name), std::string::npos) << given << ": " << matcher.FailureText();
  }
}

TEST(Limits, OfOtherNamesAndValuesAreRefused) {
  Limits limits;
  for (const std::string text : {"steps=1", "steps_max", "steps_max=", "steps_max=-1", "steps_max=0", "steps_max=1x",
                                 "nesting_max=1001", "goals_max=4294967296", "=1", "goals_max=1,,"}) {
    const Status set = SetLimits({&text, 1}, limits);
    ASSERT_FALSE(set) << text;
    EXPECT_EQ(set.error().code, ErrorCode::kInvalidArgument) << text;
  }
  const std::string several[] = {"steps_max=7,compile_bytes_max=2MiB", "goals_max=4k"};
  ASSERT_TRUE(SetLimits(several, limits));
  EXPECT_EQ(limits.steps_max, 7u);
  EXPECT_EQ(limits.compile_bytes_max, 2u << 20);
  EXPECT_EQ(limits.goals_max, 4000u);
  const std::string all = limits.Text();
  Limits again;
  EXPECT_NE(again.Text(), all);
  ASSERT_TRUE(SetLimits({&all, 1}, again));
  EXPECT_EQ(again.Text(), all);
}

// The same with a marker of tool calls, which the vocabulary of the cases lacks.
Compiled<Grammar> WithMarker(std::string_view kind, std::string_view spec, const CompileOptions& options) {
  if (kind != "dsml") return CompileText(kind, spec, options);
  const auto& vocabulary = testing::Vocab1k().vocabulary;
  return CompileKind(kind, *ParseJson(spec), {{std::string(kDsmlMarker), vocabulary->size()}}, options, vocabulary);
}

// Where a limit cuts off what a search would have found, the answer is not that there is nothing.
TEST(Limits, AreNeverTakenForAnEmptyLanguage) {
  const std::vector<std::pair<std::string_view, std::string_view>> specs = {
      {"regex", "[ab]{300}c"},
      {"json_schema", R"({"type":"string","pattern":"^[ab]{300}c$"})"},
      {"json_schema", R"({"type":"object","required":["x"],"properties":{"x":{"pattern":"^[ab]{300}c$"}}})"},
      {"json_schema", R"({"type":"object","minProperties":1,"propertyNames":{"pattern":"^[ab]{300}c$"}})"},
      {"structural_tag", R"({"format":{"type":"regex","pattern":"[ab]{300}c"}})"},
      {"ebnf", "root ::= x x\nx ::= [ab]{300} \"c\""},
      {"dsml",
       R"({"spelling":"v41","mode":"block","tools":[{"name":"f","parameters":{"type":"object","required":["x"],)"
       R"("properties":{"x":{"type":"string","pattern":"^[ab]{300}c$"}}}}]})"},
      {"dsml", R"({"spelling":"v41","mode":"auto","tools":[{"name":"f","parameters":{"type":"object"}}],)"
               R"("otherwise":{"kind":"regex","spec":"[ab]{300}c"}})"}};
  for (const auto& [kind, spec] : specs) {
    for (const std::uint32_t states : {20u, 100u}) {
      CompileOptions options;
      options.limits.dfa_states_max = states;
      const auto grammar = WithMarker(kind, spec, options);
      if (grammar) {  // built where it is walked: the matcher finds out
        Matcher matcher(*grammar);
        EXPECT_TRUE(CountTokens(MaskOf(matcher)) > 0 || matcher.failed()) << spec;
        continue;
      }
      EXPECT_EQ(grammar.error().code, CompileCode::kTooComplex) << spec << ": " << grammar.error().message;
      EXPECT_NE(grammar.error().message.find("dfa_states_max"), std::string::npos) << grammar.error().message;
    }
    EXPECT_TRUE(WithMarker(kind, spec, {}).has_value()) << spec;
  }
}

// Rules that join themselves read a text in as many ways as there are trees; the texts are those of a row.
TEST(Limits, RulesThatJoinThemselvesAreReadOnce) {
  struct Row {
    std::string_view grammar, unit;
    bool complete;  // of many units
  };
  for (const Row& row : {
           Row{"root ::= e\ne ::= e e | [ \\t]+ | \"\\\"\" |", " \t\"", true},
           Row{"root ::= e\ne ::= e e e | e e | \"a\" | \"(\" e \")\"", "a(aa)", true},
           Row{"root ::= e \";\"?\ne ::= e \"+\" e | e \"*\" e | e \"[\" e \"]\" e | [0-9]+", "1+22*3[4]", false},
           Row{"root ::= root root root | [ab] |", "ab", true},
           Row{"root ::= root root root | root root root root | \"x\" root \"y\" | \"a\"", "axay", true},
           Row{"root ::= root \",\" root | \"a\" |", "a,,", true},
       }) {
    std::string text;
    while (text.size() < 20'000) text += row.unit;
    Matcher matcher(*CompileText("ebnf", row.grammar));
    const auto judged = matcher.Check(text);
    EXPECT_TRUE(judged.prefix) << row.grammar << " " << matcher.FailureText();
    EXPECT_EQ(judged.complete, row.complete) << row.grammar;
    EXPECT_FALSE(matcher.Check(text + "!").prefix) << row.grammar;
    EXPECT_FALSE(matcher.failed()) << row.grammar << " " << matcher.FailureText();
  }
  // Three at a time, the numbers are odd.
  for (int n = 1; n < 30; ++n) {
    EXPECT_EQ(testing::Takes("ebnf", "root ::= root root root | \"a\"", std::string(static_cast<std::size_t>(n), 'a')),
              n % 2 == 1)
        << n;
  }
}

// The same texts, told by counts: x{a,b}x{c,d} and (x?){m,n} do not become sets of thousands of places.
TEST(Limits, RepeatsOfOneCharacterAreCounted) {
  const auto takes = [](std::string_view pattern, std::size_t count) {
    return testing::Takes("regex", pattern, std::string(count, 'a'));
  };
  for (const std::string_view pattern : {"(?:a?){5000}a{5000}", "a{5000}(?:a?){5000}", "(?:a*)*a{3}a+a{4996}"}) {
    EXPECT_FALSE(takes(pattern, 4999)) << pattern;
    EXPECT_TRUE(takes(pattern, 5000)) << pattern;
    EXPECT_EQ(takes(pattern, 10'001), pattern.find('*') != std::string_view::npos) << pattern;
  }
  EXPECT_FALSE(testing::Takes("regex", "(?:a+){2,3}", "a"));
  EXPECT_TRUE(testing::Takes("regex", "(?:a+){2,3}", "aaaaaaa"));
  EXPECT_TRUE(testing::Takes("regex", "(?:a+){0,3}", ""));
  EXPECT_TRUE(testing::Takes("regex", "(?:a?){2,3}", ""));
  EXPECT_FALSE(testing::Takes("regex", "(?:a?){2,3}", "aaaa"));
}

}  // namespace
}  // namespace galley::grammar
