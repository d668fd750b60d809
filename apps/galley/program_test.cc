// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "app_fixture.h"
#include "galley/base/option_table.h"

namespace galley::app {
namespace {

using ::testing::HasSubstr;

RunOutcome Start(std::vector<std::string> arguments, options::Environment environment = {}) {
  FakeModel model;
  model.Say("Yes.");
  return RunApp(model, {.arguments = std::move(arguments), .environment = std::move(environment)});
}

TEST(Program, HelpFitsAScreenAndNamesEveryCommand) {
  const RunOutcome help = Start({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(help.err, "");
  EXPECT_LE(std::count(help.out.begin(), help.out.end(), '\n'), 24);
  for (const Command& command : Commands()) EXPECT_THAT(help.out, HasSubstr("  " + std::string(command.name) + " "));
  EXPECT_EQ(Start({"help"}).out, help.out);
  EXPECT_EQ(Start({"-h"}).out, help.out);
}

TEST(Program, WithoutArgumentsHelpIsAnError) {
  const RunOutcome outcome = Start({});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("Usage: galley COMMAND"));
}

TEST(Program, EveryCommandHasAPageOfItsOptions) {
  for (const Command& command : Commands()) {
    const RunOutcome page = Start({std::string(command.name), "--help"});
    EXPECT_EQ(page.exit_code, 0) << command.name;
    EXPECT_EQ(Start({"help", std::string(command.name)}).out, page.out);
    const auto lists = [&](std::string_view flag) {
      return page.out.find(fmt::format("\n  --{} ", flag)) != std::string::npos ||
             page.out.find(fmt::format("\n  --{}\n", flag)) != std::string::npos;
    };
    for (const options::Spec& spec : options::AllOptions()) {
      const bool usable = spec.TakenBy(command.name) && spec.unavailable.empty();
      EXPECT_EQ(lists(spec.name) || lists("no-" + std::string(spec.name)), usable)
          << command.name << " --" << spec.name;
    }
    std::istringstream lines(page.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
  }
}

TEST(Program, TheOptionTableNamesOnlyCommandsThatExist) {
  std::set<std::string, std::less<>> names = {"*"};
  for (const Command& command : Commands()) names.emplace(command.name);
  for (const options::Spec& spec : options::AllOptions()) {
    std::istringstream words{std::string(spec.commands)};
    for (std::string word; words >> word;) EXPECT_TRUE(names.contains(word)) << spec.name << ": " << word;
  }
}

TEST(Program, UnknownCommandsSuggestTheNearest) {
  EXPECT_THAT(Start({"genrate"}).err, HasSubstr("galley: there is no command genrate (did you mean generate?)"));
  EXPECT_EQ(Start({"genrate"}).exit_code, 2);
  EXPECT_THAT(Start({"xyzzy"}).err, HasSubstr("there is no command xyzzy; `galley --help`"));
  EXPECT_THAT(Start({"--temperature", "1"}).err, HasSubstr("options go after the command"));
  EXPECT_THAT(Start({"help", "chta"}).err, HasSubstr("did you mean chat?"));
}

TEST(Program, VersionIsOneLine) {
  const RunOutcome version = Start({"--version"});
  EXPECT_EQ(version.out, "galley " GALLEY_VERSION "\n");
  EXPECT_EQ(Start({"version"}).out, version.out);
  EXPECT_EQ(Start({"-V"}).out, version.out);
}

TEST(Program, ExitCodesAreDistinctAndDocumented) {
  const std::string text = ExitCodesText();
  EXPECT_EQ(Start({"help", "exit-codes"}).out, text);
  std::set<int> codes;
  // kInternal is the last enumerator.
  for (int i = 0; i <= static_cast<int>(ErrorCode::kInternal); ++i) {
    const ErrorCodeInfo& info = Info(static_cast<ErrorCode>(i));
    EXPECT_TRUE(codes.insert(info.exit_code).second) << info.label;
    EXPECT_THAT(text, HasSubstr("  " + std::string(info.label) + " "));
  }
  EXPECT_FALSE(codes.contains(0));
}

TEST(Program, TakesAConfigurationFile) {
  const TemporaryFile config("[sampling]\nmax-tokens = 7\n[model]\nprefill-chunk = 9\n");
  for (const bool variable : {false, true}) {
    FakeModel model;
    model.Say("Yes.");
    Invocation run{.arguments = {"generate", "Hi"}};
    if (variable) run.environment = {{"GALLEY_CONFIG", config.path()}};
    if (!variable) run.arguments.insert(run.arguments.end(), {"--config", config.path()});
    const RunOutcome outcome = RunApp(model, run);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(model.requests[0].max_tokens, 7);
    EXPECT_EQ(model.created[0].prefill_chunk, 9);
  }
}

TEST(Program, ConfigurationErrorsNameFileAndLine) {
  const TemporaryFile unknown("[sampling]\n\ntemprature = 1\n");
  EXPECT_THAT(Start({"generate", "Hi", "--config", unknown.path()}).err,
              HasSubstr(unknown.path() + ":3: unknown key temprature in [sampling] (did you mean temperature?)"));
  const TemporaryFile broken("[sampling\n");
  EXPECT_THAT(Start({"generate", "Hi", "--config", broken.path()}).err,
              HasSubstr(broken.path() + ":1: not valid TOML"));
  const RunOutcome missing = Start({"generate", "Hi", "--config", "/nonexistent/galley.toml"});
  EXPECT_EQ(missing.exit_code, 3);
  EXPECT_THAT(missing.err, HasSubstr("/nonexistent/galley.toml: cannot open"));
}

TEST(Program, WarningsComeOnStandardErrorOnly) {
  const RunOutcome outcome =
      Start({"generate", "Hi"}, {{"GALLEY_TEMPRATURE", "1"}, {"DEEPINFER_BATCH_INVARIANT", "0"}});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "Yes.\n");
  EXPECT_THAT(outcome.err, HasSubstr("warning: environment variable GALLEY_TEMPRATURE means nothing to Galley (did you "
                                     "mean GALLEY_TEMPERATURE?)"));
  EXPECT_THAT(outcome.err, HasSubstr("warning: batch-invariant: not available in this version"));
}

TEST(Program, CommandsWithoutArgumentsRefuseThem) {
  EXPECT_THAT(Start({"version", "x"}).err, HasSubstr("`galley version` takes no arguments"));
  EXPECT_EQ(Start({"chat", "x"}).exit_code, 2);
}

TEST(Program, OptionsListsAll) {
  const RunOutcome outcome = Start({"options"});
  for (const options::Spec& spec : options::AllOptions()) EXPECT_THAT(outcome.out, HasSubstr(std::string(spec.name)));
  EXPECT_EQ(Start({"options", "--markdown"}).out, options::MarkdownPage(options::AllOptions()));
}

TEST(Program, TheModelIsFoundBesideTheBinary) {
  FakeModel model;
  model.Say("Yes.");
  ASSERT_EQ(RunApp(model, {.arguments = {"generate", "Hi"}}).exit_code, 0);
  EXPECT_EQ(model.created[0].model_dir, NanoDir());
  ASSERT_EQ(RunApp(model, {.arguments = {"generate", "Hi", "--model", "else/where"}}).exit_code, 0);
  EXPECT_EQ(model.created[1].model_dir, "else/where");
  ASSERT_EQ(
      RunApp(model, {.arguments = {"generate", "Hi"}, .environment = {{"DEEPINFER_HF_MODEL_DIR", "there"}}}).exit_code,
      0);
  EXPECT_EQ(model.created[2].model_dir, "there");
}

// What an option takes, the engine takes.
TEST(Program, RowsOfAStepEndWhereTheEngineSays) {
  for (const char* option : {"step-rows", "prefill-chunk"})
    EXPECT_EQ(options::Find(options::AllOptions(), option)->ints.high, engine::kStepRowsMax) << option;
  EXPECT_THAT(Start({"plan", "--step-rows", "65536"}).err, HasSubstr("65535"));
}

TEST(Program, EngineOptionsReachTheGenerator) {
  FakeModel model;
  model.Say("Yes.");
  const RunOutcome outcome = RunApp(
      model, {.arguments = {"generate", "Hi", "--backend", "cpu", "--threads", "3", "--prefill-chunk", "64",
                            "--max-seq-len", "1000", "--decoder-truncation", "compact", "--decoder-keep", "150"}});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(model.created[0].device.backend, "cpu");
  EXPECT_EQ(model.created[0].device.threads, 3);
  EXPECT_EQ(model.created[0].prefill_chunk, 64);
  EXPECT_EQ(model.created[0].max_seq_len, 1000);
  EXPECT_EQ(model.created[0].decoder_keep, 150);
}

TEST(Program, AnOptionThatDoesNothingIsRefused) {
  const struct {
    std::vector<std::string> arguments;
    const char* said;  // empty: taken
  } cases[] = {
      {{"--expert-memory", "1GiB"}, "--expert-memory: is for experts on disk; leave it out, or add --experts disk"},
      {{"--expert-memory", "1GiB", "--experts", "disk"}, ""},
      {{"--isa", "generic", "--backend", "ref"}, "--isa: is for the cpu backend; leave it out, or use --backend cpu"},
      {{"--isa", "avx2", "--backend", "cuda"}, "--isa: is for the cpu backend"},
      {{"--threads", "2", "--backend", "cuda"}, "--threads: is for backends that compute on processors"},
      {{"--cuda-graphs", "off", "--backend", "cpu"}, "--cuda-graphs: is for the cuda backend"},
      {{"--isa", "auto", "--backend", "ref"}, ""},
      {{"--isa", "generic"}, ""},
  };
  for (const auto& row : cases) {
    FakeModel model;
    model.Say("Yes.");
    std::vector<std::string> arguments = {"generate", "Hi"};
    arguments.insert(arguments.end(), row.arguments.begin(), row.arguments.end());
    const RunOutcome outcome = RunApp(model, {.arguments = arguments});
    EXPECT_EQ(outcome.exit_code, *row.said == '\0' ? 0 : 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(row.said));
  }
  // Elsewhere it may be meant for other runs.
  FakeModel model;
  model.Say("Yes.");
  const RunOutcome outcome =
      RunApp(model, {.arguments = {"generate", "Hi"}, .environment = {{"GALLEY_EXPERT_MEMORY", "1GiB"}}});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("warning: expert-memory is for experts on disk"));
}

TEST(Program, DecoderKeepAloneTruncatesNothing) {
  FakeModel model;
  model.Say("Yes.");
  ASSERT_EQ(RunApp(model, {.arguments = {"generate", "Hi", "--decoder-keep", "150"}}).exit_code, 0);
  EXPECT_EQ(model.created[0].decoder_keep, 0);
}

TEST(Program, AnErrorOfTheEngineSetsTheExitCode) {
  FakeModel model;
  model.Say("Yes.");
  model.fail_create = Error{ErrorCode::kCorrupt, "a shard is missing", "model-00001"};
  const RunOutcome outcome = RunApp(model, {.arguments = {"generate", "Hi"}});
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_EQ(outcome.err, "galley: model-00001: a shard is missing\n");
  EXPECT_EQ(outcome.out, "");
}

}  // namespace
}  // namespace galley::app
