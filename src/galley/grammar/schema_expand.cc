// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/schema_expand.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "galley/grammar/formats.h"

namespace galley::grammar {
namespace {

using Type = JsonValue::Type;

constexpr int kInPlaceDepthMax = 200;
constexpr int kDisjointDepth = 4;

// What each known keyword is to the expander. Keywords that are neither here nor start with "x-" are refused.
enum class Role { kEnforced, kAnnotation, kRefused };
struct KeywordRow {
  std::string_view name;
  Role role;
};
constexpr std::array kKeywords = {
    KeywordRow{"type", Role::kEnforced},
    KeywordRow{"enum", Role::kEnforced},
    KeywordRow{"const", Role::kEnforced},
    KeywordRow{"minimum", Role::kEnforced},
    KeywordRow{"maximum", Role::kEnforced},
    KeywordRow{"exclusiveMinimum", Role::kEnforced},
    KeywordRow{"exclusiveMaximum", Role::kEnforced},
    KeywordRow{"multipleOf", Role::kEnforced},
    KeywordRow{"minLength", Role::kEnforced},
    KeywordRow{"maxLength", Role::kEnforced},
    KeywordRow{"pattern", Role::kEnforced},
    KeywordRow{"format", Role::kEnforced},
    KeywordRow{"prefixItems", Role::kEnforced},
    KeywordRow{"items", Role::kEnforced},
    KeywordRow{"additionalItems", Role::kEnforced},
    KeywordRow{"contains", Role::kEnforced},
    KeywordRow{"minContains", Role::kEnforced},
    KeywordRow{"maxContains", Role::kEnforced},
    KeywordRow{"minItems", Role::kEnforced},
    KeywordRow{"maxItems", Role::kEnforced},
    KeywordRow{"uniqueItems", Role::kEnforced},
    KeywordRow{"properties", Role::kEnforced},
    KeywordRow{"patternProperties", Role::kEnforced},
    KeywordRow{"additionalProperties", Role::kEnforced},
    KeywordRow{"propertyNames", Role::kEnforced},
    KeywordRow{"required", Role::kEnforced},
    KeywordRow{"minProperties", Role::kEnforced},
    KeywordRow{"maxProperties", Role::kEnforced},
    KeywordRow{"dependentRequired", Role::kEnforced},
    KeywordRow{"dependentSchemas", Role::kEnforced},
    KeywordRow{"dependencies", Role::kEnforced},
    KeywordRow{"allOf", Role::kEnforced},
    KeywordRow{"anyOf", Role::kEnforced},
    KeywordRow{"oneOf", Role::kEnforced},
    KeywordRow{"not", Role::kEnforced},
    KeywordRow{"if", Role::kEnforced},
    KeywordRow{"then", Role::kEnforced},
    KeywordRow{"else", Role::kEnforced},
    KeywordRow{"unevaluatedItems", Role::kEnforced},
    KeywordRow{"unevaluatedProperties", Role::kEnforced},
    KeywordRow{"$ref", Role::kEnforced},
    KeywordRow{"$dynamicRef", Role::kEnforced},
    KeywordRow{"$schema", Role::kAnnotation},
    KeywordRow{"$id", Role::kAnnotation},
    KeywordRow{"id", Role::kAnnotation},
    KeywordRow{"$anchor", Role::kAnnotation},
    KeywordRow{"$dynamicAnchor", Role::kAnnotation},
    KeywordRow{"$recursiveAnchor", Role::kAnnotation},
    KeywordRow{"$defs", Role::kAnnotation},
    KeywordRow{"definitions", Role::kAnnotation},
    KeywordRow{"$comment", Role::kAnnotation},
    KeywordRow{"title", Role::kAnnotation},
    KeywordRow{"description", Role::kAnnotation},
    KeywordRow{"default", Role::kAnnotation},
    KeywordRow{"examples", Role::kAnnotation},
    KeywordRow{"example", Role::kAnnotation},
    KeywordRow{"deprecated", Role::kAnnotation},
    KeywordRow{"readOnly", Role::kAnnotation},
    KeywordRow{"writeOnly", Role::kAnnotation},
    KeywordRow{"contentEncoding", Role::kAnnotation},
    KeywordRow{"contentMediaType", Role::kAnnotation},
    KeywordRow{"contentSchema", Role::kAnnotation},
    KeywordRow{"discriminator", Role::kAnnotation},
    KeywordRow{"externalDocs", Role::kAnnotation},
    KeywordRow{"markdownDescription", Role::kAnnotation},
    KeywordRow{"enumDescriptions", Role::kAnnotation},
    KeywordRow{"$vocabulary", Role::kRefused},
    KeywordRow{"$recursiveRef", Role::kRefused},
};

std::string Path(std::string_view keyword) {
  return "/" + std::string(keyword);
}

std::string Path(std::string_view keyword, std::size_t index) {
  return fmt::format("/{}/{}", keyword, index);
}

std::string Path(std::string_view keyword, std::string_view name) {
  return fmt::format("/{}/{}", keyword, PointerToken(name));
}

}  // namespace

SchemaExpander::SchemaExpander(const JsonValue& root, const CompileOptions& options)
    : options_(options), document_(root) {
  goals_.push_back({});  // kAnything
  goals_.push_back({});  // kNothing, never looked up by its literals
  goal_ids_.emplace(std::vector<Literal>{}, kAnything);
  expanded_[kAnything] = std::make_unique<Branches>(1);
  expanded_[kNothing] = std::make_unique<Branches>();
}

void SchemaExpander::Fail(CompileCode code, std::string message, std::string pointer, std::string keyword,
                          std::optional<std::uint64_t> position) {
  if (ok()) error_ = CompileError{code, std::move(message), std::move(pointer), std::move(keyword), position};
}

bool SchemaExpander::Spend(std::uint64_t steps) {
  steps_ += steps;
  if (steps_ > options_.limits.steps_max) {
    Fail(CompileCode::kTooComplex,
         fmt::format("schema needs more than the {} steps allowed to compile it", options_.limits.steps_max), "");
  }
  return ok();
}

GoalId SchemaExpander::Goal(std::vector<Literal> literals) {
  std::vector<Literal> kept;
  for (const Literal& literal : literals) {
    const SubSchema& schema = document_.schema(literal.schema);
    if (schema.any_of.empty()) {
      const JsonValue& v = *schema.value;
      const bool trivial = v.is(Type::kBool) || (v.is(Type::kObject) && v.members.empty());
      if (trivial) {
        if ((v.is(Type::kObject) || v.boolean) == literal.negated) return kNothing;
        continue;
      }
    }
    if (std::find(kept.begin(), kept.end(), literal) == kept.end()) kept.push_back(literal);
  }
  const auto [it, fresh] = goal_ids_.try_emplace(std::move(kept), static_cast<GoalId>(goals_.size()));
  if (fresh) {
    goals_.push_back(it->first);
    if (goals_.size() > options_.limits.goals_max) {
      Fail(CompileCode::kTooComplex,
           fmt::format("schema has more than {} combinations of subschemas", options_.limits.goals_max), "");
    }
  }
  return it->second;
}

GoalId SchemaExpander::Both(GoalId a, GoalId b) {
  if (a == kNothing || b == kNothing) return kNothing;
  if (a == kAnything || a == b) return b;
  if (b == kAnything) return a;
  std::vector<Literal> all = goals_[a];
  all.insert(all.end(), goals_[b].begin(), goals_[b].end());
  return Goal(std::move(all));
}

GoalId SchemaExpander::Negated(GoalId goal, const std::string& pointer) {
  if (goal == kAnything) return kNothing;
  if (goal == kNothing) return kAnything;
  std::vector<Literal> any;
  for (const Literal& literal : goals_[goal]) any.push_back({literal.schema, !literal.negated});
  if (any.size() == 1) return Goal(std::move(any));
  return Goal({{document_.AnyOf(std::move(any), pointer), false}});
}

std::string SchemaExpander::PointerOf(GoalId goal) const {
  return goals_[goal].empty() ? "" : document_.schema(goals_[goal][0].schema).pointer;
}

GoalId SchemaExpander::ConstGoal(const JsonValue& value) {
  JsonValue schema;
  schema.type = Type::kObject;
  schema.members.emplace_back("const", value);
  return Goal({{document_.Synthetic(std::move(schema), ""), false}});
}

GoalId SchemaExpander::ChildGoal(SchemaId parent, const JsonValue& value, std::string_view path, bool negated) {
  if (!value.is(Type::kObject) && !value.is(Type::kBool)) {
    const std::string pointer = document_.schema(parent).pointer + std::string(path);
    std::string keyword(path.substr(1));
    keyword = keyword.substr(0, keyword.find('/'));
    Fail(CompileCode::kBadSchema, "a schema must be an object or a boolean", pointer, keyword);
    return kAnything;
  }
  return Goal({{document_.Child(parent, value, path), negated}});
}

const Branches& SchemaExpander::Expand(GoalId goal) {
  std::unique_ptr<Branches>& slot = expanded_[goal];
  if (slot != nullptr) return *slot;
  Branches out(1);
  for (const Literal literal : std::vector<Literal>(goals_[goal])) {
    out = Product(out, ExpandLiteral(literal, false));
    if (!ok() || out.empty()) break;
  }
  if (tainted_) {
    probed_.push_back(std::move(out));
    return probed_.back();
  }
  auto& filled = expanded_[goal];
  filled = std::make_unique<Branches>(std::move(out));
  return *filled;
}

Branches SchemaExpander::Product(const Branches& a, const Branches& b) {
  Branches out;
  if (!Spend(20 * a.size() * b.size() + 1)) return out;
  for (const Branch& x : a) {
    for (const Branch& y : b) {
      Branch both = x;
      both.Conjoin(y);
      if (!both.Settle()) continue;
      out.push_back(std::move(both));
      if (out.size() > options_.limits.branches_max) {
        Fail(CompileCode::kTooComplex,
             fmt::format("a schema has more than {} alternatives after expansion", options_.limits.branches_max), "");
        return {};
      }
    }
  }
  return out;
}

Branches SchemaExpander::ExpandLiteral(const Literal& literal, bool track) {
  if (!ok()) return {};
  const auto cached = literal_cache_.find({literal, track});
  if (cached != literal_cache_.end()) return cached->second;
  const SubSchema schema = document_.schema(literal.schema);
  if (open_.count(literal) > 0 && probing_ > 0) {
    tainted_ = true;
    return Branches(1);
  }
  if (!open_.insert(literal).second) {
    Fail(CompileCode::kUnsatisfiable, "a schema refers to itself without going into a member or element",
         schema.pointer, "$ref");
    return {};
  }
  if (++depth_ > kInPlaceDepthMax) {
    Fail(CompileCode::kTooComplex, fmt::format("more than {} subschemas nest in place", kInPlaceDepthMax),
         schema.pointer);
  }
  Branches out;
  if (!schema.any_of.empty()) {
    if (literal.negated) {
      out = Branches(1);
      for (const Literal& one : schema.any_of) out = Product(out, ExpandLiteral({one.schema, !one.negated}, false));
    } else {
      for (const Literal& one : schema.any_of) {
        for (Branch& branch : ExpandLiteral(one, track)) out.push_back(std::move(branch));
      }
    }
  } else {
    out = literal.negated ? ExpandNegative(literal.schema) : ExpandPositive(literal.schema, track);
  }
  --depth_;
  open_.erase(literal);
  std::erase_if(out, [](Branch& branch) { return !branch.Settle(); });
  Spend(out.size() + 5);
  if (!tainted_) literal_cache_[{literal, track}] = out;
  return out;
}

void SchemaExpander::CheckKeywords(SchemaId id, const JsonValue& schema) {
  if (!checked_.insert(id).second) return;
  const SubSchema& sub = document_.schema(id);
  const bool ref_alone = document_.draft() <= Draft::k7 && schema.Find("$ref") != nullptr;
  if (ref_alone) return;
  for (const auto& [name, value] : schema.members) {
    const auto row = std::find_if(kKeywords.begin(), kKeywords.end(),
                                  [&, &key = name](const KeywordRow& r) { return r.name == key; });
    if (row == kKeywords.end()) {
      if (name.rfind("x-", 0) == 0) continue;
      const std::string message =
          fmt::format("unknown keyword {}; remove it, or ask for lenient reading", JsonQuote(name));
      if (options_.lenient) {
        warnings_.push_back(fmt::format("{}: {}", sub.pointer, message));
        continue;
      }
      Fail(CompileCode::kUnsupportedKeyword, message, sub.pointer, name);
    } else if (row->role == Role::kRefused) {
      Fail(CompileCode::kUnsupportedKeyword, fmt::format("keyword \"{}\" is not supported", name), sub.pointer, name);
    }
  }
}

std::optional<SchemaId> SchemaExpander::ReferenceTarget(SchemaId id, const JsonValue& schema, std::string& keyword) {
  for (const std::string_view name : {"$ref", "$dynamicRef"}) {
    const JsonValue* ref = schema.Find(name);
    if (ref == nullptr) continue;
    keyword = name;
    const std::string pointer = document_.schema(id).pointer;
    if (!ref->is(Type::kString)) {
      Fail(CompileCode::kBadSchema, fmt::format("\"{}\" must be a string", name), pointer, keyword);
      return std::nullopt;
    }
    const auto target = name == "$ref" ? document_.Resolve(id, ref->text) : document_.ResolveDynamic(id, ref->text);
    if (!target) {
      Fail(CompileCode::kBadSchema,
           fmt::format("\"{}\" {} leads to no schema in this document; embed the schema that it names", name,
                       JsonQuote(ref->text)),
           pointer, keyword);
    }
    return target;
  }
  return std::nullopt;
}

Branches SchemaExpander::ExpandPositive(SchemaId id, bool track) {
  const JsonValue& s = *document_.schema(id).value;
  if (s.is(Type::kBool)) return s.boolean ? Branches(1) : Branches{};
  if (!s.is(Type::kObject)) {
    Fail(CompileCode::kBadSchema, "a schema must be an object or a boolean", document_.schema(id).pointer);
    return {};
  }
  CheckKeywords(id, s);
  Branches out(1);
  std::string keyword;
  const auto target = ReferenceTarget(id, s, keyword);
  if (!ok()) return {};
  const bool unevaluated = s.Find("unevaluatedItems") != nullptr || s.Find("unevaluatedProperties") != nullptr;
  const bool inner = track || unevaluated;
  if (target) {
    if (document_.draft() <= Draft::k7 && keyword == "$ref") return ExpandLiteral({*target, false}, track);
  }
  ApplyType(id, s, out);
  ApplyNumbers(id, s, out);
  ApplyStrings(id, s, out);
  ApplyArrays(id, s, out, inner);
  ApplyObjects(id, s, out, inner);
  if (target && ok()) out = Product(out, ExpandLiteral({*target, false}, inner));
  ApplyCombiners(id, s, out, inner);
  if (unevaluated) ApplyUnevaluated(id, s, out);
  if (!track) {
    for (Branch& branch : out) branch.evaluated = {};
  }
  return ok() ? out : Branches{};
}

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
  for (const JsonValue& item : v.items) {
    good = good && item.is(Type::kString);
    if (std::find(out.begin(), out.end(), item.text) == out.end()) out.push_back(item.text);
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
        if (std::find(strings.begin(), strings.end(), v->text) == strings.end()) strings.push_back(v->text);
        break;
      case Type::kNumber:
        if (const auto number = ParseDecimal(v->text)) {
          scalars.types |= number->is_integer() ? kTypeInteger : kTypeFraction;
          if (std::find(numbers.begin(), numbers.end(), *number) == numbers.end()) numbers.push_back(*number);
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

void SchemaExpander::ApplyCombiners(SchemaId id, const JsonValue& s, Branches& out, bool track) {
  if (!ok()) return;
  const std::string pointer = document_.schema(id).pointer;
  for (const std::string_view keyword : {"allOf", "anyOf", "oneOf"}) {
    const JsonValue* list = Member(id, s, keyword, Type::kArray, "a list of schemas");
    if (list == nullptr) continue;
    if (list->items.empty()) {
      Fail(CompileCode::kBadSchema, fmt::format("\"{}\" must not be empty", keyword), pointer, std::string(keyword));
      return;
    }
    if (keyword == "allOf") {
      for (std::size_t i = 0; i < list->items.size() && ok(); ++i) {
        out = Product(out, ExpandLiteral({document_.Child(id, list->items[i], Path("allOf", i)), false}, track));
      }
    } else {
      out = Product(out, keyword == "anyOf" ? AnyOf(id, *list, track) : OneOf(id, *list, track));
    }
  }
  if (const JsonValue* inner = s.Find("not")) {
    out = Product(out, ExpandLiteral({document_.Child(id, *inner, "/not"), true}, false));
  }
  const JsonValue* then_schema = s.Find("then");
  const JsonValue* else_schema = s.Find("else");
  if (const JsonValue* condition = s.Find("if"); condition != nullptr && (then_schema || else_schema || track)) {
    const SchemaId test = document_.Child(id, *condition, "/if");
    Branches yes = ExpandLiteral({test, false}, track);
    Branches no = ExpandLiteral({test, true}, false);
    if (then_schema) yes = Product(yes, ExpandLiteral({document_.Child(id, *then_schema, "/then"), false}, track));
    if (else_schema) no = Product(no, ExpandLiteral({document_.Child(id, *else_schema, "/else"), false}, track));
    yes.insert(yes.end(), no.begin(), no.end());
    out = Product(out, yes);
  }
  for (const std::string_view keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const JsonValue* table = Member(id, s, keyword, Type::kObject, "an object");
    if (table == nullptr) continue;
    for (const auto& [name, rule] : table->members) {
      if (!ok()) return;
      const std::string path = Path(keyword, name);
      Branches options = One(AbsentMember(name));
      if (rule.is(Type::kArray)) {
        Branch both = PresentMember(name);
        if (auto names = Strings(id, rule, keyword, path)) {
          Branch needs;
          needs.object.required = std::move(*names);
          both.Conjoin(needs);
        }
        options.push_back(std::move(both));
      } else {
        const Branches then = ExpandLiteral({document_.Child(id, rule, path), false}, track);
        for (Branch& branch : Product(One(PresentMember(name)), then)) options.push_back(std::move(branch));
      }
      // Not being an object satisfies it too: the first option leaves other types alone.
      out = Product(out, options);
    }
  }
}

Branches SchemaExpander::AnyOf(SchemaId id, const JsonValue& list, bool track) {
  std::vector<Branches> options;
  for (std::size_t i = 0; i < list.items.size() && ok(); ++i) {
    options.push_back(ExpandLiteral({document_.Child(id, list.items[i], Path("anyOf", i)), false}, track));
  }
  if (!ok()) return {};
  Branches out;
  if (!track) {
    for (Branches& option : options) out.insert(out.end(), option.begin(), option.end());
    return out;
  }
  // Every set of options that hold together evaluates more, so each gets its branch.
  if (options.size() > 6) {
    Fail(CompileCode::kTooComplex, "\"anyOf\" with more than 6 options beside an unevaluated* keyword",
         document_.schema(id).pointer, "anyOf");
    return {};
  }
  for (std::size_t set = 1; set < (std::size_t{1} << options.size()); ++set) {
    Branches both(1);
    for (std::size_t i = 0; i < options.size(); ++i) {
      if ((set >> i & 1) != 0) both = Product(both, options[i]);
    }
    out.insert(out.end(), both.begin(), both.end());
  }
  return out;
}

Branches SchemaExpander::OneOf(SchemaId id, const JsonValue& list, bool track) {
  std::vector<Literal> options;
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    options.push_back({document_.Child(id, list.items[i], Path("oneOf", i)), false});
  }
  Branches out;
  for (std::size_t i = 0; i < options.size() && ok(); ++i) {
    Branches one = ExpandLiteral(options[i], track);
    for (std::size_t j = 0; j < options.size() && ok() && !one.empty(); ++j) {
      if (i == j || Disjoint(options[i], options[j])) continue;
      one = Product(one, ExpandLiteral({options[j].schema, true}, false));
    }
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

bool SchemaExpander::Disjoint(const Literal& a, const Literal& b) {
  return Empty(Product(ExpandLiteral(a, false), ExpandLiteral(b, false)), kDisjointDepth);
}

bool SchemaExpander::Empty(const Branches& branches, int depth) {
  return std::all_of(branches.begin(), branches.end(), [&](const Branch& b) { return Empty(b, depth); });
}

bool SchemaExpander::EmptyGoal(GoalId goal, int depth) {
  if (goal == kNothing) return true;
  const bool before = std::exchange(tainted_, false);
  ++probing_;
  const bool empty = Empty(Expand(goal), depth);
  if (--probing_ == 0) probed_.clear();
  tainted_ = before;
  return empty;
}

// Whether no value can satisfy the branch, as far as a few levels of required members and elements tell.
bool SchemaExpander::Empty(const Branch& branch, int depth) {
  if (branch.types == 0) return true;
  if ((branch.types & ~static_cast<std::uint32_t>(kTypeObject | kTypeArray)) != 0 || depth == 0 || !ok()) return false;
  if ((branch.types & kTypeArray) != 0) {
    bool impossible = false;
    for (std::uint32_t i = 0; i < std::min(branch.array.min, 8u) && !impossible; ++i) {
      GoalId goal = kAnything;
      for (const ArrayFacts::Layer& l : branch.array.layers) {
        goal = Both(goal, i < l.prefix.size() ? l.prefix[i] : l.rest);
      }
      impossible = EmptyGoal(goal, depth - 1);
    }
    if (!impossible) return false;
  }
  if ((branch.types & kTypeObject) != 0) {
    bool impossible = false;
    for (const std::string& name : branch.object.required) {
      GoalId goal = kAnything;
      for (const ObjectFacts::Layer& l : branch.object.layers) {
        bool found = false;
        for (const auto& [key, value] : l.names) {
          if (key != name) continue;
          goal = Both(goal, value);
          found = true;
        }
        for (const auto& [pattern, value] : l.patterns) {
          if (!pattern->Matches(name)) continue;
          goal = Both(goal, value);
          found = true;
        }
        if (!found) goal = Both(goal, l.rest);
      }
      impossible = EmptyGoal(goal, depth - 1);
      if (impossible) break;
    }
    if (!impossible) return false;
  }
  return true;
}

void SchemaExpander::ApplyUnevaluated(SchemaId id, const JsonValue& s, Branches& out) {
  if (!ok() || document_.draft() <= Draft::k7) return;
  const std::string pointer = document_.schema(id).pointer;
  for (Branch& branch : out) {
    if (const JsonValue* rest = s.Find("unevaluatedProperties"); rest && !branch.evaluated.all_members) {
      ObjectFacts::Layer layer;
      for (const std::string& name : branch.evaluated.names) layer.names.emplace_back(name, kAnything);
      for (const auto& pattern : branch.evaluated.patterns) layer.patterns.emplace_back(pattern, kAnything);
      layer.rest = ChildGoal(id, *rest, "/unevaluatedProperties");
      branch.object.layers.push_back(std::move(layer));
      branch.evaluated.all_members = true;
    }
    if (const JsonValue* rest = s.Find("unevaluatedItems"); rest && !branch.evaluated.all_items) {
      ArrayFacts::Layer layer;
      layer.prefix.assign(branch.evaluated.prefix, kAnything);
      layer.rest = ChildGoal(id, *rest, "/unevaluatedItems");
      if (!branch.evaluated.contains.empty() && layer.rest != kAnything) {
        std::vector<Literal> any;
        bool all = false;
        for (const GoalId goal : branch.evaluated.contains) {
          if (goal == kAnything) all = true;
          if (goal != kAnything && goal != kNothing) any.push_back(goals_[goal][0]);
        }
        if (layer.rest != kNothing) any.push_back(goals_[layer.rest][0]);
        layer.rest = all ? kAnything : any.empty() ? kNothing : Goal({{document_.AnyOf(any, pointer), false}});
      }
      branch.array.layers.push_back(std::move(layer));
      branch.evaluated.all_items = true;
    }
  }
  std::erase_if(out, [](Branch& branch) { return !branch.Settle(); });
}

}  // namespace galley::grammar
