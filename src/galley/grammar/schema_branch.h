// SPDX-License-Identifier: Apache-2.0
// The normal form of a schema: a list of branches, any of which may hold; each branch is a conjunction of facts per
// JSON type. Child schemas stay unexpanded conjunctions ("goals"), so recursion ends at them. Plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "galley/grammar/char_dfa.h"
#include "galley/grammar/number_machine.h"
#include "galley/grammar/schema_document.h"

namespace galley::grammar {

// Interned conjunction of literals.
using GoalId = std::uint32_t;
inline constexpr GoalId kAnything = 0;
inline constexpr GoalId kNothing = 1;

// Integers and other numbers are told apart, as are the two booleans, so that negation is exact.
enum TypeBit : std::uint32_t {
  kTypeNull = 1,
  kTypeFalse = 2,
  kTypeTrue = 4,
  kTypeInteger = 8,
  kTypeFraction = 16,
  kTypeString = 32,
  kTypeArray = 64,
  kTypeObject = 128,
  kTypeNumber = kTypeInteger | kTypeFraction,
  kTypeAll = 255,
};

struct NumberFacts {
  std::optional<NumberSpec::Bound> low;
  std::optional<NumberSpec::Bound> high;
  std::vector<Decimal> multiples;
  std::vector<Decimal> not_multiples;
  std::optional<std::vector<Decimal>> values;  // one of these
};

struct StringFacts {
  struct Pattern {
    std::shared_ptr<CharDfa> dfa;
    bool negated = false;
    friend bool operator==(const Pattern&, const Pattern&) = default;
  };
  std::uint32_t length_min = 0;
  std::uint32_t length_max = kUnbounded;
  std::vector<Pattern> patterns;
  std::optional<std::vector<std::string>> values;  // one of these
};

struct ArrayFacts {
  struct Layer {
    std::vector<GoalId> prefix;
    GoalId rest = kAnything;
  };
  struct Contains {
    GoalId goal = kAnything;
    std::uint32_t min = 1;
    std::uint32_t max = kUnbounded;
    std::uint32_t from = 0;  // only elements at this index or later count
  };
  std::vector<Layer> layers;
  std::vector<Contains> contains;
  std::uint32_t min = 0;
  std::uint32_t max = kUnbounded;
  bool unique = false;
  std::string unique_pointer;
};

struct ObjectFacts {
  struct Layer {
    std::vector<std::pair<std::string, GoalId>> names;
    std::vector<std::pair<std::shared_ptr<CharDfa>, GoalId>> patterns;
    GoalId rest = kAnything;  // names that neither list holds
    bool declares = false;    // its names come from `properties` and set the order
  };
  // Some member whose name is outside these lists (and matches `match`, if given) has such a value.
  struct Exists {
    std::vector<std::string> not_names;
    std::vector<std::shared_ptr<CharDfa>> not_patterns;
    std::shared_ptr<CharDfa> match;
    GoalId goal = kAnything;
    std::string pointer;
    std::string keyword;
  };
  std::vector<Layer> layers;
  std::vector<Exists> exists;
  std::vector<std::string> required;
  std::vector<GoalId> name_goals;
  std::string names_pointer;
  std::uint32_t min = 0;
  std::uint32_t max = kUnbounded;
};

// What in-place subschemas of one branch have looked at, for unevaluated*.
struct Evaluated {
  std::vector<std::string> names;
  std::vector<std::shared_ptr<CharDfa>> patterns;
  bool all_members = false;
  std::uint32_t prefix = 0;
  bool all_items = false;
  std::vector<GoalId> contains;
};

struct Branch {
  std::uint32_t types = kTypeAll;
  NumberFacts number;
  StringFacts string;
  ArrayFacts array;
  ObjectFacts object;
  Evaluated evaluated;

  // Adds what `other` says. The result may admit nothing; Settle() finds out the simple cases.
  void Conjoin(const Branch& other);
  // Drops types whose facts contradict each other and facts of types that are gone. False when nothing is left.
  bool Settle();
  // Memory of what it holds, roughly.
  [[nodiscard]] std::size_t bytes() const;
};

using Branches = std::vector<Branch>;

// Whatever is no object, or an object without this member.
[[nodiscard]] Branch AbsentMember(const std::string& name);
// An object with this member.
[[nodiscard]] Branch PresentMember(const std::string& name);

// Exact test on decimals: whether value is a whole multiple of unit.
[[nodiscard]] bool IsMultiple(const Decimal& value, const Decimal& unit);

}  // namespace galley::grammar
