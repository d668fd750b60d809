// SPDX-License-Identifier: Apache-2.0
// Keywords that speak about values of one type: each narrows every branch.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_set>

#include "galley/grammar/formats.h"
#include "galley/grammar/host_names.h"
#include "galley/grammar/schema_expand.h"

namespace galley::grammar {
namespace {

using Type = JsonValue::Type;

// Where the pattern of host names stands among the others; it is no regex that a schema could hold.
constexpr const char* kHostNamesKey = "(?host)";

}  // namespace

const JsonValue* SchemaExpander::Member(SchemaId id, const JsonValue& s, std::string_view keyword, Type type,
                                        std::string_view what) {
  const JsonValue* v = s.Find(keyword);
  if (v != nullptr && !v->is(type)) {
    Fail(CompileCode::kBadSchema, fmt::format("\"{}\" must be {}", keyword, what), document_.schema(id).pointer,
         std::string(keyword));
    return nullptr;
  }
  return v;
}

std::optional<std::uint32_t> SchemaExpander::Count(SchemaId id, const JsonValue& s, std::string_view keyword) {
  const JsonValue* v = Member(id, s, keyword, Type::kNumber, "a whole number, zero or more");
  if (v == nullptr) return std::nullopt;
  const auto value = ParseDecimal(v->text);
  if (!value || value->negative || !value->is_integer()) {
    Fail(CompileCode::kBadSchema, fmt::format("\"{}\" must be a whole number, zero or more, not {}", keyword, v->text),
         document_.schema(id).pointer, std::string(keyword));
    return std::nullopt;
  }
  if (value->magnitude > 9) return kUnbounded - 1;
  std::uint32_t out = 0;
  for (std::int32_t i = 0; i < value->magnitude; ++i) {
    const auto at = static_cast<std::size_t>(i);
    out = out * 10 + (at < value->digits.size() ? static_cast<std::uint32_t>(value->digits[at] - '0') : 0);
  }
  return out;
}

std::optional<Decimal> SchemaExpander::Number(SchemaId id, const JsonValue& s, std::string_view keyword) {
  const JsonValue* v = Member(id, s, keyword, Type::kNumber, "a number");
  if (v == nullptr) return std::nullopt;
  auto value = ParseDecimal(v->text);
  if (!value) {
    Fail(CompileCode::kTooComplex, fmt::format("\"{}\" has an exponent beyond 100000", keyword),
         document_.schema(id).pointer, std::string(keyword));
  }
  return value;
}

std::optional<std::vector<std::string>> SchemaExpander::Strings(SchemaId id, const JsonValue& v,
                                                                std::string_view keyword, const std::string& path) {
  std::vector<std::string> out;
  bool good = v.is(Type::kArray);
  std::unordered_set<std::string_view> known;
  for (const JsonValue& item : v.items) {
    good = good && item.is(Type::kString);
    if (known.insert(item.text).second) out.push_back(item.text);
  }
  if (good) return out;
  Fail(CompileCode::kBadSchema, fmt::format("\"{}\" must be a list of strings", keyword),
       document_.schema(id).pointer + path, std::string(keyword));
  return std::nullopt;
}

std::optional<std::uint32_t> SchemaExpander::TypeMask(SchemaId id, const JsonValue& s) {
  struct Row {
    std::string_view name;
    std::uint32_t bits;
  };
  static constexpr std::array kRows = {Row{"null", kTypeNull},       Row{"boolean", kTypeFalse | kTypeTrue},
                                       Row{"integer", kTypeInteger}, Row{"number", kTypeNumber},
                                       Row{"string", kTypeString},   Row{"array", kTypeArray},
                                       Row{"object", kTypeObject}};
  const JsonValue* v = s.Find("type");
  if (v == nullptr) return std::nullopt;
  std::vector<const JsonValue*> names;
  if (v->is(Type::kArray)) {
    for (const JsonValue& item : v->items) names.push_back(&item);
  } else {
    names.push_back(v);
  }
  std::uint32_t out = 0;
  for (const JsonValue* name : names) {
    const auto row = std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return r.name == name->text; });
    if (!name->is(Type::kString) || row == kRows.end()) {
      Fail(CompileCode::kBadSchema,
           fmt::format("\"type\" must name null, boolean, integer, number, string, array or object, not {}",
                       JsonText(*name)),
           document_.schema(id).pointer, "type");
      return std::nullopt;
    }
    out |= row->bits;
  }
  return out;
}

