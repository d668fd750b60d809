// SPDX-License-Identifier: Apache-2.0
// Rules of a request applied to one row of logits, before temperature and filters. Pure; the order is that of
// LogitRules and of docs/numerics.md.
#pragma once

#include <span>

#include "galley/base/error.h"
#include "galley/engine/engine.h"

namespace galley::engine {

// kInvalidArgument naming field, value and limit; ids must lie inside the vocabulary.
[[nodiscard]] Status ValidateRules(const LogitRules& rules, int vocab_size);

// Whether ApplyRules would change anything.
[[nodiscard]] bool HasRules(const LogitRules& rules);

// Scratch of ApplyRules, [vocab_size] once it has been used: all zero before and after.
using TokenCounts = std::vector<int>;

// `banned_stop_ids`: stop ids while fewer than min_tokens have been drawn, else empty.
void ApplyRules(const LogitRules& rules, std::span<const TokenId> prompt, std::span<const TokenId> output,
                std::span<const TokenId> banned_stop_ids, std::span<float> logits, TokenCounts& counts);

}  // namespace galley::engine
