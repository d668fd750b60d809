// SPDX-License-Identifier: Apache-2.0
// Structural tags: the JSON in which users of other engines describe texts with typed parts. The form
// {"type": "structural_tag", "format": F} and the older {"structures", "triggers"} are read. Parts that only work with
// other engines' bookkeeping (token counts, dispatch tables) are refused by name.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "galley/grammar/compile.h"
#include "galley/grammar/ebnf.h"
#include "galley/grammar/schema_emit.h"

namespace galley::grammar {
namespace {

using Type = JsonValue::Type;

class TagEmitter {
 public:
  TagEmitter(Program& program, const std::vector<Marker>& markers, const CompileOptions& options,
             const Vocabulary& vocabulary)
      : program_(program),
        markers_(markers),
        options_(options),
        vocabulary_(vocabulary),
        json_(program, options.whitespace) {
    end_ = program.AddNode({});
  }

  std::optional<CompileError> error;
  [[nodiscard]] NodeId end() const { return end_; }

  // Nodes for a format, leading to `next`. `stops` are strings that free text inside must not hold.
  NodeId Format(const JsonValue& f, const std::string& pointer, const std::vector<std::string>& stops, NodeId next,
                int depth = 0) {
    struct Row {
      std::string_view type;
      NodeId (TagEmitter::*emit)(const JsonValue&, const std::string&, const std::vector<std::string>&, NodeId, int);
    };
    static constexpr std::array kRows = {
        Row{"const_string", &TagEmitter::ConstString},
        Row{"json_schema", &TagEmitter::Schema},
        Row{"regex", &TagEmitter::RegexPart},
        Row{"grammar", &TagEmitter::GrammarPart},
        Row{"any_text", &TagEmitter::AnyText},
        Row{"sequence", &TagEmitter::Sequence},
        Row{"or", &TagEmitter::Or},
        Row{"optional", &TagEmitter::Repeat},
        Row{"plus", &TagEmitter::Repeat},
        Row{"star", &TagEmitter::Repeat},
        Row{"repeat", &TagEmitter::Repeat},
        Row{"tag", &TagEmitter::Tag},
        Row{"triggered_tags", &TagEmitter::Triggered},
        Row{"tags_with_separator", &TagEmitter::Separated},
        Row{"token", &TagEmitter::TokenPart},
    };
    if (error) return end_;
    if (depth > options_.limits.nesting_max) {
      return Fail(pointer, fmt::format("formats nest deeper than {}", options_.limits.nesting_max));
    }
    const JsonValue* type = f.Find("type");
    for (const Row& row : kRows) {
      if (type != nullptr && row.type == type->text) return (this->*row.emit)(f, pointer, stops, next, depth);
    }
    return Fail(pointer + "/type",
                fmt::format("format {} is not supported", type ? JsonQuote(type->text) : "without type"));
  }

  NodeId Legacy(const JsonValue& tag) {
    JsonValue format = Object("triggered_tags");
    JsonValue tags;
    tags.type = Type::kArray;
    for (const JsonValue& structure : tag.Find("structures")->items) {
      JsonValue one = Object("tag"), content = Object("json_schema");
      for (const char* name : {"begin", "end"}) {
        if (const JsonValue* v = structure.Find(name)) one.members.emplace_back(name, *v);
      }
      if (const JsonValue* schema = structure.Find("schema")) content.members.emplace_back("json_schema", *schema);
      one.members.emplace_back("content", std::move(content));
      tags.items.push_back(std::move(one));
    }
    format.members.emplace_back("tags", std::move(tags));
    if (const JsonValue* triggers = tag.Find("triggers")) format.members.emplace_back("triggers", *triggers);
    return Format(format, "", {}, end_);
  }

 private:
  using Stops = std::vector<std::string>;

  static JsonValue Object(const char* type) {
    JsonValue out, name;
    out.type = Type::kObject;
    name.type = Type::kString;
    name.text = type;
    out.members.emplace_back("type", std::move(name));
    return out;
  }

  NodeId Fail(std::string pointer, std::string message, CompileCode code = CompileCode::kBadGrammar) {
    if (!error) error = CompileError{code, "structural tag: " + message, std::move(pointer), "", std::nullopt};
    return end_;
  }
  NodeId FailWith(const std::string& pointer, CompileError inner) {
    inner.pointer = pointer + inner.pointer;
    if (!error) error = std::move(inner);
    return end_;
  }

