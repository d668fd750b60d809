// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/matcher.h"

#include <fmt/format.h>

#include "galley/base/rng.h"
#include "galley/grammar/test_support.h"

namespace galley::grammar {
namespace {

using testing::CompileText;
using testing::MaskOf;

bool Has(const std::vector<MaskWord>& mask, std::uint32_t id) {
  return (mask[id / 64] >> (id % 64) & 1) != 0;
}

// Another seed: --gtest_random_seed=N (1 to 99999).
std::uint64_t Seed() {
  const int given = ::testing::UnitTest::GetInstance()->random_seed();
  return given == 0 ? 20261129 : static_cast<std::uint64_t>(given);
}

// Small sequence of draws, a function of the seed.
struct Draws {
  std::uint64_t state;
  std::uint64_t Next(std::uint64_t below) { return (state = MixBits(state)) % below; }
};

struct Spec {
  std::string_view kind;
  std::string_view text;
};

// Grammars that between them use every kind of node and payload.
const std::vector<Spec>& Specs() {
  static const std::vector<Spec> specs = {
      {"regex", "(?:日本|日語|é|a)+b{2,4}"},
      {"ebnf", "root ::= e\ne ::= e [+*] e | \"(\" e \")\" | [0-9]+"},
      {"ebnf", "root ::= \"a\" root \"a\" | \"b\" root \"b\" | \"aa\" | \"b\""},
      {"json_schema", "{}"},
      {"json_schema", R"({"type":"string","minLength":2,"maxLength":3})"},
      {"json_schema", R"({"type":"integer","minimum":-15,"maximum":123})"},
      {"json_schema", R"({"type":"object","additionalProperties":{"type":"integer"},"maxProperties":3})"},
      {"json_schema", R"({"properties":{"a":{"type":"integer"},"b":{"enum":["a","b"]}},"required":["b"]})"},
      {"json_schema", R"({"type":"array","items":{"enum":["a","b",1]},"uniqueItems":true,"minItems":2})"},
      {"json_schema", R"({"type":"array","contains":{"const":"a"},"minContains":2,"maxItems":4})"},
      {"json_schema", R"({"type":"object","patternProperties":{"^a":{"type":"null"}},"minProperties":1})"},
      {"json_schema", R"({"type":"object","propertyNames":{"maxLength":1},"additionalProperties":{"const":1}})"},
      {"json_schema",
       R"({"type":"object","patternProperties":{"^(a|b[ab]*)$":{"const":1}},"additionalProperties":false})"},
      {"json_schema",
       R"({"$defs":{"n":{"anyOf":[{"type":"null"},{"type":"array","items":{"$ref":"#/$defs/n"}}]}},"$ref":"#/$defs/n"})"},
  };
  return specs;
}

// A random allowed token, or the vocabulary size when there is none.
std::uint32_t Pick(const std::vector<MaskWord>& mask, std::uint32_t size, Draws& draws) {
  std::vector<std::uint32_t> ids;
  for (std::uint32_t id = 0; id < size; ++id) {
    if (Has(mask, id)) ids.push_back(id);
  }
  return ids.empty() ? size : ids[draws.Next(ids.size())];
}

TEST(MatcherProperty, MaskBitIffAcceptInEveryStateOfARandomWalk) {
  const std::uint64_t seed = Seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Draws draws{seed};
  for (const Spec& spec : Specs()) {
    CompileOptions options;
    options.whitespace = draws.Next(2) == 0 ? Whitespace::kDefault : Whitespace::kFlexible;
    auto grammar = CompileText(spec.kind, spec.text, options);
    ASSERT_TRUE(grammar.has_value()) << spec.text << ": " << grammar.error().message;
    Matcher matcher(*grammar);
    const std::uint32_t size = grammar->vocabulary->size();
    for (int step = 0; step < 25 && !matcher.terminated(); ++step) {
      const auto mask = MaskOf(matcher);
      for (std::uint32_t id = 0; id < size; ++id) {
        const bool accepted = matcher.Accept(id);
        if (accepted) matcher.Rollback(1);
        ASSERT_EQ(accepted, Has(mask, id))
            << spec.text << " step " << step << " token " << id << " " << JsonQuote(grammar->vocabulary->bytes(id));
      }
      EXPECT_EQ(matcher.can_stop(), Has(mask, 1));
      const std::uint32_t token = Pick(mask, size, draws);
      ASSERT_LT(token, size) << spec.text << ": mask is empty before the end";
      ASSERT_TRUE(matcher.Accept(token));
    }
  }
}

// Masks know of it too, whatever way a token spells the name and wherever it begins.
TEST(Matcher, MasksLeaveOutNamesThatAreUsedUp) {
  const auto vocabulary = testing::Pieces(
      {":",     "{", "\\",  "n",       "{\"a", "\":1,", ",",    "\"", "a", "\"a",      ",\"a",
       "\"a\"", "b", "\"b", "\\u0061", "\"\\", "u0061", "u006", "1",  "2", "\":1,\"a", "\":1,\"b\":1,\"",
       "}"});
  for (const std::string_view schema :
       {R"({"type":"object","propertyNames":{"maxLength":1},"additionalProperties":{"const":1}})",
        R"({"type":"object","patternProperties":{"^(a|b[ab]*)$":{"const":1}},"additionalProperties":false})",
        R"({"type":"object","propertyNames":{"pattern":"^[a-z]{1,2}$"},"additionalProperties":{"const":1}})"}) {
    auto grammar = CompileKind("json_schema", *ParseJson(schema), {}, {}, vocabulary);
    ASSERT_TRUE(grammar.has_value());
    Draws draws{Seed()};
    SCOPED_TRACE("seed " + std::to_string(draws.state));
    for (int walk = 0; walk < 60; ++walk) {
      Matcher matcher(*grammar);
      for (int step = 0; step < 14 && !matcher.terminated(); ++step) {
        const auto mask = MaskOf(matcher);
        for (std::uint32_t id = 0; id < vocabulary->size(); ++id) {
          const bool accepted = matcher.Accept(id);
          if (accepted) matcher.Rollback(1);
          ASSERT_EQ(accepted, Has(mask, id)) << schema << " step " << step << " token " << vocabulary->bytes(id);
        }
        const std::uint32_t token = Pick(mask, vocabulary->size(), draws);
        ASSERT_LT(token, vocabulary->size()) << schema << ": mask is empty before the end";
        ASSERT_TRUE(matcher.Accept(token));
      }
    }
  }
}

// A name that can only become one that its object has already is no name to begin.
TEST(Matcher, NamesThatAreUsedUpAreNotBegun) {
  const std::string_view few =
      R"({"type":"object","patternProperties":{"^(a|b[a-c]*)$":{}},"additionalProperties":false})";
  const std::string_view one = R"({"type":"object","propertyNames":{"maxLength":1}})";
  const std::string_view two = R"({"type":"object","propertyNames":{"maxLength":2},"properties":{"ab":{}}})";
  struct Row {
    std::string_view schema;
    std::string text;
    bool lives;
  };
  for (const Row& row : {
           Row{few, R"({"a)", true},
           Row{few, R"({"a":1,"a)", false},
           Row{few, R"({"a":1,"b)", true},
           Row{few, R"({"b":1,"b)", true},
           Row{few, R"({"a":1,"\u006)", true},  // b is 62
           Row{few, R"({"a":1,"\u0061)", false},
           Row{few, R"({"\u0061":1,"a)", false},
           Row{one, R"({"x":1,"")", true},
           Row{one, R"({"x":1,"x)", false},
           Row{one, R"({"x":1,"\)", true},
           Row{one, R"({"\n":1,"\n)", false},
           Row{one, "{\"\xC3\xA9\":1,\"\xC3", true},
           Row{one, "{\"\xC3\xA9\":1,\"\xC3\xA9", false},
           Row{one, R"({"\u00e9":1,"\u00E9)", false},
           Row{one, "{\"\xF0\x9F\x98\x80\":1,\"\xF0\x9F\x98\x80", false},
           Row{one, R"({"\ud83d\ude00":1,"\ud83d\ude0)", true},
           Row{one, "{\"\xF0\x9F\x98\x80\":1,\"\\ud83d\\ude00", false},
           Row{two, R"({"xy":1,"x)", true},
           Row{two, R"({"xy":1,"xy)", false},
           Row{two, R"({"xy":1,"x":1,"x)", true},
           Row{two, R"({"ab":1,"ab)", false},
       }) {
    CompileOptions options;
    options.any_order = true;
    Matcher matcher(*CompileText("json_schema", row.schema, options));
    EXPECT_EQ(matcher.Check(row.text).prefix, row.lives) << row.schema << " " << row.text;
  }
  // 26² names: behind the last of them the object can only close.
  const std::string_view pairs =
      R"({"type":"object","patternProperties":{"^[a-z]{2}$":{}},"additionalProperties":false})";
  Matcher matcher(*CompileText("json_schema", pairs));
  std::string text;
  for (int i = 0; i < 26 * 26; ++i) {
    text += fmt::format("{}\"{:c}{:c}\":1", i == 0 ? "{" : ",", 'a' + i / 26, 'a' + i % 26);
    if (i % 25 != 0) continue;  // 675 is the last
    EXPECT_EQ(matcher.Check(text + ",").prefix, i + 1 < 26 * 26) << i;
  }
  EXPECT_TRUE(matcher.Check(text + "}").complete);
  const auto more = CompileText(
      "json_schema",
      R"({"type":"object","patternProperties":{"^[a-z]{2}$":{}},"additionalProperties":false,"minProperties":677})");
  ASSERT_FALSE(more.has_value());
  EXPECT_EQ(more.error().keyword, "minProperties");
}

// A token is allowed iff some completion exists: searched for by brute force over short texts of a tiny alphabet.
TEST(MatcherProperty, MaskEqualsSearchForCompletions) {
  const std::vector<std::string> pieces = {"a", "b", "ab", "ba", "aab", "(", ")", "()", "bb"};
  struct Row {
    std::string_view kind;
    std::string_view spec;
  };
  for (const Row& row : {Row{"regex", "(?:ab|ba)*b"}, Row{"regex", "a{2,3}b?"},
                         Row{"ebnf", "root ::= \"a\"? (\"(\" root \")\")* \"b\"?"},
                         Row{"ebnf", "root ::= root \"b\" | \"a\" root \"b\" | \"ab\""}}) {
    const auto vocabulary = testing::Pieces(pieces);
    JsonValue spec;
    spec.type = JsonValue::Type::kString;
    spec.text = row.spec;
    auto grammar = CompileKind(row.kind, spec, {}, {}, vocabulary);
    ASSERT_TRUE(grammar.has_value());
    Matcher matcher(*grammar);
    // Every sentence of up to 8 letters, and so every prefix of one.
    std::vector<std::string> level = {""}, sentences;
    for (int length = 0; length <= 8; ++length) {
      std::vector<std::string> next;
      for (const std::string& text : level) {
        if (matcher.Check(text).complete) sentences.push_back(text);
        for (const char c : std::string("ab()")) next.push_back(text + c);
      }
      level = std::move(next);
      if (level.size() > 70'000) break;
    }
    const auto viable = [&](const std::string& prefix) {
      return std::any_of(sentences.begin(), sentences.end(),
                         [&](const std::string& s) { return s.compare(0, prefix.size(), prefix) == 0; });
    };
    for (const std::string prefix : {"", "a", "b", "ab", "(", "a(", "()"}) {
      matcher.Reset();
      bool good = true;
      for (const char c : prefix) {
        const auto piece = std::find(pieces.begin(), pieces.end(), std::string(1, c)) - pieces.begin();
        good = good && matcher.Accept(static_cast<std::uint32_t>(piece));
      }
      EXPECT_EQ(good, viable(prefix)) << row.spec << " after " << prefix;
      if (!good) continue;
      const auto mask = MaskOf(matcher);
      for (std::uint32_t id = 0; id < pieces.size(); ++id) {
        EXPECT_EQ(Has(mask, id), viable(prefix + pieces[id])) << row.spec << " after " << prefix << ": " << pieces[id];
      }
    }
  }
}

TEST(MatcherProperty, RollbackEqualsAFreshReplay) {
  const std::uint64_t seed = Seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Draws draws{seed + 1};
  for (const Spec& spec : Specs()) {
    auto grammar = CompileText(spec.kind, spec.text);
    ASSERT_TRUE(grammar.has_value());
    Matcher matcher(*grammar);
    std::vector<std::uint32_t> accepted;
    for (int step = 0; step < 60; ++step) {
      if (draws.Next(3) == 0) {
        const std::size_t back = draws.Next(5);
        matcher.Rollback(back);
        accepted.resize(accepted.size() - std::min(back, accepted.size()));
      } else if (const std::uint32_t token = Pick(MaskOf(matcher), grammar->vocabulary->size(), draws);
                 matcher.Accept(token)) {
        accepted.push_back(token);
      }
      auto fresh_grammar = CompileText(spec.kind, spec.text);
      Matcher fresh(*fresh_grammar);
      ASSERT_EQ(fresh.Accept(accepted), accepted.size());
      ASSERT_EQ(MaskOf(matcher), MaskOf(fresh)) << spec.text << " after " << accepted.size() << " tokens";
    }
  }
}

TEST(Matcher, CompactionKeepsEveryStateOfTheHistory) {
  CompileOptions options;
  options.limits.matcher_bytes_max = 1;  // compact behind every token
  auto small = CompileText("json_schema", "{}", options);
  auto large = CompileText("json_schema", "{}");
  Matcher a(*small), b(*large);
  const auto tokens = small->vocabulary->Greedy(R"({"x":[1,{"y":"z"},[[]]],"w":{"x":null}})");
  ASSERT_FALSE(tokens.empty());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    ASSERT_TRUE(a.Accept(tokens[i]));
    ASSERT_TRUE(b.Accept(tokens[i]));
    ASSERT_EQ(MaskOf(a), MaskOf(b)) << "token " << i;
  }
  while (a.tokens() > 0) {
    a.Rollback(1);
    b.Rollback(1);
    ASSERT_EQ(MaskOf(a), MaskOf(b)) << "back at " << a.tokens();
  }
}

// An object of names that were never declared: every byte of it leads to a state of its own.
TEST(Matcher, ALongTextKeepsFewStatesAndARollbackFindsTheOthersAgain) {
  CompileOptions options;
  options.limits.matcher_bytes_max = 64 << 10;
  auto small = CompileText("json_schema", R"({"type":"object"})", options);
  auto large = CompileText("json_schema", R"({"type":"object"})");
  std::string text = R"({"a":0)";
  for (int i = 0; i < 1'000; ++i) text += ",\"k" + std::to_string(i) + "\":0";
  const auto tokens = small->vocabulary->Greedy(text);
  ASSERT_GT(tokens.size(), 4'000u);
  Matcher a(*small), b(*large);
  const auto beside = a.Fork();  // shares the states as long as they are few
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    ASSERT_TRUE(a.Accept(tokens[i])) << i;
    ASSERT_TRUE(b.Accept(tokens[i])) << i;
    bytes = std::max(bytes, a.bytes());
    if (i % 97 != 0) continue;
    ASSERT_EQ(MaskOf(a), MaskOf(b)) << i;
  }
  EXPECT_LT(bytes, std::size_t{1} << 20);
  EXPECT_GT(b.bytes(), std::size_t{4} << 20);
  // Beyond the 256 states that are kept, then on from there, then to the start.
  for (const std::size_t back : {255u, 3u, 1'000u, 1u}) {
    a.Rollback(back);
    b.Rollback(back);
    ASSERT_EQ(a.tokens(), b.tokens());
    EXPECT_EQ(a.can_stop(), b.can_stop());
    ASSERT_EQ(MaskOf(a), MaskOf(b)) << back;
  }
  EXPECT_EQ(beside->tokens(), 0u);
  const auto fork = a.Fork();
  fork->Rollback(2'000);
  b.Rollback(2'000);
  EXPECT_EQ(MaskOf(*fork), MaskOf(b));
  a.Reset();
  b.Reset();
  EXPECT_EQ(MaskOf(a), MaskOf(b));
}

TEST(Matcher, ControlTokensAreNeverTextAndNothingFollowsTheEnd) {
  auto grammar = CompileText("json_schema", R"({"type":"string"})");
  Matcher matcher(*grammar);
  ASSERT_TRUE(matcher.Accept(grammar->vocabulary->Greedy("\"")[0]));
  const auto mask = MaskOf(matcher);
  for (const std::uint32_t id : {0u, 1u, 2u, 998u, 999u}) EXPECT_FALSE(Has(mask, id)) << id;
  ASSERT_TRUE(matcher.Accept(grammar->vocabulary->Greedy("\"")[0]));
  ASSERT_TRUE(matcher.Accept(1));
  EXPECT_TRUE(matcher.terminated());
  EXPECT_FALSE(matcher.Accept(1));
  std::vector<MaskWord> none(grammar->vocabulary->mask_words());
  matcher.FillMask(none);
  EXPECT_EQ(CountTokens(none), 0u);
  matcher.Rollback(1);
  EXPECT_FALSE(matcher.terminated());
  EXPECT_TRUE(matcher.Accept(1));
}

TEST(Matcher, TreeMasksAreThoseOfTheBranchesAndChangeNothing) {
  auto grammar = CompileText("json_schema", R"({"type":"array","items":{"type":"boolean"}})");
  Matcher matcher(*grammar);
  const auto open = grammar->vocabulary->Greedy("[")[0], t = grammar->vocabulary->Greedy("t")[0];
  const auto close = grammar->vocabulary->Greedy("]")[0];
  const std::vector<std::int32_t> parents = {-1, 0, 0, 2, 1};
  const std::vector<std::uint32_t> tokens = {open, t, close, t, close};
  const std::size_t words = grammar->vocabulary->mask_words();
  std::vector<MaskWord> out(words * tokens.size());
  const auto before = MaskOf(matcher);
  EXPECT_EQ(matcher.FillTreeMasks(parents, tokens, out), (std::vector<bool>{true, true, true, false, false}));
  EXPECT_EQ(MaskOf(matcher), before);
  ASSERT_TRUE(matcher.Accept(open));
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(words), MaskOf(matcher).begin()));
  EXPECT_TRUE(
      std::all_of(out.begin() + static_cast<std::ptrdiff_t>(3 * words), out.end(), [](MaskWord w) { return w == 0; }));
}

TEST(Matcher, ForksGoTheirOwnWays) {
  auto grammar = CompileText("ebnf", "root ::= \"a\" (\"b\" | \"c\")");
  Matcher matcher(*grammar);
  ASSERT_TRUE(matcher.Accept(grammar->vocabulary->Greedy("a")[0]));
  const auto fork = matcher.Fork();
  EXPECT_TRUE(fork->Accept(grammar->vocabulary->Greedy("b")[0]));
  EXPECT_TRUE(fork->can_stop());
  EXPECT_FALSE(matcher.can_stop());
  EXPECT_TRUE(matcher.Accept(grammar->vocabulary->Greedy("c")[0]));
}

TEST(Matcher, ForcedTextIsWhatEveryCompletionHas) {
  auto grammar = CompileText("ebnf", "root ::= \"SELECT \" (\"日a\" | \"日b\")");
  Matcher matcher(*grammar);
  EXPECT_EQ(matcher.ForcedText(), "SELECT 日");
  EXPECT_EQ(matcher.tokens(), 0u);
}

TEST(Matcher, AModelThatOnlyWritesBlanksComesToAnEnd) {
  CompileOptions options;
  options.whitespace = Whitespace::kFlexible;
  auto grammar = CompileText("json_schema",
                             R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})", options);
  Matcher matcher(*grammar);
  const auto blank = grammar->vocabulary->Greedy(" ")[0], open = grammar->vocabulary->Greedy("{")[0];
  std::uint32_t blanks = 0;
  while (matcher.Accept(blank)) ++blanks;
  EXPECT_EQ(blanks, kBlanksMax);
  ASSERT_TRUE(matcher.Accept(open));
  for (blanks = 0; matcher.Accept(blank);) ++blanks;
  EXPECT_EQ(blanks, kBlanksMax);
}

}  // namespace
}  // namespace galley::grammar