Branches SchemaExpander::ValueBranches(const std::vector<const JsonValue*>& values) {
  Branch scalars;
  scalars.types = 0;
  std::vector<std::string> strings;
  std::vector<Decimal> numbers;
  std::unordered_set<std::string_view> known_strings;
  std::unordered_set<std::string> known_numbers;
  Branches out;
  for (const JsonValue* v : values) {
    switch (v->type) {
      case Type::kNull:
        scalars.types |= kTypeNull;
        break;
      case Type::kBool:
        scalars.types |= v->boolean ? kTypeTrue : kTypeFalse;
        break;
      case Type::kString:
        scalars.types |= kTypeString;
        if (known_strings.insert(v->text).second) strings.push_back(v->text);
        break;
      case Type::kNumber:
        if (const auto number = ParseDecimal(v->text)) {
          scalars.types |= number->is_integer() ? kTypeInteger : kTypeFraction;
          if (known_numbers.insert(number->Key()).second) numbers.push_back(*number);
        }
        break;
      case Type::kArray: {
        Branch branch;
        branch.types = kTypeArray;
        ArrayFacts::Layer layer;
        for (const JsonValue& item : v->items) layer.prefix.push_back(ConstGoal(item));
        layer.rest = kNothing;
        branch.array.min = branch.array.max = static_cast<std::uint32_t>(v->items.size());
        branch.array.layers.push_back(std::move(layer));
        out.push_back(std::move(branch));
        break;
      }
      case Type::kObject: {
        Branch branch;
        branch.types = kTypeObject;
        ObjectFacts::Layer layer;
        for (const auto& [name, value] : v->members) {
          layer.names.emplace_back(name, ConstGoal(value));
          branch.object.required.push_back(name);
        }
        layer.rest = kNothing;
        branch.object.layers.push_back(std::move(layer));
        out.push_back(std::move(branch));
        break;
      }
    }
  }
  if (!strings.empty()) scalars.string.values = std::move(strings);
  if (!numbers.empty()) scalars.number.values = std::move(numbers);
  if (scalars.types != 0) out.insert(out.begin(), std::move(scalars));
  return out;
}

void SchemaExpander::ApplyType(SchemaId id, const JsonValue& s, Branches& out) {
  if (const auto mask = TypeMask(id, s)) {
    for (Branch& branch : out) branch.types &= *mask;
  }
  std::vector<const JsonValue*> values;
  if (const JsonValue* list = Member(id, s, "enum", Type::kArray, "a list of values")) {
    for (const JsonValue& v : list->items) values.push_back(&v);
    out = Product(out, ValueBranches(values));
  }
  if (const JsonValue* value = s.Find("const")) out = Product(out, ValueBranches({value}));
}

std::optional<NumberSpec::Bound> SchemaExpander::BoundOf(SchemaId id, const JsonValue& s, bool low) {
  const std::string_view plain = low ? "minimum" : "maximum";
  const std::string_view strict = low ? "exclusiveMinimum" : "exclusiveMaximum";
  std::optional<NumberSpec::Bound> out;
  if (const auto value = Number(id, s, plain)) out = NumberSpec::Bound{*value, false};
  const JsonValue* flag = s.Find(strict);
  if (flag != nullptr && flag->is(Type::kBool)) {  // draft 4: a modifier of the plain bound
    if (flag->boolean && out) out->exclusive = true;
    return out;
  }
  if (const auto value = Number(id, s, strict)) {
    const int order = out ? Compare(*value, out->value) * (low ? 1 : -1) : 1;
    if (order >= 0) out = NumberSpec::Bound{*value, true};
  }
  return out;
}

void SchemaExpander::ApplyNumbers(SchemaId id, const JsonValue& s, Branches& out) {
  Branch facts;
  facts.number.low = BoundOf(id, s, true);
  facts.number.high = BoundOf(id, s, false);
  if (const auto unit = Number(id, s, "multipleOf")) {
    if (unit->is_zero() || unit->negative) {
      Fail(CompileCode::kBadSchema, "\"multipleOf\" must be greater than zero", document_.schema(id).pointer,
           "multipleOf");
    }
    facts.number.multiples.push_back(*unit);
  }
  if (facts.number.low || facts.number.high || !facts.number.multiples.empty()) out = Product(out, One(facts));
}

