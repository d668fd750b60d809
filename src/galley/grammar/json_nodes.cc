// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/json_nodes.h"

#include <array>

#include "galley/base/check.h"

namespace galley::grammar {
namespace {

CodePointSet BlankSet() {
  static constexpr std::array kRanges = {CodePointRange{'\t', '\n'}, CodePointRange{'\r', '\r'},
                                         CodePointRange{' ', ' '}};
  return CodePointSet::Of(kRanges);
}

std::string KeyOf(const Regex& regex) {
  return std::to_string(static_cast<int>(regex.kind)) + ":" + std::to_string(regex.max);
}

}  // namespace

Regex JsonNodes::Blanks() const {
  if (whitespace_ != Whitespace::kFlexible) return {};
  return Regex::Repeat(Regex::Set(BlankSet()), 0, kBlanksMax);
}

Regex JsonNodes::AfterSeparator() const {
  if (whitespace_ == Whitespace::kDefault) return Regex::Repeat(Regex::Set(CodePointSet::Single(' ')), 0, 1);
  return Blanks();
}

std::uint32_t JsonNodes::AddLexeme(std::vector<Regex> options) {
  auto dfa = CharDfa::Create(std::move(options), CharDfa::Mode::kFull, program_.limits());
  TextSpec spec;
  if (dfa) spec.parts.push_back({std::move(*dfa), TextSpec::Sense::kMust});
  return program_.AddMachine(
      std::make_unique<StringMachine>(std::move(spec), StringMachine::Form::kRaw, program_.limits()));
}

NodeId JsonNodes::Words(const std::vector<std::string>& words, Regex before, Regex behind, std::vector<NodeId> outs) {
  std::string key = KeyOf(before) + "|" + KeyOf(behind);
  for (const std::string& word : words) key += "|" + word;
  auto& slot = machines_.try_emplace(key, kUnbounded).first->second;
  if (slot == kUnbounded) {
    std::vector<Regex> options;
    for (const std::string& word : words) options.push_back(Regex::Concat({before, Regex::Literal(word), behind}));
    if (outs.size() == 1 && options.size() > 1) options = {Regex::Alternate(std::move(options))};
    slot = AddLexeme(std::move(options));
  }
  Node node;
  node.kind = Node::Kind::kLexeme;
  node.machine = slot;
  node.next = outs[0];
  if (outs.size() > 1) node.outs = std::move(outs);
  return program_.AddNode(std::move(node));
}

SeparatorNodes JsonNodes::Separators(char close, NodeId more, NodeId end) {
  const std::string bracket(1, close);
  SeparatorNodes out{};
  out.close_first = Words({bracket}, {}, {}, {end});
  // Blanks behind the comma belong to it, those before it and before the bracket to the lexeme as a whole.
  auto& slot = machines_.try_emplace("both" + bracket, kUnbounded).first->second;
  if (slot == kUnbounded) {
    std::vector<Regex> options;
    options.push_back(Regex::Concat({Blanks(), Regex::Literal(","), AfterSeparator()}));
    options.push_back(Regex::Concat({Blanks(), Regex::Literal(bracket)}));
    slot = AddLexeme(std::move(options));
  }
  Node both;
  both.kind = Node::Kind::kLexeme;
  both.machine = slot;
  both.outs = {more, end};
  out.both = program_.AddNode(std::move(both));
  out.comma = Words({","}, Blanks(), AfterSeparator(), {more});
  out.close = Words({bracket}, Blanks(), {}, {end});
  return out;
}

NodeId JsonNodes::Open(char bracket, NodeId next) {
  return Words({std::string(1, bracket)}, {}, Blanks(), {next});
}

NodeId JsonNodes::Colon(NodeId next) {
  return Words({":"}, Blanks(), AfterSeparator(), {next});
}

NodeId JsonNodes::BlanksOnly(NodeId next) {
  return Words({""}, Blanks(), {}, {next});
}

}  // namespace galley::grammar
