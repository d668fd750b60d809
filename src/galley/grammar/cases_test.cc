// SPDX-License-Identifier: Apache-2.0
// Runs the case files of structured outputs. What is refused, and which valid texts are left out, is written down in
// tests/cases/structured/refusals.txt; these tests keep it exact, so it cannot grow unseen.
#include <fstream>
#include <map>
#include <sstream>

#include "galley/grammar/test_support.h"

namespace galley::grammar {
namespace {

using testing::CasePath;
using testing::ReadRows;

struct Score {
  std::map<std::string, int> count;
  std::vector<std::string> wrong;
  void Wrong(const std::string& what, const std::string& id, const std::string& text) {
    ++count[what];
    if (wrong.size() < 20) wrong.push_back(what + " " + id + ": " + text.substr(0, 200));
  }
  [[nodiscard]] std::string Summary() const {
    std::string out;
    for (const auto& [name, n] : count) out += name + " " + std::to_string(n) + "  ";
    for (const std::string& line : wrong) out += "\n  " + line;
    return out;
  }
};

std::string Unhex(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

std::string TextOf(const JsonValue& test) {
  if (const JsonValue* hex = test.Find("hex")) return Unhex(hex->text);
  return test.Find(test.Find("t") != nullptr ? "t" : "instance")->text;
}

// Judges the texts of one row. `valid` names the member with the verdict.
void Judge(const Grammar& grammar, const std::string& id, const std::vector<const JsonValue*>& tests,
           std::string_view valid, const std::string& marker, Score& score) {
  Matcher matcher(grammar);
  for (const JsonValue* test : tests) {
    const std::string text = TextOf(*test);
    const bool want = test->Find(valid)->boolean;
    const auto got = matcher.Check(text, marker, grammar.vocabulary->size());
    if (got.complete == want) {
      ++score.count["right"];
    } else if (got.complete) {
      score.Wrong("false_accept", id, text);
    } else if (test->Find("lax") != nullptr || test->Find("policy") != nullptr) {
      ++score.count["lax_reject:" + test->Find(test->Find("lax") != nullptr ? "lax" : "policy")->text];
    } else {
      score.Wrong("false_reject", id, text);
    }
    if (const JsonValue* prefix = test->Find("prefix"); prefix != nullptr && prefix->boolean != got.prefix) {
      score.Wrong("wrong_prefix", id, text);
    }
  }
}

// Counts of one suite, "what reason" → how many, as refusals.txt has them.
std::map<std::string, int> Ledger(const std::string& suite) {
  std::map<std::string, int> out;
  std::ifstream file(CasePath("refusals.txt"));
  EXPECT_TRUE(file.is_open()) << CasePath("refusals.txt");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, what, reason;
    int count = 0;
    if (line.rfind('#', 0) != 0 && words >> name >> what >> reason >> count && name == suite) {
      out[what + " " + reason] = count;
    }
  }
  return out;
}

// Both ways: more is a loss, less wants the file to be brought down.
void ExpectLedger(const std::string& suite, std::map<std::string, int> counted) {
  std::erase_if(counted, [](const auto& entry) { return entry.second == 0; });
  EXPECT_EQ(counted, Ledger(suite)) << "tests/cases/structured/refusals.txt has other numbers for " << suite;
}

std::vector<const JsonValue*> TestsOf(const JsonValue& row) {
  std::vector<const JsonValue*> out;
  for (const JsonValue& test : row.Find("tests")->items) out.push_back(&test);
  return out;
}

// Valid texts that were not accepted.
std::map<std::string, int> LeftOut(const Score& score) {
  std::map<std::string, int> out;
  for (const auto& [name, n] : score.count) {
    if (name == "false_reject") out["left_out valid"] += n;
    if (name.rfind("lax_reject:", 0) == 0) out["left_out " + name.substr(11)] += n;
  }
  return out;
}

Compiled<Grammar> CompileSchemaText(const std::string& text) {
  CompileOptions options;
  options.whitespace = Whitespace::kFlexible;
  const auto schema = ParseJson(text);
  if (!schema) return Refuse(schema.error());
  return CompileJsonSchema(*schema, options, testing::Vocab1k().vocabulary);
}

TEST(Cases, Schemas) {
  Score score;
  const auto rows = ReadRows(CasePath("schemas.jsonl.xz"));
  ASSERT_EQ(rows.size(), 384u);
  for (const JsonValue& row : rows) {
    const auto grammar = CompileSchemaText(row.Find("schema")->text);
    ASSERT_TRUE(grammar.has_value()) << row.Find("id")->text << ": " << grammar.error().message;
    Judge(*grammar, row.Find("id")->text, TestsOf(row), "v", "", score);
  }
  EXPECT_EQ(score.count["false_accept"], 0) << score.Summary();
  ExpectLedger("schemas", LeftOut(score));
}

TEST(Cases, SchemasInAnyOrder) {
  Score score;
  CompileOptions options;
  options.whitespace = Whitespace::kFlexible;
  options.any_order = true;
  const auto rows = ReadRows(CasePath("schemas.jsonl.xz"));
  for (std::size_t i = 0; i < rows.size(); i += 4) {  // a quarter: the rest differs in values only
    const auto schema = ParseJson(rows[i].Find("schema")->text);
    const auto grammar = CompileJsonSchema(*schema, options, testing::Vocab1k().vocabulary);
    ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
    Judge(*grammar, rows[i].Find("id")->text, TestsOf(rows[i]), "v", "", score);
  }
  EXPECT_EQ(score.count.size(), 1u) << score.Summary();  // all right, lax ones too
}

TEST(Cases, EMailDisputes) {
  for (const JsonValue& row : ReadRows(CasePath("schemas_disputes.jsonl.xz"))) {
    const auto grammar = CompileSchemaText(row.Find("schema")->text);
    ASSERT_TRUE(grammar.has_value());
    EXPECT_EQ(Matcher(*grammar).Check(TextOf(row)).complete, row.Find("right")->boolean) << TextOf(row);
  }
}

TEST(Cases, RefusedSchemasNameTheKeyword) {
  for (const JsonValue& row : ReadRows(CasePath("schemas_refuse.jsonl.xz"))) {
    const std::string id = row.Find("id")->text;
    const auto schema = ParseJson(row.Find("schema")->text);
    const auto grammar = CompileJsonSchema(*schema, {}, testing::Vocab1k().vocabulary);
    EXPECT_EQ(grammar.has_value(), row.Find("want")->text == "accept") << id;
    if (!grammar && row.Find("keyword") != nullptr) {
      EXPECT_EQ(grammar.error().keyword, row.Find("keyword")->text) << id;
    }
    if (row.Find("want")->text != "refuse_unless_lenient") continue;
    CompileOptions lenient;
    lenient.lenient = true;
    const auto loose = CompileJsonSchema(*schema, lenient, testing::Vocab1k().vocabulary);
    ASSERT_TRUE(loose.has_value()) << id;
    EXPECT_EQ(loose->program->warnings().size(), 1u) << id;
  }
}

TEST(Cases, Regex) {
  Score score;
  std::map<std::string, int> refused;
  for (const JsonValue& row : ReadRows(CasePath("regex.jsonl.xz"))) {
    const std::string id = row.Find("id")->text, kind = row.Find("class")->text;
    const auto grammar = testing::CompileText("regex", row.Find("pattern")->text);
    if (kind == "budget") continue;  // either answer, as long as there is one
    if (kind == "refuse") {
      EXPECT_FALSE(grammar.has_value()) << id;
    } else if (!grammar) {
      EXPECT_NE(row.Find("may_refuse"), nullptr) << id << ": " << grammar.error().message;
      EXPECT_TRUE(grammar.error().position.has_value()) << id;
      ++refused["refused " + kind];
    } else {
      Judge(*grammar, id, TestsOf(row), "v", "", score);
    }
  }
  EXPECT_EQ(score.count.size(), 1u) << score.Summary();
  ExpectLedger("regex", refused);
}

TEST(Cases, Ebnf) {
  Score score;
  for (const JsonValue& row : ReadRows(CasePath("ebnf.jsonl.xz"))) {
    const auto grammar = testing::CompileText("ebnf", row.Find("grammar")->text);
    EXPECT_EQ(grammar.has_value(), row.Find("want")->text == "accept") << row.Find("id")->text;
    if (grammar && row.Find("want")->text == "accept") {
      Judge(*grammar, row.Find("id")->text, TestsOf(row), "v", "", score);
    }
  }
  EXPECT_EQ(score.count.size(), 1u) << score.Summary();
}

TEST(Cases, TokenMasks) {
  int masks = 0;
  for (const JsonValue& row : ReadRows(CasePath("tokenmask.jsonl.xz"))) {
    const std::string id = row.Find("id")->text;
    CompileOptions options;
    if (row.Find("options")->Find("whitespace") != nullptr) options.whitespace = Whitespace::kCompact;
    const auto grammar = testing::CompileText(row.Find("kind")->text, row.Find("spec")->text, options);
    ASSERT_TRUE(grammar.has_value()) << id;
    Matcher matcher(*grammar);
    for (const JsonValue& state : row.Find("states")->items) {
      matcher.Reset();
      for (const JsonValue& token : state.Find("tokens")->items) {
        ASSERT_TRUE(matcher.Accept(static_cast<std::uint32_t>(std::stoul(token.text)))) << id;
      }
      std::vector<MaskWord> mask(grammar->vocabulary->mask_words());
      matcher.FillMask(mask);
      const std::string got = MaskBytes(mask, grammar->vocabulary->size());
      const std::string want = Base64Decode(state.Find("bits")->text);
      const std::string may = state.Find("bits_may") == nullptr ? want : Base64Decode(state.Find("bits_may")->text);
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(want[i] & ~got[i], 0) << id << " misses tokens after " << state.Find("prefix")->text;
        EXPECT_EQ(got[i] & ~(may[i] | want[i]), 0) << id << " allows too much after " << state.Find("prefix")->text;
      }
      ++masks;
    }
  }
  EXPECT_EQ(masks, 314);
}

TEST(Cases, Dsml) {
  Score score;
  const std::string marker = "｜DSML｜";
  for (const JsonValue& row : ReadRows(CasePath("dsml.jsonl.xz"))) {
    const auto grammar =
        CompileKind("dsml", row, {{marker, testing::Vocab1k().vocabulary->size()}}, {}, testing::Vocab1k().vocabulary);
    ASSERT_TRUE(grammar.has_value()) << row.Find("id")->text << ": " << grammar.error().message;
    Judge(*grammar, row.Find("id")->text, TestsOf(row), "v", marker, score);
  }
  EXPECT_EQ(score.count["false_accept"], 0) << score.Summary();
  ExpectLedger("dsml", LeftOut(score));
}

// The official suite is read from the material beside the checkout.
TEST(Cases, JsonSchemaTestSuite) {
  const auto rows = ReadRows(std::string(GALLEY_SHARED_DIR) + "/structured/jsts.jsonl.xz");
  if (rows.empty()) GTEST_SKIP() << "the suite is not beside this checkout";
  std::map<std::string, std::vector<const JsonValue*>> groups;
  for (const JsonValue& row : rows) {
    groups[row.Find("draft")->text + "/" + row.Find("file")->text + "/" + row.Find("group")->text].push_back(&row);
  }
  Score required, others;
  std::map<std::string, int> refused;
  for (const auto& [name, tests] : groups) {
    auto schema = ParseJson(tests[0]->Find("schema")->text);
    if (schema->is(JsonValue::Type::kObject) && schema->Find("$schema") == nullptr && name.rfind("draft7", 0) == 0) {
      JsonValue uri;
      uri.type = JsonValue::Type::kString;
      uri.text = "http://json-schema.org/draft-07/schema#";
      schema->members.emplace_back("$schema", uri);
    }
    CompileOptions options;
    options.whitespace = Whitespace::kFlexible;
    const auto grammar = CompileJsonSchema(*schema, options, testing::Vocab1k().vocabulary);
    if (!grammar) {
      if (!tests[0]->Find("remote")->boolean && grammar.error().code != CompileCode::kUnsatisfiable) {
        ++refused[grammar.error().keyword];
      }
      continue;
    }
    Judge(*grammar, name, tests, "valid", "", tests[0]->Find("kind")->text == "required" ? required : others);
  }
  EXPECT_EQ(required.count["false_accept"], 0) << required.Summary();
  EXPECT_EQ(others.count["false_accept"], 0) << others.Summary();
  std::map<std::string, int> counted = LeftOut(required);
  for (const auto& [what, n] : LeftOut(others)) counted["optional_" + what] += n;
  for (const auto& [keyword, n] : refused) counted["refused " + keyword] += n;
  ExpectLedger("jsts", counted);
  if (::testing::Test::HasFailure())
    std::fprintf(stderr, "%s\n%s\n", required.Summary().c_str(), others.Summary().c_str());
}

}  // namespace
}  // namespace galley::grammar
