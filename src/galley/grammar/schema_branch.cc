// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/schema_branch.h"

#include <algorithm>
#include <unordered_set>

#include "galley/grammar/json_value.h"

namespace galley::grammar {
namespace {

template <typename T>
void Append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

template <typename T>
void AppendNew(std::vector<T>& to, const std::vector<T>& from) {
  for (const T& value : from) {
    if (std::find(to.begin(), to.end(), value) == to.end()) to.push_back(value);
  }
}

// Lists of names and values come from outside and may be long.
const std::string& KeyOf(const std::string& text) {
  return text;
}
std::string KeyOf(const Decimal& value) {
  return value.Key();
}

void AppendNew(std::vector<std::string>& to, const std::vector<std::string>& from) {
  if (from.empty()) return;
  std::unordered_set<std::string> known(to.begin(), to.end());
  for (const std::string& text : from) {
    if (known.insert(text).second) to.push_back(text);
  }
}

template <typename T>
void IntersectValues(std::optional<std::vector<T>>& to, const std::optional<std::vector<T>>& from) {
  if (!from) return;
  if (!to) {
    to = from;
    return;
  }
  std::unordered_set<std::string> known;
  for (const T& v : *from) known.insert(KeyOf(v));
  std::erase_if(*to, [&](const T& v) { return !known.contains(KeyOf(v)); });
}

void Conjoin(NumberFacts& to, const NumberFacts& from) {
  const auto tighter = [](const NumberSpec::Bound& a, const NumberSpec::Bound& b, int sign) {
    const int order = Compare(a.value, b.value) * sign;
    return order > 0 || (order == 0 && a.exclusive && !b.exclusive);
  };
  if (from.low && (!to.low || tighter(*from.low, *to.low, 1))) to.low = from.low;
  if (from.high && (!to.high || tighter(*from.high, *to.high, -1))) to.high = from.high;
  AppendNew(to.multiples, from.multiples);
  AppendNew(to.not_multiples, from.not_multiples);
  IntersectValues(to.values, from.values);
}

bool Within(const NumberFacts& facts, const Decimal& v) {
  if (facts.low) {
    const int order = Compare(v, facts.low->value);
    if (order < 0 || (order == 0 && facts.low->exclusive)) return false;
  }
  if (facts.high) {
    const int order = Compare(v, facts.high->value);
    if (order > 0 || (order == 0 && facts.high->exclusive)) return false;
  }
  for (const Decimal& m : facts.multiples) {
    if (!IsMultiple(v, m)) return false;
  }
  for (const Decimal& m : facts.not_multiples) {
    if (IsMultiple(v, m)) return false;
  }
  return true;
}

// Numbers that stay possible, as type bits.
std::uint32_t SettleNumber(NumberFacts& facts, std::uint32_t types) {
  if (facts.values) {
    std::uint32_t left = 0;
    std::erase_if(*facts.values, [&](const Decimal& v) {
      const std::uint32_t bit = v.is_integer() ? kTypeInteger : kTypeFraction;
      if ((types & bit) == 0 || !Within(facts, v)) return true;
      left |= bit;
      return false;
    });
    return left;
  }
  if (facts.low && facts.high) {
    const int order = Compare(facts.low->value, facts.high->value);
    if (order > 0 || (order == 0 && (facts.low->exclusive || facts.high->exclusive))) return 0;
    if (order == 0) {
      facts.values = {facts.low->value};
      return SettleNumber(facts, types);
    }
  }
  for (const Decimal& m : facts.multiples) {
    if (m.is_integer()) types &= ~static_cast<std::uint32_t>(kTypeFraction);
  }
  return types & kTypeNumber;
}

void Conjoin(StringFacts& to, const StringFacts& from) {
  to.length_min = std::max(to.length_min, from.length_min);
  to.length_max = std::min(to.length_max, from.length_max);
  AppendNew(to.patterns, from.patterns);
  IntersectValues(to.values, from.values);
}

bool SettleString(StringFacts& facts) {
  if (facts.length_min > facts.length_max) return false;
  if (!facts.values) return true;
  std::erase_if(*facts.values, [&](const std::string& v) {
    if (HoldsLoneSurrogate(v)) return true;
    const std::size_t length = DecodeUtf8(v).size();
    if (length < facts.length_min || (facts.length_max != kUnbounded && length > facts.length_max)) return true;
    return std::any_of(facts.patterns.begin(), facts.patterns.end(),
                       [&](const StringFacts::Pattern& p) { return p.dfa->Matches(v) == p.negated; });
  });
  facts.length_min = 0;
  facts.length_max = kUnbounded;
  facts.patterns.clear();
  return !facts.values->empty();
}

void Conjoin(ArrayFacts& to, const ArrayFacts& from) {
  Append(to.layers, from.layers);
  Append(to.contains, from.contains);
  to.min = std::max(to.min, from.min);
  to.max = std::min(to.max, from.max);
  if (from.unique) {
    to.unique = true;
    to.unique_pointer = from.unique_pointer;
  }
}

void Conjoin(ObjectFacts& to, const ObjectFacts& from) {
  Append(to.layers, from.layers);
  Append(to.exists, from.exists);
  AppendNew(to.required, from.required);
  AppendNew(to.name_goals, from.name_goals);
  if (!from.names_pointer.empty()) to.names_pointer = from.names_pointer;
  to.min = std::max(to.min, from.min);
  to.max = std::min(to.max, from.max);
}

}  // namespace

bool IsMultiple(const Decimal& value, const Decimal& unit) {
  if (value.is_zero()) return true;
  // value / unit = V × 10^shift / U with whole V and U; long division digit by digit keeps it exact.
  const std::int64_t shift =
      (static_cast<std::int64_t>(value.magnitude) - static_cast<std::int64_t>(value.digits.size())) -
      (static_cast<std::int64_t>(unit.magnitude) - static_cast<std::int64_t>(unit.digits.size()));
  if (unit.digits.size() > 18) return value.digits == unit.digits && value.magnitude == unit.magnitude;
  std::uint64_t u = 0;
  for (const char c : unit.digits) u = u * 10 + static_cast<std::uint64_t>(c - '0');
  __extension__ using Wide = unsigned __int128;
  Wide remainder = 0;
  for (const char c : value.digits) remainder = (remainder * 10 + static_cast<unsigned>(c - '0')) % u;
  for (std::int64_t i = 0; i < shift; ++i) remainder = remainder * 10 % u;
  if (shift >= 0) return remainder == 0;
  // A negative shift needs V to be a multiple of U × 10^-shift; V has no factor of ten left.
  return false;
}

Branch AbsentMember(const std::string& name) {
  Branch out;
  ObjectFacts::Layer layer;
  layer.names.emplace_back(name, kNothing);
  out.object.layers.push_back(std::move(layer));
  return out;
}

Branch PresentMember(const std::string& name) {
  Branch out;
  out.types = kTypeObject;
  out.object.required.push_back(name);
  return out;
}

void Branch::Conjoin(const Branch& other) {
  types &= other.types;
  galley::grammar::Conjoin(number, other.number);
  galley::grammar::Conjoin(string, other.string);
  galley::grammar::Conjoin(array, other.array);
  galley::grammar::Conjoin(object, other.object);
  AppendNew(evaluated.names, other.evaluated.names);
  AppendNew(evaluated.patterns, other.evaluated.patterns);
  AppendNew(evaluated.contains, other.evaluated.contains);
  evaluated.all_members = evaluated.all_members || other.evaluated.all_members;
  evaluated.all_items = evaluated.all_items || other.evaluated.all_items;
  evaluated.prefix = std::max(evaluated.prefix, other.evaluated.prefix);
}

bool Branch::Settle() {
  if ((types & kTypeNumber) != 0) {
    types = (types & ~static_cast<std::uint32_t>(kTypeNumber)) | SettleNumber(number, types & kTypeNumber);
  }
  if ((types & kTypeNumber) == 0) number = {};
  if ((types & kTypeString) != 0 && !SettleString(string)) types &= ~static_cast<std::uint32_t>(kTypeString);
  if ((types & kTypeString) == 0) string = {};
  if (array.min > array.max) types &= ~static_cast<std::uint32_t>(kTypeArray);
  if ((types & kTypeArray) == 0) array = {};
  if (object.min > object.max || object.required.size() > object.max) types &= ~static_cast<std::uint32_t>(kTypeObject);
  if ((types & kTypeObject) == 0) object = {};
  return types != 0;
}

std::size_t Branch::bytes() const {
  std::size_t out = sizeof(Branch);
  out += (number.multiples.size() + number.not_multiples.size()) * sizeof(Decimal);
  if (number.values) {
    for (const Decimal& v : *number.values) out += sizeof(Decimal) + v.digits.size();
  }
  out += string.patterns.size() * sizeof(StringFacts::Pattern);
  const auto texts = [&](const std::vector<std::string>& list) {
    for (const std::string& text : list) out += sizeof(std::string) + text.size();
  };
  if (string.values) texts(*string.values);
  for (const ArrayFacts::Layer& layer : array.layers) out += sizeof(layer) + layer.prefix.size() * sizeof(GoalId);
  out += array.contains.size() * sizeof(ArrayFacts::Contains);
  for (const ObjectFacts::Layer& layer : object.layers) {
    out += sizeof(layer) + layer.patterns.size() * sizeof(layer.patterns[0]);
    for (const auto& [name, goal] : layer.names) out += sizeof(std::string) + 8 + name.size();
  }
  for (const ObjectFacts::Exists& exists : object.exists) {
    out += sizeof(exists) + exists.not_patterns.size() * 16;
    texts(exists.not_names);
  }
  texts(object.required);
  texts(evaluated.names);
  return out + object.name_goals.size() * sizeof(GoalId) + evaluated.patterns.size() * 16;
}

}  // namespace galley::grammar
