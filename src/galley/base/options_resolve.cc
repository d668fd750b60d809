// SPDX-License-Identifier: Apache-2.0
// The sources of option values: command line, environment, configuration file, and the order between them.
#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "galley/base/foreign_flags.h"
#include "galley/base/nearest.h"
#include "galley/base/options.h"
#include "galley/base/options_internal.h"

namespace galley::options {
namespace {

constexpr std::string_view kNo = "no-";

std::string JoinComma(std::string_view words) {
  std::string joined;
  for (const std::string_view word : Words(words)) joined += (joined.empty() ? "" : ", ") + std::string(word);
  return joined;
}

tl::unexpected<Error> UnknownFlag(Table table, std::string_view command, std::string_view flag) {
  std::vector<std::string_view> names;
  for (const Spec& spec : table) {
    if (!spec.TakenBy(command)) continue;
    names.push_back(spec.name);
    for (const std::string_view alias : Words(spec.aliases)) names.push_back(alias);
  }
  return Err(
      ErrorCode::kInvalidArgument,
      fmt::format("unknown option{}; `galley {} --help` lists the options", Suggestion(flag, names, "--"), command),
      fmt::format("--{}", flag));
}

// What the table does not take from this command but another engine would.
const ForeignFlag* ForeignOf(Table table, std::string_view command, std::string_view argument) {
  // vLLM has -tp, -dp, -pp, -ep and -q beside the long spellings.
  constexpr std::size_t kShort = 2;
  const std::size_t dashes = argument.starts_with("--") ? 2 : 1;
  if (!argument.starts_with('-')) return nullptr;
  const std::string_view name = argument.substr(dashes, std::min(argument.find('='), argument.size()) - dashes);
  if (dashes == 1 && name.size() > kShort) return nullptr;
  const Spec* spec = Find(table, name);
  return spec != nullptr && spec->TakenBy(command) ? nullptr : FindForeign(command, name);
}

// A flag that another engine has: nothing when it is harmless, else an error with what to do instead.
Status PassForeign(const ForeignFlag& flag, std::span<const std::string> arguments, std::size_t& index) {
  const std::size_t first = index;
  const std::string_view argument = arguments[index];
  const std::size_t equals = argument.find('=');
  std::string_view value = equals == std::string_view::npos ? std::string_view() : argument.substr(equals + 1);
  const bool apart = flag.takes_value && equals == std::string_view::npos && index + 1 < arguments.size();
  if (apart) value = arguments[++index];
  const std::vector<std::string_view> harmless = Words(flag.harmless);
  if (flag.harmless == "*" || std::find(harmless.begin(), harmless.end(), value) != harmless.end()) return {};
  return Err(ErrorCode::kUnsupported, fmt::format("not an option of Galley: {}", flag.advice),
             std::string(arguments[first].substr(0, arguments[first].find('='))));
}

// One `--name…` argument; takes its value from the next one where needed and moves `index` on.
Result<CommandLine::Flag> ParseFlag(Table table, std::string_view command, std::span<const std::string> arguments,
                                    std::size_t& index) {
  const std::string_view argument = arguments[index];
  const std::size_t equals = argument.find('=');
  const std::string_view name = argument.substr(2, equals == std::string_view::npos ? equals : equals - 2);
  const std::string spelling = fmt::format("--{}", name);

  const Spec* spec = Find(table, name);
  bool negated = false;
  if (spec == nullptr && name.starts_with(kNo)) {
    spec = Find(table, name.substr(kNo.size()));
    negated = spec != nullptr && spec->type == Type::kBool;
    if (!negated) spec = nullptr;
  }
  if (spec == nullptr) return UnknownFlag(table, command, name);
  if (!spec->TakenBy(command)) {
    return Err(
        ErrorCode::kInvalidArgument,
        fmt::format("`galley {}` does not take this option; it belongs to {}", command, JoinComma(spec->commands)),
        spelling);
  }
  if (equals != std::string_view::npos) {
    if (negated) return Err(ErrorCode::kInvalidArgument, "takes no value; leave out the part from `=` on", spelling);
    return CommandLine::Flag{spec, spelling, std::string(argument.substr(equals + 1))};
  }
  if (spec->type == Type::kBool) return CommandLine::Flag{spec, spelling, negated ? "false" : "true"};
  if (index + 1 == arguments.size() || arguments[index + 1].starts_with("--")) {
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("needs a value: {} {}, or {}=… where the value starts with two dashes", spelling,
                           spec->value_name, spelling),
               spelling);
  }
  return CommandLine::Flag{spec, spelling, arguments[++index]};
}

// Takes the bare arguments behind the value of `line`'s last flag, where they can be nothing but more values.
void TakeMore(std::span<const std::string> arguments, std::size_t& index, CommandLine& line) {
  const CommandLine::Flag flag = line.flags.back();
  const std::string_view after = flag.spec->many_after;
  const bool other_known =
      !line.positionals.empty() || std::any_of(line.flags.begin(), line.flags.end(),
                                               [&](const CommandLine::Flag& f) { return f.spec->name == after; });
  if (after.empty() || !other_known) return;
  while (index + 1 < arguments.size() && !arguments[index + 1].starts_with('-'))
    line.flags.push_back({flag.spec, flag.spelling, arguments[++index]});
}

// The value of a foreign variable in our terms.
Result<Value> ParseForeign(const Spec& spec, std::string_view given) {
  const ForeignVariable& foreign = spec.foreign;
  if (foreign.values.empty()) return ParseValue(spec, given, foreign.name);
  std::string accepted;
  for (const ForeignValue& row : foreign.values) {
    if (row.given == given) {
      if (!row.refusal.empty()) {
        return Err(ErrorCode::kUnsupported, fmt::format("\"{}\" {}", given, row.refusal), std::string(foreign.name));
      }
      return ParseValue(spec, row.meaning, foreign.name);
    }
    if (row.refusal.empty()) accepted += (accepted.empty() ? "" : ", ") + std::string(row.given);
  }
  return Err(
      ErrorCode::kInvalidArgument,
      fmt::format("\"{}\" is not a value that Galley knows; it accepts {} (or set --{})", given, accepted, spec.name),
      std::string(foreign.name));
}

const std::string* SetVariable(const Environment& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() || found->second.empty() ? nullptr : &found->second;
}

// Nothing when neither the Galley variable nor the foreign one is set.
Result<std::optional<Value>> FromEnvironment(const Spec& spec, const Environment& environment) {
  if (spec.scope == Scope::kFlag) return std::nullopt;
  const std::string own_name = spec.EnvironmentName();
  const std::string* own = SetVariable(environment, own_name);
  const std::string* foreign = spec.foreign.name.empty() ? nullptr : SetVariable(environment, spec.foreign.name);
  std::optional<Value> value;
  if (own != nullptr) {
    ASSIGN_OR_RETURN(value, ParseValue(spec, *own, own_name));
  }
  if (foreign != nullptr) {
    ASSIGN_OR_RETURN(const Value other, ParseForeign(spec, *foreign));
    if (value && *value != other) {
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("{}=\"{}\" and {}=\"{}\" contradict each other; unset one of them", own_name, *own,
                             spec.foreign.name, *foreign));
    }
    value = other;
  }
  return value;
}

