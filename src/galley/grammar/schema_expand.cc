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

}  // namespace

SchemaExpander::SchemaExpander(const JsonValue& root, const CompileOptions& options)
    : options_(options), meter_(options_.limits.MeterOrNew()), document_(root, meter_) {
  goals_.push_back({});  // kAnything
  goals_.push_back({});  // kNothing, never looked up by its literals
  goal_ids_.emplace(std::vector<Literal>{}, kAnything);
  expanded_[kAnything] = std::make_unique<Branches>(1);
  expanded_[kNothing] = std::make_unique<Branches>();
}

void SchemaExpander::Fail(CompileCode code, std::string message, std::string pointer, std::string keyword,
                          std::optional<std::uint64_t> position) {
  if (!error_) error_ = CompileError{code, std::move(message), std::move(pointer), std::move(keyword), position};
}

void SchemaExpander::FailByLimit() {
  Fail(CompileCode::kTooComplex, options_.limits.Reached(*meter_, "schema"), "");
}

bool SchemaExpander::Spend(std::uint64_t steps) {
  meter_->Step(steps);
  return ok();
}

bool SchemaExpander::Hold(std::uint64_t bytes) {
  meter_->Hold(bytes);
  return ok();
}

std::size_t SchemaExpander::HoldBranches(const Branches& branches) {
  std::size_t bytes = 0;
  for (const Branch& branch : branches) bytes += branch.bytes();
  Hold(bytes);
  return bytes;
}

GoalId SchemaExpander::Goal(const std::vector<Literal>& literals) {
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
           fmt::format("schema has more than {} combinations of subschemas (goals_max)", options_.limits.goals_max),
           "");
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
  return Goal(all);
}

GoalId SchemaExpander::Negated(GoalId goal, const std::string& pointer) {
  if (goal == kAnything) return kNothing;
  if (goal == kNothing) return kAnything;
  std::vector<Literal> any;
  for (const Literal& literal : goals_[goal]) any.push_back({literal.schema, !literal.negated});
  if (any.size() == 1) return Goal(any);
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
  if (!ok()) return kAnything;
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
  HoldBranches(out);
  auto& filled = expanded_[goal];
  filled = std::make_unique<Branches>(std::move(out));
  return *filled;
}

Branches SchemaExpander::Product(const Branches& a, const Branches& b) {
  Branches out;
  if (!Spend(20 * a.size() * b.size() + 1)) return out;
  std::vector<std::size_t> weights;
  for (const Branch& y : b) weights.push_back(y.bytes());
  std::size_t bytes = 0;  // of `out`
  for (const Branch& x : a) {
    const std::size_t weight = x.bytes();
    for (std::size_t i = 0; i < b.size(); ++i) {
      const Branch& y = b[i];
      // What branches hold is copied and compared.
      if (!Spend((weight + weights[i]) / 32)) return {};
      Branch both = x;
      both.Conjoin(y);
      if (!both.Settle()) continue;
      bytes += both.bytes();
      out.push_back(std::move(both));
      if (meter_->bytes() + bytes > meter_->bytes_max()) {
        meter_->Hold(bytes);
        return {};
      }
      if (out.size() > options_.limits.branches_max) {
        Fail(CompileCode::kTooComplex,
             fmt::format("a schema has more than {} alternatives after expansion (branches_max)",
                         options_.limits.branches_max),
             "");
        return {};
      }
    }
  }
  return out;
}

Branches SchemaExpander::ExpandLiteral(const Literal& literal, bool track) {
  if (!ok()) return {};
  const auto cached = literal_cache_.find({literal, track});
  if (cached != literal_cache_.end()) {
    for (const Branch& branch : cached->second) meter_->Step(branch.bytes() / 64);
    return cached->second;
  }
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
  if (!tainted_) {
    HoldBranches(out);
    literal_cache_[{literal, track}] = out;
  }
  return out;
}

void SchemaExpander::CheckKeywords(SchemaId id, const JsonValue& schema) {
  if (!checked_.insert(id).second) return;
  const SubSchema& sub = document_.schema(id);
  const bool ref_alone = document_.draft() <= Draft::k7 && schema.Find("$ref") != nullptr;
  if (ref_alone) return;
  for (const auto& [name, value] : schema.members) {
    // A meta-schema of one's own may leave keywords without a meaning.
    if (name == "$schema" && value.text.find("json-schema.org/") == std::string::npos) {
      const std::string message =
          fmt::format("\"$schema\" {} is not known; leave it out for draft 2020-12", JsonQuote(value.text));
      if (options_.lenient) {
        warnings_.push_back(fmt::format("{}: {}", sub.pointer, message));
      } else {
        Fail(CompileCode::kUnsupportedKeyword, message, sub.pointer, name);
      }
    }
    const auto row = std::find_if(kKeywords.begin(), kKeywords.end(),
                                  [&, &key = name](const KeywordRow& r) { return r.name == key; });
    if (row == kKeywords.end()) {
      if (name.rfind("x-", 0) == 0) continue;
      const std::string message =
          fmt::format("unknown keyword {}; remove it, or begin its name with \"x-\"", JsonQuote(name));
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