  const JsonValue* Need(const JsonValue& f, const std::string& pointer, std::string_view name, Type type) {
    const JsonValue* v = f.Find(name);
    if (v != nullptr && v->is(type)) return v;
    Fail(pointer, fmt::format("\"{}\" is missing or of the wrong type", name));
    return nullptr;
  }
  static bool Flag(const JsonValue& f, std::string_view name) {
    const JsonValue* v = f.Find(name);
    return v != nullptr && v->is(Type::kBool) && v->boolean;
  }

  NodeId Split(std::vector<NodeId> outs) {
    if (outs.size() == 1) return outs[0];
    Node node;
    node.kind = Node::Kind::kSplit;
    node.outs = std::move(outs);
    return program_.AddNode(std::move(node));
  }
  NodeId TokenNode(std::uint32_t id, NodeId next) {
    Node node;
    node.kind = Node::Kind::kTokens;
    node.outs = {id};
    node.next = next;
    return program_.AddNode(std::move(node));
  }
  NodeId Raw(TextSpec spec, NodeId next) {
    auto machine = std::make_unique<StringMachine>(std::move(spec), StringMachine::Form::kRaw, options_.limits);
    Node node;
    node.kind = Node::Kind::kLexeme;
    node.machine = program_.AddMachine(std::move(machine));
    node.next = next;
    return program_.AddNode(std::move(node));
  }

  // The first marker inside `text`, and where it starts.
  [[nodiscard]] const Marker* FindMarker(const std::string& text, std::size_t& at) const {
    const Marker* found = nullptr;
    at = text.size();
    for (const Marker& marker : markers_) {
      const std::size_t start = marker.text.empty() ? std::string::npos : text.find(marker.text);
      if (start < at) {
        at = start;
        found = &marker;
      }
    }
    return found;
  }

  // Fixed text in which markers stand for their tokens.
  NodeId Text(const std::string& text, NodeId next) {
    std::size_t at = 0;
    if (const Marker* marker = FindMarker(text, at)) {
      const NodeId then = TokenNode(marker->token, Text(text.substr(at + marker->text.size()), next));
      return at == 0 ? then : json_.Words({text.substr(0, at)}, {}, {}, {then});
    }
    return text.empty() ? next : json_.Words({text}, {}, {}, {next});
  }

  std::shared_ptr<CharDfa> Search(Regex regex, CharDfa::Mode mode) {
    auto dfa = CharDfa::Create({std::move(regex)}, mode, options_.limits);
    if (dfa) return std::move(*dfa);
    FailWith("", std::move(dfa.error()));
    return nullptr;
  }
  static Regex AnyOf(const Stops& texts) {
    std::vector<Regex> out;
    for (const std::string& text : texts) out.push_back(Regex::Literal(text));
    return Regex::Alternate(std::move(out));
  }

  // Text that holds none of `stops`.
  NodeId TextWithout(const Stops& stops, NodeId next) {
    TextSpec spec;
    if (!stops.empty()) {
      auto dfa = Search(AnyOf(stops), CharDfa::Mode::kSearch);
      if (dfa == nullptr) return end_;
      spec.parts.push_back({std::move(dfa), TextSpec::Sense::kMustNot});
    }
    return Raw(std::move(spec), next);
  }

  // Text up to and with the first of `triggers`.
  NodeId TextUpTo(const std::string& trigger, const Stops& triggers, NodeId next) {
    const Regex any = Regex::Repeat(Regex::Set(CodePointSet::All()), 0, kUnbounded);
    const Regex one = Regex::Set(CodePointSet::All());
    TextSpec spec;
    auto ends = Search(Regex::Concat({any, Regex::Literal(trigger)}), CharDfa::Mode::kFull);
    auto early = Search(Regex::Concat({AnyOf(triggers), one}), CharDfa::Mode::kSearch);
    if (ends == nullptr || early == nullptr) return end_;
    spec.parts.push_back({std::move(ends), TextSpec::Sense::kMust});
    spec.parts.push_back({std::move(early), TextSpec::Sense::kMustNot});
    return Raw(std::move(spec), next);
  }

  NodeId ConstString(const JsonValue& f, const std::string& pointer, const Stops&, NodeId next, int) {
    const JsonValue* value = Need(f, pointer, "value", Type::kString);
    return value == nullptr ? end_ : Text(value->text, next);
  }