tl::unexpected<Error> UnknownKey(Table table, const FileEntry& entry, std::string_view where) {
  std::vector<std::string_view> sections, keys;
  for (const Spec& spec : table) {
    if (spec.scope != Scope::kAll) continue;
    sections.push_back(spec.section);
    if (spec.section == entry.section) keys.push_back(spec.name);
  }
  const Spec* elsewhere = Find(table, entry.key);
  std::string message;
  if (elsewhere != nullptr && elsewhere->scope != Scope::kAll) {
    message = fmt::format("{} cannot stand in a file; give it as --{}", entry.key, elsewhere->name);
  } else if (elsewhere != nullptr) {
    message = fmt::format("{} belongs to [{}] and is called {} there", entry.key, elsewhere->section, elsewhere->name);
  } else if (keys.empty()) {
    message = fmt::format("unknown section [{}]{}", entry.section, Suggestion(entry.section, sections));
  } else {
    message = fmt::format("unknown key {} in [{}]{}", entry.key, entry.section, Suggestion(entry.key, keys));
  }
  return Err(ErrorCode::kInvalidArgument, message + "; docs/options.md lists the keys", std::string(where));
}

Result<std::map<const Spec*, Value>> FromFile(Table table, const Inputs& inputs) {
  std::map<const Spec*, Value> values;
  for (const FileEntry& entry : inputs.file) {
    const std::string where = fmt::format("{}:{}", inputs.file_name, entry.line);
    const auto spec = std::find_if(table.begin(), table.end(), [&](const Spec& s) {
      return s.scope == Scope::kAll && s.section == entry.section && s.name == entry.key;
    });
    if (spec == table.end()) return UnknownKey(table, entry, where);
    ASSIGN_OR_RETURN(values[&*spec], internal::FromFile(*spec, entry.value, fmt::format("{} {}", where, entry.key)));
  }
  return values;
}

