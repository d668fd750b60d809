// SPDX-License-Identifier: Apache-2.0
// Mask, accept, rollback, fork and draft trees in any order on grammars that use every kind of node: two matchers that
// came to the same tokens on different ways give the same masks.
#include <array>

#include "grammar_target.h"

namespace {

using galley::fuzz::Require;
using galley::grammar::MaskWord;
using galley::grammar::Matcher;

struct Spec {
  const char* kind;
  const char* text;
};
constexpr std::array kSpecs = {
    Spec{"regex", "(?:日本|日語|é|a)+b{2,4}"},
    Spec{"ebnf", "root ::= e\ne ::= e [+*] e | \"(\" e \")\" | [0-9]+"},
    Spec{"json_schema", "{}"},
    Spec{"json_schema", R"({"type":"object","additionalProperties":{"type":"integer"},"maxProperties":3})"},
    Spec{"json_schema", R"({"type":"array","items":{"enum":["a","b",1]},"uniqueItems":true,"minItems":2})"},
    Spec{
        "json_schema",
        R"({"$defs":{"n":{"anyOf":[{"type":"null"},{"type":"array","items":{"$ref":"#/$defs/n"}}]}},"$ref":"#/$defs/n"})"},
    Spec{"dsml", R"({"mode":"auto","tools":[{"name":"f","parameters":{"properties":{"a":{"type":"integer"}}}}]})"},
};

void Compare(Matcher& matcher, const galley::grammar::Grammar& grammar, const std::vector<std::uint32_t>& tokens) {
  Matcher fresh(grammar);
  for (const std::uint32_t token : tokens) Require(fresh.Accept(token));
  const std::size_t words = grammar.vocabulary->mask_words();
  std::vector<MaskWord> a(words), b(words);
  matcher.FillMask(a);
  fresh.FillMask(b);
  Require(a == b || matcher.failed() || fresh.failed());
  Require(matcher.can_stop() == fresh.can_stop());
}

void Run(const Spec& spec, std::uint8_t flags, std::string_view script) {
  static const auto vocabulary = galley::fuzz::GrammarVocabulary();
  galley::grammar::JsonValue value;
  value.type = galley::grammar::JsonValue::Type::kString;
  value.text = spec.text;
  if (spec.kind != std::string_view("regex") && spec.kind != std::string_view("ebnf")) {
    value = *galley::grammar::ParseJson(spec.text);
  }
  const auto grammar = galley::grammar::CompileKind(spec.kind, value, {{"｜DSML｜", galley::fuzz::kMarker}},
                                                    galley::fuzz::TightOptions(flags), vocabulary);
  Require(grammar.has_value());
  auto matcher = std::make_unique<Matcher>(*grammar);
  std::vector<std::uint32_t> tokens;
  for (std::size_t i = 0; i + 1 < script.size() && i < 200 && !matcher->failed(); i += 2) {
    const auto op = static_cast<std::uint8_t>(script[i]);
    const auto arg = static_cast<std::uint8_t>(script[i + 1]);
    const std::uint32_t token = (op & 8) != 0 ? vocabulary->size() - 1 - arg % 16 : arg;
    std::vector<MaskWord> mask(vocabulary->mask_words());
    matcher->FillMask(mask);
    const bool bit = (mask[token / 64] >> (token % 64) & 1) != 0;
    switch (op % 5) {
      case 0:
      case 1:
        Require(matcher->Accept(token) == bit || matcher->failed());
        if (bit) tokens.push_back(token);
        break;
      case 2: {
        const std::size_t back = std::min<std::size_t>(arg % 4, tokens.size());
        matcher->Rollback(back);
        tokens.resize(tokens.size() - back);
        break;
      }
      case 3:
        matcher = matcher->Fork();
        break;
      default: {
        const std::array<std::int32_t, 3> parents = {-1, 0, -1};
        const std::array<std::uint32_t, 3> drafts = {token, arg, 257u + arg % 12};
        std::vector<MaskWord> masks(3 * vocabulary->mask_words());
        Require(matcher->FillTreeMasks(parents, drafts, masks)[0] == bit || matcher->failed());
      }
    }
  }
  if (!matcher->failed()) Compare(*matcher, *grammar, tokens);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  Run(kSpecs[data[0] % kSpecs.size()], data[1], galley::fuzz::Text(data + 2, size - 2));
  return 0;
}
