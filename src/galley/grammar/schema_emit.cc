// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/schema_emit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>

#include "galley/grammar/container_rules.h"

namespace galley::grammar {
namespace {

// A set of undeclared names that is finite and no larger is spelled out, so that a used name is never offered again.
constexpr std::size_t kFiniteNamesMax = 512;
constexpr std::size_t kUniqueValuesMax = 512;
constexpr std::size_t kPatternsMax = 24;

std::string KeyOf(const StringFacts& facts) {
  std::string key = fmt::format("s{}:{}", facts.length_min, facts.length_max);
  for (const StringFacts::Pattern& p : facts.patterns) {
    key += fmt::format("|{}{}", p.negated ? '!' : '=', static_cast<const void*>(p.dfa.get()));
  }
  if (facts.values) {
    key += "|v";
    for (const std::string& v : *facts.values) key += fmt::format("{}:{}", v.size(), v);
  }
  return key;
}

std::string KeyOf(const NumberSpec& spec) {
  std::string key = spec.plain ? "p" : spec.integer ? "i" : "n";
  const auto bound = [&](const std::optional<NumberSpec::Bound>& b) {
    key += b ? fmt::format("|{}{}", b->value.ToString(), b->exclusive ? "x" : "") : "|";
  };
  bound(spec.low);
  bound(spec.high);
  for (const Decimal& m : spec.multiples) key += "*" + m.ToString();
  for (const Decimal& m : spec.not_multiples) key += "!" + m.ToString();
  return key;
}

Regex Digits(const std::string& text) {
  return Regex::Literal(text);
}

Regex Zeros(std::uint32_t min) {
  return Regex::Repeat(Regex::Literal("0"), min, kUnbounded);
}

Regex Maybe(Regex regex) {
  return Regex::Repeat(std::move(regex), 0, 1);
}

// The JSON spellings of one number: plain, and with an exponent after one digit. A list of constants is one lexeme.
Regex Spellings(const Decimal& v) {
  const Regex e = Regex::Set(CodePointSet::Of(std::array{CodePointRange{'E', 'E'}, CodePointRange{'e', 'e'}}));
  const Regex sign = Regex::Set(CodePointSet::Of(std::array{CodePointRange{'+', '+'}, CodePointRange{'-', '-'}}));
  const Regex zero_fraction = Maybe(Regex::Concat({Digits("."), Zeros(1)}));
  if (v.is_zero()) {
    const Regex exponent = Regex::Concat({e, Maybe(sign), Regex::Repeat(Regex::Set(DigitSet()), 1, kUnbounded)});
    return Regex::Concat({Maybe(Digits("-")), Digits("0"), zero_fraction, Maybe(exponent)});
  }
  constexpr std::int32_t kPlainMax = 400;
  const auto count = static_cast<std::int32_t>(v.digits.size());
  std::vector<Regex> forms;
  if (v.is_integer() && v.magnitude <= kPlainMax) {
    const std::string padded = v.digits + std::string(static_cast<std::size_t>(v.magnitude - count), '0');
    forms.push_back(Regex::Concat({Digits(padded), zero_fraction}));
  } else if (v.magnitude > 0 && v.magnitude < count) {
    const auto split = static_cast<std::size_t>(v.magnitude);
    forms.push_back(Regex::Concat({Digits(v.digits.substr(0, split) + "." + v.digits.substr(split)), Zeros(0)}));
  } else if (v.magnitude <= 0 && v.magnitude >= -kPlainMax) {
    const std::string lead = "0." + std::string(static_cast<std::size_t>(-v.magnitude), '0');
    forms.push_back(Regex::Concat({Digits(lead + v.digits), Zeros(0)}));
  }
  const std::int32_t exponent = v.magnitude - 1;
  const Regex mantissa = count == 1
                             ? Regex::Concat({Digits(v.digits), zero_fraction})
                             : Regex::Concat({Digits(v.digits.substr(0, 1) + "." + v.digits.substr(1)), Zeros(0)});
  const Regex exponent_sign = exponent < 0 ? Digits("-") : exponent == 0 ? Maybe(sign) : Maybe(Digits("+"));
  const Regex number = exponent == 0 ? Zeros(1) : Regex::Concat({Zeros(0), Digits(std::to_string(std::abs(exponent)))});
  forms.push_back(Regex::Concat({mantissa, e, exponent_sign, number}));
  Regex out = Regex::Alternate(std::move(forms));
  return v.negative ? Regex::Concat({Digits("-"), std::move(out)}) : out;
}

}  // namespace

TextSpec TextSpecOf(const StringFacts& facts, const Limits& limits) {
  TextSpec out;
  if (facts.values) {
    out.names = std::make_shared<NameTrie>(*facts.values, limits);
    out.name_allowed.assign(facts.values->size(), true);
    return out;
  }
  for (const StringFacts::Pattern& p : facts.patterns) {
    out.parts.push_back({p.dfa, p.negated ? TextSpec::Sense::kMustNot : TextSpec::Sense::kMust});
  }
  out.length_min = facts.length_min;
  out.length_max = facts.length_max;
  return out;
}

bool SchemaEmitter::satisfiable(GoalId goal) const {
  if (goal == kNothing) return false;
  const auto it = plans_.find(goal);
  return it != plans_.end() && it->second.satisfiable;
}

void SchemaEmitter::Need(GoalId goal) {
  if (goal == kNothing || !plans_.try_emplace(goal).second) return;
  todo_.push_back(goal);
}

void SchemaEmitter::AddMachine(std::unique_ptr<Machine> machine, const std::string& key, Plan& plan) {
  auto& slot = machines_[key];
  slot = kUnbounded;
  const bool matches = machine->Start(0) != Machine::kDead;
  if (!expander_.ok()) return;
  expander_.Spend(machine->states() * 4 + 200);
  if (!matches) return;
  slot = program_.AddMachine(std::move(machine));
  plan.scalars.push_back(slot);
}

void SchemaEmitter::PlanNumber(const Branch& branch, GoalId goal, Plan& plan) {
  const auto build = [&](const NumberSpec& spec) -> std::unique_ptr<Machine> {
    auto machine = NumberMachine::Create(spec, options_.limits);
    if (machine) return std::move(*machine);
    expander_.Fail(machine.error().code, machine.error().message, expander_.PointerOf(goal), machine.error().keyword);
    return nullptr;
  };
  const auto use = [&](const std::string& key, auto make) {
    const auto known = machines_.find(key);
    if (known == machines_.end()) {
      if (auto machine = make()) AddMachine(std::move(machine), key, plan);
    } else if (known->second != kUnbounded) {
      plan.scalars.push_back(known->second);
    }
  };
  const NumberFacts& facts = branch.number;
  if (facts.values) {
    std::string key = "values";
    for (const Decimal& v : *facts.values) key += "|" + v.ToString();
    use(key, [&]() -> std::unique_ptr<Machine> {
      // The least that one number's spellings are made of.
      constexpr std::size_t kAtomsOfNumber = 10;
      std::vector<Regex> spellings;
      if (facts.values->size() > options_.limits.nfa_states_max / kAtomsOfNumber) {
        expander_.Fail(
            CompileCode::kTooComplex,
            fmt::format("a list of {} numbers unrolls to more than {} states in one lexeme (nfa_states_max); "
                        "shorten it, or give bounds",
                        facts.values->size(), options_.limits.nfa_states_max),
            "", "enum");
        return nullptr;
      }
      for (const Decimal& v : *facts.values)
        spellings.push_back(options_.plain_numbers && v.is_integer() ? Digits(v.ToString()) : Spellings(v));
      auto dfa = CharDfa::Create({Regex::Alternate(std::move(spellings))}, CharDfa::Mode::kFull, options_.limits);
      if (!dfa) {
        expander_.Fail(dfa.error().code, dfa.error().message, "");
        return nullptr;
      }
      TextSpec text;
      text.parts.push_back({std::move(*dfa), TextSpec::Sense::kMust});
      return std::make_unique<StringMachine>(std::move(text), StringMachine::Form::kRaw, options_.limits);
    });
    return;
  }
  NumberSpec spec;
  spec.low = facts.low;
  spec.high = facts.high;
  spec.multiples = facts.multiples;
  spec.not_multiples = facts.not_multiples;
  spec.integer = (branch.types & kTypeNumber) == kTypeInteger;
  spec.plain = spec.integer && options_.plain_numbers;
  if ((branch.types & kTypeNumber) == kTypeFraction) {
    Decimal one;
    one.digits = "1";
    one.magnitude = 1;
    spec.not_multiples.push_back(one);
  }
  use(KeyOf(spec), [&] { return build(spec); });
}

void SchemaEmitter::PlanString(const StringFacts& facts, Plan& plan) {
  const std::string key = KeyOf(facts);
  const auto known = machines_.find(key);
  if (known != machines_.end()) {
    if (known->second != kUnbounded) plan.scalars.push_back(known->second);
    return;
  }
  AddMachine(
      std::make_unique<StringMachine>(TextSpecOf(facts, options_.limits), StringMachine::Form::kJson, options_.limits),
      key, plan);
}

bool SchemaEmitter::FiniteValues(GoalId goal, std::vector<JsonValue>& out) {
  using Type = JsonValue::Type;
  const auto add = [&](Type type, std::string text, bool boolean = false) {
    JsonValue v;
    v.type = type;
    v.text = std::move(text);
    v.boolean = boolean;
    const std::string written = JsonText(v);
    if (std::none_of(out.begin(), out.end(), [&](const JsonValue& w) { return JsonText(w) == written; })) {
      out.push_back(std::move(v));
    }
    return out.size() <= kUniqueValuesMax;
  };
  for (const Branch& branch : expander_.Expand(goal)) {
    if ((branch.types & (kTypeArray | kTypeObject)) != 0) return false;
    if ((branch.types & kTypeNull) != 0) add(Type::kNull, "");
    if ((branch.types & kTypeFalse) != 0) add(Type::kBool, "", false);
    if ((branch.types & kTypeTrue) != 0) add(Type::kBool, "", true);
    if ((branch.types & kTypeString) != 0) {
      if (!branch.string.values) return false;
      for (const std::string& v : *branch.string.values) {
        if (!add(Type::kString, v)) return false;
      }
    }
    if ((branch.types & kTypeNumber) == 0) continue;
    if (branch.number.values) {
      for (const Decimal& v : *branch.number.values) {
        if (!add(Type::kNumber, v.ToString())) return false;
      }
      continue;
    }
    // Small ranges of integers are spelled out.
    const NumberFacts& n = branch.number;
    if ((branch.types & kTypeFraction) != 0 || !n.low || !n.high) return false;
    if (n.low->value.magnitude > 6 || n.high->value.magnitude > 6) return false;
    const auto whole = [](const Decimal& d) { return std::stod(d.ToString()); };
    const auto first = static_cast<long>(whole(n.low->value)) - 1, last = static_cast<long>(whole(n.high->value)) + 1;
    if (last - first > 2 * static_cast<long>(kUniqueValuesMax)) return false;
    for (long v = first; v <= last; ++v) {
      Branch one;
      one.types = kTypeInteger;
      one.number = n;
      one.number.values = {*ParseDecimal(std::to_string(v))};
      if (one.Settle() && !add(Type::kNumber, std::to_string(v))) return false;
    }
  }
  return true;
}

void SchemaEmitter::PlanUnique(const Branch& branch, ArrayPlan& array) {
  if (array.max <= 1) return;
  std::vector<JsonValue> values;
  const bool plain = array.options.size() == 1 && array.contains.empty();
  if (plain && array.options[0].empty()) return;
  if (!plain || !FiniteValues(array.options[0][0].first, values)) {
    expander_.Fail(CompileCode::kUnsupportedKeyword,
                   "\"uniqueItems\" is supported where the elements are one of a short list of values",
                   branch.array.unique_pointer, "uniqueItems");
    return;
  }
  array.unique = true;
  array.options[0].clear();
  for (std::size_t i = 0; i < values.size(); ++i) {
    array.options[0].emplace_back(expander_.ConstGoal(values[i]), static_cast<std::uint32_t>(i));
  }
}

void SchemaEmitter::PlanArray(const Branch& branch, GoalId goal, Plan& plan) {
  const ArrayFacts& facts = branch.array;
  ArrayPlan array;
  array.min = facts.min;
  array.max = facts.max;
  std::size_t length = 0;
  for (const ArrayFacts::Layer& layer : facts.layers) length = std::max(length, layer.prefix.size());
  std::vector<ArrayFacts::Contains> contains = facts.contains;
  std::erase_if(contains, [](const ArrayFacts::Contains& c) { return c.min == 0 && c.max == kUnbounded; });
  for (const ArrayFacts::Contains& c : contains) {
    if (c.min > c.max) return;
    array.contains.push_back({c.min, c.max});
    length = std::max<std::size_t>(length, c.from);
  }
  if (contains.size() > 6 || length > 10'000 ||
      (!contains.empty() && (facts.min > 2000 || (facts.max != kUnbounded && facts.max > 2000)))) {
    expander_.Fail(CompileCode::kTooComplex, "array with too many \"contains\" or prefix elements",
                   expander_.PointerOf(goal), "contains");
    return;
  }
  for (std::size_t i = 0; i <= length; ++i) {
    GoalId element = kAnything;
    for (const ArrayFacts::Layer& layer : facts.layers) {
      element = expander_.Both(element, i < layer.prefix.size() ? layer.prefix[i] : layer.rest);
    }
    std::vector<std::pair<GoalId, std::uint32_t>> options = {{element, 0}};
    for (std::size_t c = 0; c < contains.size(); ++c) {
      if (i < contains[c].from) continue;
      std::vector<std::pair<GoalId, std::uint32_t>> next;
      for (const auto& [g, marks] : options) {
        next.emplace_back(expander_.Both(g, contains[c].goal), marks | (1u << c));
        // Without a maximum it does no harm to leave an element uncounted.
        const GoalId other = contains[c].max == kUnbounded
                                 ? g
                                 : expander_.Both(g, expander_.Negated(contains[c].goal, expander_.PointerOf(goal)));
        next.emplace_back(other, marks);
      }
      options = std::move(next);
    }
    std::erase_if(options, [](const auto& option) { return option.first == kNothing; });
    array.options.push_back(std::move(options));
  }
  if (facts.unique) PlanUnique(branch, array);
  for (const auto& options : array.options) {
    for (const auto& [g, marks] : options) Need(g);
  }
  plan.arrays.push_back(std::move(array));
}

GoalId SchemaEmitter::MemberGoal(const ObjectFacts& facts, const std::vector<NamedGoals>& named,
                                 const std::string& name) {
  GoalId goal = kAnything;
  for (std::size_t i = 0; i < facts.layers.size() && expander_.ok(); ++i) {
    const ObjectFacts::Layer& layer = facts.layers[i];
    expander_.Spend(10 + 50 * layer.patterns.size());
    bool found = false;
    for (auto [at, end] = named[i].equal_range(name); at != end; ++at) {
      goal = expander_.Both(goal, at->second);
      found = true;
    }
    for (const auto& [pattern, value] : layer.patterns) {
      if (!pattern->Matches(name)) continue;
      goal = expander_.Both(goal, value);
      found = true;
    }
    if (!found) goal = expander_.Both(goal, layer.rest);
  }
  return goal;
}

// Reads what propertyNames asks of undeclared names: facets in `object.key`, or a finite set.
bool SchemaEmitter::NameFacets(const ObjectFacts& facts, ObjectPlan& object, std::vector<std::string>& finite,
                               bool& is_finite) {
  GoalId goal = kAnything;
  for (const GoalId g : facts.name_goals) goal = expander_.Both(goal, g);
  if (goal == kAnything) return true;
  std::vector<StringFacts> options;
  if (goal != kNothing) {
    for (const Branch& branch : expander_.Expand(goal)) {
      if ((branch.types & kTypeString) != 0) options.push_back(branch.string);
    }
  }
  if (options.size() == 1 && !options[0].values) {
    object.key = TextSpecOf(options[0], options_.limits);
    return true;
  }
  for (const StringFacts& option : options) {
    if (!option.values) {
      expander_.Fail(CompileCode::kUnsupportedKeyword,
                     "\"propertyNames\" is supported as one set of patterns and lengths, or as a list of names",
                     facts.names_pointer, "propertyNames");
      return false;
    }
    finite.insert(finite.end(), option.values->begin(), option.values->end());
  }
  is_finite = true;
  return true;
}

// What undeclared names may be, and which values go with the patterns that they match.
void SchemaEmitter::PlanOthers(const ObjectFacts& facts, ObjectPlan& object, bool allowed) {
  std::vector<std::shared_ptr<CharDfa>> patterns;
  for (const ObjectFacts::Layer& layer : facts.layers) {
    for (const auto& [pattern, goal] : layer.patterns) {
      if (std::find(patterns.begin(), patterns.end(), pattern) == patterns.end()) patterns.push_back(pattern);
    }
  }
  if (!allowed) return;
  if (patterns.size() > kPatternsMax) {
    expander_.Fail(CompileCode::kTooComplex,
                   fmt::format("more than {} patterns for one object's members", kPatternsMax), "",
                   "patternProperties");
    return;
  }
  for (const auto& pattern : patterns) object.key.parts.push_back({pattern, TextSpec::Sense::kObserve});
  if (patterns.empty()) {
    object.observed = {0};
  } else if (!TextAutomaton::ObservedSets(object.key, options_.limits, object.observed)) {
    expander_.Fail(CompileCode::kTooComplex, "the patterns of an object's members are too complex together", "",
                   "patternProperties");
    return;
  }
  std::vector<std::uint64_t> sets;
  for (const std::uint64_t observed : object.observed) {
    GoalId goal = kAnything;
    for (const ObjectFacts::Layer& layer : facts.layers) {
      bool found = false;
      for (const auto& [pattern, value] : layer.patterns) {
        const auto at = std::find(patterns.begin(), patterns.end(), pattern) - patterns.begin();
        if ((observed >> at & 1) == 0) continue;
        goal = expander_.Both(goal, value);
        found = true;
      }
      if (!found) goal = expander_.Both(goal, layer.rest);
    }
    if (goal == kNothing) continue;
    sets.push_back(observed);
    object.other_goals.push_back(goal);
  }
  object.observed = std::move(sets);
}

bool SchemaEmitter::PlanNames(const ObjectFacts& facts, ObjectPlan& object) {
  std::vector<std::string> finite;
  bool is_finite = false;
  if (!NameFacets(facts, object, finite, is_finite)) return false;
  std::map<std::string, std::size_t> index;
  std::vector<NamedGoals> named(facts.layers.size());
  for (std::size_t i = 0; i < named.size(); ++i) {
    for (const auto& [name, goal] : facts.layers[i].names) named[i].emplace(name, goal);
  }
  const auto add = [&](const std::string& name) {
    if (!expander_.ok() || !index.try_emplace(name, object.names.size()).second) return;
    object.names.push_back(name);
    const bool fits =
        !HoldsLoneSurrogate(name) && (is_finite ? std::find(finite.begin(), finite.end(), name) != finite.end()
                                                : TextAutomaton::Satisfies(object.key, name, nullptr));
    object.goals.push_back(fits ? MemberGoal(facts, named, name) : kNothing);
    object.required.push_back(false);
  };
  for (const ObjectFacts::Layer& layer : facts.layers) {
    for (const auto& [name, goal] : layer.names) {
      if (layer.declares) add(name);
    }
  }
  // Where several subschemas declare members there is no one order to follow.
  const auto declaring = std::count_if(facts.layers.begin(), facts.layers.end(),
                                       [](const ObjectFacts::Layer& layer) { return layer.declares; });
  object.ordered = options_.any_order || declaring > 1 ? 0 : static_cast<std::uint32_t>(object.names.size());
  for (const ObjectFacts::Layer& layer : facts.layers) {
    for (const auto& [name, goal] : layer.names) add(name);
  }
  for (const std::string& name : facts.required) {
    add(name);
    if (!expander_.ok()) return false;
    object.required[index[name]] = true;
  }
  const bool facets = !object.key.parts.empty() || object.key.length_max != kUnbounded;
  PlanOthers(facts, object, !is_finite);
  if (!expander_.ok()) return false;
  if (!is_finite && (facets || !object.key.parts.empty()) && !object.other_goals.empty()) {
    // Perhaps only a few undeclared names exist.
    TextSpec spec = object.key;
    spec.names = std::make_shared<NameTrie>(object.names, options_.limits);
    spec.name_allowed.assign(object.names.size(), false);
    for (std::size_t i = 0; i < object.observed.size(); ++i)
      spec.other_labels[object.observed[i]] = static_cast<int>(i);
    TextAutomaton automaton(spec, options_.limits);
    is_finite = automaton.EnumerateOthers(kFiniteNamesMax, finite);
    if (!is_finite) finite.clear();
    const TextAutomaton::State start = is_finite ? TextAutomaton::kDead : automaton.Start(0);
    const std::uint32_t found = start == TextAutomaton::kDead ? 0 : automaton.Continuations(start, object.min);
    if (!is_finite && found < object.min && expander_.ok()) {
      // So many members cannot be promised name by name.
      expander_.Fail(CompileCode::kTooComplex,
                     fmt::format("minProperties is {} where only {} undeclared names exist; lower it, or declare names",
                                 object.min, found),
                     "", "minProperties");
      return false;
    }
  }
  for (const std::string& name : finite) add(name);
  if (is_finite) {
    object.observed.clear();
    object.other_goals.clear();
  }
  return true;
}

// Turns "some member has such a value" into one alternative per name that a closed object can have.
std::vector<ObjectFacts> SchemaEmitter::ResolveExists(const ObjectFacts& facts) {
  std::vector<ObjectFacts> out = {facts};
  for (const ObjectFacts::Exists& exists : facts.exists) {
    std::vector<std::string> candidates;
    bool closed = false;
    for (const ObjectFacts::Layer& layer : facts.layers) {
      if (layer.rest != kNothing || !layer.patterns.empty() || layer.names.empty()) {
        if (layer.rest != kNothing || !layer.patterns.empty()) continue;
      }
      closed = true;
      for (const auto& [name, goal] : layer.names) candidates.push_back(name);
    }
    if (!closed) {
      expander_.Fail(CompileCode::kUnsupportedKeyword,
                     fmt::format("\"{}\" cannot be negated for an object with arbitrary members", exists.keyword),
                     exists.pointer, exists.keyword);
      return {};
    }
    std::vector<ObjectFacts> next;
    for (const ObjectFacts& one : out) {
      for (const std::string& name : candidates) {
        if (std::find(exists.not_names.begin(), exists.not_names.end(), name) != exists.not_names.end()) continue;
        if (exists.match != nullptr && !exists.match->Matches(name)) continue;
        if (std::any_of(exists.not_patterns.begin(), exists.not_patterns.end(),
                        [&](const auto& p) { return p->Matches(name); })) {
          continue;
        }
        ObjectFacts with = one;
        ObjectFacts::Layer layer;
        layer.names.emplace_back(name, exists.goal);
        with.layers.push_back(std::move(layer));
        if (std::find(with.required.begin(), with.required.end(), name) == with.required.end()) {
          with.required.push_back(name);
        }
        next.push_back(std::move(with));
        if (next.size() > options_.limits.branches_max) {
          expander_.Fail(CompileCode::kTooComplex, "too many alternatives for a negated object (branches_max)",
                         exists.pointer, exists.keyword);
          return {};
        }
      }
    }
    out = std::move(next);
  }
  return out;
}

std::vector<SchemaEmitter::ObjectPlan> SchemaEmitter::PlanObjects(const ObjectFacts& all_facts) {
  std::vector<ObjectPlan> out;
  for (const ObjectFacts& facts : ResolveExists(all_facts)) {
    ObjectPlan object;
    object.min = facts.min;
    object.max = facts.max;
    if (!PlanNames(facts, object)) return {};
    expander_.Spend(50 + 20 * object.names.size());
    out.push_back(std::move(object));
  }
  return out;
}

void SchemaEmitter::PlanObject(const ObjectFacts& facts, Plan& plan) {
  for (ObjectPlan& object : PlanObjects(facts)) {
    for (const GoalId g : object.goals) Need(g);
    for (const GoalId g : object.other_goals) Need(g);
    plan.objects.push_back(std::move(object));
  }
}

void SchemaEmitter::PlanGoal(GoalId goal) {
  const Branches branches = expander_.Expand(goal);
  Plan plan;
  for (const Branch& branch : branches) {
    if (!expander_.ok()) return;
    plan.literals |= branch.types & (kTypeNull | kTypeFalse | kTypeTrue);
    if ((branch.types & kTypeNumber) != 0) PlanNumber(branch, goal, plan);
    if ((branch.types & kTypeString) != 0) PlanString(branch.string, plan);
    if ((branch.types & kTypeArray) != 0) PlanArray(branch, goal, plan);
    if ((branch.types & kTypeObject) != 0) PlanObject(branch.object, plan);
  }
  std::sort(plan.scalars.begin(), plan.scalars.end());
  plan.scalars.erase(std::unique(plan.scalars.begin(), plan.scalars.end()), plan.scalars.end());
  plan.satisfiable = plan.literals != 0 || !plan.scalars.empty();
  plans_[goal] = std::move(plan);
}

bool SchemaEmitter::Satisfied(const ObjectPlan& object, const std::function<bool(GoalId)>& fits_goal) {
  std::uint64_t possible = 0, required = 0;
  for (std::size_t i = 0; i < object.names.size(); ++i) {
    const bool fits = fits_goal(object.goals[i]);
    if (object.required[i] && !fits) return false;
    possible += fits ? 1 : 0;
    required += object.required[i] ? 1 : 0;
  }
  if (required > object.max) return false;
  const bool others =
      std::any_of(object.other_goals.begin(), object.other_goals.end(), [&](GoalId g) { return fits_goal(g); });
  return others || possible >= object.min;
}

bool SchemaEmitter::Satisfied(const ObjectPlan& object) const {
  return Satisfied(object, [this](GoalId goal) { return satisfiable(goal); });
}

ArraySpec SchemaEmitter::ArrayOptions(const ArrayPlan& array) const {
  ArraySpec spec;
  for (const auto& options : array.options) {
    spec.options.emplace_back();
    for (const auto& [goal, marks] : options) {
      if (satisfiable(goal)) spec.options.back().push_back({0, marks});
    }
  }
  spec.contains = array.contains;
  spec.unique = array.unique;
  spec.items_min = array.min;
  spec.items_max = array.max;
  return spec;
}

bool SchemaEmitter::Satisfied(const ArrayPlan& array) const {
  array_rules::ClosableStates closable;
  closable.max = options_.limits.array_states_max;
  const ArraySpec spec = ArrayOptions(array);
  const bool closes = array_rules::CanClose(spec, {}) || array_rules::Closable(spec, {}, closable);
  if (closable.overflowed) {
    expander_.Fail(
        CompileCode::kTooComplex,
        fmt::format("an array's counts (minItems, minContains, maxContains, uniqueItems) combine to more than "
                    "{} states (array_states_max); lower them",
                    options_.limits.array_states_max),
        "");
  }
  return closes && !closable.overflowed;
}

RuleId SchemaEmitter::RuleOf(GoalId goal) {
  const auto [it, fresh] = rules_.try_emplace(goal, 0);
  if (fresh) {
    it->second = program_.AddRule();
    to_emit_.push_back(goal);
  }
  return it->second;
}

NodeId SchemaEmitter::EmitScalars(const Plan& plan) {
  std::vector<NodeId> outs;
  std::vector<std::string> words;
  if ((plan.literals & kTypeNull) != 0) words.emplace_back("null");
  if ((plan.literals & kTypeTrue) != 0) words.emplace_back("true");
  if ((plan.literals & kTypeFalse) != 0) words.emplace_back("false");
  if (!words.empty()) outs.push_back(json_.Words(words, {}, {}, {end_}));
  for (const std::uint32_t machine : plan.scalars) {
    Node node;
    node.kind = Node::Kind::kLexeme;
    node.machine = machine;
    node.next = end_;
    outs.push_back(program_.AddNode(std::move(node)));
  }
  for (const ObjectPlan& object : plan.objects) {
    if (Satisfied(object)) outs.push_back(EmitObject(object));
  }
  for (const ArrayPlan& array : plan.arrays) {
    if (Satisfied(array)) outs.push_back(EmitArray(array));
  }
  Node split;
  split.kind = Node::Kind::kSplit;
  split.outs = std::move(outs);
  return program_.AddNode(std::move(split));
}

ObjectSpec SchemaEmitter::BuildObject(const ObjectPlan& object, StringMachine::Form form,
                                      const std::function<std::optional<RuleId>(GoalId)>& rule_of) {
  ObjectSpec spec;
  spec.names = static_cast<std::uint32_t>(object.names.size());
  spec.ordered = object.ordered;
  spec.required = object.required;
  spec.members_min = object.min;
  spec.members_max = object.max;
  for (const GoalId goal : object.goals) {
    const auto rule = rule_of(goal);
    spec.allowed.push_back(rule.has_value());
    spec.name_rules.push_back(rule.value_or(0));
  }
  TextSpec key = object.key;
  key.names = std::make_shared<NameTrie>(object.names, options_.limits);
  key.name_allowed = spec.allowed;
  for (std::size_t i = 0; i < object.observed.size(); ++i) {
    const auto rule = rule_of(object.other_goals[i]);
    if (!rule) continue;
    key.other_labels[object.observed[i]] = static_cast<int>(spec.other_rules.size());
    spec.other_rules.push_back(*rule);
  }
  spec.Finish();
  auto machine = std::make_unique<StringMachine>(std::move(key), form, options_.limits);
  spec.key = machine.get();
  spec.key_machine = program_.AddMachine(std::move(machine));
  return spec;
}

std::uint32_t SchemaEmitter::AddObject(ObjectSpec spec, NodeId& first) {
  const std::uint32_t index = program_.AddObject(std::move(spec));
  const auto add = [&](Node::Kind kind) {
    Node node;
    node.kind = kind;
    node.arg = index;
    return program_.AddNode(std::move(node));
  };
  first = add(Node::Kind::kObjectFirst);
  ObjectSpec& stored = program_.object_mutable(index);
  stored.key_node = stored.first_node = add(Node::Kind::kObjectKey);
  stored.value_node = stored.colon_node = add(Node::Kind::kObjectValue);
  stored.next_node = add(Node::Kind::kObjectNext);
  return index;
}

NodeId SchemaEmitter::EmitObject(const ObjectPlan& object) {
  ObjectSpec spec = BuildObject(object, StringMachine::Form::kJson, [&](GoalId goal) -> std::optional<RuleId> {
    if (!satisfiable(goal)) return std::nullopt;
    return RuleOf(goal);
  });
  NodeId first = 0;
  const std::uint32_t index = AddObject(std::move(spec), first);
  const ObjectSpec& stored = program_.object(index);
  const NodeId colon = json_.Colon(stored.value_node);
  const SeparatorNodes separators = json_.Separators('}', program_.object(index).key_node, end_);
  program_.object_mutable(index).colon_node = colon;
  program_.object_mutable(index).separators = separators;
  return json_.Open('{', first);
}

NodeId SchemaEmitter::EmitArray(const ArrayPlan& array) {
  ArraySpec spec = ArrayOptions(array);
  for (std::size_t i = 0; i < array.options.size(); ++i) {
    std::size_t kept = 0;
    for (const auto& [goal, marks] : array.options[i]) {
      if (satisfiable(goal)) spec.options[i][kept++].rule = RuleOf(goal);
    }
  }
  const std::uint32_t index = program_.AddArray(std::move(spec));
  const auto add = [&](Node::Kind kind) {
    Node node;
    node.kind = kind;
    node.arg = index;
    return program_.AddNode(std::move(node));
  };
  const NodeId first = add(Node::Kind::kArrayFirst), element = add(Node::Kind::kArrayElement);
  const NodeId next = add(Node::Kind::kArrayNext);
  const SeparatorNodes separators = json_.Separators(']', element, end_);
  ArraySpec& stored = program_.array_mutable(index);
  stored.element_node = element;
  stored.next_node = next;
  stored.separators = separators;
  return json_.Open('[', first);
}

bool SchemaEmitter::Run(const std::vector<GoalId>& goals, std::vector<RuleId>& rules) {
  for (const GoalId goal : goals) Need(goal);
  while (!todo_.empty() && expander_.ok()) {
    const GoalId goal = todo_.front();
    todo_.pop_front();
    PlanGoal(goal);
  }
  // The smallest solution: a goal is satisfiable once some plan needs only goals that are.
  for (bool changed = true; changed && expander_.ok();) {
    changed = false;
    for (auto& [goal, plan] : plans_) {
      if (plan.satisfiable) continue;
      expander_.Spend(plan.objects.size() + plan.arrays.size() + 1);
      plan.satisfiable =
          std::any_of(plan.objects.begin(), plan.objects.end(), [&](const auto& o) { return Satisfied(o); }) ||
          std::any_of(plan.arrays.begin(), plan.arrays.end(), [&](const auto& a) { return Satisfied(a); });
      changed = changed || plan.satisfiable;
    }
  }
  if (!expander_.ok()) return false;
  end_ = program_.AddNode({});
  for (const GoalId goal : goals) rules.push_back(satisfiable(goal) ? RuleOf(goal) : 0);
  // Rules are emitted as others come to name them.
  for (; !to_emit_.empty() && expander_.ok(); to_emit_.pop_front()) {
    const GoalId goal = to_emit_.front();
    program_.SetRule(rules_[goal], EmitScalars(plans_[goal]));
  }
  return expander_.ok();
}

std::vector<TextSpec> SchemaEmitter::StringsOf(GoalId goal) {
  std::vector<TextSpec> out;
  if (goal == kNothing) return out;
  for (const Branch& branch : expander_.Expand(goal)) {
    if ((branch.types & kTypeString) != 0) out.push_back(TextSpecOf(branch.string, options_.limits));
  }
  return out;
}

}  // namespace galley::grammar
