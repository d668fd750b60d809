// SPDX-License-Identifier: Apache-2.0
#include "galley/base/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace galley::options {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr ForeignValue kWords[] = {{"nvidia", "cuda"}, {"ascend", "", "is not supported; nvidia is"}};

constexpr Spec kRows[] = {
    {.name = "model",
     .type = Type::kPath,
     .section = "model",
     .commands = "run show",
     .value_name = "DIR",
     .foreign = {"OTHER_MODEL"}},
    {.name = "backend",
     .type = Type::kEnum,
     .section = "model",
     .commands = "run",
     .initial = "ref",
     .choices = "ref cpu cuda",
     .foreign = {"OTHER_ACCELERATOR", kWords}},
    {.name = "top-k",
     .type = Type::kInt,
     .section = "sampling",
     .commands = "run",
     .value_name = "N",
     .initial = "0",
     .ints = {0, 100},
     .aliases = "best-of-top"},
    {.name = "top-p",
     .type = Type::kFloat,
     .section = "sampling",
     .commands = "run",
     .value_name = "P",
     .initial = "1",
     .floats = {0, 1, true}},
    {.name = "stop", .type = Type::kList, .section = "sampling", .commands = "run", .value_name = "TEXT"},
    {.name = "seed",
     .type = Type::kInt,
     .section = "sampling",
     .commands = "run",
     .value_name = "N",
     .ints = {.low = 0}},
    {.name = "thinking", .type = Type::kBool, .section = "prompt", .commands = "run"},
    {.name = "color", .type = Type::kBool, .section = "prompt", .commands = "*", .initial = "true"},
    {.name = "cache",
     .type = Type::kBytes,
     .section = "model",
     .commands = "run",
     .value_name = "SIZE",
     .initial = "1MiB",
     .ints = {.low = 4096}},
    {.name = "json", .type = Type::kBool, .section = "output", .commands = "show", .scope = Scope::kFlag},
    {.name = "drafts",
     .type = Type::kInt,
     .section = "speculation",
     .commands = "run",
     .initial = "0",
     .foreign = {"OTHER_DRAFTS"},
     .unavailable = "it decodes one by one"},
};

struct Setting {
  std::vector<std::string> arguments = {};
  Environment environment = {};
  std::vector<FileEntry> file = {};
  std::string command = "run";
};

Result<Values> Given(const Setting& setup) {
  ASSIGN_OR_RETURN(const CommandLine line, ParseCommandLine(kRows, setup.command, setup.arguments));
  return Resolve(kRows, {setup.command, line, setup.environment, setup.file, "c.toml"});
}

std::string ErrorOf(const Setting& setup) {
  const Result<Values> values = Given(setup);
  return values ? "no error" : values.error().ToString();
}

TEST(Options, DefaultsComeFromTheTable) {
  const Result<Values> values = Given({});
  ASSERT_TRUE(values.has_value()) << values.error().ToString();
  EXPECT_FALSE(values->Has("model"));
  EXPECT_EQ(values->String("model"), "");
  EXPECT_EQ(values->String("backend"), "ref");
  EXPECT_EQ(values->Int("top-k"), 0);
  EXPECT_EQ(values->Float("top-p"), 1.0);
  EXPECT_FALSE(values->Has("seed"));
  EXPECT_FALSE(values->Bool("thinking"));
  EXPECT_TRUE(values->Bool("color"));
  EXPECT_EQ(values->Int("cache"), 1 << 20);
  EXPECT_TRUE(values->List("stop").empty());
  EXPECT_EQ(values->source("top-k"), Source::kDefault);
}

TEST(Options, CommandLineBeatsEnvironmentBeatsFileBeatsDefault) {
  const FileEntry in_file{"sampling", "top-k", Value(std::int64_t{1}), 3};
  Setting setup;
  setup.file = {in_file};
  EXPECT_EQ(Given(setup)->Int("top-k"), 1);
  EXPECT_EQ(Given(setup)->source("top-k"), Source::kFile);
  setup.environment = {{"GALLEY_TOP_K", "2"}};
  EXPECT_EQ(Given(setup)->Int("top-k"), 2);
  EXPECT_EQ(Given(setup)->source("top-k"), Source::kEnvironment);
  setup.arguments = {"--top-k", "3"};
  EXPECT_EQ(Given(setup)->Int("top-k"), 3);
  EXPECT_EQ(Given(setup)->source("top-k"), Source::kCommandLine);
}

