// SPDX-License-Identifier: Apache-2.0
// What the grammar targets share: a small awkward vocabulary, tight limits, and a walk that checks the promises of
// masks: a bit is set iff the token is accepted, a rollback leads back to the same mask, and a mask is empty only when
// the text has ended.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "galley/grammar/compile.h"
#include "input.h"

namespace galley::fuzz {

inline constexpr std::uint32_t kMarker = 256;

inline std::shared_ptr<const grammar::Vocabulary> GrammarVocabulary() {
  grammar::VocabularyOptions options;
  for (int byte = 0; byte < 256; ++byte) options.tokens.emplace_back(1, static_cast<char>(byte));
  options.tokens.emplace_back();  // kMarker
  options.specials = {kMarker};
  for (const char* text :
       {"\":", "\",\"", "\"}", "true", "null", "[[", "}}", "12", "\\u00", "  ", "ab", "日", "\xE6\x97"}) {
    options.tokens.emplace_back(text);
  }
  options.tokens.emplace_back();
  options.ends = {static_cast<std::uint32_t>(options.tokens.size() - 1)};
  auto made = grammar::Vocabulary::Create(std::move(options));
  Require(made.has_value());
  return std::move(*made);
}

inline grammar::CompileOptions TightOptions(std::uint8_t flags) {
  grammar::CompileOptions options;
  options.limits.steps_max = 200'000;
  options.limits.nfa_states_max = options.limits.dfa_states_max = 5'000;
  options.limits.goals_max = 500;
  options.limits.matcher_bytes_max = (flags & 16) != 0 ? 20'000 : options.limits.matcher_bytes_max;
  options.whitespace = (flags & 1) != 0   ? grammar::Whitespace::kFlexible
                       : (flags & 2) != 0 ? grammar::Whitespace::kCompact
                                          : grammar::Whitespace::kDefault;
  options.any_order = (flags & 4) != 0;
  options.lenient = (flags & 8) != 0;
  return options;
}

// Up to `steps` tokens, chosen by `choices`.
inline void WalkMasks(grammar::Matcher& matcher, std::string_view choices, std::size_t steps) {
  const grammar::Vocabulary& vocabulary = *matcher.grammar().vocabulary;
  std::vector<grammar::MaskWord> mask(vocabulary.mask_words()), again(vocabulary.mask_words());
  for (std::size_t i = 0; i < steps && !choices.empty() && !matcher.terminated() && !matcher.failed(); ++i) {
    matcher.FillMask(mask);
    std::vector<std::uint32_t> allowed;
    for (std::uint32_t id = 0; id < vocabulary.size(); ++id) {
      const bool bit = (mask[id / 64] >> (id % 64) & 1) != 0;
      if (bit) allowed.push_back(id);
      const bool accepted = matcher.Accept(id);
      if (accepted) matcher.Rollback(1);
      Require(accepted == bit || matcher.failed());
    }
    if (matcher.failed()) return;
    Require(!allowed.empty());
    matcher.FillMask(again);
    Require(mask == again || matcher.failed());
    const auto choice = static_cast<std::uint8_t>(choices[i % choices.size()]);
    Require(matcher.Accept(allowed[choice % allowed.size()]) || matcher.failed());
    if (choice % 5 == 0) {
      const std::size_t back = std::min<std::size_t>(choice % 3, matcher.tokens());
      matcher.Rollback(back);
    }
  }
}

// Compiles the text behind the first byte and walks it by its own bytes from the end.
inline void CompileAndWalk(std::string_view kind, const std::uint8_t* data, std::size_t size) {
  static const auto vocabulary = GrammarVocabulary();
  constexpr std::size_t kSizeMax = 4096, kSteps = 10;
  if (size < 2 || size > kSizeMax) return;
  const std::string text(Text(data + 1, size - 1));
  grammar::JsonValue spec;
  spec.type = grammar::JsonValue::Type::kString;
  spec.text = text;
  if (kind != "regex" && kind != "ebnf") {
    auto parsed = grammar::ParseJson(text);
    if (!parsed) return;
    spec = std::move(*parsed);
  }
  const auto compiled = grammar::CompileKind(kind, spec, {{"｜DSML｜", kMarker}}, TightOptions(data[0]), vocabulary);
  if (!compiled) {
    Require(!compiled.error().message.empty());
    return;
  }
  grammar::Matcher matcher(*compiled);
  if (matcher.MatchesNothing()) return;
  WalkMasks(matcher, std::string(text.rbegin(), text.rend()), kSteps);
}

}  // namespace galley::fuzz
