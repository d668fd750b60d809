// SPDX-License-Identifier: Apache-2.0
#include "galley/base/option_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>

#include "galley/base/foreign_flags.h"

namespace galley::options {
namespace {

using ::testing::HasSubstr;

Result<Values> Given(std::string_view command, const Environment& environment) {
  return Resolve(AllOptions(), {command, CommandLine{}, environment, {}, ""});
}

TEST(OptionTable, RowsAreWellFormed) {
  std::set<std::string, std::less<>> names;
  for (const Spec& spec : AllOptions()) {
    EXPECT_TRUE(names.insert(std::string(spec.name)).second) << spec.name;
    EXPECT_EQ(spec.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"), std::string_view::npos)
        << spec.name;
    EXPECT_FALSE(spec.name.starts_with("no-")) << spec.name;
    EXPECT_FALSE(spec.help.empty()) << spec.name;
    EXPECT_TRUE(spec.help.ends_with(".")) << spec.name;
    EXPECT_FALSE(spec.section.empty()) << spec.name;
    EXPECT_FALSE(spec.commands.empty()) << spec.name;
    EXPECT_EQ(spec.type == Type::kEnum, !spec.choices.empty()) << spec.name;
    const bool bare = spec.type == Type::kBool || spec.type == Type::kEnum;
    EXPECT_EQ(bare, spec.value_name.empty()) << spec.name;
    // The help of a command shows the flag that changes something: --no-NAME.
    const bool negated = spec.initial == "true" && spec.unavailable.empty();
    EXPECT_EQ(negated, !spec.without.empty()) << spec.name;
    EXPECT_EQ(Find(AllOptions(), spec.name), &spec) << spec.name << " is hidden by an alias";
  }
}

TEST(OptionTable, DefaultsAreWithinTheirLimits) {
  for (const Spec& spec : AllOptions()) {
    if (spec.initial.empty()) continue;
    const Result<Value> value = ParseValue(spec, spec.initial, spec.name);
    EXPECT_TRUE(value.has_value()) << value.error().ToString();
  }
}

TEST(OptionTable, ForeignValuesMeanSomethingToTheirOption) {
  for (const Spec& spec : AllOptions()) {
    for (const ForeignValue& row : spec.foreign.values) {
      if (!row.refusal.empty()) continue;
      EXPECT_TRUE(ParseValue(spec, row.meaning, spec.name).has_value()) << spec.name << " " << row.given;
    }
  }
}

TEST(OptionTable, TakesDeepInfersVariables) {
  const Result<Values> values = Given("generate", {{"DEEPINFER_HF_MODEL_DIR", "m"},
                                                   {"DEEPINFER_ENABLE_MTP_VARLEN", "0"},
                                                   {"DEEPINFER_USE_NEXTN_DECODE", "0"},
                                                   {"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "compact"},
                                                   {"DEEPINFER_YOCO_PREFILL_KEEP_TOKENS", "200"},
                                                   {"DEEPINFER_BATCH_INVARIANT", "1"},
                                                   {"DEEPINFER_ACCELERATOR", "nvidia"}});
  ASSERT_TRUE(values.has_value()) << values.error().ToString();
  EXPECT_TRUE(values->warnings().empty());
  EXPECT_EQ(values->String("model"), "m");
  EXPECT_EQ(values->String("decoder-truncation"), "compact");
  EXPECT_EQ(values->Int("decoder-keep"), 200);
  EXPECT_EQ(values->String("backend"), "cuda");
}

TEST(OptionTable, RefusesAscendByNamingWhatIsSupported) {
  const Result<Values> values = Given("generate", {{"DEEPINFER_ACCELERATOR", "ascend"}});
  ASSERT_FALSE(values.has_value());
  EXPECT_EQ(values.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(values.error().message, HasSubstr("nvidia"));
}

TEST(OptionTable, WarnsOfWhatItCannotHonour) {
  const Result<Values> values =
      Given("chat", {{"DEEPINFER_BATCH_INVARIANT", "0"}, {"DEEPINFER_ENABLE_MTP_VARLEN", "1"}});
  ASSERT_TRUE(values.has_value()) << values.error().ToString();
  EXPECT_EQ(values->warnings().size(), 1u);  // drafts are no business of `chat`
}

TEST(OptionTable, DeepInfersSwitchOfVerifyLengthsIsHonoured) {
  EXPECT_TRUE(Given("serve", {})->Bool("adaptive-verify"));
  EXPECT_TRUE(Given("serve", {{"DEEPINFER_ENABLE_MTP_VARLEN", "1"}})->Bool("adaptive-verify"));
  const Result<Values> fixed = Given("serve", {{"DEEPINFER_ENABLE_MTP_VARLEN", "0"}});
  ASSERT_TRUE(fixed.has_value()) << fixed.error().ToString();
  EXPECT_FALSE(fixed->Bool("adaptive-verify"));
  EXPECT_TRUE(fixed->warnings().empty());
}

TEST(OptionTable, DraftTokensTakeDeepInfersVariableUpToFive) {
  const Result<Values> five = Given("bench", {{"DEEPINFER_USE_NEXTN_DECODE", "5"}});
  ASSERT_TRUE(five.has_value()) << five.error().ToString();
  EXPECT_EQ(five->Int("draft-tokens"), 5);
  EXPECT_EQ(five->String("speculation"), "auto");
  const Result<Values> six = Given("bench", {{"DEEPINFER_USE_NEXTN_DECODE", "6"}});
  ASSERT_FALSE(six.has_value());
  EXPECT_THAT(six.error().ToString(), HasSubstr("0 to 5"));
}

TEST(OptionTable, RefusesUnknownForeignValues) {
  for (const Spec& spec : AllOptions()) {
    if (spec.foreign.values.empty()) continue;
    const std::string command(spec.commands.substr(0, spec.commands.find(' ')));
    const Result<Values> values = Given(command, {{std::string(spec.foreign.name), "surprise"}});
    ASSERT_FALSE(values.has_value()) << spec.name;
    EXPECT_THAT(values.error().ToString(), HasSubstr(std::string(spec.foreign.name))) << spec.name;
    EXPECT_THAT(values.error().ToString(), HasSubstr("it accepts " + std::string(spec.foreign.values[0].given)))
        << spec.name;
  }
}

Result<Values> Serve(const std::vector<std::string>& arguments) {
  ASSIGN_OR_RETURN(const CommandLine line, ParseCommandLine(AllOptions(), "serve", arguments));
  return Resolve(AllOptions(), {"serve", line, {}, {}, ""});
}

// Each is let pass, or refused with advice whose options exist.
TEST(OptionTable, OtherEnginesFlagsAreAnswered) {
  static const std::regex option("--(no-)?([a-z0-9-]+)");
  for (const ForeignFlag& flag : ForeignFlags("serve")) {
    SCOPED_TRACE(flag.name);
    const std::string name = "--" + std::string(flag.name);
    const auto given = [&](const std::string& value) {
      return Serve(flag.takes_value ? std::vector<std::string>{name, value} : std::vector<std::string>{name});
    };
    const Spec* own = Find(AllOptions(), flag.name);
    EXPECT_TRUE(own == nullptr || !own->TakenBy("serve")) << "the table has it";
    const Result<Values> any = given("surprise");
    EXPECT_EQ(any.has_value(), flag.harmless == "*");
    if (any) continue;
    EXPECT_EQ(any.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(any.error().where, name);
    const std::string advice(flag.advice);
    EXPECT_THAT(any.error().message, HasSubstr(advice));
    EXPECT_GT(advice.size(), 10u);
    for (std::sregex_iterator match(advice.begin(), advice.end(), option), end; match != end; ++match) {
      const Spec* meant = Find(AllOptions(), (*match)[2].str());
      EXPECT_TRUE(meant != nullptr && meant->TakenBy("serve")) << match->str();
    }
    std::istringstream harmless{std::string(flag.harmless)};
    for (std::string value; harmless >> value;) EXPECT_TRUE(given(value)) << value;
  }
  for (const std::string one : {"-tp", "-dp", "-pp"}) {
    EXPECT_TRUE(Serve({one, "1"})) << one;
    EXPECT_THAT(Serve({one + "=2"}).error().ToString(), HasSubstr(one + ": not an option of Galley")) << one;
  }
}

TEST(OptionTable, LengthsTakeVllmsSuffixes) {
  EXPECT_EQ(Serve({"--max-model-len", "4k"})->Int("max-seq-len"), 4000);
  EXPECT_EQ(Serve({"--max-model-len=4K"})->Int("max-seq-len"), 4096);
  EXPECT_EQ(Serve({"--step-rows", "1K"})->Int("step-rows"), 1024);
  for (const std::string bad : {"4kk", "k", "4g", "99999999999999999k", "40m"})
    EXPECT_FALSE(Serve({"--max-model-len", bad})) << bad;
  EXPECT_FALSE(Serve({"--max-seqs", "1k"})) << "no length";
}

TEST(OptionTable, SeveralNamesStandBehindOneFlag) {
  const std::vector<std::string> both = {"a", "b"};
  EXPECT_EQ(Serve({"--model", "dir", "--served-model-name", "a", "b", "--port", "1"})->List("served-model-name"), both);
  const auto behind =
      ParseCommandLine(AllOptions(), "serve", std::vector<std::string>{"dir", "--served-model-name", "a", "b"});
  EXPECT_EQ(behind->positionals, std::vector<std::string>{"dir"});
  const auto first =
      ParseCommandLine(AllOptions(), "serve", std::vector<std::string>{"--served-model-name", "a", "dir"});
  EXPECT_EQ(first->positionals, std::vector<std::string>{"dir"}) << "the model, which nothing else names";
}

TEST(OptionTable, CommittedPageIsCurrent) {
  std::ifstream file(std::string(GALLEY_SOURCE_DIR) + "/docs/options.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(page, MarkdownPage(AllOptions())) << "run `galley options --markdown > docs/options.md`";
}

}  // namespace
}  // namespace galley::options
