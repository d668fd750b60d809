// SPDX-License-Identifier: Apache-2.0
// Models that work against the grammar: random logits, one that writes a blank wherever it may, one that writes a
// quote. Whatever they do, the text stays the beginning of a valid one; where the grammar is bounded it ends.
#include <fmt/format.h>

#include <algorithm>

#include "galley/base/rng.h"
#include "galley/grammar/test_support.h"

namespace galley::grammar {
namespace {

struct Model {
  const char* name;
  std::string_view wants;  // bytes it prefers over all else; empty: none
};
constexpr Model kModels[] = {{"random", ""}, {"blanks", " \t\n\r"}, {"quotes", "\""}, {"backslashes", "\\"}};

// The id the model takes: one that is made of what it wants if there is any, else a random one; it never ends the text
// while it can go on.
std::uint32_t Take(const Model& model, const Vocabulary& vocabulary, const std::vector<MaskWord>& mask,
                   std::uint64_t& state) {
  std::vector<std::uint32_t> wanted, others, ends;
  for (std::uint32_t id = 0; id < vocabulary.size(); ++id) {
    if ((mask[id / 64] >> (id % 64) & 1) == 0) continue;
    const std::string_view bytes = vocabulary.bytes(id);
    if (vocabulary.is_end(id)) {
      ends.push_back(id);
    } else if (!model.wants.empty() && bytes.find_first_not_of(model.wants) == std::string_view::npos) {
      wanted.push_back(id);
    } else {
      others.push_back(id);
    }
  }
  const std::vector<std::uint32_t>& from = !wanted.empty() ? wanted : !others.empty() ? others : ends;
  EXPECT_FALSE(from.empty()) << "an empty mask before the end";
  state = MixBits(state);
  return from.empty() ? vocabulary.size() : from[state % from.size()];
}

struct Outcome {
  bool ended = false;
  std::string text;
};

Outcome Generate(const Grammar& grammar, const Model& model, std::size_t tokens_max, std::uint64_t seed) {
  Matcher matcher(grammar);
  Outcome out;
  std::vector<MaskWord> mask(grammar.vocabulary->mask_words());
  std::uint64_t state = seed;
  for (std::size_t i = 0; i < tokens_max && !matcher.terminated(); ++i) {
    matcher.FillMask(mask);
    const std::uint32_t id = Take(model, *grammar.vocabulary, mask, state);
    if (!matcher.Accept(id)) {
      ADD_FAILURE() << "a token of the mask is refused after " << out.text;
      return out;
    }
    out.text += grammar.vocabulary->is_special(id) && !grammar.vocabulary->is_end(id) ? kDsmlMarker
                                                                                      : grammar.vocabulary->bytes(id);
  }
  out.ended = matcher.terminated();
  EXPECT_FALSE(matcher.failed()) << matcher.FailureText();
  return out;
}

std::uint64_t Seed() {
  const int given = ::testing::UnitTest::GetInstance()->random_seed();
  return given == 0 ? 20261129 : static_cast<std::uint64_t>(given);
}

TEST(Adversarial, EverySchemaOfTheCasesGivesValidTextOrRunsOut) {
  const std::uint64_t seed = Seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  CompileOptions options;
  options.whitespace = Whitespace::kFlexible;
  const auto rows = testing::ReadRows(testing::CasePath("schemas.jsonl.xz"));
  std::size_t ended = 0;
  for (std::size_t i = seed % 11; i < rows.size(); i += 11) {
    const auto schema = ParseJson(rows[i].Find("schema")->text);
    const auto grammar = CompileJsonSchema(*schema, options, testing::Vocab1k().vocabulary);
    ASSERT_TRUE(grammar.has_value());
    for (const Model& model : kModels) {
      const Outcome outcome = Generate(*grammar, model, 80, seed + i);
      const auto judgement = Matcher(*grammar).Check(outcome.text);
      EXPECT_TRUE(judgement.prefix) << model.name << ": " << outcome.text;
      EXPECT_TRUE(!outcome.ended || judgement.complete) << model.name << ": " << outcome.text;
      ended += outcome.ended ? 1 : 0;
    }
  }
  EXPECT_GT(ended, 0u);
}

// All bytes, pieces that models write blanks and quotes with, the marker of calls, an end.
std::shared_ptr<const Vocabulary> WithMarker(std::uint32_t& marker) {
  VocabularyOptions options;
  for (int byte = 0; byte < 256; ++byte) options.tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* text : {"  ", "\n\n", "\"\"", "\":", "\",\"", "<", "</", " calls>\n", "日", "\\u00"})
    options.tokens.emplace_back(text);
  marker = static_cast<std::uint32_t>(options.tokens.size());
  options.tokens.resize(marker + 2u);
  options.specials = {marker};
  options.ends = {marker + 1};
  return *Vocabulary::Create(std::move(options));
}

// Whatever a request can ask for, most of it without a bound: the text ends complete, or the token limit cuts off the
// beginning of a valid one.
TEST(Adversarial, EveryKindOfGrammarGivesValidTextOrRunsOut) {
  const std::uint64_t seed = Seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::uint32_t marker = 0;
  const auto vocabulary = WithMarker(marker);
  constexpr std::string_view kTools =
      R"("spelling":"v41","tools":[{"name":"f","strict":true,"parameters":{"type":"object","properties":{)"
      R"("a":{"type":"string"},"b":{"type":"array","items":{"type":"string"}}},"required":["a"]}},{"name":"g"}])";
  const std::pair<std::string_view, std::string> specs[] = {
      {"json_schema", R"({"type":"object"})"},
      {"json_schema", R"({"type":"string"})"},
      {"json_schema", R"({"type":"array","items":{"type":"string"}})"},
      {"json_schema",
       R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"number"}},"required":["b"]})"},
      {"json_schema", R"({"$defs":{"t":{"type":"array","items":{"$ref":"#/$defs/t"}}},"$ref":"#/$defs/t"})"},
      {"regex", R"("[^\"]*\"(?:a|b)*")"},
      {"regex", R"("\\s+x{3,}")"},
      {"ebnf", R"("root ::= e\ne ::= e t | t\nt ::= \"(\" e \")\" | [ \\t\\n] | \"\\\"\"")"},
      {"choice", R"(["a","ab"," \""])"},
      {"structural_tag", R"({"format":{"type":"tag","begin":"<","content":{"type":"any_text"},"end":">"}})"},
      {"dsml", fmt::format(R"({{"mode":"block",{}}})", kTools)},
      {"dsml", fmt::format(R"({{"mode":"inside","parallel":false,{}}})", kTools)},
      {"dsml", fmt::format(R"({{"mode":"auto",{}}})", kTools)},
  };
  CompileOptions options;
  options.whitespace = Whitespace::kFlexible;
  const Marker call{std::string(kDsmlMarker), marker};
  for (const auto& [kind, spec] : specs) {
    const auto value = ParseJson(spec);
    ASSERT_TRUE(value.has_value()) << spec;
    const auto grammar = CompileKind(kind, *value, {call}, options, vocabulary);
    ASSERT_TRUE(grammar.has_value()) << spec << grammar.error().message;
    for (const Model& model : kModels) {
      const Outcome outcome = Generate(*grammar, model, 300, seed);
      const auto judgement = Matcher(*grammar).Check(outcome.text, call.text, marker);
      EXPECT_TRUE(judgement.prefix) << spec << model.name << ": " << outcome.text;
      EXPECT_TRUE(!outcome.ended || judgement.complete) << spec << model.name << ": " << outcome.text;
    }
  }
}

