// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/grammar_constraint.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>
#include <vector>

namespace galley::engine {
namespace {

class GrammarConstraint final : public TokenConstraint {
 public:
  GrammarConstraint(grammar::Grammar grammar, std::optional<TokenId> starts_after)
      : grammar_(std::move(grammar)), starts_after_(starts_after) {}

  [[nodiscard]] std::shared_ptr<TokenConstraint> Clone() const override {
    auto out = std::make_shared<GrammarConstraint>(grammar_, starts_after_);
    // The matcher of a constraint that nobody has used yet is made on the engine's thread, not the request's.
    if (matcher_ != nullptr) out->matcher_ = matcher_->Fork();
    out->free_ = free_;
    out->begun_ = begun_;
    return out;
  }

  [[nodiscard]] Status FillMask(std::span<std::uint32_t> mask) override {
    const std::uint32_t size = grammar_.vocabulary->size();
    if (!Begun()) {
      std::fill(mask.begin(), mask.end(), 0xFFFFFFFFu);
      return {};
    }
    words_.resize(grammar_.vocabulary->mask_words());
    Use().FillMask(words_);
    if (Use().failed()) {
      // Asking again meets the same limit, so this is no matter of load.
      return Err(ErrorCode::kInvalidArgument, Use().FailureText(), "grammar");
    }
    for (std::size_t i = 0; i < mask.size(); ++i) {
      const bool known = i * 32 < size;
      mask[i] = known ? static_cast<std::uint32_t>(words_[i / 2] >> (32 * (i % 2))) : 0u;
    }
    return {};
  }

  [[nodiscard]] bool Accept(TokenId token) override {
    if (Begun()) return token >= 0 && Use().Accept(static_cast<std::uint32_t>(token));
    ++free_;
    begun_ = token == *starts_after_;
    return true;
  }

  void Rollback(int tokens) override {
    const auto count = static_cast<std::size_t>(std::max(tokens, 0));
    const std::size_t inside = matcher_ == nullptr ? 0 : std::min(count, matcher_->tokens());
    if (inside > 0) matcher_->Rollback(inside);
    if (count == inside) return;
    // What is left lies in front of the grammar; its last token is the one that began it.
    free_ -= std::min(free_, count - inside);
    begun_ = false;
  }

  [[nodiscard]] bool IsOpen() override { return !Begun() || Use().in_free_text(); }

  // Those of one grammar share lexemes that grow.
  [[nodiscard]] const void* group() const override { return grammar_.program.get(); }

  [[nodiscard]] bool IsComplete() const override { return matcher_ != nullptr && matcher_->must_stop(); }

 private:
  [[nodiscard]] bool Begun() const { return begun_ || !starts_after_; }
  grammar::Matcher& Use() {
    if (matcher_ == nullptr) matcher_ = std::make_unique<grammar::Matcher>(grammar_);
    return *matcher_;
  }

  grammar::Grammar grammar_;
  std::optional<TokenId> starts_after_;
  std::unique_ptr<grammar::Matcher> matcher_;
  std::size_t free_ = 0;  // tokens in front of the grammar, the one that begins it included
  bool begun_ = false;
  std::vector<grammar::MaskWord> words_;
};

}  // namespace

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Create(const text::Tokenizer& tokenizer,
                                                                 std::span<const TokenId> ends, int vocab_size,
                                                                 std::size_t cache_bytes) {
  ASSIGN_OR_RETURN(grammar::ModelVocabulary vocabulary, grammar::VocabularyOf(tokenizer, ends, vocab_size));
  return std::unique_ptr<GrammarCompiler>(new GrammarCompiler(std::move(vocabulary), cache_bytes));
}

grammar::Compiled<std::shared_ptr<const TokenConstraint>> GrammarCompiler::Compile(const GrammarRequest& request,
                                                                                   std::vector<std::string>* warnings) {
  const auto give =
      [&](grammar::Compiled<grammar::Grammar> compiled) -> grammar::Compiled<std::shared_ptr<const TokenConstraint>> {
    if (!compiled) return grammar::Refuse(std::move(compiled).error());
    if (warnings != nullptr) *warnings = compiled->program->warnings();
    return std::shared_ptr<const TokenConstraint>(MakeGrammarConstraint(std::move(*compiled), request.starts_after));
  };
  std::string key = grammar::GrammarCache::KeyOf(request.kind, request.spec, vocabulary_.markers, request.options,
                                                 vocabulary_.vocabulary.get());
  {
    const std::lock_guard lock(mutex_);
    if (auto known = cache_.Find(key)) return give(std::move(*known));
  }
  // Outside the lock: a slow grammar holds up nobody. Two threads may compile the same; the first one's is kept.
  auto compiled =
      grammar::CompileKind(request.kind, request.spec, vocabulary_.markers, request.options, vocabulary_.vocabulary);
  if (compiled) {
    const grammar::Matcher start(*compiled);
    if (start.failed()) {
      compiled = grammar::Refuse({grammar::CompileCode::kTooComplex, start.FailureText(), "", "", std::nullopt});
    } else if (start.MatchesNothing()) {
      compiled = grammar::Refuse({grammar::CompileCode::kUnsatisfiable,
                                  "no text satisfies this; for a pattern, look for anchors and boundaries inside it",
                                  "", "", std::nullopt});
    }
  }
  std::function<std::size_t()> bytes;
  if (compiled) {
    // The program grows on the engine's thread; the cache reads what that thread wrote down.
    const auto noted = std::make_shared<std::atomic<std::size_t>>(compiled->program->bytes());
    compiled->program->set_on_growth([noted](std::size_t now) { noted->store(now, std::memory_order_relaxed); });
    bytes = [noted] { return noted->load(std::memory_order_relaxed); };
  }
  const std::lock_guard lock(mutex_);
  cache_.Put(std::move(key), compiled, std::move(bytes));
  return give(std::move(compiled));
}

grammar::GrammarCache::Stats GrammarCompiler::stats() const {
  const std::lock_guard lock(mutex_);
  return cache_.stats();
}

std::shared_ptr<TokenConstraint> MakeGrammarConstraint(grammar::Grammar grammar, std::optional<TokenId> starts_after) {
  return std::make_shared<GrammarConstraint>(std::move(grammar), starts_after);
}

}  // namespace galley::engine
