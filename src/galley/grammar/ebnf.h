// SPDX-License-Identifier: Apache-2.0
// Syntax trees of EBNF/GBNF texts, between reading and emission, so that other front ends can embed them. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "galley/grammar/compile.h"
#include "galley/grammar/program.h"
#include "galley/grammar/regex.h"

namespace galley::grammar {

struct EbnfExpr {
  enum class Kind { kLexeme, kRule, kToken, kConcat, kAlternate, kRepeat };
  Kind kind = Kind::kConcat;
  Regex regex;              // kLexeme: a string or a class
  std::uint32_t rule = 0;   // kRule
  std::uint32_t token = 0;  // kToken
  std::uint32_t min = 0;    // kRepeat
  std::uint32_t max = 0;
  std::vector<EbnfExpr> children;
};

struct EbnfGrammar {
  struct Rule {
    std::string name;
    EbnfExpr body;
    bool defined = false;
  };
  std::vector<Rule> rules;
  std::uint32_t root = 0;
};

// Dialect: name ::= alternatives; "…" and […] with \n \r \t \\ \" \xHH \uHHHH \UHHHHHHHH (and \] \[ \- \^ in classes),
// ".", groups, empty alternatives, * + ? {m} {m,} {,n} {m,n}, # comments, left recursion, <[id]> and <name> for control
// tokens. Errors: kBadGrammar with the byte position.
[[nodiscard]] Compiled<EbnfGrammar> ReadEbnf(std::string_view text, const std::vector<Marker>& markers,
                                             const Limits& limits);

// e ::= e x e | e y e | others, whose readings multiply with every join, means the same as
// e ::= others ((x | y) others)*, of which there is one. Nothing where no rule is of that form.
[[nodiscard]] std::optional<EbnfGrammar> JoinedInARow(const EbnfGrammar& grammar);

// Adds the rules to `program` and returns the root's. Errors: kUnsatisfiable for a rule that derives no finite text,
// kTooComplex.
[[nodiscard]] Compiled<RuleId> EmitEbnf(const EbnfGrammar& grammar, Program& program, const Vocabulary& vocabulary);

}  // namespace galley::grammar
