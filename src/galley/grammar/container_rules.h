// SPDX-License-Identifier: Apache-2.0
// What an object or array remembers while it is being written (a payload of words), and what that lets come next. Pure
// functions of a specification and a payload; an empty payload is the state right behind the opening bracket.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "galley/grammar/program.h"
#include "galley/grammar/text_automaton.h"

namespace galley::grammar {

using Payload = std::vector<std::uint32_t>;

// Stands for an undeclared name whose text is not known yet (masks look past the end of a name before it is).
inline constexpr std::uint32_t kUnknownName = 0xFFFFFFFE;
inline constexpr std::uint32_t kNoPending = 0xFFFFFFFF;

namespace object_rules {
[[nodiscard]] bool CanClose(const ObjectSpec& spec, const Payload& payload);
// Names that may come next; nothing when no further member fits.
[[nodiscard]] std::optional<NameContext> Next(const ObjectSpec& spec, const Payload& payload);
// Label of the member whose value comes next, or kNoPending.
[[nodiscard]] std::uint32_t Pending(const Payload& payload);
// `undeclared` is the interned text of an undeclared name, ignored for declared ones.
[[nodiscard]] Payload AfterName(const ObjectSpec& spec, const Payload& payload, std::uint32_t label,
                                std::uint32_t undeclared);
[[nodiscard]] Payload AfterValue(const Payload& payload);
[[nodiscard]] std::span<const std::uint32_t> Undeclared(const Payload& payload);
}  // namespace object_rules

namespace array_rules {
[[nodiscard]] bool CanClose(const ArraySpec& spec, const Payload& payload);
struct Step {
  RuleId rule;
  Payload after;
};
// Answers of Closable, and whether there were too many states to find one.
struct ClosableStates {
  std::size_t max = 0;  // Limits::array_states_max
  std::map<Payload, bool> known;
  bool overflowed = false;
};
// Elements that may come next, each with the payload behind it; only those from which the array can still close.
[[nodiscard]] std::vector<Step> Next(const ArraySpec& spec, const Payload& payload, ClosableStates& closable);
// Whether some completion closes the array. `closable` remembers answers.
[[nodiscard]] bool Closable(const ArraySpec& spec, const Payload& payload, ClosableStates& closable);
}  // namespace array_rules

}  // namespace galley::grammar