  NodeId Schema(const JsonValue& f, const std::string& pointer, const Stops&, NodeId next, int) {
    const JsonValue* schema = f.Find("json_schema");
    const JsonValue* style = f.Find("style");
    if (style != nullptr && style->text != "json") {
      return Fail(pointer + "/style",
                  fmt::format("style {} is not supported; use kind dsml for tool calls", JsonQuote(style->text)));
    }
    if (schema == nullptr || (!schema->is(Type::kObject) && !schema->is(Type::kBool))) {
      return Fail(pointer, "\"json_schema\" is missing or no schema");
    }
    SchemaExpander expander(*schema, options_);
    SchemaEmitter emitter(expander, program_, options_);
    const GoalId root = expander.root_goal();
    std::vector<RuleId> rules;
    if (!expander.ok() || !emitter.Run({root}, rules)) return FailWith(pointer + "/json_schema", expander.error());
    if (!emitter.satisfiable(root)) {
      return Fail(pointer + "/json_schema", "no JSON value satisfies the schema", CompileCode::kUnsatisfiable);
    }
    for (const std::string& text : expander.warnings()) program_.AddWarning(pointer + "/json_schema" + text);
    return Call(rules[0], next);
  }

  NodeId Call(RuleId rule, NodeId next) {
    Node node;
    node.kind = Node::Kind::kCall;
    node.arg = rule;
    node.next = next;
    return program_.AddNode(std::move(node));
  }

  NodeId RegexPart(const JsonValue& f, const std::string& pointer, const Stops&, NodeId next, int) {
    const JsonValue* pattern = Need(f, pointer, "pattern", Type::kString);
    if (pattern == nullptr) return end_;
    auto regex = ParseRegex(pattern->text, options_.limits);
    if (!regex) return FailWith(pointer + "/pattern", std::move(regex.error()));
    TextSpec spec;
    auto dfa = Search(std::move(*regex), CharDfa::Mode::kFull);
    if (dfa == nullptr) return end_;
    spec.parts.push_back({std::move(dfa), TextSpec::Sense::kMust});
    return Raw(std::move(spec), next);
  }

  NodeId GrammarPart(const JsonValue& f, const std::string& pointer, const Stops&, NodeId next, int) {
    const JsonValue* text = Need(f, pointer, "grammar", Type::kString);
    if (text == nullptr) return end_;
    auto grammar = ReadEbnf(text->text, markers_, options_.limits);
    if (!grammar) return FailWith(pointer + "/grammar", std::move(grammar.error()));
    auto rule = EmitEbnf(*grammar, program_, vocabulary_);
    if (!rule) return FailWith(pointer + "/grammar", std::move(rule.error()));
    return Call(*rule, next);
  }

  NodeId AnyText(const JsonValue& f, const std::string& pointer, const Stops& stops, NodeId next, int) {
    Stops without = stops;
    for (const char* name : {"max_tokens", "max_chars"}) {
      if (f.Find(name) != nullptr) return Fail(pointer, fmt::format("\"{}\" is not supported", name));
    }
    if (const JsonValue* excludes = f.Find("excludes")) {
      for (const JsonValue& text : excludes->items) without.push_back(text.text);
    }
    return TextWithout(without, next);
  }

  NodeId Sequence(const JsonValue& f, const std::string& pointer, const Stops& stops, NodeId next, int depth) {
    const JsonValue* elements = Need(f, pointer, "elements", Type::kArray);
    if (elements == nullptr) return end_;
    for (std::size_t i = elements->items.size(); i-- > 0;) {
      next = Format(elements->items[i], fmt::format("{}/elements/{}", pointer, i), stops, next, depth + 1);
    }
    return next;
  }

  NodeId Or(const JsonValue& f, const std::string& pointer, const Stops& stops, NodeId next, int depth) {
    const JsonValue* elements = Need(f, pointer, "elements", Type::kArray);
    if (elements == nullptr) return end_;
    if (elements->items.empty()) return Fail(pointer + "/elements", "an \"or\" needs at least one element");
    std::vector<NodeId> outs;
    for (std::size_t i = 0; i < elements->items.size(); ++i) {
      outs.push_back(Format(elements->items[i], fmt::format("{}/elements/{}", pointer, i), stops, next, depth + 1));
    }
    return Split(std::move(outs));
  }

