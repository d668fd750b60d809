// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the known word nearest to a mistyped one. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace galley {

// Insertions, deletions, replacements and swaps of neighbouring bytes that turn `a` into `b`. Quadratic in the lengths.
[[nodiscard]] int EditDistance(std::string_view a, std::string_view b);

// The candidate with the least edit distance, the first of equals; nothing when even that one differs in more than a
// third of the word (at least one edit is always forgiven), or when `word` is longer than any option could be.
[[nodiscard]] std::optional<std::string_view> Nearest(std::string_view word,
                                                      std::span<const std::string_view> candidates);

// " (did you mean X?)" with `prefix` put before the word, or nothing.
[[nodiscard]] std::string Suggestion(std::string_view word, std::span<const std::string_view> candidates,
                                     std::string_view prefix = "");

}  // namespace galley
