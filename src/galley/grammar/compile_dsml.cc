// SPDX-License-Identifier: Apache-2.0
// Tool calls in DeepSeek's markup: a block of invokes, each with its parameters. The marker inside the tags is a
// control token and matched by id; values are raw text for strings and JSON for the rest, both under the parameter's
// schema.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "galley/grammar/compile.h"
#include "galley/grammar/schema_emit.h"

namespace galley::grammar {
namespace {

using Type = JsonValue::Type;

struct Spelling {
  std::string_view name;
  std::string_view block;
  std::string_view invoke;
  std::string_view parameter;
  bool blank_if_empty;  // the model's own form of a call without arguments has an empty line
};
constexpr std::array kSpellings = {Spelling{"v41", " calls", " invoke", " parameter", true},
                                   Spelling{"v4", "tool_calls", "invoke", "parameter", false},
                                   Spelling{"v32", "function_calls", "invoke", "parameter", false}};

CompileError Bad(std::string message, std::string pointer = "") {
  return {CompileCode::kBadGrammar, std::move(message), std::move(pointer), "", std::nullopt};
}

class DsmlEmitter {
 public:
  DsmlEmitter(Program& program, const Marker& marker, const Spelling& spelling, const CompileOptions& options)
      : program_(program), marker_(marker), spelling_(spelling), options_(options), json_(program, options.whitespace) {
    Regex text = Regex::Literal(marker.text);
    auto dfa = CharDfa::Create({std::move(text)}, CharDfa::Mode::kSearch, options.limits);
    if (dfa) spelled_marker_ = std::move(*dfa);
    end_ = program.AddNode({});
  }

  // Rule for the parameters of one tool and the end of its invoke.
  Compiled<RuleId> Tool(const JsonValue& schema, const std::string& pointer) {
    SchemaExpander expander(schema, options_);
    SchemaEmitter emitter(expander, program_, options_);
    std::vector<SchemaEmitter::ObjectPlan> plans;
    const auto fail = [&]() {
      CompileError error = std::move(expander.error());
      error.pointer = pointer + error.pointer;
      return Refuse(std::move(error));
    };
    const GoalId root = expander.root_goal();
    if (expander.ok()) {
      for (const Branch& branch : Branches(expander.Expand(root))) {
        if ((branch.types & kTypeObject) == 0 || !expander.ok()) continue;
        for (auto& plan : emitter.PlanObjects(branch.object)) plans.push_back(std::move(plan));
      }
    }
    if (!expander.ok()) return fail();
    std::vector<GoalId> goals;  // parameters' goals, each once
    for (const auto& plan : plans) {
      for (const auto* list : {&plan.goals, &plan.other_goals}) {
        for (const GoalId goal : *list) {
          if (goal != kNothing && std::find(goals.begin(), goals.end(), goal) == goals.end()) goals.push_back(goal);
        }
      }
    }
    JsonValue string_type;
    string_type.type = Type::kObject;
    string_type.members.emplace_back("type", JsonValue{});
    string_type.members[0].second.type = Type::kString;
    string_type.members[0].second.text = "string";
    std::vector<GoalId> rest;
    const GoalId no_string = expander.Negated(expander.SchemaGoal(string_type), "");
    for (const GoalId goal : goals) rest.push_back(expander.Both(goal, no_string));
    std::vector<RuleId> rules;
    if (!emitter.Run(rest, rules)) return fail();
    std::map<GoalId, RuleId> value_rules;
    for (std::size_t i = 0; i < goals.size(); ++i) {
      std::vector<TextSpec> strings = emitter.StringsOf(goals[i]);
      std::optional<RuleId> json;
      if (emitter.satisfiable(rest[i])) json = rules[i];
      if (auto rule = Value(std::move(strings), json)) value_rules[goals[i]] = *rule;
    }
    if (!expander.ok()) return fail();
    return Members(emitter, plans, value_rules, pointer);
  }

  // Everything behind the block's opening line.
  NodeId Invokes(const std::vector<std::pair<std::string, RuleId>>& tools, bool parallel) {
    const NodeId close = Tag("</", std::string(spelling_.block) + ">", end_);
    const NodeId after = parallel ? program_.AddNode({}) : close;
    std::vector<std::string> heads;
    std::vector<NodeId> calls;
    for (const auto& [name, rule] : tools) {
      heads.push_back(fmt::format("{} name=\"{}\">\n", spelling_.invoke, name));
      Node call;
      call.kind = Node::Kind::kCall;
      call.arg = rule;
      call.next = after;
      calls.push_back(program_.AddNode(std::move(call)));
    }
    const NodeId head = json_.Words(heads, {}, {}, std::move(calls));
    const NodeId start = Text("<", Token(head));
    if (parallel) {
      Node& split = program_.node_mutable(after);
      split.kind = Node::Kind::kSplit;
      split.outs = {start, close};
    }
    return start;
  }