// With nothing unbounded in it, a grammar ends by itself. Longest text of the first: five blanks' runs around its
// brackets, colon and value of 128 bytes each, less than 700 tokens.
TEST(Adversarial, BoundedGrammarsEndWhateverTheModelWants) {
  const std::uint64_t seed = Seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  CompileOptions options;
  options.whitespace = Whitespace::kFlexible;
  for (const std::string_view text :
       {R"({"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"],"additionalProperties":false})",
        R"({"type":"string","maxLength":20})", R"({"type":"array","items":{"enum":["x","y"]},"maxItems":2})",
        R"({"type":"integer","minimum":-9,"maximum":9})"}) {
    const auto schema = ParseJson(text);
    const auto grammar = CompileJsonSchema(*schema, options, testing::Vocab1k().vocabulary);
    ASSERT_TRUE(grammar.has_value());
    for (const Model& model : kModels) {
      // A model that avoids the end could write the zeros of 1.000… for ever: the limit cuts it off there.
      const Outcome outcome = Generate(*grammar, model, 1200, seed);
      const bool number = text.find("integer") != std::string_view::npos;
      EXPECT_TRUE(outcome.ended || number) << text << " " << model.name << ": " << outcome.text;
      EXPECT_TRUE(Matcher(*grammar).Check(outcome.text).prefix);
    }
  }
}

