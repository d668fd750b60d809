// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <fmt/core.h>

#include <algorithm>
#include <new>

#include "files.h"
#include "galley/base/config_file.h"
#include "galley/base/log.h"
#include "galley/base/nearest.h"
#include "galley/base/option_table.h"
#include "option_effects.h"

namespace galley::app {
namespace {

constexpr Command kCommands[] = {
    {"generate", "answer one prompt, or continue a text", "[PROMPT…]",
     "The prompt is the arguments, the file of --prompt-file, the token ids of --ids, or standard input. It is "
     "answered "
     "as a\nchat message unless --raw is given. The answer is printed as it comes; --json prints one object at the "
     "end.\n"
     "\n"
     "  galley generate \"Why do birds fly?\"\n"
     "  galley generate --thinking --temperature 0 \"What is 27 + 45?\"\n"
     "  galley generate --raw --max-tokens 50 \"Once upon a time\"\n"
     "  galley generate --json --logprobs 5 --seed 1 < prompt.txt\n"
     "  galley generate --json-schema schema.json \"Describe a bird as JSON.\"\n",
     RunGenerate},
    {"chat", "talk with the model in the terminal", "",
     "Each line is a message. Lines that start with a slash are commands; /help lists them.\nCtrl-C stops an answer, "
     "Ctrl-D "
     "ends.\n",
     RunChat},
    {"serve", "answer over HTTP, in the APIs that clients already use", "[MODEL]",
     "Chat Completions, Responses, Messages and Completions on one port, until SIGTERM or Ctrl-C; the second signal "
     "ends it at\nonce. MODEL is a directory, as with --model. docs/serving.md has endpoints, limits and metrics.\n"
     "\n"
     "  galley serve\n"
     "  galley serve /models/DeepSeek-V4.1-Flash --host 0.0.0.0 --api-key-file keys.txt --max-seqs 64\n",
     RunServe},
    {"tokenize", "turn text into token ids, or ids into text", "[TEXT…]",
     "The text is the arguments, the file of --prompt-file, or standard input, byte for byte.\n"
     "\n"
     "  galley tokenize \"Once upon a time\"\n"
     "  galley tokenize --tokens --special \"<｜User｜>Hi\"\n"
     "  galley tokenize --decode 554 550 259 495\n",
     RunTokenize},
    {"inspect", "check a model directory and describe it", "[MODEL]",
     "Opens every file of the directory and compares the tensors with what the configuration implies. Without MODEL, "
     "the\n"
     "small model that comes with Galley.\n",
     RunInspect},
    {"plan", "say how much memory an engine takes", "",
     "Prints the memory plan of an engine with these options: weights, workspace of the largest step, history blocks, "
     "slots\nand snapshots. Reads the model's configuration and no weights. Ends with code 6 when the plan does not "
     "fit."
     "\n"
     "\n"
     "  galley plan --max-seqs 64 --max-tokens 8192\n"
     "  galley plan --model DIR --max-seqs 256 --max-tokens 32768 --memory-limit 640GiB\n"
     "  galley plan --model DIR --backend cuda --experts host --device-memory 139GiB\n",
     RunPlan},
    {"dump", "write a model's intermediate tensors, or compare them", "",
     "Runs a prompt through the model and writes its intermediate tensors (--out), or prints how far they are from "
     "those "
     "of\nanother implementation (--compare), one line a tensor.\n"
     "\n"
     "  galley dump --ids ids.json --out tensors.safetensors\n"
     "  galley dump --model DIR --compare golden.safetensors\n",
     RunDump},
    {"calibrate", "fit the confidences of a model's draft head", "",
     "Lets the model continue a text (--prompt-file), or texts of its own, with drafts, fits a temperature for each "
     "place "
     "of a\ndraft so that confidences say how often drafts are accepted, and writes them beside the model (or to "
     "--out). "
     "Half of the\ntexts are held out; the error on those is printed.\n"
     "\n"
     "  galley calibrate --model DIR\n"
     "  galley calibrate --model DIR --prompt-file text.txt --requests 400 --out FILE\n",
     RunCalibrate},
    {"bench", "measure speed with synthetic requests", "KIND",
     "Kinds:\n"
     "  throughput   many requests at once through the engine: rates, latencies, prefix hits, rows computed\n"
     "  verify-plan  planning of verify lengths on simulated devices: throughput against fixed lengths; no model\n"
     "  layers       one layer at its true shape on the processor or a GPU, beside the machine's own limits\n"
     "  kernels      ops of the cuda backend at their true shapes (--backend cuda)\n"
     "  slice        steps over a few layers of the model on a GPU (--backend cuda)\n"
     "\n"
     "  galley bench throughput --prompt-len 256 --output-len 32 --concurrency 1,4,16\n"
     "  galley bench throughput --shared-tokens 1024 --prompt-len 16 --prefix-cache both\n"
     "  galley bench layers --shape v41\n"
     "  galley bench throughput --prompt-len lognormal:200:0.8:2000 --output-len zipf:1.1:64 --json\n",
     RunBench},
    {"sim", "simulate scheduler and caches with random traffic", "",
     "Runs the real scheduler, caches and vote of one or more ranks over a virtual clock and a fake model, with random "
     "\n"
     "configurations, traffic, cancellations and faults, and checks every step and every output. Needs no model.\n"
     "Prints what happened; a run that finds a mistake ends with code 1 and the command that repeats it.\n"
     "\n"
     "  galley sim --seed 1 --steps 100000\n"
     "  galley sim --seeds 50 --steps 4000 --ranks 4\n",
     RunSim},
    {"codec-serve", "run test cases of the chat codec from standard input", "",
     "Each line is one case, a JSON object that says in `file` which kind it is (render, stream, numbers, images, "
     "tokenize);\neach gets one line of JSON as its answer. docs/codec.md describes the format. Without --tokenizer, "
     "results have no\ntoken ids.\n",
     RunCodecServe},
    {"grammar", "say where and why a constrained answer would be refused", "check SCHEMA [TEXT]",
     "SCHEMA is a file: a JSON Schema, or what --kind says. TEXT is what a model is to write, or `-`; without it the "
     "file of\n--prompt-file or standard input. Ends with code 2 when the text is not accepted.\n"
     "\n"
     "  galley grammar check schema.json '{\"age\": 41}'\n"
     "  galley grammar check --kind regex --json pattern.txt -\n",
     RunGrammar},
    {"grammar-serve", "run the grammar engine's line protocol on standard input", "",
     "One JSON request a line, one reply a line; docs/grammar.md lists them. The vocabulary is that of --vocab, "
     "--tokenizer or\n--model.\n",
     RunGrammarServe},
    {"options", "list all options", "", "", RunOptions},
    {"version", "print the version", "", "", RunVersion},
};

constexpr std::string_view kHelpTopics[] = {"exit-codes"};

struct ExitCodeRow {
  ErrorCode code;
  std::string_view meaning;
};

constexpr ExitCodeRow kExitCodes[] = {
    {ErrorCode::kInternal, "a bug in Galley"},
    {ErrorCode::kInvalidArgument, "wrong use: an option, a prompt or an input file that cannot be right"},
    {ErrorCode::kNotFound, "a file or model does not exist"},
    {ErrorCode::kUnsupported, "understood, but not something that this version or this model can do"},
    {ErrorCode::kCorrupt, "a damaged model or file"},
    {ErrorCode::kResourceExhausted, "not enough memory or room"},
    {ErrorCode::kIo, "the operating system failed to read or write"},
    {ErrorCode::kDeadline, "a wait took too long"},
    {ErrorCode::kUnavailable, "shutting down, or a peer is gone"},
    {ErrorCode::kDevice, "an accelerator reported a fault"},
    {ErrorCode::kCancelled, "stopped with Ctrl-C"},
};

const Command* FindCommand(std::string_view name) {
  const std::span<const Command> commands = Commands();
  const auto found = std::find_if(commands.begin(), commands.end(), [&](const Command& c) { return c.name == name; });
  return found == commands.end() ? nullptr : &*found;
}

std::string ProgramHelp() {
  std::string text =
      "Galley runs the DeepSeek V4 family of language models.\n\nUsage: galley COMMAND [OPTIONS] "
      "[ARGUMENTS]\n\nCommands:\n";
  std::size_t width = 0;
  for (const Command& command : Commands()) width = std::max(width, command.name.size());
  for (const Command& command : Commands()) text += fmt::format("  {:<{}} {}\n", command.name, width, command.summary);
  text += fmt::format("  {:<{}} {}\n\n", "help", width, "show this page, the page of a command, or `help exit-codes`");
  text +=
      "`galley COMMAND --help` lists the options of a command. Options can also stand in the environment (GALLEY_…) "
      "and\n"
      "in a TOML file (--config). Without --model, commands use the small model that comes with Galley.\n";
  return text;
}

std::string CommandHelp(const Command& command) {
  const std::string option_text = options::HelpText(options::AllOptions(), command.name);
  std::string text =
      fmt::format("galley {}: {}\n\nUsage: galley {}{}{}{}\n", command.name, command.summary, command.name,
                  option_text.empty() ? "" : " [OPTIONS]", command.arguments.empty() ? "" : " ", command.arguments);
  if (!command.text.empty()) text += fmt::format("\n{}", command.text);
  if (!option_text.empty()) text += fmt::format("\n{}", option_text);
  return text;
}

tl::unexpected<Error> UnknownCommand(std::string_view name) {
  std::vector<std::string_view> names = {"help"};
  for (const Command& command : Commands()) names.push_back(command.name);
  if (name.starts_with('-')) {
    return Err(ErrorCode::kInvalidArgument, "options go after the command; `galley --help` lists the commands",
               std::string(name));
  }
  return Err(ErrorCode::kInvalidArgument, fmt::format("there is no command {}{}; `galley --help` lists the commands",
                                                      name, Suggestion(name, names)));
}

Result<int> RunHelp(std::span<const std::string> topics, Terminal& terminal) {
  if (topics.empty()) {
    terminal.Write(ProgramHelp());
    return kExitOk;
  }
  if (topics[0] == kHelpTopics[0]) {
    terminal.Write(ExitCodesText());
    return kExitOk;
  }
  const Command* command = FindCommand(topics[0]);
  if (command == nullptr) return UnknownCommand(topics[0]);
  terminal.Write(CommandHelp(*command));
  return kExitOk;
}

// The path that --config or its variable gives; "" for none.
std::string ConfigPath(const options::CommandLine& line, const options::Environment& environment) {
  for (auto flag = line.flags.rbegin(); flag != line.flags.rend(); ++flag) {
    if (flag->spec->name == "config") return flag->value;
  }
  const auto found = environment.find("GALLEY_CONFIG");
  return found == environment.end() ? "" : found->second;
}

struct LevelName {
  std::string_view name;
  log::Level level;
};

constexpr LevelName kLevels[] = {{"debug", log::Level::kDebug},
                                 {"info", log::Level::kInfo},
                                 {"warning", log::Level::kWarning},
                                 {"error", log::Level::kError}};

Result<int> RunCommand(const Command& command, std::span<const std::string> arguments, const Process& process,
                       Terminal& terminal) {
  const options::Table table = options::AllOptions();
  ASSIGN_OR_RETURN(const options::CommandLine line, options::ParseCommandLine(table, command.name, arguments));
  if (line.help) {
    terminal.Write(CommandHelp(command));
    return kExitOk;
  }
  std::vector<options::FileEntry> entries;
  const std::string config = ConfigPath(line, process.environment);
  if (!config.empty()) {
    ASSIGN_OR_RETURN(const std::string toml, ReadFile(config, kConfigBytesMax));
    ASSIGN_OR_RETURN(entries, options::ParseConfigFile(toml, config));
  }
  ASSIGN_OR_RETURN(const options::Values values,
                   options::Resolve(table, {command.name, line, process.environment, entries, config}));
  for (const std::string& warning : values.warnings()) terminal.Complain("warning: " + warning);
  for (const LevelName& row : kLevels) {
    if (row.name == values.String("log-level")) log::SetLevel(row.level);
  }
  RETURN_IF_ERROR(CheckEffects(values, terminal));
  if (!line.positionals.empty() && command.arguments.empty()) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("`galley {}` takes no arguments besides its options", command.name), line.positionals[0]);
  }
  Context context{terminal, values, line.positionals, process.environment, process.executable, process.make_generator};
  return command.run(context);
}