  NodeId Block(NodeId invokes) { return Tag("<", std::string(spelling_.block) + ">\n", invokes); }

  // The block, or an answer of another form.
  Compiled<NodeId> BlockOr(NodeId block, const JsonValue& other) {
    const JsonValue* kind = other.Find("kind");
    const JsonValue* spec = other.Find("spec");
    const bool schema = kind != nullptr && kind->text == "json_schema";
    const bool regex = kind != nullptr && kind->text == "regex" && spec != nullptr && spec->is(Type::kString);
    if (spec == nullptr || (!schema && !regex)) {
      return Refuse(Bad("\"otherwise\" needs \"kind\" json_schema or regex, and \"spec\"", "/otherwise"));
    }
    auto answer = schema ? SchemaAnswer(*spec) : RegexAnswer(spec->text);
    if (!answer) {
      answer.error().pointer = "/otherwise/spec" + answer.error().pointer;
      return answer;
    }
    // The models put two line ends in front of a block.
    Node split;
    split.kind = Node::Kind::kSplit;
    split.outs = {block, Text("\n\n", block), *answer};
    return program_.AddNode(std::move(split));
  }

  // Free text, then perhaps `block`.
  NodeId FreeText(NodeId block) {
    Node split;
    split.kind = Node::Kind::kSplit;
    split.outs = {end_, block};
    TextSpec spec;
    const NodeId next = program_.AddNode(std::move(split));
    const auto text = Raw(std::move(spec), next);
    if (!text) return next;
    program_.node_mutable(*text).open = true;
    return *text;
  }

 private:
  Compiled<NodeId> SchemaAnswer(const JsonValue& schema) {
    SchemaExpander expander(schema, options_);
    SchemaEmitter emitter(expander, program_, options_);
    std::vector<RuleId> rules;
    const GoalId root = expander.root_goal();
    if (!expander.ok() || !emitter.Run({root}, rules)) return Refuse(std::move(expander.error()));
    if (!emitter.satisfiable(root)) {
      return Refuse({CompileCode::kUnsatisfiable, "no JSON value satisfies this schema", "", "", std::nullopt});
    }
    Node call;
    call.kind = Node::Kind::kCall;
    call.arg = rules[0];
    call.next = end_;
    return program_.AddNode(std::move(call));
  }

  Compiled<NodeId> RegexAnswer(const std::string& pattern) {
    auto regex = ParseRegex(pattern, options_.limits);
    if (!regex) return Refuse(std::move(regex.error()));
    auto dfa = CharDfa::Create({std::move(*regex)}, CharDfa::Mode::kFull, options_.limits);
    if (!dfa) return Refuse(std::move(dfa.error()));
    TextSpec spec;
    spec.parts.push_back({std::move(*dfa), TextSpec::Sense::kMust});
    const auto node = Raw(std::move(spec), end_);
    if (!node) return Refuse({CompileCode::kUnsatisfiable, "no text matches this pattern", "", "", std::nullopt});
    return *node;
  }

  NodeId Text(const std::string& text, NodeId next) { return json_.Words({text}, {}, {}, {next}); }

  NodeId Token(NodeId next) {
    Node node;
    node.kind = Node::Kind::kTokens;
    node.outs = {marker_.token};
    node.next = next;
    return program_.AddNode(std::move(node));
  }

  NodeId Tag(const std::string& before, const std::string& behind, NodeId next) {
    return Text(before, Token(Text(behind, next)));
  }

  // Raw text under `spec` that does not spell the marker; nothing when no text fits.
  std::optional<NodeId> Raw(TextSpec spec, NodeId next) {
    // Without it the meter has tripped, and the grammar is refused in the end.
    if (spelled_marker_ != nullptr && spec.names == nullptr) {
      spec.parts.push_back({spelled_marker_, TextSpec::Sense::kMustNot});
    }
    auto machine = std::make_unique<StringMachine>(std::move(spec), StringMachine::Form::kRaw, options_.limits);
    if (machine->Start(0) == Machine::kDead) return std::nullopt;
    Node node;
    node.kind = Node::Kind::kLexeme;
    node.machine = program_.AddMachine(std::move(machine));
    node.next = next;
    return program_.AddNode(std::move(node));
  }