  // optional, star, plus and repeat. The content becomes a rule, so copies cost one node each.
  NodeId Repeat(const JsonValue& f, const std::string& pointer, const Stops& stops, NodeId next, int depth) {
    const JsonValue* content = Need(f, pointer, "content", Type::kObject);
    if (content == nullptr) return end_;
    const std::string& type = f.Find("type")->text;
    std::uint32_t min = type == "plus" ? 1 : 0, max = type == "optional" ? 1 : kUnbounded;
    if (type == "repeat") {
      const auto bound = [&](const char* name, std::uint32_t& out) {
        const JsonValue* v = f.Find(name);
        const auto value = v == nullptr || !v->is(Type::kNumber) ? std::nullopt : ParseDecimal(v->text);
        if (!value) return;
        if (value->negative && std::string_view(name) == "max") return;  // -1: no maximum
        if (value->negative || !value->is_integer() || value->magnitude > 4) {
          Fail(pointer, fmt::format("\"{}\" must be a whole number below 10000", name));
          return;
        }
        out = static_cast<std::uint32_t>(std::stoul(value->ToString()));
      };
      bound("min", min);
      bound("max", max);
      if (min > max) return Fail(pointer, "repeat bounds are reversed");
    }
    if (error) return end_;
    const RuleId rule = program_.AddRule();
    program_.SetRule(rule, Format(*content, pointer + "/content", stops, end_, depth + 1));
    const NodeId leave = next;
    if (max == kUnbounded) {
      const NodeId split = program_.AddNode({});
      const NodeId again = Call(rule, split);
      Node& node = program_.node_mutable(split);
      node.kind = Node::Kind::kSplit;
      node.outs = {again, leave};
      next = split;
    } else {
      for (std::uint32_t i = min; i < max; ++i) next = Split({Call(rule, next), leave});
    }
    for (std::uint32_t i = 0; i < min; ++i) next = Call(rule, next);
    return next;
  }

  // Texts that may end a tag.
  Stops Ends(const JsonValue& tag, const std::string& pointer) {
    Stops out;
    const JsonValue* end = tag.Find("end");
    if (end != nullptr && end->is(Type::kString)) out.push_back(end->text);
    if (end != nullptr && end->is(Type::kArray)) {
      for (const JsonValue& text : end->items) out.push_back(text.text);
    }
    if (out.empty()) Fail(pointer, "a tag needs \"end\", a string or a list of strings");
    return out;
  }

  // A tag without the first `skip` bytes of its beginning.
  NodeId TagFrom(const JsonValue& f, const std::string& pointer, std::size_t skip, NodeId next, int depth) {
    const JsonValue* begin = Need(f, pointer, "begin", Type::kString);
    const JsonValue* content = Need(f, pointer, "content", Type::kObject);
    if (begin == nullptr || content == nullptr) return end_;
    const Stops ends = Ends(f, pointer);
    Stops stops;
    std::vector<NodeId> closes;
    for (const std::string& end : ends) {
      closes.push_back(Text(end, next));
      std::size_t at = 0;
      // Free text cannot hold a control token anyway.
      if (!end.empty() && FindMarker(end, at) == nullptr) stops.push_back(end);
    }
    if (error) return end_;
    const NodeId body = Format(*content, pointer + "/content", stops, Split(std::move(closes)), depth + 1);
    return Text(begin->text.substr(skip), body);
  }

  NodeId Tag(const JsonValue& f, const std::string& pointer, const Stops&, NodeId next, int depth) {
    return TagFrom(f, pointer, 0, next, depth);
  }

  NodeId Triggered(const JsonValue& f, const std::string& pointer, const Stops& stops, NodeId next, int depth) {
    const JsonValue* tags = Need(f, pointer, "tags", Type::kArray);
    const JsonValue* list = Need(f, pointer, "triggers", Type::kArray);
    if (tags == nullptr || list == nullptr) return end_;
    Stops triggers, spelled;
    for (const JsonValue& trigger : list->items) {
      std::size_t at = 0;
      triggers.push_back(trigger.text);
      if (trigger.text.empty()) return Fail(pointer + "/triggers", "a trigger must not be empty");
      if (FindMarker(trigger.text, at) == nullptr) spelled.push_back(trigger.text);
    }
    Stops quiet = spelled;
    quiet.insert(quiet.end(), stops.begin(), stops.end());
    if (const JsonValue* excludes = f.Find("excludes")) {
      for (const JsonValue& text : excludes->items) quiet.push_back(text.text);
    }
    const bool once = Flag(f, "stop_after_first");
    const NodeId loop = program_.AddNode({});  // free text, then perhaps a tag
    const NodeId after = once ? next : loop;
    std::vector<NodeId> outs = {TextWithout(quiet, next)}, firsts;
    std::vector<bool> used(tags->items.size(), false);
    for (const std::string& trigger : triggers) {
      std::vector<NodeId> rests;
      std::size_t at = 0;
      const Marker* marker = FindMarker(trigger, at);
      // Behind free text that ends with the trigger comes the rest of a tag's beginning.
      const std::size_t spoken = marker == nullptr ? trigger.size() : at;
      for (std::size_t i = 0; i < tags->items.size(); ++i) {
        const JsonValue* begin = tags->items[i].Find("begin");
        if (begin == nullptr || begin->text.compare(0, trigger.size(), trigger) != 0) continue;
        const std::string where = fmt::format("{}/tags/{}", pointer, i);
        used[i] = true;
        rests.push_back(TagFrom(tags->items[i], where, spoken, after, depth));
        if (Flag(f, "at_least_one")) firsts.push_back(TagFrom(tags->items[i], where, 0, after, depth));
      }
      if (rests.empty()) return Fail(pointer + "/triggers", "no tag begins with trigger " + JsonQuote(trigger));
      const NodeId rest = Split(std::move(rests));
      if (marker == nullptr) {
        outs.push_back(TextUpTo(trigger, quiet, rest));
      } else {
        outs.push_back(TextWithout(quiet, Text(trigger.substr(0, at), rest)));
      }
    }
    const auto unused = std::find(used.begin(), used.end(), false);
    if (unused != used.end()) {
      return Fail(fmt::format("{}/tags/{}", pointer, unused - used.begin()), "no trigger begins this tag");
    }
    Node& node = program_.node_mutable(loop);
    node.kind = Node::Kind::kSplit;
    node.outs = std::move(outs);
    return firsts.empty() ? loop : Split(std::move(firsts));
  }

