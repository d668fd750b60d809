// SPDX-License-Identifier: Apache-2.0
// The grammar layer as the engine's constraints: compiles what requests ask for, keeps compiled grammars, and walks
// them. A compiler may be called from any thread; the constraints it gives follow the rule of constraint.h, because
// those of one grammar share lexemes that grow while they are used.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "galley/engine/constraint.h"
#include "galley/grammar/grammar_cache.h"
#include "galley/grammar/model_vocabulary.h"

namespace galley::engine {

// What a request asks for, in the terms of grammar::CompileKind.
struct GrammarRequest {
  std::string kind;         // json_schema, regex, ebnf, choice, structural_tag, dsml
  grammar::JsonValue spec;  // a string for regex and ebnf
  grammar::CompileOptions options;
  // The text is free up to this token, </think>, and the grammar begins behind it; so it does when the token is a
  // draft.
  std::optional<TokenId> starts_after = {};
};

class GrammarCompiler {
 public:
  // `vocab_size` is the number of logits. Compiled grammars are kept up to `cache_bytes`. Takes a quarter of a second
  // for a full-size tokenizer. Errors: kInvalidArgument when the tokenizer does not fit the model.
  [[nodiscard]] static Result<std::unique_ptr<GrammarCompiler>> Create(const text::Tokenizer& tokenizer,
                                                                       std::span<const TokenId> ends, int vocab_size,
                                                                       std::size_t cache_bytes);

  // A constraint in its start state. Errors are the client's and name the place. `warnings` gets what the grammar does
  // not hold the text to, though it was asked for.
  [[nodiscard]] grammar::Compiled<std::shared_ptr<const TokenConstraint>> Compile(
      const GrammarRequest& request, std::vector<std::string>* warnings = nullptr);

  [[nodiscard]] grammar::GrammarCache::Stats stats() const;

 private:
  GrammarCompiler(grammar::ModelVocabulary vocabulary, std::size_t cache_bytes)
      : vocabulary_(std::move(vocabulary)), cache_(cache_bytes) {}

  grammar::ModelVocabulary vocabulary_;
  mutable std::mutex mutex_;
  grammar::GrammarCache cache_;  // guarded by mutex_
};

// For callers that compiled by themselves.
[[nodiscard]] std::shared_ptr<TokenConstraint> MakeGrammarConstraint(grammar::Grammar grammar,
                                                                     std::optional<TokenId> starts_after = {});

}  // namespace galley::engine
