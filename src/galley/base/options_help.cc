// SPDX-License-Identifier: Apache-2.0
// Help and documentation pages, written from the rows of the option table.
#include <fmt/core.h>

#include <algorithm>

#include "galley/base/options.h"
#include "galley/base/options_internal.h"

namespace galley::options {
namespace {

constexpr std::size_t kWidth = 100;
constexpr std::size_t kHelpColumn = 28;

std::vector<std::string_view> Sections(Table table, std::string_view command) {
  std::vector<std::string_view> sections;
  for (const Spec& spec : table) {
    if (!command.empty() && !spec.TakenBy(command)) continue;
    if (std::find(sections.begin(), sections.end(), spec.section) == sections.end()) sections.push_back(spec.section);
  }
  return sections;
}

std::string Capitalised(std::string_view word) {
  std::string text(word);
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

// "--temperature X", "--no-color", "--stop TEXT".
std::string FlagText(const Spec& spec) {
  if (spec.type == Type::kBool) return fmt::format("--{}{}", spec.initial == "true" ? "no-" : "", spec.name);
  const std::string value = spec.type == Type::kEnum ? internal::Limits(spec)
                                                     : std::string(spec.value_name.empty() ? "VALUE" : spec.value_name);
  return fmt::format("--{} {}", spec.name, value);
}

// Limits, default, other names and environment, joined by semicolons.
std::string Facts(const Spec& spec) {
  std::vector<std::string> facts;
  const std::string limits = internal::Limits(spec);
  if (!limits.empty() && spec.type != Type::kEnum) facts.push_back(limits);
  if (!spec.initial.empty() && spec.type != Type::kBool) facts.push_back(fmt::format("default {}", spec.initial));
  if (spec.type == Type::kList) facts.push_back("may be repeated");
  for (const std::string_view alias : Words(spec.aliases)) facts.push_back(fmt::format("also --{}", alias));
  if (spec.scope != Scope::kFlag) {
    facts.push_back("$" + spec.EnvironmentName());
    if (!spec.foreign.name.empty()) facts.push_back(fmt::format("${}", spec.foreign.name));
  }
  std::string text;
  for (const std::string& fact : facts) text += (text.empty() ? "" : "; ") + fact;
  return text;
}

void AppendWrapped(std::string& out, std::string_view text, std::size_t column) {
  std::size_t at = column;
  bool first = true;
  for (const std::string_view word : Words(text)) {
    if (!first && at + 1 + word.size() > kWidth) {
      out += "\n" + std::string(column, ' ');
      at = column;
      first = true;
    }
    if (!first) out += ' ';
    out += word;
    at += word.size() + (first ? 0 : 1);
    first = false;
  }
  out += '\n';
}

void AppendOption(std::string& out, const Spec& spec) {
  std::string flag = "  " + FlagText(spec);
  if (flag.size() + 2 > kHelpColumn) {
    out += flag + "\n" + std::string(kHelpColumn, ' ');
  } else {
    out += flag + std::string(kHelpColumn - flag.size(), ' ');
  }
  std::string text(spec.without.empty() ? spec.help : spec.without);
  if (!spec.unavailable.empty()) text += fmt::format(" (not available in this version: {})", spec.unavailable);
  const std::string facts = Facts(spec);
  if (!facts.empty()) text += fmt::format(" [{}]", facts);
  AppendWrapped(out, text, kHelpColumn);
}

std::string EscapedForTable(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

// "number of seconds" for a value that is called SECONDS.
std::string UnitText(const Spec& spec) {
  if (spec.value_name == "SECONDS") return "of seconds ";
  if (spec.value_name == "MS") return "of milliseconds ";
  return {};
}

std::string TypeText(const Spec& spec) {
  const std::string limits = internal::Limits(spec);
  switch (spec.type) {
    case Type::kBool:
      return "true or false";
    case Type::kInt:
      return "whole number " + limits;
    case Type::kFloat:
      return "number " + UnitText(spec) + limits;
    case Type::kBytes:
      return "size in bytes " + limits;
    case Type::kEnum:
      return "`" + EscapedForTable(limits) + "`";
    case Type::kString:
      return "text";
    case Type::kPath:
      return "path";
    case Type::kList:
      return "list of texts";
  }
  return {};
}

std::string ForeignText(const Spec& spec) {
  if (spec.foreign.name.empty()) return {};
  std::string text = fmt::format("<br>`{}`", spec.foreign.name);
  for (const ForeignValue& row : spec.foreign.values) {
    text += row.refusal.empty() ? fmt::format("<br>`{}` → `{}`", row.given, row.meaning)
                                : fmt::format("<br>`{}`: refused", row.given);
  }
  return text;
}

std::string MarkdownRow(const Spec& spec) {
  std::string flags = fmt::format("`--{}`", spec.name);
  if (spec.initial == "true") flags += fmt::format("<br>`--no-{}`", spec.name);
  for (const std::string_view alias : Words(spec.aliases)) flags += fmt::format("<br>`--{}`", alias);
  const std::string initial = !spec.initial.empty()      ? fmt::format("`{}`", spec.initial)
                              : spec.type == Type::kBool ? std::string("`false`")
                                                         : std::string("–");
  const std::string environment =
      spec.scope == Scope::kFlag ? "–" : fmt::format("`{}`{}", spec.EnvironmentName(), ForeignText(spec));
  std::string help = EscapedForTable(spec.help);
  if (!spec.unavailable.empty()) help += fmt::format(" *Not available in this version: {}.*", spec.unavailable);
  const std::string_view commands = spec.commands == "*" ? "all" : spec.commands;
  return fmt::format("| {} | {} | {} | {} | {} | {} |\n", flags, TypeText(spec), initial, environment, commands, help);
}

}  // namespace

std::string HelpText(Table table, std::string_view command) {
  std::string out;
  for (const std::string_view section : Sections(table, command)) {
    out += fmt::format("{}{}:\n", out.empty() ? "" : "\n", Capitalised(section));
    for (const Spec& spec : table) {
      // What can only be refused is in the list of all options, with the reason; a command's help has what can be used.
      const bool listed = command.empty() || (spec.TakenBy(command) && spec.unavailable.empty());
      if (spec.section == section && listed) AppendOption(out, spec);
    }
  }
  return out;
}

std::string MarkdownPage(Table table) {
  std::string out =
      "# Options\n\n"
      "This page is the output of `galley options --markdown`; a test keeps the two equal.\n\n"
      "A value comes from the command line (`--temperature 0.7`), else from the environment\n"
      "(`GALLEY_TEMPERATURE=0.7`), else from the file that `--config` names, else it is the default. An empty "
      "variable\n"
      "counts as unset. Of a flag given twice the last counts; lists grow. Options without an environment name belong "
      "to\n"
      "one run and are given on the command line only. Variables of DeepInfer are understood where the table names "
      "them;\n"
      "one that contradicts the Galley variable is an error. What is true or false is switched on by its flag alone, "
      "off by\n"
      "`--no-` in front of the name, or given as `--raw=false`.\n\n"
      "The file is TOML. Its tables are the sections below, its keys the flag names without dashes in front:\n\n"
      "```toml\n[sampling]\ntemperature = 0.7\ntop-p = 0.95\nstop = [\"###\"]\n```\n";
  for (const std::string_view section : Sections(table, "")) {
    const bool in_file = std::any_of(table.begin(), table.end(),
                                     [&](const Spec& s) { return s.section == section && s.scope == Scope::kAll; });
    out += in_file ? fmt::format("\n## [{}]\n\n", section) : fmt::format("\n## {}\n\n", Capitalised(section));
    out += "| Flag | Value | Default | Environment | Commands | Meaning |\n|---|---|---|---|---|---|\n";
    for (const Spec& spec : table) {
      if (spec.section == section) out += MarkdownRow(spec);
    }
  }
  return out;
}

}  // namespace galley::options