  NodeId Separated(const JsonValue& f, const std::string& pointer, const Stops&, NodeId next, int depth) {
    const JsonValue* tags = Need(f, pointer, "tags", Type::kArray);
    const JsonValue* separator = Need(f, pointer, "separator", Type::kString);
    if (tags == nullptr || separator == nullptr) return end_;
    if (tags->items.empty()) return Fail(pointer + "/tags", "at least one tag is needed");
    const NodeId after = program_.AddNode({});
    std::vector<NodeId> outs;
    for (std::size_t i = 0; i < tags->items.size(); ++i) {
      outs.push_back(TagFrom(tags->items[i], fmt::format("{}/tags/{}", pointer, i), 0, after, depth));
    }
    const NodeId some = Split(std::move(outs));
    std::vector<NodeId> behind = {next};
    if (!Flag(f, "stop_after_first")) behind.push_back(Text(separator->text, some));
    Node& node = program_.node_mutable(after);
    node.kind = Node::Kind::kSplit;
    node.outs = std::move(behind);
    return Flag(f, "at_least_one") ? some : Split({some, next});
  }

  NodeId TokenPart(const JsonValue& f, const std::string& pointer, const Stops&, NodeId next, int) {
    const JsonValue* token = f.Find("token");
    std::optional<std::uint32_t> id;
    if (token != nullptr && token->is(Type::kNumber)) {
      const auto value = ParseDecimal(token->text);
      if (value && value->is_integer() && !value->negative && value->magnitude <= 9) {
        id = static_cast<std::uint32_t>(std::stoul(value->ToString()));
      }
    }
    for (const Marker& marker : markers_) {
      if (token != nullptr && token->is(Type::kString) && token->text == marker.text) id = marker.token;
    }
    if (!id || *id >= vocabulary_.size() || !vocabulary_.is_special(*id) || vocabulary_.is_end(*id)) {
      return Fail(pointer + "/token", "\"token\" must name a control token of the model");
    }
    return TokenNode(*id, next);
  }

  Program& program_;
  const std::vector<Marker>& markers_;
  const CompileOptions& options_;
  const Vocabulary& vocabulary_;
  JsonNodes json_;
  NodeId end_ = 0;
};

}  // namespace

Compiled<Grammar> CompileStructuralTag(const JsonValue& tag, const std::vector<Marker>& markers,
                                       const CompileOptions& options, std::shared_ptr<const Vocabulary> vocabulary) {
  auto program = std::make_shared<Program>(options.limits);
  TagEmitter emitter(*program, markers, options, *vocabulary);
  const JsonValue* format = tag.Find("format");
  const JsonValue* structures = tag.Find("structures");
  NodeId start = 0;
  if (format != nullptr && format->is(Type::kObject)) {
    start = emitter.Format(*format, "/format", {}, emitter.end());
  } else if (structures != nullptr && structures->is(Type::kArray)) {
    start = emitter.Legacy(tag);
  } else {
    return Refuse(
        {CompileCode::kBadGrammar, "structural tag: \"format\" is missing or no object", "", "", std::nullopt});
  }
  if (emitter.error) return Refuse(std::move(*emitter.error));
  program->set_root(program->AddRule(start));
  Grammar grammar{std::move(program), std::move(vocabulary)};
  // Parts can contradict each other (a tag whose content cannot avoid its end): better said now than by empty masks.
  if (ParseStates(*grammar.program).start() == ParseStates::kDead) {
    return Refuse({CompileCode::kUnsatisfiable, "structural tag: no text satisfies it", "", "", std::nullopt});
  }
  return grammar;
}

}  // namespace galley::grammar
