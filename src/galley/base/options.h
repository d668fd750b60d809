// SPDX-License-Identifier: Apache-2.0
// Options as data: one table row states an option's name, type, limits, default, environment name and help, and from
// the rows come command line parsing, the configuration file, the environment, validation, `--help` and the
// documentation page. Pure: arguments, environment and file content are passed in. The rows themselves are in
// option_table.h.
//
// Precedence: command line, environment, configuration file, default. An empty environment variable counts as unset.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "galley/base/error.h"

namespace galley::options {

enum class Type {
  kBool,    // --flag, --no-flag, --flag=true
  kInt,     // 64-bit
  kFloat,   // finite
  kString,  // any text
  kPath,    // text that names a file or directory; not checked here
  kEnum,    // one of `choices`
  kBytes,   // 4096, 512MiB, 4GB
  kList,    // strings; the flag may be repeated
};

// Paths, enumerators and strings are std::string, byte sizes std::int64_t; monostate: not set and without default.
using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string, std::vector<std::string>>;

enum class Scope {
  kAll,                 // command line, environment and file
  kFlagAndEnvironment,  // not in a file
  kFlag,                // belongs to one run: command line only
};

enum class Source { kDefault, kFile, kEnvironment, kCommandLine };

struct IntRange {
  std::int64_t low = std::numeric_limits<std::int64_t>::min();
  std::int64_t high = std::numeric_limits<std::int64_t>::max();
};

struct FloatRange {
  double low = std::numeric_limits<double>::lowest();
  double high = std::numeric_limits<double>::max();
  bool low_open = false;  // `low` itself is not allowed
};

// A value of a foreign environment variable in our terms. A row with `refusal` is understood and turned down.
struct ForeignValue {
  std::string_view given;
  std::string_view meaning;
  std::string_view refusal = {};
};

// An environment variable of another engine that means the same. Without `values` it takes the option's own values.
struct ForeignVariable {
  std::string_view name = {};
  std::span<const ForeignValue> values = {};
};

struct Spec {
  std::string_view name;  // kebab-case, unique
  Type type;
  std::string_view section = {};   // heading in help; table of the configuration file
  std::string_view commands = {};  // sub-commands that take it, separated by spaces; "*": all
  std::string_view value_name = {};
  std::string_view initial = {};  // default, as it would be written; empty: none (bool: false)
  std::string_view help = {};
  std::string_view without = {};  // of kBool that is on by default: what --no-NAME does, for a command's help
  IntRange ints = {};
  FloatRange floats = {};
  std::string_view choices = {};  // of kEnum, separated by spaces
  std::string_view aliases = {};  // further flag names, separated by spaces
  Scope scope = Scope::kAll;
  ForeignVariable foreign = {};
  bool multiples = false;  // of kInt: 4k is 4,000 and 4K 4,096, as in vLLM's flags
  // Not empty, of kList: bare arguments right behind the value are values too, where the command's own argument or this
  // option has been given before, so that they can be nothing else.
  std::string_view many_after = {};
  // Not empty: this version knows the option but has only its default; the text says what happens instead. Asked for on
  // the command line that is an error, from elsewhere a warning.
  std::string_view unavailable = {};

  // GALLEY_MAX_TOKENS for max-tokens.
  [[nodiscard]] std::string EnvironmentName() const;
  [[nodiscard]] bool TakenBy(std::string_view command) const;
};

using Table = std::span<const Spec>;

// The row with that name or flag alias; nullptr when there is none.
[[nodiscard]] const Spec* Find(Table table, std::string_view name);

// Rejects what the row's type, limits or choices exclude. `where` names the flag, variable or file line in the error.
[[nodiscard]] Result<Value> ParseValue(const Spec& spec, std::string_view text, std::string_view where);

// One `[section] key = value` of a configuration file.
struct FileEntry {
  std::string section;
  std::string key;
  Value value;
  int line = 0;
};

// Arguments after the sub-command's name, sorted into flags and the rest, with no value checked yet.
struct CommandLine {
  struct Flag {
    const Spec* spec;
    std::string spelling;  // as given, for messages: "--top-p", "--no-raw"
    std::string value;
  };
  std::vector<Flag> flags;
  std::vector<std::string> positionals;
  bool help = false;  // --help or -h
};

// --name VALUE, --name=VALUE, --flag, --no-flag, and other engines' -tp; `--` ends the flags and `-` is a positional. A
// value that starts with two dashes must be joined with `=`. Errors: unknown flags (with the nearest known one), flags
// of other commands, missing values.
[[nodiscard]] Result<CommandLine> ParseCommandLine(Table table, std::string_view command,
                                                   std::span<const std::string> arguments);

using Environment = std::map<std::string, std::string, std::less<>>;

struct Inputs {
  std::string_view command;
  const CommandLine& command_line;
  const Environment& environment;
  std::span<const FileEntry> file = {};
  std::string_view file_name = {};
};

// The values of one run. Asking for an option that is not in the table, or with the wrong type, is our own bug: CHECK.
class Values {
 public:
  [[nodiscard]] bool Has(std::string_view name) const;
  [[nodiscard]] bool Bool(std::string_view name) const;
  [[nodiscard]] std::int64_t Int(std::string_view name) const;  // also byte sizes
  [[nodiscard]] double Float(std::string_view name) const;
  [[nodiscard]] const std::string& String(std::string_view name) const;  // also paths and enumerators; "" when not set
  [[nodiscard]] const std::vector<std::string>& List(std::string_view name) const;
  [[nodiscard]] Source source(std::string_view name) const;

  // Lines for the person who runs the command: unknown variables, options that this version cannot honour.
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  friend Result<Values> Resolve(Table table, const Inputs& inputs);
  struct Entry {
    Value value;
    Source source = Source::kDefault;
  };
  [[nodiscard]] const Entry& At(std::string_view name) const;

  std::map<std::string, Entry, std::less<>> entries_;
  std::vector<std::string> warnings_;
};

// Values of every option of the table for `inputs.command`; options of other commands keep their defaults. Errors name
// the flag, variable or file line. A Galley variable and a foreign one that say different things are an error.
[[nodiscard]] Result<Values> Resolve(Table table, const Inputs& inputs);

// Help on the command's options, or on all for "", one block a section, at most 100 columns wide.
[[nodiscard]] std::string HelpText(Table table, std::string_view command);

// The documentation page of all options, in Markdown.
[[nodiscard]] std::string MarkdownPage(Table table);

// Words of a text that lists some, between blanks.
[[nodiscard]] std::vector<std::string_view> Words(std::string_view text);

}  // namespace galley::options
