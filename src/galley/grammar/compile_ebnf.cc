// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "galley/grammar/compile.h"
#include "galley/grammar/ebnf.h"

namespace galley::grammar {
namespace {

// Beyond this many characters a rule is called rather than copied into the lexemes that use it.
constexpr std::uint64_t kInlineMax = 2'000;

using Expr = EbnfExpr;

bool IsNameStart(std::uint32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool IsNameChar(std::uint32_t c) {
  return IsNameStart(c) || (c >= '0' && c <= '9') || c == '-';
}

class Reader {
 public:
  Reader(std::string_view text, const std::vector<Marker>& markers, const Limits& limits)
      : text_(text), markers_(markers), limits_(limits) {}

  Compiled<EbnfGrammar> Run() {
    SkipBlanks();
    while (ok() && at_ < text_.size()) Rule();
    if (ok()) CheckNames();
    if (!ok()) return Refuse(std::move(*error_));
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool ok() const { return !error_.has_value(); }
  Expr Fail(std::size_t at, std::string_view what, CompileCode code = CompileCode::kBadGrammar) {
    if (ok()) error_ = CompileError{code, fmt::format("grammar: {} at byte {}", what, at), "", "", at};
    return {};
  }
  [[nodiscard]] char Peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  void SkipBlanks() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string Name() {
    std::string out;
    if (!IsNameStart(static_cast<unsigned char>(Peek()))) return out;
    while (IsNameChar(static_cast<unsigned char>(Peek()))) out.push_back(text_[at_++]);
    return out;
  }

  // Whether a rule definition starts here: name "::=".
  bool AtDefinition() {
    const std::size_t back = at_;
    const bool named = !Name().empty();
    SkipBlanks();
    const bool out = named && text_.substr(at_, 3) == "::=";
    at_ = back;
    return out;
  }

  std::uint32_t RuleId(const std::string& name, std::size_t at) {
    const auto [it, fresh] = ids_.try_emplace(name, static_cast<std::uint32_t>(out_.rules.size()));
    if (fresh) {
      out_.rules.push_back({name, {}, false});
      used_at_.push_back(at);
    }
    return it->second;
  }

  void Rule() {
    const std::size_t start = at_;
    const std::string name = Name();
    SkipBlanks();
    if (name.empty() || text_.substr(at_, 3) != "::=") {
      Fail(start, "expected a rule of the form name ::= …");
      return;
    }
    at_ += 3;
    const std::uint32_t id = RuleId(name, start);
    if (out_.rules[id].defined) {
      Fail(start, "rule \"" + name + "\" is defined twice");
      return;
    }
    out_.rules[id].defined = true;
    Expr body = Alternation(0);
    if (ok() && at_ < text_.size() && !AtDefinition()) {
      Fail(at_, fmt::format("unexpected {}", JsonQuote(text_.substr(at_, 1))));
    }
    out_.rules[id].body = std::move(body);
  }

  Expr Alternation(int depth) {
    if (depth > limits_.nesting_max) {
      return Fail(at_, fmt::format("groups nest deeper than the limit of {} (nesting_max)", limits_.nesting_max),
                  CompileCode::kTooComplex);
    }
    Expr out;
    out.kind = Expr::Kind::kAlternate;
    while (ok()) {
      out.children.push_back(Sequence(depth));
      SkipBlanks();
      if (Peek() != '|') break;
      ++at_;
    }
    return out;
  }

  Expr Sequence(int depth) {
    Expr out;
    out.kind = Expr::Kind::kConcat;
    while (ok()) {
      SkipBlanks();
      if (at_ >= text_.size() || Peek() == '|' || Peek() == ')' || AtDefinition()) break;
      Expr atom = Atom(depth);
      while (ok() && Quantifier(atom)) {
      }
      out.children.push_back(std::move(atom));
    }
    return out;
  }

  bool Number(std::uint32_t& out) {
    if (Peek() < '0' || Peek() > '9') return false;
    std::uint64_t value = 0;
    while (Peek() >= '0' && Peek() <= '9') {
      value = std::min<std::uint64_t>(value * 10 + static_cast<std::uint64_t>(text_[at_++] - '0'), kUnbounded - 1);
    }
    out = static_cast<std::uint32_t>(value);
    return true;
  }

  bool Quantifier(Expr& atom) {
    const std::size_t back = at_;
    SkipBlanks();
    std::uint32_t min = 0, max = kUnbounded;
    const std::size_t start = at_;
    switch (Peek()) {
      case '*':
        ++at_;
        break;
      case '+':
        ++at_;
        min = 1;
        break;
      case '?':
        ++at_;
        max = 1;
        break;
      case '{': {
        ++at_;
        SkipBlanks();
        const bool has_min = Number(min);
        SkipBlanks();
        bool has_max = false;
        if (Peek() == ',') {
          ++at_;
          SkipBlanks();
          has_max = Number(max);
          SkipBlanks();
        } else {
          max = min;
        }
        if (Peek() != '}' || (!has_min && !has_max)) {
          Fail(start, "malformed repeat");
          return false;
        }
        ++at_;
        if (min > max) {
          Fail(start, "repeat bounds are reversed");
          return false;
        }
        break;
      }
      default:
        at_ = back;
        return false;
    }
    Expr out;
    out.kind = Expr::Kind::kRepeat;
    out.min = min;
    out.max = max;
    out.children.push_back(std::move(atom));
    atom = std::move(out);
    return true;
  }

  Expr Leaf(Regex regex) {
    // Trees are built before their automata are, so their size is watched here.
    const std::size_t atoms = std::max<std::size_t>(1, regex.children.size());
    atoms_ += atoms;
    if (limits_.meter != nullptr) {
      limits_.meter->Hold(sizeof(Expr) + atoms * (sizeof(Regex) + sizeof(CodePointRange)));
      if (atoms_ > limits_.nfa_states_max) limits_.meter->Trip(Meter::Limit::kNfaStates);
      if (limits_.meter->tripped()) {
        return Fail(at_, limits_.Reached(*limits_.meter, "the grammar"), CompileCode::kTooComplex);
      }
    }
    Expr out;
    out.kind = Expr::Kind::kLexeme;
    out.regex = std::move(regex);
    return out;
  }

  Expr Atom(int depth) {
    const std::size_t start = at_;
    switch (Peek()) {
      case '"':
        return String();
      case '[':
        return Class();
      case '.':
        ++at_;
        return Leaf(Regex::Set(CodePointSet::All()));
      case '<':
        return TokenLiteral();
      case '(': {
        ++at_;
        Expr inner = Alternation(depth + 1);
        SkipBlanks();
        if (ok() && Peek() != ')') return Fail(start, "group without end");
        ++at_;
        return inner;
      }
      case '*':
      case '+':
      case '?':
      case '{':
        return Fail(start, "nothing to repeat");
      default:
        break;
    }
    const std::string name = Name();
    if (name.empty()) return Fail(start, fmt::format("unexpected {}", JsonQuote(text_.substr(at_, 1))));
    Expr out;
    out.kind = Expr::Kind::kRule;
    out.rule = RuleId(name, start);
    return out;
  }

  bool Hex(int digits, std::uint32_t& out) {
    out = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = Peek();
      const bool number = c >= '0' && c <= '9', lower = c >= 'a' && c <= 'f', upper = c >= 'A' && c <= 'F';
      if (!number && !lower && !upper) return false;
      out = out * 16 + static_cast<std::uint32_t>(number ? c - '0' : lower ? c - 'a' + 10 : c - 'A' + 10);
      ++at_;
    }
    return true;
  }

  // One character of a string or class, with its escapes. False on error.
  bool Char(bool in_class, std::uint32_t& out) {
    const std::size_t start = at_;
    if (Peek() != '\\') {
      const auto lead = static_cast<unsigned char>(Peek());
      const std::size_t length = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
      const std::string_view bytes = text_.substr(at_, length);
      const std::vector<std::uint32_t> decoded = DecodeUtf8(bytes);
      if (decoded.size() != 1 || (decoded[0] == 0xFFFD && bytes != "\xEF\xBF\xBD")) {
        Fail(start, "text is not UTF-8");
        return false;
      }
      out = decoded[0];
      at_ += length;
      return true;
    }
    ++at_;
    const char c = Peek();
    ++at_;
    bool good = true;
    switch (c) {
      case 'n':
        out = '\n';
        break;
      case 'r':
        out = '\r';
        break;
      case 't':
        out = '\t';
        break;
      case '\\':
      case '"':
        out = static_cast<unsigned char>(c);
        break;
      case ']':
      case '[':
      case '-':
      case '^':
        out = static_cast<unsigned char>(c);
        good = in_class;
        break;
      case 'x':
        good = Hex(2, out);
        break;
      case 'u':
        good = Hex(4, out);
        break;
      case 'U':
        good = Hex(8, out);
        break;
      default:
        good = false;
    }
    if (!good || out > kCodePointMax || (out >= 0xD800 && out < 0xE000)) {
      Fail(start, good ? "escape is no Unicode scalar value" : "unknown or incomplete escape");
      return false;
    }
    return true;
  }

  Expr String() {
    const std::size_t start = at_++;
    std::vector<Regex> chars;
    while (at_ < text_.size() && Peek() != '"') {
      std::uint32_t c = 0;
      if (Peek() == '\n') return Fail(start, "string without end");
      if (!Char(false, c)) return {};
      if (chars.size() > limits_.nfa_states_max) break;  // Leaf says so
      chars.push_back(Regex::Set(CodePointSet::Single(c)));
    }
    if (chars.size() > limits_.nfa_states_max) return Leaf(Regex::Concat(std::move(chars)));
    if (at_ >= text_.size()) return Fail(start, "string without end");
    ++at_;
    return Leaf(Regex::Concat(std::move(chars)));
  }

  Expr Class() {
    const std::size_t start = at_++;
    const bool negated = Peek() == '^';
    if (negated) ++at_;
    std::vector<CodePointRange> ranges;
    while (at_ < text_.size() && Peek() != ']') {
      std::uint32_t first = 0;
      if (!Char(true, first)) return {};
      std::uint32_t last = first;
      if (Peek() == '-' && Peek(1) != ']' && at_ + 1 < text_.size()) {
        ++at_;
        if (!Char(true, last)) return {};
        if (last < first) return Fail(start, "class range is reversed");
      }
      ranges.push_back({first, last});
    }
    if (at_ >= text_.size()) return Fail(start, "class without ']'");
    ++at_;
    CodePointSet set = CodePointSet::Of(ranges);
    return Leaf(Regex::Set(negated ? set.Negated() : std::move(set)));
  }

  // <[id]> or <name>: a control token, never its spelling.
  Expr TokenLiteral() {
    const std::size_t start = at_;
    const std::size_t end = text_.find('>', at_);
    if (end == std::string_view::npos) return Fail(start, "token literal without '>'");
    const std::string_view body = text_.substr(at_ + 1, end - at_ - 1);
    Expr out;
    out.kind = Expr::Kind::kToken;
    at_ = end + 1;
    if (body.size() > 2 && body.front() == '[' && body.back() == ']') {
      std::uint64_t id = 0;
      for (const char c : body.substr(1, body.size() - 2)) {
        if (c < '0' || c > '9') return Fail(start, "token literal needs a number inside <[ ]>");
        id = std::min<std::uint64_t>(id * 10 + static_cast<std::uint64_t>(c - '0'), 0xFFFFFFF0);
      }
      out.token = static_cast<std::uint32_t>(id);
      return out;
    }
    for (const Marker& marker : markers_) {
      if (marker.text == body || marker.text == text_.substr(start, end + 1 - start)) {
        out.token = marker.token;
        return out;
      }
    }
    return Fail(start, "unknown token " + JsonQuote(body));
  }

  void CheckNames() {
    for (std::size_t i = 0; i < out_.rules.size(); ++i) {
      if (!out_.rules[i].defined) Fail(used_at_[i], "rule \"" + out_.rules[i].name + "\" is not defined");
    }
    const auto root = ids_.find("root");
    if (root == ids_.end()) {
      Fail(0, "there is no rule \"root\"");
    } else {
      out_.root = root->second;
    }
  }

  std::string_view text_;
  const std::vector<Marker>& markers_;
  const Limits& limits_;
  std::size_t at_ = 0;
  EbnfGrammar out_;
  std::map<std::string, std::uint32_t> ids_;
  std::vector<std::size_t> used_at_;
  std::size_t atoms_ = 0;
  std::optional<CompileError> error_;
};

// Turns rules into nodes. What is regular becomes a lexeme, as large as possible.
class Emitter {
 public:
  Emitter(const EbnfGrammar& grammar, Program& program, const Vocabulary& vocabulary)
      : grammar_(grammar), program_(program), vocabulary_(vocabulary) {}

  bool Run(RuleId& root) {
    FindProductive();
    for (std::size_t i = 0; i < grammar_.rules.size(); ++i) {
      if (productive_[i] || !ok()) continue;
      Fail(CompileCode::kUnsatisfiable, "grammar: rule \"" + grammar_.rules[i].name + "\" derives no finite text");
      return false;
    }
    FindRegular();
    rule_ids_.resize(grammar_.rules.size());
    for (auto& id : rule_ids_) id = program_.AddRule();
    end_ = program_.AddNode({});
    for (std::size_t i = 0; i < grammar_.rules.size() && ok(); ++i) {
      if (regular_[i] && i != grammar_.root) continue;
      program_.SetRule(rule_ids_[i], Emit(grammar_.rules[i].body, end_));
    }
    root = rule_ids_[grammar_.root];
    return ok();
  }

  [[nodiscard]] CompileError& error() { return *error_; }

 private:
  [[nodiscard]] Meter& meter() const { return *program_.limits().meter; }
  [[nodiscard]] bool ok() {
    if (!error_ && meter().tripped()) {
      Fail(CompileCode::kTooComplex, program_.limits().Reached(meter(), "grammar"));
    }
    return !error_.has_value();
  }
  void Fail(CompileCode code, std::string message) {
    if (!error_) error_ = CompileError{code, std::move(message), "", "", std::nullopt};
  }

  bool Productive(const Expr& e) const {
    meter().Step(1);
    switch (e.kind) {
      case Expr::Kind::kLexeme:
        return LexemeProductive(e.regex);
      case Expr::Kind::kToken:
        return true;
      case Expr::Kind::kRule:
        return productive_[e.rule];
      case Expr::Kind::kConcat:
        return std::all_of(e.children.begin(), e.children.end(), [&](const Expr& c) { return Productive(c); });
      case Expr::Kind::kAlternate:
        return std::any_of(e.children.begin(), e.children.end(), [&](const Expr& c) { return Productive(c); });
      case Expr::Kind::kRepeat:
        return e.min == 0 || Productive(e.children[0]);
    }
    return false;
  }

  static bool LexemeProductive(const Regex& regex) {
    if (regex.kind == Regex::Kind::kSet) {
      return !regex.set.Intersected(CodePointSet::Range(0xD800, 0xDFFF).Negated()).empty();
    }
    return std::all_of(regex.children.begin(), regex.children.end(), LexemeProductive);
  }

  void FindProductive() {
    productive_.assign(grammar_.rules.size(), false);
    for (bool changed = true; changed && !meter().tripped();) {
      changed = false;
      for (std::size_t i = 0; i < grammar_.rules.size() && !meter().tripped(); ++i) {
        meter().Step(1);
        if (productive_[i] || !Productive(grammar_.rules[i].body)) continue;
        productive_[i] = changed = true;
      }
    }
  }

  // Number of characters that the expression unrolls to, or nothing when it is not regular or too large to copy.
  std::optional<std::uint64_t> Size(const Expr& e) const {
    std::uint64_t out = 1;
    meter().Step(1);
    switch (e.kind) {
      case Expr::Kind::kToken:
        return std::nullopt;
      case Expr::Kind::kRule:
        return regular_[e.rule] ? std::optional(sizes_[e.rule]) : std::nullopt;
      case Expr::Kind::kLexeme:
        return std::max<std::size_t>(1, e.regex.children.size());
      default:
        break;
    }
    for (const Expr& child : e.children) {
      const auto size = Size(child);
      if (!size) return std::nullopt;
      out += *size;
    }
    if (e.kind == Expr::Kind::kRepeat) out *= std::max<std::uint64_t>(1, e.max == kUnbounded ? e.min + 1u : e.max);
    if (out > kInlineMax * 50) return std::nullopt;
    return out;
  }

  // A rule is regular once all that it uses are; recursive ones never become so.
  void FindRegular() {
    regular_.assign(grammar_.rules.size(), false);
    sizes_.assign(grammar_.rules.size(), 0);
    for (bool changed = true; changed && !meter().tripped();) {
      changed = false;
      for (std::size_t i = 0; i < grammar_.rules.size() && !meter().tripped(); ++i) {
        meter().Step(1);
        if (regular_[i]) continue;
        const auto size = Size(grammar_.rules[i].body);
        if (!size || *size > kInlineMax) continue;
        regular_[i] = changed = true;
        sizes_[i] = *size;
      }
    }
  }

  Regex ToRegex(const Expr& e) const {
    switch (e.kind) {
      case Expr::Kind::kLexeme:
        return e.regex;
      case Expr::Kind::kRule:
        return ToRegex(grammar_.rules[e.rule].body);
      case Expr::Kind::kRepeat:
        return Regex::Repeat(ToRegex(e.children[0]), e.min, e.max);
      default:
        break;
    }
    std::vector<Regex> parts;
    for (const Expr& child : e.children) parts.push_back(ToRegex(child));
    return e.kind == Expr::Kind::kConcat ? Regex::Concat(std::move(parts)) : Regex::Alternate(std::move(parts));
  }

  // A node for the lexeme of expressions first[0] … first[count - 1] in a row, or (count 0) of the regular alternatives
  // of *first. A repeat emits its operand many times: the copies share one machine.
  template <typename Parts>
  NodeId Lexeme(const Expr* first, std::size_t count, const Parts& parts, NodeId next) {
    const auto [known, fresh] = machines_.try_emplace({first, count}, 0);
    if (fresh) {
      std::vector<Regex> one;
      one.push_back(parts());
      auto dfa = CharDfa::Create(std::move(one), CharDfa::Mode::kFull, program_.limits());
      if (!dfa) {
        if (!error_) error_ = std::move(dfa.error());
        return end_;
      }
      TextSpec spec;
      spec.parts.push_back({std::move(*dfa), TextSpec::Sense::kMust});
      known->second = program_.AddMachine(
          std::make_unique<StringMachine>(std::move(spec), StringMachine::Form::kRaw, program_.limits()));
    }
    Node node;
    node.kind = Node::Kind::kLexeme;
    node.machine = known->second;
    node.next = next;
    return program_.AddNode(std::move(node));
  }

  NodeId Split(std::vector<NodeId> outs) {
    if (outs.size() == 1) return outs[0];
    Node node;
    node.kind = Node::Kind::kSplit;
    node.outs = std::move(outs);
    return program_.AddNode(std::move(node));
  }

  NodeId Emit(const Expr& e, NodeId next) {
    if (!ok()) return end_;
    if (program_.node_count() > program_.limits().nfa_states_max) {
      Fail(CompileCode::kTooComplex,
           fmt::format("grammar unrolls to more than {} nodes (nfa_states_max); shorten its repeats",
                       program_.limits().nfa_states_max));
      return end_;
    }
    if (Size(e))
      return Lexeme(
          &e, 1, [&] { return ToRegex(e); }, next);
    switch (e.kind) {
      case Expr::Kind::kConcat:
        return EmitConcat(e, next);
      case Expr::Kind::kAlternate:
        return EmitAlternate(e, next);
      case Expr::Kind::kRepeat:
        return EmitRepeat(e, next);
      case Expr::Kind::kToken: {
        if (e.token >= vocabulary_.size() || !vocabulary_.is_special(e.token) || vocabulary_.is_end(e.token)) {
          Fail(CompileCode::kBadGrammar, fmt::format("grammar: token {} is no control token of the model", e.token));
        }
        Node node;
        node.kind = Node::Kind::kTokens;
        node.outs = {e.token};
        node.next = next;
        return program_.AddNode(std::move(node));
      }
      default: {
        Node node;
        node.kind = Node::Kind::kCall;
        node.arg = rule_ids_[e.rule];
        node.next = next;
        return program_.AddNode(std::move(node));
      }
    }
  }

  NodeId EmitConcat(const Expr& e, NodeId next) {
    std::size_t end = e.children.size();
    while (end > 0) {
      std::size_t begin = end;
      while (begin > 0 && Size(e.children[begin - 1])) --begin;
      if (begin == end) {
        next = Emit(e.children[--end], next);
        continue;
      }
      const auto parts = [&] {
        std::vector<Regex> out;
        for (std::size_t i = begin; i < end; ++i) out.push_back(ToRegex(e.children[i]));
        return Regex::Concat(std::move(out));
      };
      next = Lexeme(&e.children[begin], end - begin, parts, next);
      end = begin;
    }
    return next;
  }

  NodeId EmitAlternate(const Expr& e, NodeId next) {
    std::vector<NodeId> outs;
    bool regular = false;
    for (const Expr& child : e.children) {
      if (Size(child)) {
        regular = true;
      } else {
        outs.push_back(Emit(child, next));
      }
    }
    const auto alternatives = [&] {
      std::vector<Regex> out;
      for (const Expr& child : e.children) {
        if (Size(child)) out.push_back(ToRegex(child));
      }
      return Regex::Alternate(std::move(out));
    };
    if (regular) outs.push_back(Lexeme(&e, 0, alternatives, next));
    return Split(std::move(outs));
  }

  NodeId EmitRepeat(const Expr& e, NodeId next) {
    const NodeId end = next;
    if (e.max == kUnbounded) {
      const NodeId split = program_.AddNode({});
      const NodeId body = Emit(e.children[0], split);
      Node& node = program_.node_mutable(split);
      node.kind = Node::Kind::kSplit;
      node.outs = {body, end};
      next = split;
    } else {
      for (std::uint32_t i = e.min; i < e.max && ok(); ++i) next = Split({Emit(e.children[0], next), end});
    }
    for (std::uint32_t i = 0; i < e.min && ok(); ++i) next = Emit(e.children[0], next);
    return next;
  }

  const EbnfGrammar& grammar_;
  Program& program_;
  const Vocabulary& vocabulary_;
  std::vector<bool> productive_;
  std::vector<bool> regular_;
  std::vector<std::uint64_t> sizes_;
  std::vector<RuleId> rule_ids_;
  std::map<std::pair<const Expr*, std::size_t>, std::uint32_t> machines_;
  NodeId end_ = 0;
  std::optional<CompileError> error_;
};

}  // namespace

Compiled<EbnfGrammar> ReadEbnf(std::string_view text, const std::vector<Marker>& markers, const Limits& limits) {
  return Reader(text, markers, limits).Run();
}

Compiled<RuleId> EmitEbnf(const EbnfGrammar& grammar, Program& program, const Vocabulary& vocabulary) {
  const std::optional<EbnfGrammar> joined = JoinedInARow(grammar);
  Emitter emitter(joined ? *joined : grammar, program, vocabulary);
  RuleId root = 0;
  if (!emitter.Run(root)) return Refuse(std::move(emitter.error()));
  return root;
}

Compiled<Grammar> CompileEbnf(std::string_view text, const CompileOptions& options,
                              std::shared_ptr<const Vocabulary> vocabulary) {
  const Limits limits = options.limits.Metered();
  auto grammar = ReadEbnf(text, {}, limits);
  if (!grammar) return Refuse(std::move(grammar.error()));
  auto program = std::make_shared<Program>(limits);
  auto root = EmitEbnf(*grammar, *program, *vocabulary);
  if (!root) return UnlessLimited(Refuse(std::move(root.error())), limits, "grammar");
  program->set_root(*root);
  return UnlessLimited(Grammar{std::move(program), std::move(vocabulary)}, limits, "grammar");
}

}  // namespace galley::grammar