  // A parameter from behind its name to its line end.
  std::optional<RuleId> Value(std::vector<TextSpec> strings, std::optional<RuleId> json) {
    const NodeId close = Tag("</", std::string(spelling_.parameter) + ">\n", end_);
    std::vector<NodeId> raws, outs;
    for (TextSpec& spec : strings) {
      if (const auto raw = Raw(std::move(spec), close)) raws.push_back(*raw);
    }
    if (!raws.empty()) {
      Node split;
      split.kind = Node::Kind::kSplit;
      split.outs = std::move(raws);
      outs.push_back(Text(" string=\"true\">", program_.AddNode(std::move(split))));
    }
    if (json) {
      Node call;
      call.kind = Node::Kind::kCall;
      call.arg = *json;
      call.next = close;
      outs.push_back(Text(" string=\"false\">", program_.AddNode(std::move(call))));
    }
    if (outs.empty()) return std::nullopt;
    Node split;
    split.kind = Node::Kind::kSplit;
    split.outs = std::move(outs);
    return program_.AddRule(program_.AddNode(std::move(split)));
  }

  Compiled<RuleId> Members(SchemaEmitter& emitter, std::vector<SchemaEmitter::ObjectPlan>& plans,
                           const std::map<GoalId, RuleId>& value_rules, const std::string& pointer) {
    const auto rule_of = [&](GoalId goal) -> std::optional<RuleId> {
      const auto it = value_rules.find(goal);
      return it == value_rules.end() ? std::nullopt : std::optional(it->second);
    };
    const NodeId close = Tag("</", std::string(spelling_.invoke) + ">\n", end_);
    NodeId close_empty = close;
    if (spelling_.blank_if_empty) {
      Node blank;
      blank.kind = Node::Kind::kSplit;
      blank.outs = {close, Text("\n", close)};
      close_empty = program_.AddNode(std::move(blank));
    }
    std::vector<NodeId> starts;
    for (auto& plan : plans) {
      if (!SchemaEmitter::Satisfied(plan, [&](GoalId goal) { return rule_of(goal).has_value(); })) continue;
      if (!plan.other_goals.empty()) {
        if (auto error = LimitNames(plan)) return Refuse(std::move(*error));
      }
      NodeId first = 0;
      const std::uint32_t index =
          emitter.AddObject(emitter.BuildObject(plan, StringMachine::Form::kQuoted, rule_of), first);
      const NodeId more = Tag("<", std::string(spelling_.parameter) + " name=", program_.object(index).key_node);
      Node both;
      both.kind = Node::Kind::kSplit;
      both.outs = {more, close};
      const NodeId either = program_.AddNode(std::move(both));
      ObjectSpec& spec = program_.object_mutable(index);
      spec.first_node = more;
      spec.separators = {close_empty, either, more, close};
      starts.push_back(first);
    }
    if (starts.empty()) {
      return Refuse(
          {CompileCode::kUnsatisfiable, "no arguments satisfy the tool's parameters", pointer, "", std::nullopt});
    }
    Node split;
    split.kind = Node::Kind::kSplit;
    split.outs = std::move(starts);
    return program_.AddRule(program_.AddNode(std::move(split)));
  }

  // Undeclared names are written without escapes, so those that would need one are left out.
  std::optional<CompileError> LimitNames(SchemaEmitter::ObjectPlan& plan) {
    auto regex = ParseRegex("^[^\"\\\\<>\\x00-\\x1F]+$", options_.limits);
    if (!regex) return std::move(regex.error());
    auto dfa = CharDfa::Create({std::move(*regex)}, CharDfa::Mode::kSearch, options_.limits);
    if (!dfa) return std::move(dfa.error());
    plan.key.parts.push_back({std::move(*dfa), TextSpec::Sense::kMust});
    return std::nullopt;
  }

