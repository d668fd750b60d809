// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "galley/grammar/ebnf.h"

namespace galley::grammar {
namespace {

using Expr = EbnfExpr;

bool Names(const Expr& e, std::uint32_t rule) {
  return e.kind == Expr::Kind::kRule && e.rule == rule;
}

// Whether an alternative of e is of the form e … e.
bool Joins(const Expr& e, std::uint32_t rule) {
  return e.kind == Expr::Kind::kConcat && e.children.size() > 1 && Names(e.children.front(), rule) &&
         Names(e.children.back(), rule);
}

Expr Of(Expr::Kind kind, std::vector<Expr> children) {
  Expr out;
  out.kind = kind;
  out.children = std::move(children);
  return out;
}

// Whether an alternative is written as empty; names are not looked into.
bool IsEmpty(const Expr& e) {
  return (e.kind == Expr::Kind::kRepeat && e.min == 0) ||
         (e.kind == Expr::Kind::kConcat && std::all_of(e.children.begin(), e.children.end(), IsEmpty)) ||
         (e.kind == Expr::Kind::kLexeme && e.regex.kind == Regex::Kind::kEmpty);
}

// e ::= e x e | e y e | others, whose readings multiply with every join, means the same as
// e ::= others ((x | y) others)*, of which there is one. Rows of e alone add nothing but joins of nothing where two in
// a row may be joined; where they are the only joins, they are rows of the others.
void JoinInARow(EbnfGrammar& grammar, std::uint32_t rule) {
  const auto joins = [&](const Expr& e) { return Joins(e, rule); };
  const auto is_row = [&](const Expr& e) {
    return joins(e) && std::all_of(e.children.begin(), e.children.end(), [&](const Expr& c) { return Names(c, rule); });
  };
  std::vector<Expr> joined, others;
  bool pairs = false, rows = true, empty = false, any_row = false;
  for (Expr& e : grammar.rules[rule].body.children) {
    pairs = pairs || (joins(e) && e.children.size() == 2);
    rows = rows && (!joins(e) || is_row(e));
    any_row = any_row || is_row(e);
    empty = empty || (!joins(e) && IsEmpty(e));
    (joins(e) ? joined : others).push_back(std::move(e));
  }
  pairs = pairs || (any_row && empty);
  Expr operand;
  operand.kind = Expr::Kind::kRule;
  operand.rule = static_cast<std::uint32_t>(grammar.rules.size());
  std::vector<Expr> between;
  if (pairs) between.push_back(Of(Expr::Kind::kConcat, {}));
  for (const Expr& e : joined) {
    if (is_row(e) && pairs) continue;
    std::vector<Expr> middle(e.children.begin() + 1, e.children.end() - 1);
    if (rows) std::fill(middle.begin(), middle.end(), operand);
    between.push_back(Of(Expr::Kind::kConcat, std::move(middle)));
  }
  Expr more = Of(Expr::Kind::kRepeat, {});
  more.max = kUnbounded;
  more.children.push_back(Of(Expr::Kind::kConcat, {Of(Expr::Kind::kAlternate, std::move(between)), operand}));
  grammar.rules[rule].body = Of(Expr::Kind::kConcat, {operand, std::move(more)});
  EbnfGrammar::Rule added;
  added.name = grammar.rules[rule].name;
  added.body = Of(Expr::Kind::kAlternate, std::move(others));
  added.defined = true;
  grammar.rules.push_back(std::move(added));
}

// Rules that JoinInARow is for. One of nothing but joins derives no text.
std::vector<std::uint32_t> RulesWithJoins(const EbnfGrammar& grammar) {
  std::vector<std::uint32_t> out;
  for (std::size_t i = 0; i < grammar.rules.size(); ++i) {
    const auto rule = static_cast<std::uint32_t>(i);
    const Expr& body = grammar.rules[i].body;
    const auto joins =
        std::count_if(body.children.begin(), body.children.end(), [&](const Expr& e) { return Joins(e, rule); });
    if (body.kind == Expr::Kind::kAlternate && joins > 0 && static_cast<std::size_t>(joins) < body.children.size()) {
      out.push_back(rule);
    }
  }
  return out;
}

}  // namespace

std::optional<EbnfGrammar> JoinedInARow(const EbnfGrammar& grammar) {
  const std::vector<std::uint32_t> rules = RulesWithJoins(grammar);
  if (rules.empty()) return std::nullopt;
  EbnfGrammar out = grammar;
  for (const std::uint32_t rule : rules) JoinInARow(out, rule);
  return out;
}

}  // namespace galley::grammar