Result<int> Dispatch(const Process& process, Terminal& terminal) {
  const std::span<const std::string> arguments = process.arguments;
  if (arguments.empty()) {
    terminal.Note(ProgramHelp());
    return Info(ErrorCode::kInvalidArgument).exit_code;
  }
  const std::string& name = arguments[0];
  if (name == "help" || name == "--help" || name == "-h") return RunHelp(arguments.subspan(1), terminal);
  const Command* command = FindCommand(name == "--version" || name == "-V" ? "version" : name);
  if (command == nullptr) return UnknownCommand(name);
  return RunCommand(*command, arguments.subspan(1), process, terminal);
}

}  // namespace

std::span<const Command> Commands() {
  return kCommands;
}

std::string ExitCodesText() {
  std::string text = fmt::format("{:>4}  {:<20}{}\n", 0, "", "success; also when the reader of the output went away");
  for (const ExitCodeRow& row : kExitCodes) {
    text += fmt::format("{:>4}  {:<20}{}\n", Info(row.code).exit_code, Info(row.code).label, row.meaning);
  }
  // Not an error of ours: the shell's number for a process that the signal ended.
  text += fmt::format("{:>4}  {:<20}{}\n", 143, "",
                      "ended by SIGTERM; `galley serve` by the second one, and 0 by the first");
  return text;
}

int RunProgram(const Process& process, Terminal& terminal) {
  Result<int> result = kExitOk;
  try {
    result = Dispatch(process, terminal);
  } catch (const std::bad_alloc&) {
    result = Err(ErrorCode::kResourceExhausted, "not enough memory; use a smaller model or free some memory");
  }
  terminal.Progress("");
  if (result && !terminal.write_status()) result = Err(terminal.write_status().error());
  if (result) return *result;
  terminal.Complain(result.error().ToString());
  return Info(result.error().code).exit_code;
}

}  // namespace galley::app