Result<std::map<const Spec*, Value>> FromCommandLine(const CommandLine& line) {
  std::map<const Spec*, Value> values;
  for (const CommandLine::Flag& flag : line.flags) {
    ASSIGN_OR_RETURN(Value value, ParseValue(*flag.spec, flag.value, flag.spelling));
    auto* list = std::get_if<std::vector<std::string>>(&values[flag.spec]);
    if (list != nullptr) {
      list->push_back(flag.value);
    } else {
      values[flag.spec] = std::move(value);  // the last of several wins
    }
  }
  return values;
}

// Misspelt variables would otherwise be ignored in silence.
std::vector<std::string> UnknownVariables(Table table, const Environment& environment) {
  std::set<std::string, std::less<>> names;
  for (const Spec& spec : table) {
    if (spec.scope != Scope::kFlag) names.insert(spec.EnvironmentName());
    if (!spec.foreign.name.empty()) names.emplace(spec.foreign.name);
  }
  const std::vector<std::string_view> views(names.begin(), names.end());
  std::vector<std::string> warnings;
  for (const auto& [name, value] : environment) {
    const bool ours = name.starts_with("GALLEY_") || name.starts_with("DEEPINFER_");
    if (!ours || names.contains(name)) continue;
    warnings.push_back(fmt::format("environment variable {} means nothing to Galley{}", name, Suggestion(name, views)));
  }
  return warnings;
}

}  // namespace

Result<CommandLine> ParseCommandLine(Table table, std::string_view command, std::span<const std::string> arguments) {
  CommandLine line;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      line.positionals.insert(line.positionals.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                              arguments.end());
      break;
    }
    if (argument == "--help" || argument == "-h") {
      line.help = true;
    } else if (const ForeignFlag* foreign = ForeignOf(table, command, argument); foreign != nullptr) {
      RETURN_IF_ERROR(PassForeign(*foreign, arguments, i));
    } else if (argument.starts_with("--")) {
      ASSIGN_OR_RETURN(CommandLine::Flag flag, ParseFlag(table, command, arguments, i));
      line.flags.push_back(std::move(flag));
      TakeMore(arguments, i, line);
    } else if (argument.size() > 1 && argument[0] == '-') {
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("unknown option; `galley {} --help` lists the options, and `--` goes before text that "
                             "starts with a dash",
                             command),
                 argument);
    } else {
      line.positionals.push_back(argument);
    }
  }
  return line;
}

Result<Values> Resolve(Table table, const Inputs& inputs) {
  ASSIGN_OR_RETURN(auto from_file, FromFile(table, inputs));
  ASSIGN_OR_RETURN(auto from_line, FromCommandLine(inputs.command_line));
  Values values;
  values.warnings_ = UnknownVariables(table, inputs.environment);
  for (const Spec& spec : table) {
    Values::Entry entry{internal::DefaultOf(spec), Source::kDefault};
    if (!spec.TakenBy(inputs.command)) {
      values.entries_.emplace(spec.name, std::move(entry));
      continue;
    }
    const Value initial = entry.value;
    if (const auto found = from_file.find(&spec); found != from_file.end()) {
      entry = {found->second, Source::kFile};
    }
    ASSIGN_OR_RETURN(const std::optional<Value> from_environment, FromEnvironment(spec, inputs.environment));
    if (from_environment) entry = {*from_environment, Source::kEnvironment};
    if (const auto found = from_line.find(&spec); found != from_line.end()) {
      entry = {found->second, Source::kCommandLine};
    }
    if (!spec.unavailable.empty() && entry.value != initial) {
      const std::string message = fmt::format("not available in this version: {}", spec.unavailable);
      if (entry.source == Source::kCommandLine) {
        return Err(ErrorCode::kUnsupported, message, fmt::format("--{}", spec.name));
      }
      values.warnings_.push_back(fmt::format("{}: {}", spec.name, message));
      entry = {initial, Source::kDefault};
    }
    values.entries_.emplace(spec.name, std::move(entry));
  }
  return values;
}

}  // namespace galley::options
