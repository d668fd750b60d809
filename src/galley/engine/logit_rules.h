// SPDX-License-Identifier: Apache-2.0
// What the rules of a request come to for one row of logits (backend::RowChanges), before temperature and filters.
// Pure; the order is that of LogitRules and of docs/numerics.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "galley/backend/sampling.h"
#include "galley/base/error.h"
#include "galley/engine/engine.h"

namespace galley::engine {

// kInvalidArgument naming field, value and limit; ids must lie inside the vocabulary.
[[nodiscard]] Status ValidateRules(const LogitRules& rules, int vocab_size);

// The biases in ascending order of their ids, those of one id added up.
void SortBias(LogitRules& rules);

// A mask of the ids that may come by allowed_ids and banned_ids; empty: every id.
[[nodiscard]] std::vector<std::uint32_t> AllowedMask(const LogitRules& rules, int vocab_size);

// Memory that the changes of rows lie in until Clear. Steps use it again and again, and find it there.
class ChangeMemory {
 public:
  explicit ChangeMemory(int vocab_size) : vocab_size_(vocab_size) {}

  // For the changes of one row, whatever they are.
  void Reserve();
  void Clear() { masks_used_ = lists_used_ = 0; }
  // [MaskWords(vocab_size)]
  [[nodiscard]] std::span<std::uint32_t> TakeMask();
  [[nodiscard]] std::vector<backend::LogitChange>& TakeList();

 private:
  int vocab_size_;
  std::vector<std::vector<std::uint32_t>> masks_;
  std::vector<std::vector<backend::LogitChange>> lists_;
  std::size_t masks_used_ = 0, lists_used_ = 0;
};

// What penalties need to know of a sequence's tokens.
class TokenUse {
 public:
  TokenUse() = default;
  // Of a sequence that will draw up to `tokens_most`.
  TokenUse(const LogitRules& rules, std::span<const TokenId> prompt, int vocab_size, int tokens_most);

  // A token of the output.
  void Add(TokenId id);
  // Biases and penalties of `rules`, whose biases are sorted, behind the output and `drafts`.
  void Fill(const LogitRules& rules, std::span<const TokenId> drafts, ChangeMemory& memory,
            backend::RowChanges& changes) const;

 private:
  struct Count {
    TokenId id = 0;
    int count = 0;
  };
  static void AddTo(std::vector<Count>& counts, TokenId id);

  bool counts_output_ = false;
  std::vector<std::uint32_t> seen_;  // in prompt and output; only with a repetition penalty
  std::vector<Count> counts_;        // in the output, ascending; only with the others
};

}  // namespace galley::engine