TEST(Options, FlagSpellings) {
  const Result<Values> values =
      Given({.arguments = {"--top-p=0.5", "--thinking", "--no-color", "--stop", "a", "--stop=--b", "--best-of-top", "9",
                           "--seed", "1", "--seed", "2", "--cache", "2KiB", "--cache=2GB"}});
  // --cache 2KiB is below its limit, but every flag is checked, so the command line as a whole is refused.
  ASSERT_FALSE(values.has_value());
  EXPECT_THAT(values.error().ToString(), HasSubstr("--cache: 2048 is too small"));
  const Result<Values> good =
      Given({.arguments = {"--top-p=0.5", "--thinking", "--no-color", "--stop", "a", "--stop=--b", "--best-of-top", "9",
                           "--seed", "1", "--seed", "2", "--cache=2GB"}});
  ASSERT_TRUE(good.has_value()) << good.error().ToString();
  EXPECT_EQ(good->Float("top-p"), 0.5);
  EXPECT_TRUE(good->Bool("thinking"));
  EXPECT_FALSE(good->Bool("color"));
  EXPECT_THAT(good->List("stop"), ElementsAre("a", "--b"));
  EXPECT_EQ(good->Int("top-k"), 9);
  EXPECT_EQ(good->Int("seed"), 2);  // the last one counts
  EXPECT_EQ(good->Int("cache"), 2'000'000'000);
}

TEST(Options, PositionalsAndHelp) {
  const std::vector<std::string> arguments = {"one", "-", "--thinking", "two", "--", "--three", "-4"};
  const Result<CommandLine> line = ParseCommandLine(kRows, "run", arguments);
  ASSERT_TRUE(line.has_value()) << line.error().ToString();
  EXPECT_THAT(line->positionals, ElementsAre("one", "-", "two", "--three", "-4"));
  EXPECT_FALSE(line->help);
  EXPECT_TRUE(ParseCommandLine(kRows, "run", std::vector<std::string>{"-h"})->help);
  EXPECT_TRUE(ParseCommandLine(kRows, "run", std::vector<std::string>{"--help"})->help);
}

TEST(Options, WrongFlagsSayWhatToDo) {
  EXPECT_THAT(ErrorOf({.arguments = {"--top-q", "1"}}), HasSubstr("--top-q: unknown option (did you mean --top-k?)"));
  EXPECT_THAT(ErrorOf({.arguments = {"--xyzzy"}}), HasSubstr("--xyzzy: unknown option; `galley run --help`"));
  EXPECT_THAT(ErrorOf({.arguments = {"--no-top-k"}}), HasSubstr("unknown option"));
  EXPECT_THAT(ErrorOf({.arguments = {"-x"}}), HasSubstr("-x: unknown option"));
  EXPECT_THAT(ErrorOf({.arguments = {"--top-k"}}), HasSubstr("--top-k: needs a value"));
  EXPECT_THAT(ErrorOf({.arguments = {"--top-k", "--thinking"}}), HasSubstr("--top-k: needs a value"));
  EXPECT_THAT(ErrorOf({.arguments = {"--json"}}),
              HasSubstr("`galley run` does not take this option; it belongs to show"));
  EXPECT_THAT(ErrorOf({.arguments = {"--no-color=true"}}), HasSubstr("takes no value"));
  EXPECT_THAT(ErrorOf({.arguments = {"--"}}), "no error");
}

struct BadValue {
  std::string flag;
  std::string message;
};

TEST(Options, WrongValuesNameValueAndLimit) {
  const BadValue cases[] = {
      {"--top-k=ten", "--top-k: \"ten\" is not a whole number; give a whole number from 0 to 100"},
      {"--top-k=101", "--top-k: 101 is too large; give a whole number from 0 to 100"},
      {"--top-k=-1", "--top-k: -1 is too small; give a whole number from 0 to 100"},
      {"--cache=-2MiB",
       "--cache: -2097152 bytes are less than none; give a size such as 4096, 512MiB or 4GB of at least 4096"},
      {"--top-k=", "--top-k: \"\" is not a whole number; give a whole number from 0 to 100"},
      {"--top-k=1e2", "--top-k: \"1e2\" is not a whole number; give a whole number from 0 to 100"},
      {"--seed=9223372036854775808",
       "--seed: \"9223372036854775808\" is out of range; give a whole number of at least 0"},
      {"--top-p=0", "--top-p: 0 is too small; give a number above 0 and up to 1"},
      {"--top-p=1.01", "--top-p: 1.01 is too large; give a number above 0 and up to 1"},
      {"--top-p=nan", "--top-p: \"nan\" is not a number; give a number above 0 and up to 1"},
      {"--top-p=1e999", "--top-p: \"1e999\" is out of range; give a number above 0 and up to 1"},
      {"--backend=cud", "--backend: \"cud\" is not one of its values (did you mean cuda?); give ref|cpu|cuda"},
      {"--cache=1G",
       "--cache: \"1G\" is not a size in bytes; give a size such as 4096, 512MiB or 4GB of at least 4096"},
      {"--cache=99999999TiB",
       "--cache: \"99999999TiB\" is out of range; give a size such as 4096, 512MiB or 4GB of at least 4096"},
      {"--thinking=maybe", "--thinking: \"maybe\" is neither true nor false; give true or false"},
  };
  for (const BadValue& c : cases) EXPECT_EQ(ErrorOf({.arguments = {c.flag}}), c.message);
}

TEST(Options, LongValuesAreCutInMessages) {
  const std::string message = ErrorOf({.arguments = {"--top-k=" + std::string(1000, 'x')}});
  EXPECT_LT(message.size(), 250u);
  EXPECT_THAT(message, HasSubstr("(1000 bytes)"));
}

TEST(Options, EnvironmentValuesAreCheckedAndEmptyOnesIgnored) {
  EXPECT_THAT(ErrorOf({.environment = {{"GALLEY_TOP_K", "x"}}}),
              HasSubstr("GALLEY_TOP_K: \"x\" is not a whole number"));
  EXPECT_EQ(Given({.environment = {{"GALLEY_TOP_K", ""}}})->source("top-k"), Source::kDefault);
  // An option of another command does not disturb this one.
  EXPECT_EQ(ErrorOf({.environment = {{"GALLEY_TOP_K", "x"}}, .command = "show"}), "no error");
  // --json belongs to one run, so its variable means nothing.
  EXPECT_FALSE(Given({.environment = {{"GALLEY_JSON", "1"}}, .command = "show"})->Bool("json"));
}

TEST(Options, ForeignVariables) {
  EXPECT_EQ(Given({.environment = {{"OTHER_MODEL", "m"}}})->String("model"), "m");
  EXPECT_EQ(Given({.environment = {{"OTHER_ACCELERATOR", "nvidia"}}})->String("backend"), "cuda");
  EXPECT_EQ(ErrorOf({.environment = {{"OTHER_ACCELERATOR", "ascend"}}}),
            "OTHER_ACCELERATOR: \"ascend\" is not supported; nvidia is");
  EXPECT_EQ(Given({.environment = {{"OTHER_ACCELERATOR", "ascend"}}}).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(ErrorOf({.environment = {{"OTHER_ACCELERATOR", "tpu"}}}),
            "OTHER_ACCELERATOR: \"tpu\" is not a value that Galley knows; it accepts nvidia (or set --backend)");
}

TEST(Options, ForeignAndOwnVariableMustAgree) {
  EXPECT_EQ(ErrorOf({.environment = {{"OTHER_MODEL", "a"}, {"GALLEY_MODEL", "b"}}}),
            "GALLEY_MODEL=\"b\" and OTHER_MODEL=\"a\" contradict each other; unset one of them");
  EXPECT_EQ(Given({.environment = {{"OTHER_MODEL", "a"}, {"GALLEY_MODEL", "a"}}})->String("model"), "a");
  // Different words for the same value agree.
  EXPECT_EQ(Given({.environment = {{"OTHER_ACCELERATOR", "nvidia"}, {"GALLEY_BACKEND", "cuda"}}})->String("backend"),
            "cuda");
}

TEST(Options, MisspeltVariablesAreReported) {
  const Result<Values> values =
      Given({.environment = {{"GALLEY_TOP_Q", "1"}, {"DEEPINFER_SOMETHING", "1"}, {"PATH", "x"}}});
  ASSERT_TRUE(values.has_value());
  EXPECT_THAT(values->warnings(),
              ElementsAre("environment variable DEEPINFER_SOMETHING means nothing to Galley",
                          "environment variable GALLEY_TOP_Q means nothing to Galley (did you mean GALLEY_TOP_K?)"));
}

TEST(Options, WhatThisVersionCannotDoIsNeverSilent) {
  EXPECT_EQ(ErrorOf({.arguments = {"--drafts", "5"}}),
            "--drafts: not available in this version: it decodes one by one");
  EXPECT_EQ(Given({.arguments = {"--drafts", "5"}}).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(ErrorOf({.arguments = {"--drafts", "0"}}), "no error");  // asks for what happens anyway
  const Result<Values> values = Given({.environment = {{"OTHER_DRAFTS", "5"}}});
  ASSERT_TRUE(values.has_value());
  EXPECT_EQ(values->Int("drafts"), 0);
  EXPECT_THAT(values->warnings(), ElementsAre("drafts: not available in this version: it decodes one by one"));
}

TEST(Options, FileEntriesAreCheckedWithTheirLine) {
  const auto error = [](std::string section, std::string key, Value value) {
    return ErrorOf({.file = {{std::move(section), std::move(key), std::move(value), 4}}});
  };
  EXPECT_EQ(error("sampling", "top-k", Value(std::int64_t{101})),
            "c.toml:4 top-k: 101 is too large; give a whole number from 0 to 100");
  EXPECT_EQ(error("sampling", "top-k", Value(std::string("1"))),
            "c.toml:4 top-k: the value has the wrong type; give a whole number from 0 to 100");
  EXPECT_THAT(error("sampling", "top_k", Value(true)),
              HasSubstr("c.toml:4: unknown key top_k in [sampling] (did you mean top-k?)"));
  EXPECT_THAT(error("samplng", "x", Value(true)), HasSubstr("unknown section [samplng] (did you mean sampling?)"));
  EXPECT_THAT(error("model", "top-k", Value(true)), HasSubstr("top-k belongs to [sampling]"));
  EXPECT_THAT(error("output", "json", Value(true)), HasSubstr("json cannot stand in a file; give it as --json"));
  EXPECT_EQ(error("sampling", "top-p", Value(std::int64_t{1})), "no error");  // 1 is a number
  EXPECT_EQ(error("sampling", "stop", Value(std::string("x"))), "no error");  // one text is a list of one
  EXPECT_EQ(error("model", "cache", Value(std::string("4KiB"))), "no error");
  EXPECT_THAT(error("model", "cache", Value(true)), HasSubstr("wrong type"));
}

TEST(Options, FileOfAnotherCommandIsCheckedButNotUsed) {
  const FileEntry entry{"sampling", "top-k", Value(std::int64_t{5}), 1};
  EXPECT_EQ(Given({.file = {entry}, .command = "show"})->Int("top-k"), 0);
  EXPECT_THAT(ErrorOf({.file = {{"sampling", "top-k", Value(std::int64_t{500}), 1}}, .command = "show"}),
              HasSubstr("too large"));
}

TEST(Options, HelpListsExactlyWhatTheCommandCanUse) {
  const std::string run = HelpText(kRows, "run"), show = HelpText(kRows, "show"), all = HelpText(kRows, {});
  for (const Spec& spec : kRows) {
    const auto lists = [&](const std::string& page) { return page.find("-" + std::string(spec.name)) != page.npos; };
    EXPECT_EQ(lists(run), spec.TakenBy("run") && spec.unavailable.empty()) << spec.name;
    EXPECT_EQ(lists(show), spec.TakenBy("show") && spec.unavailable.empty()) << spec.name;
    EXPECT_TRUE(lists(all)) << spec.name;
  }
  EXPECT_THAT(run, HasSubstr("  --backend ref|cpu|cuda"));
  EXPECT_THAT(run, HasSubstr("--no-color"));
  EXPECT_THAT(run, HasSubstr("[from 0 to 100; default 0; also --best-of-top; $GALLEY_TOP_K]"));
  EXPECT_THAT(run, HasSubstr("$OTHER_ACCELERATOR"));
}

}  // namespace
}  // namespace galley::options
