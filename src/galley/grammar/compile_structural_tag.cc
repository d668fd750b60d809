// SPDX-License-Identifier: Apache-2.0
// Structural tags: the JSON in which users of other engines describe texts with typed parts. The form
// {"type": "structural_tag", "format": F} and the older {"structures", "triggers"} are read. Text is matched by its
// bytes, so what counts or excludes tokens of text is refused by name, as is every member that is not known.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <span>

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
      std::array<std::string_view, 6> members = {};  // beside "type"
    };
    static constexpr std::array kRows = {
        Row{"const_string", &TagEmitter::ConstString, {"value"}},
        Row{"json_schema",
            &TagEmitter::Schema,
            {"json_schema", "style", "any_order", "max_whitespace_cnt", "excludes"}},
        Row{"regex", &TagEmitter::RegexPart, {"pattern"}},
        Row{"grammar", &TagEmitter::GrammarPart, {"grammar", "syntax"}},
        Row{"any_text", &TagEmitter::AnyText, {"excludes", "max_chars"}},
        Row{"any_tokens", &TagEmitter::AnyTokens, {"exclude_tokens"}},
        Row{"sequence", &TagEmitter::Sequence, {"elements"}},
        Row{"or", &TagEmitter::Or, {"elements"}},
        Row{"optional", &TagEmitter::Repeat, {"content"}},
        Row{"plus", &TagEmitter::Repeat, {"content"}},
        Row{"star", &TagEmitter::Repeat, {"content"}},
        Row{"repeat", &TagEmitter::Repeat, {"content", "min", "max"}},
        Row{"tag", &TagEmitter::Tag, {"begin", "content", "end"}},
        Row{"triggered_tags",
            &TagEmitter::Triggered,
            {"triggers", "tags", "at_least_one", "stop_after_first", "excludes"}},
        Row{"token_triggered_tags",
            &TagEmitter::TokenTriggered,
            {"trigger_tokens", "tags", "at_least_one", "stop_after_first", "exclude_tokens"}},
        Row{"dispatch", &TagEmitter::Dispatch, {"rules", "loop", "excludes"}},
        Row{"token_dispatch", &TagEmitter::TokenDispatch, {"rules", "loop", "exclude_tokens"}},
        Row{"tags_with_separator", &TagEmitter::Separated, {"tags", "separator", "at_least_one", "stop_after_first"}},
        Row{"token", &TagEmitter::TokenPart, {"token"}},
    };
    if (!error && options_.limits.meter->tripped()) {
      return Fail(pointer, options_.limits.Reached(*options_.limits.meter, "it"), CompileCode::kTooComplex);
    }
    if (error) return end_;
    if (depth > options_.limits.nesting_max) {
      return Fail(pointer, fmt::format("formats nest deeper than {} (nesting_max)", options_.limits.nesting_max));
    }
    const JsonValue* type = f.Find("type");
    for (const Row& row : kRows) {
      if (type == nullptr || row.type != type->text) continue;
      if (!Known(f, pointer, row.members)) return end_;
      return (this->*row.emit)(f, pointer, stops, next, depth);
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
  static bool Flag(const JsonValue& f, std::string_view name, bool without = false) {
    const JsonValue* v = f.Find(name);
    return v != nullptr && v->is(Type::kBool) ? v->boolean : without;
  }
  // Whether `f` has no members but these; a null is no member.
  bool Known(const JsonValue& f, const std::string& pointer, std::span<const std::string_view> members) {
    for (const auto& [name, value] : f.members) {
      if (name == "type" || value.is(Type::kNull) || std::ranges::find(members, name) != members.end()) continue;
      const JsonValue* type = f.Find("type");
      Fail(pointer, fmt::format("{} of a {} is not supported", JsonQuote(name), type == nullptr ? "tag" : type->text));
      return false;
    }
    return true;
  }
  // The strings of list `name`; none without it.
  Stops Strings(const JsonValue& f, const std::string& pointer, std::string_view name) {
    Stops out;
    const JsonValue* list = f.Find(name);
    if (list == nullptr || list->is(Type::kNull)) return out;
    for (const JsonValue& text : list->items) {
      if (!text.is(Type::kString) || text.text.empty()) break;
      out.push_back(text.text);
    }
    if (!list->is(Type::kArray) || out.size() != list->items.size()) {
      Fail(fmt::format("{}/{}", pointer, name), "must be a list of strings that are not empty");
    }
    return out;
  }
  // The control tokens of list `name`, ascending; none without it.
  std::vector<std::uint32_t> Tokens(const JsonValue& f, const std::string& pointer, std::string_view name) {
    std::vector<std::uint32_t> out;
    const JsonValue* list = f.Find(name);
    if (list == nullptr || list->is(Type::kNull)) return out;
    if (!list->is(Type::kArray)) Fail(fmt::format("{}/{}", pointer, name), "must be a list of tokens");
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      if (const auto id = TokenOf(&list->items[i], fmt::format("{}/{}/{}", pointer, name, i))) out.push_back(*id);
    }
    std::ranges::sort(out);
    return out;
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
  // Any of `texts`, as a tree: what they begin with is there once.
  static Regex AnyOf(Stops texts) {
    std::sort(texts.begin(), texts.end());  // clang 14 does not take std::ranges::unique of libstdc++ 12
    texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
    return TreeOf(texts, 0);
  }
  static Regex TreeOf(std::span<const std::string> sorted, std::size_t depth) {
    // The beginning that all share, up to whole characters, then one branch for each character behind it.
    std::size_t shared = depth;
    const std::string &first = sorted.front(), &last = sorted.back();
    while (shared < first.size() && shared < last.size() && first[shared] == last[shared]) ++shared;
    while (shared > depth && shared < first.size() && (static_cast<unsigned char>(first[shared]) & 0xC0) == 0x80) {
      --shared;
    }
    if (sorted.size() == 1) return Regex::Literal(std::string_view(first).substr(depth));
    std::vector<Regex> branches;
    std::size_t i = 0;
    for (; i < sorted.size() && sorted[i].size() == shared; ++i) branches.push_back(Regex{});
    while (i < sorted.size()) {
      const std::string head = CharacterAt(sorted[i], shared);
      std::size_t end = i + 1;
      while (end < sorted.size() && CharacterAt(sorted[end], shared) == head) ++end;
      branches.push_back(TreeOf(sorted.subspan(i, end - i), shared));
      i = end;
    }
    Regex rest = Regex::Alternate(std::move(branches));
    if (shared == depth) return rest;
    return Regex::Concat({Regex::Literal(std::string_view(first).substr(depth, shared - depth)), std::move(rest)});
  }
  static std::string CharacterAt(const std::string& text, std::size_t at) {
    std::size_t end = at + 1;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    return text.substr(at, end - at);
  }

  // Text that holds none of `stops`, of at most `chars_max` characters.
  NodeId TextWithout(const Stops& stops, NodeId next, std::uint32_t chars_max = kUnbounded) {
    TextSpec spec;
    spec.length_max = chars_max;
    if (!stops.empty()) {
      auto dfa = Search(AnyOf(stops), CharDfa::Mode::kSearch);
      if (dfa == nullptr) return end_;
      spec.parts.push_back({std::move(dfa), TextSpec::Sense::kMustNot});
    }
    return Open(Raw(std::move(spec), next));
  }

  NodeId Open(NodeId text) {
    program_.node_mutable(text).open = true;
    return text;
  }

  // Text up to and with the first of `triggers`; behind the i-th of `ends` comes rests[i]. No end may be the end of
  // another: a text that ends with both would lead to one of them only.
  NodeId TextUpTo(const Stops& ends, const Stops& triggers, std::vector<NodeId> rests) {
    const Regex one = Regex::Set(CodePointSet::All());
    std::vector<Regex> options;
    for (const std::string& text : ends) {
      Regex end;
      end.kind = Regex::Kind::kAssert;
      end.assertion = Regex::Assertion::kTextEnd;
      options.push_back(Regex::Concat({Regex::Literal(text), std::move(end)}));
    }
    auto ending = CharDfa::Create(std::move(options), CharDfa::Mode::kSearch, options_.limits);
    auto early = Search(Regex::Concat({AnyOf(triggers), one}), CharDfa::Mode::kSearch);
    if (!ending) return FailWith("", std::move(ending.error()));
    if (early == nullptr) return end_;
    TextSpec spec;
    spec.parts.push_back({std::move(*ending), TextSpec::Sense::kMust});
    spec.parts.push_back({std::move(early), TextSpec::Sense::kMustNot});
    const NodeId text = Open(Raw(std::move(spec), rests[0]));
    if (rests.size() > 1) program_.node_mutable(text).outs = std::move(rests);
    return text;
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
    if (!Strings(f, pointer, "excludes").empty()) {
      return Fail(pointer + "/excludes", "\"excludes\" of a json_schema is not supported; say it by a pattern");
    }
    CompileOptions options = options_;
    options.any_order = options.any_order || Flag(f, "any_order");
    if (const JsonValue* most = f.Find("max_whitespace_cnt"); most != nullptr && !most->is(Type::kNull)) {
      const auto count = IntegerOf(most);
      if (!count || *count < 0) return Fail(pointer + "/max_whitespace_cnt", "must be a number from 0 on");
      if (*count < kBlanksMax) options.whitespace = *count == 0 ? Whitespace::kCompact : Whitespace::kDefault;
    }
    SchemaExpander expander(*schema, options);
    SchemaEmitter emitter(expander, program_, options);
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
    if (const JsonValue* syntax = f.Find("syntax"); syntax != nullptr && syntax->text != "ebnf") {
      return Fail(pointer + "/syntax", fmt::format("syntax {} is not supported", JsonQuote(syntax->text)));
    }
    auto grammar = ReadEbnf(text->text, markers_, options_.limits);
    if (!grammar) return FailWith(pointer + "/grammar", std::move(grammar.error()));
    auto rule = EmitEbnf(*grammar, program_, vocabulary_);
    if (!rule) return FailWith(pointer + "/grammar", std::move(rule.error()));
    return Call(*rule, next);
  }

  NodeId AnyText(const JsonValue& f, const std::string& pointer, const Stops& stops, NodeId next, int) {
    Stops without = stops;
    for (std::string& text : Strings(f, pointer, "excludes")) without.push_back(std::move(text));
    const JsonValue* most = f.Find("max_chars");
    if (most == nullptr || most->is(Type::kNull)) return TextWithout(without, next);
    const auto count = IntegerOf(most);
    if (!count || *count < 0 || *count >= kUnbounded) {
      return Fail(pointer + "/max_chars", "must be a number from 0 on");
    }
    return TextWithout(without, next, static_cast<std::uint32_t>(*count));
  }

  // Text and control tokens in any order, except those in `excluded`, the tokens that end what is around it and the end
  // of all text. `leaves` are what may follow.
  NodeId Anything(const Stops& stops, std::vector<std::uint32_t> excluded, std::vector<NodeId> leaves) {
    excluded.insert(excluded.end(), end_tokens_.begin(), end_tokens_.end());
    std::ranges::sort(excluded);
    const NodeId between = program_.AddNode({});
    const NodeId text = TextWithout(stops, between);
    Node any;
    any.kind = Node::Kind::kAnyToken;
    any.outs = std::move(excluded);
    any.next = text;
    leaves.push_back(program_.AddNode(std::move(any)));
    Node& split = program_.node_mutable(between);
    split.kind = Node::Kind::kSplit;
    split.outs = std::move(leaves);
    return text;
  }

  NodeId AnyTokens(const JsonValue& f, const std::string& pointer, const Stops& stops, NodeId next, int) {
    return Anything(stops, Tokens(f, pointer, "exclude_tokens"), {next});
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

  // Where `tag` begins or ends with a token part, its token.
  std::optional<std::uint32_t> EdgeToken(const JsonValue& tag, const std::string& pointer, const char* name) {
    const JsonValue* part = tag.Find(name);
    const JsonValue* type = part == nullptr ? nullptr : part->Find("type");
    if (type == nullptr || type->text != "token") return std::nullopt;
    return TokenOf(part->Find("token"), fmt::format("{}/{}/token", pointer, name));
  }

  // A tag from behind its beginning.
  NodeId TagBody(const JsonValue& f, const std::string& pointer, NodeId next, int depth) {
    static constexpr std::array<std::string_view, 3> kMembers = {"begin", "content", "end"};
    const JsonValue* content = Need(f, pointer, "content", Type::kObject);
    if (content == nullptr || !Known(f, pointer, kMembers)) return end_;
    Stops stops;
    std::vector<NodeId> closes;
    const std::size_t outer = end_tokens_.size();
    if (const auto token = EdgeToken(f, pointer, "end")) {
      closes.push_back(TokenNode(*token, next));
      end_tokens_.push_back(*token);
    } else if (const JsonValue* end = f.Find("end"); end != nullptr && end->is(Type::kString)) {
      AddEnd(end->text, next, stops, closes);
    } else {
      for (const std::string& text : Strings(f, pointer, "end")) AddEnd(text, next, stops, closes);
    }
    if (closes.empty()) Fail(pointer, "a tag needs \"end\", a string, a list of strings or a token");
    if (error) return end_;
    const NodeId body = Format(*content, pointer + "/content", stops, Split(std::move(closes)), depth + 1);
    end_tokens_.resize(outer);
    return body;
  }
  void AddEnd(const std::string& text, NodeId next, Stops& stops, std::vector<NodeId>& closes) {
    closes.push_back(Text(text, next));
    std::size_t at = 0;
    const Marker* marker = FindMarker(text, at);
    // Free text cannot hold a control token anyway.
    if (marker == nullptr && !text.empty()) stops.push_back(text);
    if (marker != nullptr && at == 0) end_tokens_.push_back(marker->token);
  }

  // A tag without the first `skip` bytes of its beginning.
  NodeId TagFrom(const JsonValue& f, const std::string& pointer, std::size_t skip, NodeId next, int depth) {
    if (const auto token = EdgeToken(f, pointer, "begin")) {
      return TokenNode(*token, TagBody(f, pointer, next, depth));
    }
    const JsonValue* begin = Need(f, pointer, "begin", Type::kString);
    if (begin == nullptr) return end_;
    return Text(begin->text.substr(skip), TagBody(f, pointer, next, depth));
  }

  NodeId Tag(const JsonValue& f, const std::string& pointer, const Stops&, NodeId next, int depth) {
    return TagFrom(f, pointer, 0, next, depth);
  }

  // What free text between tags must not hold: what triggers them, what ends it, and what the format excludes.
  Stops Quiet(const JsonValue& f, const std::string& pointer, const Stops& triggers, const Stops& stops) {
    Stops out = Strings(f, pointer, "excludes");
    out.insert(out.end(), stops.begin(), stops.end());
    std::size_t at = 0;
    for (const std::string& trigger : triggers) {
      if (FindMarker(trigger, at) == nullptr) out.push_back(trigger);
    }
    return out;
  }

  // Free text and the first of `triggers` behind it, then what belongs to it. Ones that end in front of a control token
  // may come in the text too.
  void TextAnd(const Stops& triggers, const Stops& quiet, const std::vector<NodeId>& rests, std::vector<NodeId>& outs) {
    const std::set<std::string_view> stops(quiet.begin(), quiet.end());
    Stops spelled;
    std::vector<NodeId> behind;
    for (std::size_t i = 0; i < triggers.size(); ++i) {
      if (stops.contains(triggers[i])) {
        spelled.push_back(triggers[i]);
        behind.push_back(rests[i]);
      } else {
        outs.push_back(TextWithout(quiet, Text(triggers[i], rests[i])));
      }
    }
    if (!spelled.empty() && !OneEndsAnother(spelled)) {
      outs.push_back(TextUpTo(spelled, quiet, std::move(behind)));
      return;
    }
    for (std::size_t i = 0; i < spelled.size(); ++i) outs.push_back(TextUpTo({spelled[i]}, quiet, {behind[i]}));
  }
  static bool OneEndsAnother(Stops texts) {
    for (std::string& text : texts) std::ranges::reverse(text);
    std::ranges::sort(texts);
    for (std::size_t i = 1; i < texts.size(); ++i) {
      if (texts[i].starts_with(texts[i - 1])) return true;
    }
    return false;
  }

  NodeId Triggered(const JsonValue& f, const std::string& pointer, const Stops& stops, NodeId next, int depth) {
    const JsonValue* tags = Need(f, pointer, "tags", Type::kArray);
    const Stops triggers = Strings(f, pointer, "triggers");
    if (tags == nullptr || error) return end_;
    if (triggers.empty()) return Fail(pointer + "/triggers", "at least one trigger is needed");
    const Stops quiet = Quiet(f, pointer, triggers, stops);
    const bool once = Flag(f, "stop_after_first");
    const NodeId loop = program_.AddNode({});  // free text, then perhaps a tag
    const NodeId after = once ? next : loop;
    std::vector<NodeId> outs = {TextWithout(quiet, next)}, firsts, behind;
    Stops ends;
    std::vector<bool> used(tags->items.size(), false);
    for (const std::string& trigger : triggers) {
      std::vector<NodeId> rests;
      std::size_t at = 0;
      const Marker* marker = FindMarker(trigger, at);
      // Behind free text that ends with the trigger comes the rest of a tag's beginning.
      const std::size_t spoken = marker == nullptr ? trigger.size() : at;
      for (std::size_t i = 0; i < tags->items.size(); ++i) {
        options_.limits.meter->Step(1);
        const JsonValue* begin = tags->items[i].Find("begin");
        if (begin == nullptr || !begin->is(Type::kString) || !begin->text.starts_with(trigger)) continue;
        const std::string where = fmt::format("{}/tags/{}", pointer, i);
        used[i] = true;
        rests.push_back(TagFrom(tags->items[i], where, spoken, after, depth));
        if (Flag(f, "at_least_one")) firsts.push_back(TagFrom(tags->items[i], where, 0, after, depth));
      }
      if (options_.limits.meter->tripped()) return end_;
      if (rests.empty()) return Fail(pointer + "/triggers", "no tag begins with trigger " + JsonQuote(trigger));
      ends.push_back(trigger.substr(0, spoken));
      behind.push_back(Split(std::move(rests)));
    }
    TextAnd(ends, quiet, behind, outs);
    const auto unused = std::find(used.begin(), used.end(), false);
    if (unused != used.end()) {
      return Fail(fmt::format("{}/tags/{}", pointer, unused - used.begin()), "no trigger begins this tag");
    }
    Node& node = program_.node_mutable(loop);
    node.kind = Node::Kind::kSplit;
    node.outs = std::move(outs);
    return firsts.empty() ? loop : Split(std::move(firsts));
  }

  // [trigger, format] of each rule, or null after a failure.
  const std::vector<JsonValue>* Rules(const JsonValue& f, const std::string& pointer) {
    const JsonValue* rules = Need(f, pointer, "rules", Type::kArray);
    if (rules == nullptr) return nullptr;
    if (rules->items.empty()) Fail(pointer + "/rules", "at least one rule is needed");
    for (std::size_t i = 0; i < rules->items.size(); ++i) {
      const JsonValue& rule = rules->items[i];
      if (rule.items.size() == 2 && rule.items[1].is(Type::kObject)) continue;
      Fail(fmt::format("{}/rules/{}", pointer, i), "a rule is a list of what triggers it and a format");
    }
    return error ? nullptr : &rules->items;
  }

  NodeId Dispatch(const JsonValue& f, const std::string& pointer, const Stops& stops, NodeId next, int depth) {
    const std::vector<JsonValue>* rules = Rules(f, pointer);
    if (rules == nullptr) return end_;
    Stops triggers;
    for (std::size_t i = 0; i < rules->size(); ++i) {
      const JsonValue& trigger = (*rules)[i].items[0];
      if (!trigger.is(Type::kString) || trigger.text.empty()) {
        return Fail(fmt::format("{}/rules/{}/0", pointer, i), "a rule's trigger is a string that is not empty");
      }
      triggers.push_back(trigger.text);
    }
    const Stops quiet = Quiet(f, pointer, triggers, stops);
    if (error) return end_;
    const NodeId loop = program_.AddNode({});
    std::vector<NodeId> outs = {TextWithout(quiet, next)}, rests;
    for (std::size_t i = 0; i < rules->size(); ++i) {
      const std::string where = fmt::format("{}/rules/{}/1", pointer, i);
      rests.push_back(Format((*rules)[i].items[1], where, stops, Flag(f, "loop", true) ? loop : next, depth + 1));
    }
    TextAnd(triggers, quiet, rests, outs);
    Node& node = program_.node_mutable(loop);
    node.kind = Node::Kind::kSplit;
    node.outs = std::move(outs);
    return loop;
  }

  NodeId TokenDispatch(const JsonValue& f, const std::string& pointer, const Stops& stops, NodeId next, int depth) {
    const std::vector<JsonValue>* rules = Rules(f, pointer);
    if (rules == nullptr) return end_;
    const NodeId loop = program_.AddNode({});
    std::vector<std::uint32_t> excluded = Tokens(f, pointer, "exclude_tokens");
    std::vector<NodeId> leaves = {next};
    for (std::size_t i = 0; i < rules->size() && !error; ++i) {
      const std::string where = fmt::format("{}/rules/{}", pointer, i);
      const auto token = TokenOf(&(*rules)[i].items[0], where + "/0");
      if (!token) return end_;
      excluded.push_back(*token);
      const NodeId after = Flag(f, "loop", true) ? loop : next;
      leaves.push_back(TokenNode(*token, Format((*rules)[i].items[1], where + "/1", stops, after, depth + 1)));
    }
    return Looped(loop, Anything(stops, std::move(excluded), std::move(leaves)));
  }
  NodeId Looped(NodeId loop, NodeId start) {
    Node& node = program_.node_mutable(loop);
    node.kind = Node::Kind::kSplit;
    node.outs = {start};
    return loop;
  }

  NodeId TokenTriggered(const JsonValue& f, const std::string& pointer, const Stops& stops, NodeId next, int depth) {
    const JsonValue* tags = Need(f, pointer, "tags", Type::kArray);
    const std::vector<std::uint32_t> triggers = Tokens(f, pointer, "trigger_tokens");
    std::vector<std::uint32_t> excluded = Tokens(f, pointer, "exclude_tokens");
    if (tags == nullptr || error) return end_;
    excluded.insert(excluded.end(), triggers.begin(), triggers.end());
    const NodeId loop = program_.AddNode({});
    const NodeId after = Flag(f, "stop_after_first") ? next : loop;
    std::vector<NodeId> leaves, firsts;
    for (std::size_t i = 0; i < tags->items.size() && !error; ++i) {
      const std::string where = fmt::format("{}/tags/{}", pointer, i);
      const auto begin = EdgeToken(tags->items[i], where, "begin");
      if (!begin || !std::ranges::binary_search(triggers, *begin)) {
        return Fail(where + "/begin", "a tag here begins with a token part, one of \"trigger_tokens\"");
      }
      firsts.push_back(TagFrom(tags->items[i], where, 0, after, depth));
    }
    if (firsts.empty()) return Fail(pointer + "/tags", "at least one tag is needed");
    leaves = firsts;
    leaves.push_back(next);
    const NodeId start = Looped(loop, Anything(stops, std::move(excluded), std::move(leaves)));
    return Flag(f, "at_least_one") ? Split(std::move(firsts)) : start;
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
    const auto id = TokenOf(f.Find("token"), pointer + "/token");
    return id ? TokenNode(*id, next) : end_;
  }

  // A control token by id or spelling.
  std::optional<std::uint32_t> TokenOf(const JsonValue* token, const std::string& pointer) {
    std::optional<std::uint32_t> id;
    if (const auto number = IntegerOf(token); number && *number >= 0 && *number < vocabulary_.size()) {
      id = static_cast<std::uint32_t>(*number);
    }
    for (const Marker& marker : markers_) {
      if (token != nullptr && token->is(Type::kString) && token->text == marker.text) id = marker.token;
    }
    if (id && *id < vocabulary_.size() && vocabulary_.is_special(*id) && !vocabulary_.is_end(*id)) return id;
    Fail(pointer, "must name a control token of the model; text is matched by its bytes, whatever its tokens are");
    return std::nullopt;
  }

  Program& program_;
  const std::vector<Marker>& markers_;
  const CompileOptions& options_;
  const Vocabulary& vocabulary_;
  JsonNodes json_;
  NodeId end_ = 0;
  std::vector<std::uint32_t> end_tokens_;  // of the tags that are open where a format is read
};

Compiled<Grammar> Compile(const JsonValue& tag, const std::vector<Marker>& markers, const CompileOptions& options,
                          std::shared_ptr<const Vocabulary> vocabulary) {
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
  const ParseStates states(*grammar.program);
  if (states.overflow() != ParseStates::Overflow::kNone) {
    return Refuse({CompileCode::kTooComplex,
                   fmt::format("structural tag: its text may be at more than {} places of it at once (state_items_max)",
                               options.limits.state_items_max),
                   "", "", std::nullopt});
  }
  if (states.start() == ParseStates::kDead) {
    return Refuse({CompileCode::kUnsatisfiable, "structural tag: no text satisfies it", "", "", std::nullopt});
  }
  return grammar;
}

}  // namespace

Compiled<Grammar> CompileStructuralTag(const JsonValue& tag, const std::vector<Marker>& markers,
                                       const CompileOptions& options, std::shared_ptr<const Vocabulary> vocabulary) {
  CompileOptions metered = options;
  metered.limits = options.limits.Metered();
  return UnlessLimited(Compile(tag, markers, metered, std::move(vocabulary)), metered.limits, "structural tag");
}

}  // namespace galley::grammar
