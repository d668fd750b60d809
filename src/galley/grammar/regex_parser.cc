// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "galley/grammar/json_value.h"
#include "galley/grammar/regex.h"

namespace galley::grammar {
namespace {

constexpr std::uint32_t kEnd = 0xFFFFFFFF;

struct Flags {
  bool ignore_case = false;
  bool dot_all = false;
  bool multi_line = false;
};

bool IsAsciiLetter(std::uint32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool IsAsciiDigit(std::uint32_t c) {
  return c >= '0' && c <= '9';
}

std::optional<std::uint32_t> HexDigit(std::uint32_t c) {
  if (IsAsciiDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

class Parser {
 public:
  Parser(std::string_view pattern, const Limits& limits) : limits_(limits), meter_(limits.MeterOrNew()) {
    meter_->Hold(16 * pattern.size());
    meter_->Step(pattern.size());
    if (meter_->tripped()) return;
    chars_ = DecodeUtf8(pattern);
    std::size_t offset = 0;
    for (const std::uint32_t c : chars_) {
      offsets_.push_back(offset);
      std::string bytes;
      AppendUtf8(c, bytes);
      offset += bytes.size();
    }
    offsets_.push_back(offset);
  }

  Compiled<Regex> Run() {
    if (meter_->tripped()) {
      error_ = CompileError{CompileCode::kTooComplex, limits_.Reached(*meter_, "the pattern"), "", "", std::nullopt};
      return Refuse(*error_);
    }
    Regex out = Alternation(0);
    if (ok() && at_ < chars_.size()) Fail("unmatched ')'");
    if (!ok()) return Refuse(*error_);
    return out;
  }

 private:
  [[nodiscard]] bool ok() const { return !error_.has_value(); }
  [[nodiscard]] std::uint32_t Peek(std::size_t ahead = 0) const {
    return at_ + ahead < chars_.size() ? chars_[at_ + ahead] : kEnd;
  }
  bool Take(std::uint32_t c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }
  bool TakeWord(std::string_view word) {
    for (std::size_t i = 0; i < word.size(); ++i) {
      if (Peek(i) != static_cast<unsigned char>(word[i])) return false;
    }
    at_ += word.size();
    return true;
  }
  Regex Fail(std::string_view what, CompileCode code = CompileCode::kBadRegex) { return FailAt(at_, what, code); }
  Regex FailAt(std::size_t at, std::string_view what, CompileCode code = CompileCode::kBadRegex) {
    if (ok()) {
      const std::uint64_t position = offsets_[std::min(at, offsets_.size() - 1)];
      error_ = CompileError{code, fmt::format("regex: {} at byte {}", what, position), "", "", position};
    }
    return {};
  }

  // The tree is built before its automaton is, so its size is watched here.
  [[nodiscard]] Regex SetNode(CodePointSet set) {
    if (flags_.ignore_case) {
      auto& closed = case_closed_[set];
      if (closed.empty()) {
        meter_->Step(kCaseClosureSteps);
        closed = set.CaseClosed();
      }
      set = closed;
    }
    meter_->Step(4 + set.ranges().size());
    meter_->Hold(sizeof(Regex) + set.ranges().size() * sizeof(CodePointRange));
    if (++atoms_ > limits_.nfa_states_max) meter_->Trip(Meter::Limit::kNfaStates);
    if (meter_->tripped()) return Fail(limits_.Reached(*meter_, "the pattern"), CompileCode::kTooComplex);
    return Regex::Set(std::move(set));
  }

  Regex Alternation(int depth) {
    if (depth > limits_.nesting_max) {
      return Fail(fmt::format("groups nest deeper than the limit of {} (nesting_max)", limits_.nesting_max),
                  CompileCode::kTooComplex);
    }
    const Flags outer = flags_;
    std::vector<Regex> options;
    do {
      options.push_back(Sequence(depth));
    } while (ok() && Take('|'));
    flags_ = outer;
    return Regex::Alternate(std::move(options));
  }

  Regex Sequence(int depth) {
    std::vector<Regex> parts;
    while (ok() && at_ < chars_.size() && Peek() != '|' && Peek() != ')') {
      bool repeatable = true;
      const std::size_t start = at_;
      Regex atom = Atom(depth, repeatable);
      if (!ok()) return {};
      Quantifier(atom, repeatable, start);
      parts.push_back(std::move(atom));
    }
    return Regex::Concat(std::move(parts));
  }

  // Reads {m}, {m,} or {m,n}; false when the brace is a literal.
  bool Braces(std::uint32_t& min, std::uint32_t& max) {
    const std::size_t start = at_;
    const auto number = [&](std::uint32_t& out) {
      if (!IsAsciiDigit(Peek())) return false;
      std::uint64_t value = 0;
      while (IsAsciiDigit(Peek())) value = std::min<std::uint64_t>(value * 10 + (chars_[at_++] - '0'), kUnbounded - 1);
      out = static_cast<std::uint32_t>(value);
      return true;
    };
    ++at_;
    bool good = number(min);
    if (good) {
      max = min;
      if (Take(',') && !number(max)) max = kUnbounded;
      good = Take('}');
    }
    if (!good) at_ = start;
    return good;
  }

  void Quantifier(Regex& atom, bool repeatable, std::size_t start) {
    std::uint32_t min = 0, max = kUnbounded;
    const std::size_t at = at_;
    if (Take('*')) {
    } else if (Take('+')) {
      min = 1;
    } else if (Take('?')) {
      max = 1;
    } else if (Peek() != '{' || !Braces(min, max)) {
      return;
    }
    if (!repeatable) {
      FailAt(start, "nothing to repeat");
      return;
    }
    if (min > max) {
      FailAt(at, "repeat bounds are reversed");
      return;
    }
    Take('?');  // laziness does not change the language
    if (Peek() == '+') {
      Fail("possessive quantifiers are not regular; use a plain one");
      return;
    }
    std::uint32_t a = 0, b = 0;
    if (Peek() == '*' || Peek() == '?' || (Peek() == '{' && Braces(a, b))) {
      FailAt(at_, "nothing to repeat");
      return;
    }
    atom = Regex::Repeat(std::move(atom), min, max);
  }

  Regex Assert(Regex::Assertion assertion, bool& repeatable) {
    repeatable = false;
    Regex out;
    out.kind = Regex::Kind::kAssert;
    out.assertion = assertion;
    return out;
  }

  Regex Atom(int depth, bool& repeatable) {
    using A = Regex::Assertion;
    const std::uint32_t c = Peek();
    switch (c) {
      case '(':
        return Group(depth, repeatable);
      case '[':
        return SetNode(Class());
      case '\\':
        return EscapeAtom(repeatable);
      case '.': {
        ++at_;
        return Regex::Set(flags_.dot_all ? CodePointSet::All() : LineEndSet().Negated());
      }
      case '^':
        ++at_;
        return Assert(flags_.multi_line ? A::kLineStart : A::kTextStart, repeatable);
      case '$':
        ++at_;
        return Assert(flags_.multi_line ? A::kLineEnd : A::kTextEnd, repeatable);
      case '*':
      case '+':
      case '?':
        return Fail("nothing to repeat");
      case '{': {
        std::uint32_t min = 0, max = 0;
        const std::size_t at = at_;
        if (Braces(min, max)) return FailAt(at, "nothing to repeat");
        break;
      }
      default:
        break;
    }
    ++at_;
    return SetNode(CodePointSet::Single(c));
  }

  // Reads the letters of (?flags) or (?flags:; false when this is no flag group.
  bool FlagGroup(Flags& flags, bool& scoped) {
    bool on = true, any = false;
    std::size_t i = 0;
    for (;; ++i) {
      const std::uint32_t c = Peek(i);
      if (c == '-' && on) {
        on = false;
      } else if (c == 'i') {
        flags.ignore_case = on;
      } else if (c == 's') {
        flags.dot_all = on;
      } else if (c == 'm') {
        flags.multi_line = on;
      } else {
        break;
      }
      any = true;
    }
    if (!any || (Peek(i) != ')' && Peek(i) != ':')) return false;
    scoped = Peek(i) == ':';
    at_ += i + 1;
    return true;
  }

  bool GroupName() {
    static const CodePointSet letters = CodePointSet::Of(FindProperty(PropertyKind::kBinary, "ID_Start"));
    static const CodePointSet continues = CodePointSet::Of(FindProperty(PropertyKind::kBinary, "ID_Continue"));
    const auto starts = [](std::uint32_t c) { return c == '_' || c == '$' || letters.Contains(c); };
    if (!starts(Peek())) return false;
    std::string name;
    while (starts(Peek()) || continues.Contains(Peek())) AppendUtf8(chars_[at_++], name);
    return Take('>') && names_.insert(name).second;
  }

  Regex Group(int depth, bool& repeatable) {
    const std::size_t start = at_;
    ++at_;
    if (Peek() == '*') return FailAt(start, "verbs are not regular");
    if (Take('?')) {
      struct Form {
        std::string_view text;
        std::string_view what;
      };
      static constexpr std::array kForms = {
          Form{"=", "look-ahead"},        Form{"!", "look-ahead"},      Form{"<=", "look-behind"},
          Form{"<!", "look-behind"},      Form{">", "an atomic group"}, Form{"(", "a conditional"},
          Form{"P=", "a back-reference"}, Form{"&", "a recursion"},     Form{"#", "a comment"},
      };
      for (const Form& form : kForms) {
        if (TakeWord(form.text)) return FailAt(start, fmt::format("{} is not supported", form.what));
      }
      Flags flags = flags_;
      bool scoped = false;
      if (Take(':')) {
      } else if (TakeWord("P<") || Take('<')) {
        if (!GroupName()) return FailAt(start, "group name is malformed or repeated");
      } else if (FlagGroup(flags, scoped)) {
        if (!scoped) {
          flags_ = flags;  // until the end of the enclosing group
          repeatable = false;
          return {};
        }
        const Flags outer = std::exchange(flags_, flags);
        Regex inner = Alternation(depth + 1);
        flags_ = outer;
        if (ok() && !Take(')')) return FailAt(start, "group without end");
        return inner;
      } else {
        return FailAt(start, "unknown group form");
      }
    }
    Regex inner = Alternation(depth + 1);
    if (ok() && !Take(')')) return FailAt(start, "group without end");
    return inner;
  }

  Regex EscapeAtom(bool& repeatable) {
    using A = Regex::Assertion;
    const std::size_t start = at_;
    ++at_;
    const std::uint32_t c = Peek();
    if (c == 'b' || c == 'B') {
      ++at_;
      return Assert(c == 'b' ? A::kWordEdge : A::kNotWordEdge, repeatable);
    }
    if (c >= '1' && c <= '9') return FailAt(start, "back-references are not regular");
    if (c == 'k') return FailAt(start, "back-references are not regular");
    CodePointSet set;
    if (!EscapeSet(start, false, set)) return {};
    return SetNode(std::move(set));
  }

  bool HexDigits(int count, std::uint32_t& out) {
    out = 0;
    for (int i = 0; i < count; ++i) {
      const auto digit = HexDigit(Peek());
      if (!digit) return false;
      out = out * 16 + *digit;
      ++at_;
    }
    return true;
  }

  // After "\u": the code point, joining surrogate pairs.
  bool UnicodeEscape(std::uint32_t& out) {
    if (Take('{')) {
      out = 0;
      bool any = false;
      while (const auto digit = HexDigit(Peek())) {
        out = std::min<std::uint32_t>(out * 16 + *digit, kCodePointMax + 1);
        any = true;
        ++at_;
      }
      return any && out <= kCodePointMax && Take('}');
    }
    if (!HexDigits(4, out)) return false;
    if (out >= 0xD800 && out < 0xDC00 && Peek() == '\\' && Peek(1) == 'u') {
      const std::size_t back = at_;
      at_ += 2;
      std::uint32_t low = 0;
      if (HexDigits(4, low) && low >= 0xDC00 && low < 0xE000) {
        out = 0x10000 + ((out - 0xD800) << 10) + (low - 0xDC00);
      } else {
        at_ = back;
      }
    }
    return true;
  }

  bool Property(std::size_t start, bool negated, CodePointSet& out) {
    std::string name;
    if (Take('{')) {
      while (Peek() != '}' && Peek() != kEnd && Peek() < 0x80) name.push_back(static_cast<char>(chars_[at_++]));
      if (!Take('}')) {
        FailAt(start, "property name without '}'");
        return false;
      }
    } else if (IsAsciiLetter(Peek())) {
      name.push_back(static_cast<char>(chars_[at_++]));
    }
    if (name == "Any") {
      out = CodePointSet::All();
    } else if (name == "ASCII") {
      out = CodePointSet::Range(0, 0x7F);
    } else {
      const std::size_t equals = name.find('=');
      const std::string key = equals == std::string::npos ? "" : name.substr(0, equals);
      const std::string value = equals == std::string::npos ? name : name.substr(equals + 1);
      std::vector<CodePointRange> found;
      if (key.empty() || key == "General_Category" || key == "gc") {
        found = FindProperty(PropertyKind::kGeneralCategory, value);
      }
      if (key.empty() && found.empty()) found = FindProperty(PropertyKind::kBinary, value);
      if (key == "Script" || key == "sc") found = FindProperty(PropertyKind::kScript, value);
      if (key == "Script_Extensions" || key == "scx") found = FindProperty(PropertyKind::kScriptExtensions, value);
      if (found.empty()) {
        FailAt(start, "unknown Unicode property \"" + name + "\"");
        return false;
      }
      out = CodePointSet::Of(found);
    }
    if (negated) out = out.Negated();
    return true;
  }

  // After the backslash, at its letter: the set that the escape stands for.
  bool EscapeSet(std::size_t start, bool in_class, CodePointSet& out) {
    const std::uint32_t c = Peek();
    if (c == kEnd) {
      FailAt(start, "pattern ends with a backslash");
      return false;
    }
    ++at_;
    std::uint32_t value = 0;
    switch (c) {
      case 'd':
        out = DigitSet();
        return true;
      case 'D':
        out = DigitSet().Negated();
        return true;
      case 's':
        out = SpaceSet();
        return true;
      case 'S':
        out = SpaceSet().Negated();
        return true;
      case 'w':
      case 'W':
        out = flags_.ignore_case ? WordSet().CaseClosed() : WordSet();
        if (c == 'W') out = out.Negated();
        return true;
      case 'p':
      case 'P':
        return Property(start, c == 'P', out);
      case 'n':
        out = CodePointSet::Single('\n');
        return true;
      case 'r':
        out = CodePointSet::Single('\r');
        return true;
      case 't':
        out = CodePointSet::Single('\t');
        return true;
      case 'v':
        out = CodePointSet::Single('\v');
        return true;
      case 'f':
        out = CodePointSet::Single('\f');
        return true;
      case 'b':
        if (!in_class) break;
        out = CodePointSet::Single('\b');
        return true;
      case 'x':
        if (!HexDigits(2, value)) break;
        out = CodePointSet::Single(value);
        return true;
      case 'u':
        if (!UnicodeEscape(value)) break;
        out = CodePointSet::Single(value);
        return true;
      case 'c':
        if (!IsAsciiLetter(Peek())) break;
        out = CodePointSet::Single(chars_[at_++] % 32);
        return true;
      case '0':
        if (IsAsciiDigit(Peek())) break;
        out = CodePointSet::Single(0);
        return true;
      default:
        if (IsAsciiLetter(c) || IsAsciiDigit(c)) break;
        out = CodePointSet::Single(c);
        return true;
    }
    FailAt(start, "unknown or incomplete escape");
    return false;
  }

  bool ClassAtom(CodePointSet& out) {
    if (Peek() == '\\') {
      const std::size_t start = at_++;
      return EscapeSet(start, true, out);
    }
    if (Peek() == '[' && (Peek(1) == ':' || Peek(1) == '.' || Peek(1) == '=')) {
      Fail("POSIX classes are not part of the dialect; use \\p{…} or spell the set out");
      return false;
    }
    out = CodePointSet::Single(chars_[at_++]);
    return true;
  }

  CodePointSet Class() {
    const std::size_t start = at_++;
    const bool negated = Take('^');
    std::vector<CodePointRange> ranges;
    while (ok() && Peek() != ']' && Peek() != kEnd) {
      const std::size_t item = at_;
      CodePointSet from;
      if (!ClassAtom(from)) return {};
      if (Peek() == '-' && Peek(1) != ']' && Peek(1) != kEnd) {
        ++at_;
        CodePointSet to;
        if (!ClassAtom(to)) return {};
        if (!IsSingle(from) || !IsSingle(to)) {
          FailAt(item, "a class such as \\w cannot bound a range; put the hyphen first or last");
          return {};
        }
        if (from.ranges()[0].first > to.ranges()[0].first) {
          FailAt(item, "class range is reversed");
          return {};
        }
        ranges.push_back({from.ranges()[0].first, to.ranges()[0].first});
        continue;
      }
      meter_->Step(from.ranges().size());
      meter_->Hold(from.ranges().size() * sizeof(CodePointRange));
      if (meter_->tripped()) {
        Fail(limits_.Reached(*meter_, "the pattern"), CompileCode::kTooComplex);
        return {};
      }
      ranges.insert(ranges.end(), from.ranges().begin(), from.ranges().end());
    }
    CodePointSet out = CodePointSet::Of(ranges);
    if (!Take(']')) {
      FailAt(start, "class without ']'");
      return {};
    }
    if (!negated) return out;
    return (flags_.ignore_case ? out.CaseClosed() : out).Negated();
  }

  static bool IsSingle(const CodePointSet& set) {
    return set.ranges().size() == 1 && set.ranges()[0].first == set.ranges()[0].last;
  }

  // Of folding the case of a set: the table of folds is gone through.
  static constexpr std::uint64_t kCaseClosureSteps = 3'000;

  const Limits& limits_;
  std::shared_ptr<Meter> meter_;
  std::uint32_t atoms_ = 0;
  std::map<CodePointSet, CodePointSet> case_closed_;
  std::vector<std::uint32_t> chars_;
  std::vector<std::size_t> offsets_;
  std::set<std::string> names_;
  std::size_t at_ = 0;
  Flags flags_;
  std::optional<CompileError> error_;
};

}  // namespace

Regex Regex::Set(CodePointSet set) {
  Regex out;
  out.kind = Kind::kSet;
  out.set = std::move(set);
  return out;
}

Regex Regex::Literal(std::string_view utf8) {
  std::vector<Regex> parts;
  for (const std::uint32_t c : DecodeUtf8(utf8)) parts.push_back(Set(CodePointSet::Single(c)));
  return Concat(std::move(parts));
}

namespace {

// What `regex` repeats, a set; null where it repeats something else or nothing.
const CodePointSet* RepeatedSet(const Regex& regex) {
  if (regex.kind == Regex::Kind::kSet) return &regex.set;
  const bool repeat = regex.kind == Regex::Kind::kRepeat && regex.children[0].kind == Regex::Kind::kSet;
  return repeat ? &regex.children[0].set : nullptr;
}

// x{a,b}x{c,d} is x{a+c,b+d}; apart they make an automaton whose states are sets of counts. False where they stay
// apart.
bool Merge(Regex& left, const Regex& right) {
  if (left.kind != Regex::Kind::kRepeat && right.kind != Regex::Kind::kRepeat) return false;
  const CodePointSet *set = RepeatedSet(left), *other = RepeatedSet(right);
  if (set == nullptr || other == nullptr || !(*set == *other)) return false;
  const auto bounds = [](const Regex& r) {
    return r.kind == Regex::Kind::kRepeat ? std::pair(r.min, r.max) : std::pair(1u, 1u);
  };
  const auto [a, b] = bounds(left);
  const auto [c, d] = bounds(right);
  const std::uint64_t min = std::uint64_t{a} + c, max = std::uint64_t{b} + d;
  const bool unbounded = b == kUnbounded || d == kUnbounded;
  if (min >= kUnbounded || (!unbounded && max >= kUnbounded)) return false;
  left = Regex::Repeat(Regex::Set(*set), static_cast<std::uint32_t>(min),
                       unbounded ? kUnbounded : static_cast<std::uint32_t>(max));
  return true;
}

}  // namespace

Regex Regex::Concat(std::vector<Regex> children) {
  std::size_t kept = 0;
  for (std::size_t i = 1; i < children.size(); ++i) {
    if (!Merge(children[kept], children[i]) && ++kept != i) children[kept] = std::move(children[i]);
  }
  if (!children.empty()) children.resize(kept + 1);
  if (children.size() == 1) return std::move(children[0]);
  Regex out;
  if (children.empty()) return out;
  out.kind = Kind::kConcat;
  out.children = std::move(children);
  return out;
}

Regex Regex::Alternate(std::vector<Regex> children) {
  if (children.empty()) return Nothing();
  if (children.size() == 1) return std::move(children[0]);
  Regex out;
  out.kind = Kind::kAlternate;
  out.children = std::move(children);
  return out;
}

Regex Regex::Repeat(Regex operand, std::uint32_t min, std::uint32_t max) {
  if (operand.kind == Kind::kRepeat && max > 0) {
    // (x?){m,n} is x{0,n}, (x*){m,n} is x*, (x+){m,n} is x{m,}.
    if (operand.min == 0 && operand.max == 1) return Repeat(std::move(operand.children[0]), 0, max);
    if (operand.min <= 1 && operand.max == kUnbounded) {
      return Repeat(std::move(operand.children[0]), operand.min * min, kUnbounded);
    }
  }
  Regex out;
  out.kind = Kind::kRepeat;
  out.children.push_back(std::move(operand));
  out.min = min;
  out.max = max;
  return out;
}

Compiled<Regex> ParseRegex(std::string_view pattern, const Limits& limits) {
  if (pattern.size() > limits.spec_bytes_max) {
    return Refuse(
        {CompileCode::kTooComplex,
         fmt::format("regex has {} bytes, the limit is {} (spec_bytes_max)", pattern.size(), limits.spec_bytes_max), "",
         "", std::nullopt});
  }
  return Parser(pattern, limits).Run();
}

CodePointSet DigitSet() {
  return CodePointSet::Range('0', '9');
}

CodePointSet WordSet() {
  static constexpr std::array kRanges = {CodePointRange{'0', '9'}, CodePointRange{'A', 'Z'}, CodePointRange{'_', '_'},
                                         CodePointRange{'a', 'z'}};
  return CodePointSet::Of(kRanges);
}

CodePointSet SpaceSet() {
  static constexpr std::array kRanges = {CodePointRange{9, 13},          CodePointRange{32, 32},
                                         CodePointRange{0xA0, 0xA0},     CodePointRange{0x1680, 0x1680},
                                         CodePointRange{0x2000, 0x200A}, CodePointRange{0x2028, 0x2029},
                                         CodePointRange{0x202F, 0x202F}, CodePointRange{0x205F, 0x205F},
                                         CodePointRange{0x3000, 0x3000}, CodePointRange{0xFEFF, 0xFEFF}};
  return CodePointSet::Of(kRanges);
}

CodePointSet LineEndSet() {
  static constexpr std::array kRanges = {CodePointRange{'\n', '\n'}, CodePointRange{'\r', '\r'},
                                         CodePointRange{0x2028, 0x2029}};
  return CodePointSet::Of(kRanges);
}

}  // namespace galley::grammar