std::shared_ptr<CharDfa> SchemaExpander::Pattern(const std::string& pattern, const std::string& pointer,
                                                 const std::string& keyword) {
  auto& slot = patterns_[pattern];
  if (slot != nullptr) return slot;
  auto regex = ParseRegex(pattern, options_.limits);
  if (!regex) {
    const CompileCode code =
        regex.error().code == CompileCode::kTooComplex ? CompileCode::kTooComplex : CompileCode::kBadSchema;
    Fail(code, regex.error().message, pointer, keyword, regex.error().position);
    return nullptr;
  }
  std::vector<Regex> one;
  one.push_back(std::move(*regex));
  auto dfa = CharDfa::Create(std::move(one), CharDfa::Mode::kSearch, options_.limits);
  if (!dfa) {
    Fail(dfa.error().code, dfa.error().message, pointer, keyword);
    return nullptr;
  }
  Spend(pattern.size() * 20);
  return slot = std::move(*dfa);
}

std::vector<StringFacts::Pattern> SchemaExpander::FormatParts(SchemaId id, const JsonValue& s,
                                                              std::uint32_t& length_max) {
  std::vector<StringFacts::Pattern> out;
  const JsonValue* format = Member(id, s, "format", Type::kString, "a string");
  if (format == nullptr) return out;
  const std::string pointer = document_.schema(id).pointer;
  const FormatPatterns patterns = FindFormat(format->text);
  if (!patterns.known()) {
    const std::string message =
        fmt::format("unknown format {}; enforced are {}", JsonQuote(format->text), KnownFormats());
    if (options_.lenient) {
      warnings_.push_back(fmt::format("{}: {}", pointer, message));
    } else {
      Fail(CompileCode::kUnsupportedKeyword, message, pointer, "format");
    }
    return out;
  }
  if (patterns.host_name) {
    auto& slot = patterns_[kHostNamesKey];
    if (slot == nullptr) slot = std::make_shared<HostNames>(options_.limits);
    out.push_back({slot, false});
  }
  for (const std::string& text : patterns.must) out.push_back({Pattern(text, pointer, "format"), false});
  for (const std::string& text : patterns.must_not) out.push_back({Pattern(text, pointer, "format"), true});
  if (patterns.length_max > 0) length_max = patterns.length_max;
  return out;
}

// Up to draft 7 a validator may assert content*; base64 is regular, what else they name is refused.
bool SchemaExpander::ApplyContent(SchemaId id, const JsonValue& s, Branch& facts) {
  const std::string pointer = document_.schema(id).pointer;
  const JsonValue* encoding = Member(id, s, "contentEncoding", Type::kString, "a string");
  const JsonValue* media = Member(id, s, "contentMediaType", Type::kString, "a string");
  if (media != nullptr && media->text.find("json") != std::string::npos) {
    Fail(CompileCode::kUnsupportedKeyword, "\"contentMediaType\" of JSON is not enforced", pointer, "contentMediaType");
  }
  if (encoding == nullptr || encoding->text != "base64") return false;
  facts.string.patterns.push_back(
      {Pattern("^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$", pointer, "contentEncoding"), false});
  return true;
}

void SchemaExpander::ApplyStrings(SchemaId id, const JsonValue& s, Branches& out) {
  Branch facts;
  bool any = false;
  if (const auto min = Count(id, s, "minLength")) {
    facts.string.length_min = *min;
    any = true;
  }
  if (const auto max = Count(id, s, "maxLength")) {
    facts.string.length_max = *max;
    any = true;
  }
  if (const JsonValue* pattern = Member(id, s, "pattern", Type::kString, "a string")) {
    facts.string.patterns.push_back({Pattern(pattern->text, document_.schema(id).pointer, "pattern"), false});
    any = true;
  }
  if (document_.draft() <= Draft::k7) any = ApplyContent(id, s, facts) || any;
  std::uint32_t length_max = kUnbounded;
  for (StringFacts::Pattern& part : FormatParts(id, s, length_max)) {
    facts.string.patterns.push_back(std::move(part));
    any = true;
  }
  facts.string.length_max = std::min(facts.string.length_max, length_max);
  if (any && ok()) out = Product(out, One(facts));
}

ArrayFacts::Layer SchemaExpander::ItemLayer(SchemaId id, const JsonValue& s, bool& any) {
  ArrayFacts::Layer layer;
  const JsonValue* prefix = Member(id, s, "prefixItems", Type::kArray, "a list of schemas");
  const JsonValue* items = s.Find("items");
  std::string_view prefix_name = "prefixItems", rest_name = "items";
  if (items != nullptr && items->is(Type::kArray)) {  // the older form, still widely written
    prefix = items;
    prefix_name = "items";
    rest_name = "additionalItems";
    items = s.Find("additionalItems");
  }
  any = prefix != nullptr || items != nullptr;
  if (prefix != nullptr) {
    for (std::size_t i = 0; i < prefix->items.size(); ++i) {
      layer.prefix.push_back(ChildGoal(id, prefix->items[i], Path(prefix_name, i)));
    }
  }
  if (items != nullptr) layer.rest = ChildGoal(id, *items, Path(rest_name));
  return layer;
}