  Program& program_;
  const Marker& marker_;
  const Spelling& spelling_;
  const CompileOptions& options_;
  JsonNodes json_;
  std::shared_ptr<CharDfa> spelled_marker_;
  NodeId end_ = 0;
};

struct Request {
  const Spelling* spelling = nullptr;
  std::string mode = "block";
  bool parallel = true;
  std::optional<std::string> only;
  const JsonValue* tools = nullptr;
  const JsonValue* otherwise = nullptr;
};

Compiled<Request> ReadRequest(const JsonValue& spec) {
  Request out;
  const JsonValue* spelling = spec.Find("spelling");
  for (const Spelling& row : kSpellings) {
    if (spelling == nullptr ? row.name == "v41" : row.name == spelling->text) out.spelling = &row;
  }
  if (out.spelling == nullptr) return Refuse(Bad("\"spelling\" must be v41, v4 or v32", "/spelling"));
  if (const JsonValue* mode = spec.Find("mode")) out.mode = mode->text;
  if (out.mode != "block" && out.mode != "inside" && out.mode != "auto") {
    return Refuse(Bad("\"mode\" must be block, inside or auto", "/mode"));
  }
  out.otherwise = spec.Find("otherwise");
  if (out.otherwise != nullptr && out.mode != "auto") {
    return Refuse(Bad("\"otherwise\" goes with mode auto only: the other modes demand a call", "/otherwise"));
  }
  if (const JsonValue* parallel = spec.Find("parallel")) out.parallel = parallel->boolean;
  if (const JsonValue* only = spec.Find("only"); only != nullptr && only->is(Type::kString)) out.only = only->text;
  out.tools = spec.Find("tools");
  if (out.tools == nullptr || !out.tools->is(Type::kArray) || out.tools->items.empty()) {
    return Refuse(Bad("\"tools\" must be a list of at least one tool", "/tools"));
  }
  return out;
}

}  // namespace

namespace {

Compiled<Grammar> Compile(const JsonValue& spec, const Marker& marker, const CompileOptions& options,
                          std::shared_ptr<const Vocabulary> vocabulary) {
  auto request = ReadRequest(spec);
  if (!request) return Refuse(std::move(request.error()));
  auto program = std::make_shared<Program>(options.limits);
  DsmlEmitter emitter(*program, marker, *request->spelling, options);
  std::vector<std::pair<std::string, RuleId>> tools;
  JsonValue any_object;
  any_object.type = Type::kObject;
  std::optional<RuleId> any_arguments;
  for (std::size_t i = 0; i < request->tools->items.size(); ++i) {
    const JsonValue& tool = request->tools->items[i];
    const std::string pointer = fmt::format("/tools/{}", i);
    const JsonValue* name = tool.Find("name");
    if (name == nullptr || !name->is(Type::kString) || name->text.empty() ||
        name->text.find_first_of("\"<>\n") != std::string::npos) {
      return Refuse(Bad("a tool needs a name without quotes, angle brackets or line ends", pointer + "/name"));
    }
    if (request->only && *request->only != name->text) continue;
    const JsonValue* parameters = tool.Find("parameters");
    const JsonValue* strict = tool.Find("strict");
    const bool declared = parameters != nullptr && !parameters->is(Type::kNull);
    if (!declared && any_arguments) {
      tools.emplace_back(name->text, *any_arguments);
      continue;
    }
    auto rule = emitter.Tool(declared ? *parameters : any_object, pointer + "/parameters");
    if (rule && !declared) any_arguments = *rule;
    const bool loose = strict != nullptr && strict->is(Type::kBool) && !strict->boolean;
    if (!rule && loose && rule.error().code == CompileCode::kUnsupportedKeyword) {
      // A tool that did not ask for strictness keeps the block's form, without its own schema.
      program->AddWarning(fmt::format("the arguments of {} may be any, as its schema cannot be enforced at {}: {}",
                                      name->text, rule.error().pointer.substr(pointer.size()), rule.error().message));
      rule = emitter.Tool(any_object, pointer + "/parameters");
    }
    if (!rule) return Refuse(std::move(rule.error()));
    tools.emplace_back(name->text, *rule);
  }
  if (tools.empty()) return Refuse(Bad("the named tool is not in the list", "/only"));
  NodeId start = emitter.Invokes(tools, request->parallel);
  if (request->mode != "inside") start = emitter.Block(start);
  if (request->otherwise != nullptr) {
    auto either = emitter.BlockOr(start, *request->otherwise);
    if (!either) return Refuse(std::move(either.error()));
    start = *either;
  } else if (request->mode == "auto") {
    start = emitter.FreeText(start);
  }
  program->set_root(program->AddRule(start));
  return Grammar{std::move(program), std::move(vocabulary)};
}

}  // namespace

Compiled<Grammar> CompileDsml(const JsonValue& spec, const Marker& marker, const CompileOptions& options,
                              std::shared_ptr<const Vocabulary> vocabulary) {
  CompileOptions metered = options;
  metered.limits = options.limits.Metered();
  return UnlessLimited(Compile(spec, marker, metered, std::move(vocabulary)), metered.limits, "the set of tools");
}

}  // namespace galley::grammar
