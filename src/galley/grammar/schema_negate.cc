// SPDX-License-Identifier: Apache-2.0
// Negation of schemas: a value fails a schema iff it fails one of its keywords, so every keyword adds the branches in
// which it is the one that fails.
#include <fmt/format.h>

#include <algorithm>

#include "galley/grammar/formats.h"
#include "galley/grammar/schema_expand.h"

namespace galley::grammar {
namespace {

using Type = JsonValue::Type;

Branch OfType(std::uint32_t types) {
  Branch out;
  out.types = types;
  return out;
}

Branch NumberBelow(const Decimal& value, bool inclusive) {
  Branch out = OfType(kTypeNumber);
  out.number.high = NumberSpec::Bound{value, !inclusive};
  return out;
}

Branch NumberAbove(const Decimal& value, bool inclusive) {
  Branch out = OfType(kTypeNumber);
  out.number.low = NumberSpec::Bound{value, !inclusive};
  return out;
}

Branch Length(std::uint32_t types, std::uint32_t min, std::uint32_t max) {
  Branch out = OfType(types);
  if (types == kTypeString) {
    out.string.length_min = min;
    out.string.length_max = max;
  } else if (types == kTypeArray) {
    out.array.min = min;
    out.array.max = max;
  } else {
    out.object.min = min;
    out.object.max = max;
  }
  return out;
}

// An array whose element `index` satisfies `goal`.
Branch ElementAt(std::size_t index, GoalId goal) {
  Branch out = OfType(kTypeArray);
  ArrayFacts::Layer layer;
  layer.prefix.assign(index, kAnything);
  layer.prefix.push_back(goal);
  out.array.layers.push_back(std::move(layer));
  out.array.min = static_cast<std::uint32_t>(index + 1);
  return out;
}

Branch MemberIs(const std::string& name, GoalId goal) {
  Branch out = PresentMember(name);
  ObjectFacts::Layer layer;
  layer.names.emplace_back(name, goal);
  out.object.layers.push_back(std::move(layer));
  return out;
}

Branch SomeMember(ObjectFacts::Exists exists) {
  Branch out = OfType(kTypeObject);
  out.object.exists.push_back(std::move(exists));
  return out;
}

}  // namespace

Branches SchemaExpander::ExpandNegative(SchemaId id) {
  const JsonValue& s = *document_.schema(id).value;
  if (s.is(Type::kBool)) return s.boolean ? Branches{} : Branches(1);
  if (!s.is(Type::kObject)) {
    Fail(CompileCode::kBadSchema, "a schema must be an object or a boolean", document_.schema(id).pointer);
    return {};
  }
  CheckKeywords(id, s);
  Branches out;
  std::string keyword;
  const auto target = ReferenceTarget(id, s, keyword);
  if (!ok()) return {};
  if (target) {
    out = ExpandLiteral({*target, true}, false);
    if (document_.draft() <= Draft::k7 && keyword == "$ref") return out;
  }
  if (const auto mask = TypeMask(id, s); mask && *mask != kTypeAll) out.push_back(OfType(kTypeAll & ~*mask));
  std::vector<const JsonValue*> values;
  if (const JsonValue* list = Member(id, s, "enum", Type::kArray, "a list of values")) {
    for (const JsonValue& v : list->items) values.push_back(&v);
    for (Branch& branch : NegatedValueBranches(values)) out.push_back(std::move(branch));
  }
  if (const JsonValue* value = s.Find("const")) {
    for (Branch& branch : NegatedValueBranches({value})) out.push_back(std::move(branch));
  }
  NegateNumbers(id, s, out);
  NegateStrings(id, s, out);
  NegateArrays(id, s, out);
  NegateObjects(id, s, out);
  NegateDependents(id, s, out);
  NegateCombiners(id, s, out);
  for (const char* name : {"unevaluatedItems", "unevaluatedProperties"}) {
    const JsonValue* v = s.Find(name);
    if (v == nullptr || (v->is(Type::kBool) && v->boolean)) continue;
    Fail(CompileCode::kUnsupportedKeyword, fmt::format("\"{}\" inside a negated schema is not supported", name),
         document_.schema(id).pointer, name);
  }
  return ok() ? out : Branches{};
}

Branches SchemaExpander::NegatedValueBranches(const std::vector<const JsonValue*>& values) {
  std::uint32_t rest = kTypeAll & ~static_cast<std::uint32_t>(kTypeNumber);
  std::vector<Regex> strings;
  std::vector<Decimal> numbers;
  Branches composites(1);
  for (const JsonValue* v : values) {
    Branches not_this;
    switch (v->type) {
      case Type::kNull:
        rest &= ~static_cast<std::uint32_t>(kTypeNull);
        break;
      case Type::kBool:
        rest &= ~static_cast<std::uint32_t>(v->boolean ? kTypeTrue : kTypeFalse);
        break;
      case Type::kString:
        strings.push_back(Regex::Literal(v->text));
        break;
      case Type::kNumber:
        if (auto number = ParseDecimal(v->text)) numbers.push_back(std::move(*number));
        break;
      case Type::kArray: {
        const auto n = static_cast<std::uint32_t>(v->items.size());
        not_this.push_back(OfType(kTypeAll & ~static_cast<std::uint32_t>(kTypeArray)));
        if (n > 0) not_this.push_back(Length(kTypeArray, 0, n - 1));
        not_this.push_back(Length(kTypeArray, n + 1, kUnbounded));
        for (std::size_t i = 0; i < n; ++i) not_this.push_back(ElementAt(i, Negated(ConstGoal(v->items[i]), "")));
        composites = Product(composites, not_this);
        break;
      }
      case Type::kObject: {
        ObjectFacts::Exists other;
        not_this.push_back(OfType(kTypeAll & ~static_cast<std::uint32_t>(kTypeObject)));
        for (const auto& [name, value] : v->members) {
          Branch absent = AbsentMember(name);
          absent.types = kTypeObject;
          not_this.push_back(std::move(absent));
          not_this.push_back(MemberIs(name, Negated(ConstGoal(value), "")));
          other.not_names.push_back(name);
        }
        other.keyword = "const";
        not_this.push_back(SomeMember(std::move(other)));
        composites = Product(composites, not_this);
        break;
      }
    }
  }
  Branches out;
  Branch others = OfType(rest);
  if (!strings.empty()) {
    auto dfa = CharDfa::Create({Regex::Alternate(std::move(strings))}, CharDfa::Mode::kFull, options_.limits);
    if (!dfa) {
      Fail(dfa.error().code, dfa.error().message, "");
      return {};
    }
    others.string.patterns.push_back({std::move(*dfa), true});
  }
  out.push_back(std::move(others));
  std::sort(numbers.begin(), numbers.end(), [](const Decimal& a, const Decimal& b) { return Compare(a, b) < 0; });
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  for (std::size_t i = 0; i <= numbers.size(); ++i) {  // the gaps between the values
    Branch gap = OfType(kTypeNumber);
    if (i > 0) gap.number.low = NumberSpec::Bound{numbers[i - 1], true};
    if (i < numbers.size()) gap.number.high = NumberSpec::Bound{numbers[i], true};
    out.push_back(std::move(gap));
  }
  return Product(out, composites);
}

void SchemaExpander::NegateNumbers(SchemaId id, const JsonValue& s, Branches& out) {
  if (const auto low = BoundOf(id, s, true)) out.push_back(NumberBelow(low->value, low->exclusive));
  if (const auto high = BoundOf(id, s, false)) out.push_back(NumberAbove(high->value, high->exclusive));
  if (const auto unit = Number(id, s, "multipleOf")) {
    Branch branch = OfType(kTypeNumber);
    branch.number.not_multiples.push_back(*unit);
    out.push_back(std::move(branch));
  }
}

void SchemaExpander::NegateStrings(SchemaId id, const JsonValue& s, Branches& out) {
  const auto matching = [&](std::shared_ptr<CharDfa> dfa, bool negated) {
    Branch branch = OfType(kTypeString);
    branch.string.patterns.push_back({std::move(dfa), negated});
    out.push_back(std::move(branch));
  };
  if (const auto min = Count(id, s, "minLength"); min && *min > 0) out.push_back(Length(kTypeString, 0, *min - 1));
  if (const auto max = Count(id, s, "maxLength")) out.push_back(Length(kTypeString, *max + 1, kUnbounded));
  if (const JsonValue* pattern = Member(id, s, "pattern", Type::kString, "a string")) {
    if (auto dfa = Pattern(pattern->text, document_.schema(id).pointer, "pattern")) matching(std::move(dfa), true);
  }
  std::uint32_t length_max = kUnbounded;
  for (const StringFacts::Pattern& part : FormatParts(id, s, length_max)) {
    if (part.dfa != nullptr) matching(part.dfa, !part.negated);
  }
  if (length_max != kUnbounded) out.push_back(Length(kTypeString, length_max + 1, kUnbounded));
}

void SchemaExpander::NegateArrays(SchemaId id, const JsonValue& s, Branches& out) {
  const std::string pointer = document_.schema(id).pointer;
  bool any = false;
  const ArrayFacts::Layer layer = ItemLayer(id, s, any);
  for (std::size_t i = 0; i < layer.prefix.size(); ++i) {
    if (layer.prefix[i] != kAnything) out.push_back(ElementAt(i, Negated(layer.prefix[i], pointer)));
  }
  if (layer.rest != kAnything) {
    Branch branch = OfType(kTypeArray);
    branch.array.contains.push_back(
        {Negated(layer.rest, pointer), 1, kUnbounded, static_cast<std::uint32_t>(layer.prefix.size())});
    branch.array.min = static_cast<std::uint32_t>(layer.prefix.size()) + 1;
    out.push_back(std::move(branch));
  }
  if (const auto min = Count(id, s, "minItems"); min && *min > 0) out.push_back(Length(kTypeArray, 0, *min - 1));
  if (const auto max = Count(id, s, "maxItems")) out.push_back(Length(kTypeArray, *max + 1, kUnbounded));
  const JsonValue* unique = Member(id, s, "uniqueItems", Type::kBool, "a boolean");
  if (unique != nullptr && unique->boolean) {
    Fail(CompileCode::kUnsupportedKeyword, "\"uniqueItems\" inside a negated schema is not supported", pointer,
         "uniqueItems");
  }
  if (const JsonValue* contains = s.Find("contains")) {
    const GoalId goal = ChildGoal(id, *contains, "/contains");
    const std::uint32_t min = Count(id, s, "minContains").value_or(1);
    const std::uint32_t max = Count(id, s, "maxContains").value_or(kUnbounded);
    Branch few = OfType(kTypeArray), many = OfType(kTypeArray);
    few.array.contains.push_back({goal, 0, min == 0 ? 0 : min - 1, 0});
    many.array.contains.push_back({goal, max == kUnbounded ? max : max + 1, kUnbounded, 0});
    if (min > 0) out.push_back(std::move(few));
    if (max != kUnbounded) out.push_back(std::move(many));
  }
}

void SchemaExpander::NegateObjects(SchemaId id, const JsonValue& s, Branches& out) {
  const std::string pointer = document_.schema(id).pointer;
  bool any = false;
  const ObjectFacts::Layer layer = MemberLayer(id, s, any);
  ObjectFacts::Exists rest;
  for (const auto& [name, goal] : layer.names) {
    if (goal != kAnything) out.push_back(MemberIs(name, Negated(goal, pointer)));
    rest.not_names.push_back(name);
  }
  for (const auto& [pattern, goal] : layer.patterns) {
    rest.not_patterns.push_back(pattern);
    if (goal == kAnything) continue;
    ObjectFacts::Exists one;
    one.match = pattern;
    one.goal = Negated(goal, pointer);
    one.pointer = pointer;
    one.keyword = "patternProperties";
    out.push_back(SomeMember(std::move(one)));
  }
  if (layer.rest != kAnything) {
    rest.goal = Negated(layer.rest, pointer);
    rest.pointer = pointer;
    rest.keyword = "additionalProperties";
    out.push_back(SomeMember(std::move(rest)));
  }
  if (const JsonValue* required = s.Find("required"); required != nullptr && required->is(Type::kArray)) {
    const auto names = Strings(id, *required, "required", "");
    for (const std::string& name : names.value_or(std::vector<std::string>{})) {
      Branch absent = AbsentMember(name);
      absent.types = kTypeObject;
      out.push_back(std::move(absent));
    }
  }
  if (const auto min = Count(id, s, "minProperties"); min && *min > 0) out.push_back(Length(kTypeObject, 0, *min - 1));
  if (const auto max = Count(id, s, "maxProperties")) out.push_back(Length(kTypeObject, *max + 1, kUnbounded));
  if (const JsonValue* names = s.Find("propertyNames")) {
    if (ChildGoal(id, *names, "/propertyNames") != kAnything) {
      Fail(CompileCode::kUnsupportedKeyword, "\"propertyNames\" inside a negated schema is not supported", pointer,
           "propertyNames");
    }
  }
}

void SchemaExpander::NegateDependents(SchemaId id, const JsonValue& s, Branches& out) {
  for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const JsonValue* table = Member(id, s, keyword, Type::kObject, "an object");
    if (table == nullptr) continue;
    for (const auto& [name, rule] : table->members) {
      const std::string path = Path(keyword, name);
      const Branches present = One(PresentMember(name));
      Branches fails;
      if (rule.is(Type::kArray)) {
        const auto names = Strings(id, rule, keyword, path);
        for (const std::string& other : names.value_or(std::vector<std::string>{})) {
          fails.push_back(AbsentMember(other));
        }
      } else {
        fails = ExpandLiteral({document_.Child(id, rule, path), true}, false);
      }
      for (Branch& branch : Product(present, fails)) out.push_back(std::move(branch));
    }
  }
}