void SchemaExpander::ApplyArrays(SchemaId id, const JsonValue& s, Branches& out, bool track) {
  Branch facts;
  bool any = false;
  ArrayFacts::Layer layer = ItemLayer(id, s, any);
  if (any) {
    if (track) {
      facts.evaluated.prefix = static_cast<std::uint32_t>(layer.prefix.size());
      const JsonValue* items = s.Find("items");
      facts.evaluated.all_items =
          (items != nullptr && !items->is(Type::kArray)) || s.Find("additionalItems") != nullptr;
    }
    facts.array.layers.push_back(std::move(layer));
  }
  if (const auto min = Count(id, s, "minItems")) {
    facts.array.min = *min;
    any = true;
  }
  if (const auto max = Count(id, s, "maxItems")) {
    facts.array.max = *max;
    any = true;
  }
  if (const JsonValue* unique = Member(id, s, "uniqueItems", Type::kBool, "a boolean")) {
    facts.array.unique = unique->boolean;
    facts.array.unique_pointer = document_.schema(id).pointer;
    any = any || unique->boolean;
  }
  if (const JsonValue* contains = s.Find("contains")) {
    ArrayFacts::Contains c;
    c.goal = ChildGoal(id, *contains, "/contains");
    c.min = Count(id, s, "minContains").value_or(1);
    c.max = Count(id, s, "maxContains").value_or(kUnbounded);
    if (track && document_.draft() == Draft::k2020) facts.evaluated.contains.push_back(c.goal);
    if (c.min > 0 || c.max != kUnbounded) facts.array.contains.push_back(c);
    if (c.min > c.max) facts.types &= ~static_cast<std::uint32_t>(kTypeArray);
    any = true;
  }
  if (any && ok()) out = Product(out, One(facts));
}

ObjectFacts::Layer SchemaExpander::MemberLayer(SchemaId id, const JsonValue& s, bool& any) {
  ObjectFacts::Layer layer;
  any = false;
  if (const JsonValue* names = Member(id, s, "properties", Type::kObject, "an object of schemas")) {
    for (const auto& [name, schema] : names->members) {
      layer.names.emplace_back(name, ChildGoal(id, schema, Path("properties", name)));
    }
    layer.declares = true;
    any = true;
  }
  if (const JsonValue* patterns = Member(id, s, "patternProperties", Type::kObject, "an object of schemas")) {
    for (const auto& [pattern, schema] : patterns->members) {
      const std::string path = Path("patternProperties", pattern);
      auto dfa = Pattern(pattern, document_.schema(id).pointer + path, "patternProperties");
      if (dfa == nullptr) return layer;
      layer.patterns.emplace_back(std::move(dfa), ChildGoal(id, schema, path));
    }
    any = true;
  }
  if (const JsonValue* rest = s.Find("additionalProperties")) {
    layer.rest = ChildGoal(id, *rest, "/additionalProperties");
    any = true;
  }
  return layer;
}

void SchemaExpander::ApplyObjects(SchemaId id, const JsonValue& s, Branches& out, bool track) {
  Branch facts;
  bool any = false;
  ObjectFacts::Layer layer = MemberLayer(id, s, any);
  if (any) {
    if (track) {
      for (const auto& [name, goal] : layer.names) facts.evaluated.names.push_back(name);
      for (const auto& [pattern, goal] : layer.patterns) facts.evaluated.patterns.push_back(pattern);
      facts.evaluated.all_members = s.Find("additionalProperties") != nullptr;
    }
    facts.object.layers.push_back(std::move(layer));
  }
  const JsonValue* required = s.Find("required");
  if (required != nullptr && !(required->is(Type::kBool) && document_.draft() == Draft::k4)) {
    if (auto names = Strings(id, *required, "required", "")) {
      facts.object.required = std::move(*names);
      any = true;
    }
  }
  if (const auto min = Count(id, s, "minProperties")) {
    facts.object.min = *min;
    any = true;
  }
  if (const auto max = Count(id, s, "maxProperties")) {
    facts.object.max = *max;
    any = true;
  }
  if (const JsonValue* names = s.Find("propertyNames")) {
    const GoalId goal = ChildGoal(id, *names, "/propertyNames");
    if (goal != kAnything) {
      facts.object.name_goals.push_back(goal);
      facts.object.names_pointer = document_.schema(id).pointer;
      any = true;
    }
  }
  if (any && ok()) out = Product(out, One(facts));
}

}  // namespace galley::grammar
