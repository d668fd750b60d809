// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "galley/grammar/compile.h"

namespace galley::grammar {
namespace {

// A program that is one raw lexeme.
Compiled<Grammar> OneLexeme(TextSpec spec, const Limits& limits, std::shared_ptr<const Vocabulary> vocabulary) {
  auto program = std::make_shared<Program>(limits);
  auto machine = std::make_unique<StringMachine>(std::move(spec), StringMachine::Form::kRaw, limits);
  // Building the start state also finds out whether anything matches; a pattern such as a$b is legal and matches
  // nothing.
  static_cast<void>(machine->Start(0));
  const NodeId end = program->AddNode({});
  Node lexeme;
  lexeme.kind = Node::Kind::kLexeme;
  lexeme.machine = program->AddMachine(std::move(machine));
  lexeme.next = end;
  program->set_root(program->AddRule(program->AddNode(std::move(lexeme))));
  return UnlessLimited(Grammar{std::move(program), std::move(vocabulary)}, limits, "the text");
}

}  // namespace

Compiled<Grammar> CompileRegex(std::string_view pattern, const CompileOptions& options,
                               std::shared_ptr<const Vocabulary> vocabulary) {
  const Limits limits = options.limits.Metered();
  auto regex = ParseRegex(pattern, limits);
  if (!regex) return Refuse(std::move(regex.error()));
  std::vector<Regex> one;
  one.push_back(std::move(*regex));
  auto dfa = CharDfa::Create(std::move(one), CharDfa::Mode::kFull, limits);
  if (!dfa) return Refuse(std::move(dfa.error()));
  TextSpec spec;
  spec.parts.push_back({std::move(*dfa), TextSpec::Sense::kMust});
  return OneLexeme(std::move(spec), limits, std::move(vocabulary));
}

Compiled<Grammar> CompileChoice(const std::vector<std::string>& choices, const CompileOptions& options,
                                std::shared_ptr<const Vocabulary> vocabulary) {
  if (choices.empty()) {
    return Refuse({CompileCode::kUnsatisfiable, "choice has no strings; give at least one", "", "", std::nullopt});
  }
  const auto broken = std::find_if(choices.begin(), choices.end(), HoldsLoneSurrogate);
  if (broken != choices.end()) {
    return Refuse({CompileCode::kUnsatisfiable,
                   "this choice holds half of a surrogate pair, which no text can; leave it out",
                   "/" + std::to_string(broken - choices.begin()), "", std::nullopt});
  }
  TextSpec spec;
  const Limits limits = options.limits.Metered();
  spec.names = std::make_shared<NameTrie>(choices, limits);
  spec.name_allowed.assign(choices.size(), true);
  return OneLexeme(std::move(spec), limits, std::move(vocabulary));
}

}  // namespace galley::grammar