void SchemaExpander::NegateCombiners(SchemaId id, const JsonValue& s, Branches& out) {
  const auto add = [&](Branches branches) {
    for (Branch& branch : branches) out.push_back(std::move(branch));
  };
  const auto child = [&](const JsonValue& list, const char* keyword, std::size_t i, bool negated) {
    return ExpandLiteral({document_.Child(id, list.items[i], Path(keyword, i)), negated}, false);
  };
  if (const JsonValue* list = Member(id, s, "allOf", Type::kArray, "a list of schemas")) {
    for (std::size_t i = 0; i < list->items.size() && ok(); ++i) add(child(*list, "allOf", i, true));
  }
  for (const char* keyword : {"anyOf", "oneOf"}) {
    const JsonValue* list = Member(id, s, keyword, Type::kArray, "a list of schemas");
    if (list == nullptr) continue;
    Branches none(1);
    for (std::size_t i = 0; i < list->items.size() && ok(); ++i) none = Product(none, child(*list, keyword, i, true));
    add(std::move(none));
    if (std::string_view(keyword) == "anyOf") continue;
    for (std::size_t i = 0; i < list->items.size() && ok(); ++i) {
      for (std::size_t j = i + 1; j < list->items.size() && ok(); ++j) {
        add(Product(child(*list, keyword, i, false), child(*list, keyword, j, false)));
      }
    }
  }
  if (const JsonValue* inner = s.Find("not")) {
    add(ExpandLiteral({document_.Child(id, *inner, "/not"), false}, false));
  }
  const JsonValue* then_schema = s.Find("then");
  const JsonValue* else_schema = s.Find("else");
  if (const JsonValue* condition = s.Find("if"); condition != nullptr && (then_schema || else_schema)) {
    const SchemaId test = document_.Child(id, *condition, "/if");
    if (then_schema) {
      const SchemaId then_id = document_.Child(id, *then_schema, "/then");
      add(Product(ExpandLiteral({test, false}, false), ExpandLiteral({then_id, true}, false)));
    }
    if (else_schema) {
      const SchemaId else_id = document_.Child(id, *else_schema, "/else");
      add(Product(ExpandLiteral({test, true}, false), ExpandLiteral({else_id, true}, false)));
    }
  }
}

}  // namespace galley::grammar