TEST(Adversarial, LimitsAreNamedAndHarmNobody) {
  struct Case {
    std::string_view kind;
    std::string text;
    std::string_view named;
  };
  std::string deep, wide = "{\"allOf\":[";
  for (int i = 0; i < 300; ++i) deep += "(";
  for (int i = 0; i < 14; ++i) {
    wide += (i == 0 ? "" : ",") + std::string("{\"anyOf\":[{\"required\":[\"a") + std::to_string(i) +
            "\"]},{\"required\":[\"b" + std::to_string(i) + "\"]}]}";
  }
  const std::vector<Case> cases = {{"regex", deep + "a" + std::string(300, ')'), "256"},
                                   {"regex", "(?:(?:(?:a{1000}){1000}){1000}){1000}", "200000"},
                                   {"ebnf", "root ::= ((((\"a\"{1000}){1000}){1000}){1000})", "200000"},
                                   {"json_schema", wide + "]}", "4096"}};
  for (const Case& test : cases) {
    const auto grammar = testing::CompileText(test.kind, test.text);
    ASSERT_FALSE(grammar.has_value()) << test.kind << " " << test.text.substr(0, 60);
    EXPECT_EQ(grammar.error().code, CompileCode::kTooComplex) << grammar.error().message;
    EXPECT_NE(grammar.error().message.find(test.named), std::string::npos) << grammar.error().message;
  }
}

std::string Joined(int count, const std::function<std::string(int)>& part, std::string_view between = ",") {
  std::string out;
  for (int i = 0; i < count; ++i) out += (i == 0 ? "" : std::string(between)) + part(i);
  return out;
}

// Of the whole process, so of every test that ran before as well.
[[maybe_unused]] long PeakKilobytes() {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  std::array<char, 256> line{};
  long out = 0;
  while (file != nullptr && std::fgets(line.data(), line.size(), file) != nullptr) {
    static_cast<void>(std::sscanf(line.data(), "VmHWM: %ld kB", &out));
  }
  if (file != nullptr) std::fclose(file);
  EXPECT_GT(out, 0);
  return out;
}

// Long lists, counts that combine and places that multiply: each compiles or meets a limit, and what compiles fills its
// masks or says that it failed. Quadratic work on any of these takes minutes, so the test would time out.
TEST(Adversarial, HostileSpecificationsEndSoonAndInLittleMemory) {
  const auto number = [](int i) { return std::to_string(i); };
  const auto quoted = [](int i) { return fmt::format("\"v{}\"", i); };
  std::string stars = R"({"format":)";
  for (int i = 0; i < 200; ++i) stars += R"({"type":"star","content":)";
  stars += R"({"type":"any_text"})" + std::string(201, '}');
  const std::vector<std::pair<std::string_view, std::string>> specs = {
      {"json_schema", "{\"enum\":[" + Joined(100'000, quoted) + "]}"},
      {"json_schema", "{\"enum\":[" + Joined(30'000, number) + "]}"},
      {"json_schema", "{\"required\":[" + Joined(50'000, quoted) + "]}"},
      {"json_schema", "{\"properties\":{" + Joined(30'000, [&](int i) { return quoted(i) + ":{}"; }) + "}}"},
      {"json_schema", R"({"type":"array","minItems":1000000000,"items":{"type":"integer"}})"},
      {"json_schema", R"({"type":"array","contains":{"const":1},"minContains":1000000000})"},
      {"json_schema",
       "{\"type\":\"array\",\"maxItems\":100,\"allOf\":[" +
           Joined(6, [](int i) { return fmt::format(R"({{"contains":{{"const":{}}},"minContains":30}})", i); }) + "]}"},
      {"ebnf", "root ::= r0\n" +
                   Joined(
                       2000, [](int i) { return fmt::format("r{0} ::= r{1} | r{1} \"x\"\n", i, i + 1); }, "") +
                   "r2000 ::= \"a\""},
      {"structural_tag", stars}};
  std::vector<MaskWord> mask(testing::Vocab1k().vocabulary->mask_words());
  for (const auto& [kind, text] : specs) {
    const auto grammar = testing::CompileText(kind, text, {.any_order = true});
    if (!grammar) {
      EXPECT_EQ(grammar.error().code, CompileCode::kTooComplex) << text.substr(0, 60) << grammar.error().message;
      continue;
    }
    Matcher matcher(*grammar);
    std::uint64_t state = 7;
    for (int step = 0; step < 8 && !matcher.failed() && !matcher.terminated(); ++step) {
      matcher.FillMask(mask);
      if (matcher.failed()) break;
      ASSERT_GT(CountTokens(mask), 0u) << text.substr(0, 60);
      if (!matcher.Accept(Take(kModels[0], *grammar->vocabulary, mask, state))) break;
    }
    if (matcher.failed()) {
      EXPECT_NE(matcher.FailureText().find("_max)"), std::string::npos) << matcher.FailureText();
    }
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(PeakKilobytes(), 600'000);
#endif
}

}  // namespace
}  // namespace galley::grammar
