// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/text_automaton.h"

#include <algorithm>
#include <set>

#include "galley/base/rng.h"
#include "galley/grammar/json_value.h"

namespace galley::grammar {
namespace {

constexpr std::uint32_t kUnknown = 0xFFFFFFFF;

// Code points of first..last that are no surrogates.
std::uint32_t Characters(std::uint32_t first, std::uint32_t last) {
  const std::uint32_t low = std::max(first, 0xD800u), high = std::min(last, 0xDFFFu);
  return last - first + 1 - (low <= high ? high - low + 1 : 0);
}

}  // namespace

NameTrie::NameTrie(const std::vector<std::string>& names, const Limits& limits) : count_(names.size()) {
  constexpr std::size_t kNodeBytes = sizeof(Node) + 48;  // with what its lists take at least
  nodes_.emplace_back();
  const std::shared_ptr<Meter> meter = limits.MeterOrNew();
  std::size_t characters = 0;
  for (const std::string& name : names) characters += name.size();
  meter->Step(4 * characters);
  const auto fits = [&](std::size_t bytes) {
    if (meter->bytes() + bytes > meter->bytes_max()) meter->Trip(Meter::Limit::kBytes);
    return !meter->tripped();
  };
  if (!fits(8 * characters)) return;
  std::vector<std::vector<std::uint32_t>> decoded;
  std::set<std::uint32_t> chars;
  for (const std::string& name : names) {
    decoded.push_back(DecodeUtf8(name));
    chars.insert(decoded.back().begin(), decoded.back().end());
  }
  std::vector<CodePointSet> sets;
  for (const std::uint32_t c : chars) sets.push_back(CodePointSet::Single(c));
  classes_ = CharClasses::OfSets(sets);
  std::size_t counted = 0;
  for (std::size_t i = 0; i < decoded.size() && !meter->tripped(); ++i) {
    meter->Hold(4 * decoded[i].size() + (nodes_.size() - counted) * kNodeBytes);
    counted = nodes_.size();
    if (!fits(decoded[i].size() * kNodeBytes)) return;
    std::uint32_t node = 0;
    nodes_[0].below.push_back(static_cast<std::uint32_t>(i));
    for (const std::uint32_t c : decoded[i]) {
      const std::uint32_t char_class = classes_.ClassOf(c);
      std::uint32_t next = Step(node, char_class);
      if (next == kOff) {
        next = static_cast<std::uint32_t>(nodes_.size());
        nodes_[node].children.emplace_back(char_class, next);
        nodes_.emplace_back();
      }
      node = next;
      nodes_[node].below.push_back(static_cast<std::uint32_t>(i));
    }
    if (nodes_[node].name == kNone) nodes_[node].name = static_cast<std::uint32_t>(i);
  }
}

std::uint32_t NameTrie::Step(std::uint32_t node, std::uint32_t char_class) const {
  for (const auto& [c, next] : nodes_[node].children) {
    if (c == char_class) return next;
  }
  return kOff;
}

std::size_t NameTrie::bytes() const {
  std::size_t out = 0;
  for (const Node& node : nodes_) out += sizeof(Node) + node.children.size() * 8 + node.below.size() * 4;
  return out;
}

std::size_t TextAutomaton::KeyHash::operator()(const std::vector<std::uint32_t>& key) const {
  std::uint64_t hash = 0;
  for (const std::uint32_t word : key) hash = MixBits(hash ^ word);
  return hash;
}

TextAutomaton::TextAutomaton(TextSpec spec, const Limits& limits)
    : spec_(std::move(spec)), meter_(limits.MeterOrNew()), states_max_(limits.dfa_states_max) {
  std::vector<const CharClasses*> parts;
  for (const TextSpec::Part& part : spec_.parts) parts.push_back(&part.dfa->classes());
  if (spec_.names) parts.push_back(&spec_.names->classes());
  if (!parts.empty()) classes_ = CharClasses::Refine(parts, maps_);
  count_cap_ = spec_.length_max == kUnbounded ? spec_.length_min : spec_.length_max + 1;
  exact_ = spec_.parts.size() == 1 && spec_.parts[0].sense == TextSpec::Sense::kMust && spec_.parts[0].dfa->exact() &&
           spec_.names == nullptr && spec_.length_min == 0 && spec_.length_max == kUnbounded;
  Begin();
}

void TextAutomaton::Begin() {
  contexts_.emplace_back();
  context_ids_.emplace(NameContext{}, 0);
  states_.push_back({0, NameTrie::kOff, 0, kNoLabel, Life::kDead});
  part_states_.resize(spec_.parts.size(), CharDfa::kDead);
  rows_.emplace_back();
}

void TextAutomaton::Reset() {
  for (const TextSpec::Part& part : spec_.parts) part.dfa->Reset();
  contexts_.clear();
  context_ids_.clear();
  ids_.clear();
  states_.clear();
  part_states_.clear();
  rows_.clear();
  counts_.clear();
  bytes_ = 0;
  Begin();
}

std::size_t TextAutomaton::bytes() const {
  std::size_t out = bytes_ + (spec_.names != nullptr ? spec_.names->bytes() : 0);
  for (const TextSpec::Part& part : spec_.parts) out += part.dfa->bytes();
  return out;
}

std::uint32_t TextAutomaton::InternContext(const NameContext& context) {
  const auto [it, fresh] = context_ids_.try_emplace(context, static_cast<std::uint32_t>(contexts_.size()));
  if (fresh) {
    contexts_.push_back(context);
    Grow(96 + context.excluded.size() * 4);
  }
  return it->second;
}

bool TextAutomaton::Allowed(std::uint32_t name, const NameContext& context) const {
  return spec_.name_allowed[name] && name >= context.first && name <= context.last &&
         !std::binary_search(context.excluded.begin(), context.excluded.end(), name);
}

bool TextAutomaton::NameBelow(const Info& info) const {
  if (info.node == NameTrie::kOff) return false;
  const NameContext& context = contexts_[info.context];
  const std::vector<std::uint32_t>& below = spec_.names->below(info.node);
  for (auto it = std::lower_bound(below.begin(), below.end(), context.first); it != below.end() && *it <= context.last;
       ++it) {
    if (Allowed(*it, context)) return true;
  }
  return false;
}

// The label of a spec without names is its first pattern's, so that separators can tell which of their options matched.
int TextAutomaton::FirstLabel(const std::uint32_t* parts) const {
  if (spec_.parts.empty() || spec_.parts[0].sense != TextSpec::Sense::kMust) return 0;
  return spec_.parts[0].dfa->Label(parts[0]);
}

int TextAutomaton::ComputeLabel(const Info& info, const std::uint32_t* parts) const {
  if (spec_.names && info.node != NameTrie::kOff) {
    const std::uint32_t name = spec_.names->name(info.node);
    if (name != NameTrie::kNone) return Allowed(name, contexts_[info.context]) ? static_cast<int>(name) : kNoLabel;
  }
  if (spec_.names && !contexts_[info.context].others) return kNoLabel;
  if (info.count < spec_.length_min || (spec_.length_max != kUnbounded && info.count > spec_.length_max)) {
    return kNoLabel;
  }
  std::uint64_t observed = 0, bit = 1;
  for (std::size_t i = 0; i < spec_.parts.size(); ++i) {
    const bool match = spec_.parts[i].dfa->Label(parts[i]) != CharDfa::kNoLabel;
    switch (spec_.parts[i].sense) {
      case TextSpec::Sense::kMust:
        if (!match) return kNoLabel;
        break;
      case TextSpec::Sense::kMustNot:
        if (match) return kNoLabel;
        break;
      case TextSpec::Sense::kObserve:
        if (match) observed |= bit;
        bit <<= 1;
        break;
    }
  }
  if (!spec_.names) return FirstLabel(parts);
  const auto it = spec_.other_labels.find(observed);
  return it == spec_.other_labels.end() ? kNoLabel : static_cast<int>(spec_.names->size()) + it->second;
}

TextAutomaton::State TextAutomaton::Intern(std::uint32_t context, std::uint32_t node, std::uint32_t count,
                                           const std::vector<std::uint32_t>& parts) {
  if (node == NameTrie::kOff) context = 0;
  std::vector<std::uint32_t> key = {context, node, count};
  key.insert(key.end(), parts.begin(), parts.end());
  const auto found = ids_.find(key);
  if (found != ids_.end()) return found->second;
  if (states_.size() >= states_max_) {
    meter_->Trip(Meter::Limit::kStates);
    return kDead;
  }
  const auto id = static_cast<State>(states_.size());
  ids_.emplace(std::move(key), id);
  Info info{context, node, count, kNoLabel, Life::kUnknown};
  info.label = ComputeLabel(info, parts.data());
  if (info.label != kNoLabel || NameBelow(info) || exact_) info.life = Life::kLive;
  if (spec_.names && node != NameTrie::kOff && !contexts_[context].others && info.life != Life::kLive) {
    info.life = Life::kDead;
  }
  states_.push_back(info);
  part_states_.insert(part_states_.end(), parts.begin(), parts.end());
  rows_.emplace_back();
  Grow(120 + parts.size() * 8);
  return id;
}

TextAutomaton::State TextAutomaton::Start(std::uint32_t context) {
  std::vector<std::uint32_t> parts;
  for (const TextSpec::Part& part : spec_.parts) parts.push_back(part.dfa->start());
  const State state = Intern(context, spec_.names ? 0 : NameTrie::kOff, 0, parts);
  return IsLive(state) ? state : kDead;
}

TextAutomaton::State TextAutomaton::RawStep(State state, std::uint32_t char_class) {
  if (rows_[state].empty()) {
    rows_[state].assign(classes_.count(), kUnknown);
    Grow(classes_.count() * sizeof(State));
  }
  if (rows_[state][char_class] != kUnknown) return rows_[state][char_class];
  meter_->Step(1);
  if (meter_->tripped()) return kDead;
  if (SizeOf(char_class) == 0) return rows_[state][char_class] = kDead;
  const Info info = states_[state];
  const std::size_t n = spec_.parts.size();
  State target = kDead;
  std::vector<std::uint32_t> parts(n);
  bool possible = true;
  for (std::size_t i = 0; i < n && possible; ++i) {
    CharDfa& dfa = *spec_.parts[i].dfa;
    const std::uint32_t before = part_states_[state * n + i];
    parts[i] = before == CharDfa::kDead ? CharDfa::kDead : dfa.Step(before, maps_[i][char_class]);
    if (spec_.parts[i].sense == TextSpec::Sense::kMust) possible = parts[i] != CharDfa::kDead;
    if (spec_.parts[i].sense == TextSpec::Sense::kMustNot) possible = !dfa.universal(parts[i]);
  }
  const std::uint32_t node =
      info.node == NameTrie::kOff ? NameTrie::kOff : spec_.names->Step(info.node, maps_[n][char_class]);
  const std::uint32_t count = std::min(info.count + 1, count_cap_);
  const bool too_long = spec_.length_max != kUnbounded && count > spec_.length_max;
  if (node != NameTrie::kOff) {
    // A part that cannot match any more rules out undeclared names only; names were checked when the spec was built.
    if (!possible) {
      for (std::size_t i = 0; i < n; ++i) {
        if (spec_.parts[i].sense == TextSpec::Sense::kMust) parts[i] = CharDfa::kDead;
      }
    }
    target = Intern(info.context, node, count, parts);
  } else if (possible && !too_long && (!spec_.names || contexts_[info.context].others)) {
    target = Intern(info.context, node, count, parts);
  }
  rows_[state][char_class] = target;
  return target;
}

std::uint32_t TextAutomaton::SizeOf(std::uint32_t char_class) {
  if (sizes_.empty()) {
    sizes_.assign(classes_.count(), 0);
    const auto starts = classes_.starts();
    for (std::size_t i = 0; i < starts.size(); ++i) {
      const std::uint32_t last = i + 1 < starts.size() ? starts[i + 1] - 1 : kCodePointMax;
      sizes_[classes_.class_at(i)] += Characters(starts[i], last);
    }
  }
  return sizes_[char_class];
}

bool TextAutomaton::IsLive(State state) {
  if (states_[state].life != Life::kUnknown) return states_[state].life == Life::kLive;
  // Depth first to some accepted state. Everything on the path is then live; when the search ends without one, all
  // that it visited is dead.
  struct Frame {
    State state;
    std::uint32_t next;
  };
  std::vector<Frame> path = {{state, 0}};
  std::vector<State> visited = {state};
  states_[state].life = Life::kVisited;
  while (!path.empty()) {
    Frame& top = path.back();
    if (top.next >= classes_.count()) {
      path.pop_back();
      continue;
    }
    const State next = RawStep(top.state, top.next++);
    if (states_[next].life == Life::kLive) {
      for (const State s : visited) states_[s].life = Life::kUnknown;  // visited and left: not certain yet
      for (const Frame& frame : path) states_[frame.state].life = Life::kLive;
      return true;
    }
    if (states_[next].life != Life::kUnknown) continue;
    states_[next].life = Life::kVisited;
    visited.push_back(next);
    path.push_back({next, 0});
  }
  for (const State s : visited) states_[s].life = Life::kDead;
  return false;
}

TextAutomaton::State TextAutomaton::Step(State state, std::uint32_t char_class) {
  const State next = RawStep(state, char_class);
  return next != kDead && IsLive(next) ? next : kDead;
}

int TextAutomaton::plain_label(State state) const {
  // A pattern is out of play once it matches whatever follows, or can match no more.
  std::uint64_t observed = 0, bit = 1;
  for (std::size_t i = 0; i < spec_.parts.size(); ++i) {
    const std::uint32_t part = part_states_[state * spec_.parts.size() + i];
    const bool always = spec_.parts[i].dfa->universal(part), never = part == CharDfa::kDead;
    switch (spec_.parts[i].sense) {
      case TextSpec::Sense::kMust:
        if (!always) return kNoLabel;
        break;
      case TextSpec::Sense::kMustNot:
        if (!never) return kNoLabel;
        break;
      case TextSpec::Sense::kObserve:
        if (!always && !never) return kNoLabel;
        if (always) observed |= bit;
        bit <<= 1;
        break;
    }
  }
  if (spec_.names == nullptr) return 0;
  const auto other = spec_.other_labels.find(observed);
  if (states_[state].node != NameTrie::kOff || other == spec_.other_labels.end()) return kNoLabel;
  return static_cast<int>(spec_.names->size()) + other->second;
}

bool TextAutomaton::AnyLive(State state, std::uint32_t first, std::uint32_t last) {
  const auto starts = classes_.starts();
  for (std::size_t i = classes_.IntervalOf(first); i < starts.size() && starts[i] <= last; ++i) {
    if (Step(state, classes_.class_at(i)) != kDead) return true;
  }
  return false;
}

bool TextAutomaton::Uniform(State state, std::uint32_t first, std::uint32_t last, State& target) {
  const auto starts = classes_.starts();
  std::size_t i = classes_.IntervalOf(first);
  target = Step(state, classes_.class_at(i));
  for (++i; i < starts.size() && starts[i] <= last; ++i) {
    if (Step(state, classes_.class_at(i)) != target) return false;
  }
  return true;
}

std::uint32_t TextAutomaton::Continuations(State state, std::uint32_t enough) {
  if (const auto it = counts_.find(state); it != counts_.end()) {
    if (it->second.exact || it->second.least >= enough) return std::min(it->second.least, enough);
  }
  // Asked again with a few more each time, so twice as many are looked for.
  const std::uint64_t wanted = std::max<std::uint64_t>(1024, 2 * std::uint64_t{enough});
  std::map<State, std::uint64_t> level = {{state, 1}};  // texts of one length, by the state behind them
  std::uint64_t ended = 0, open = 1;
  while (!level.empty() && ended + open < wanted && !meter_->tripped()) {
    std::map<State, std::uint64_t> next;
    for (const auto& [at, count] : level) {
      meter_->Step(classes_.count());
      if (Label(at) != kNoLabel) ended += count;
      for (std::uint32_t c = 0; c < classes_.count(); ++c) {
        const State to = Step(at, c);
        if (to != kDead) next[to] += count * SizeOf(c);
      }
    }
    level = std::move(next);
    open = 0;
    for (const auto& [at, count] : level) open += count;
  }
  // Every one of those that are open can be completed.
  const auto found = static_cast<std::uint32_t>(std::min(ended + open, wanted));
  counts_[state] = {found, level.empty()};
  return std::min(found, enough);
}

bool TextAutomaton::GoesOnWithout(State state, std::vector<std::u32string_view> rests, const CodePointSet& next) {
  using Rests = std::vector<std::u32string_view>;
  std::vector<std::pair<State, Rests>> todo;
  todo.emplace_back(state, std::move(rests));
  const auto starts = classes_.starts();
  for (CodePointSet within = next; !todo.empty(); within = {}) {
    const auto [at, texts] = std::move(todo.back());
    todo.pop_back();
    bool ends = false;
    std::map<std::uint32_t, Rests> behind;  // by first character
    for (const std::u32string_view text : texts) {
      if (text.empty()) {
        ends = true;
      } else if (within.empty() || within.Contains(text[0])) {
        behind[text[0]].push_back(text.substr(1));
      }
    }
    if (within.empty() && Label(at) != kNoLabel && !ends) return true;
    for (std::size_t i = 0; i < starts.size(); ++i) {
      if (Step(at, classes_.class_at(i)) == kDead) continue;
      const std::uint32_t last = i + 1 < starts.size() ? starts[i + 1] - 1 : kCodePointMax;
      std::uint32_t characters = 0;
      if (within.empty()) characters = Characters(starts[i], last);
      for (const CodePointRange& r : within.ranges()) {
        const std::uint32_t a = std::max(r.first, starts[i]), b = std::min(r.last, last);
        if (a <= b) characters += Characters(a, b);
      }
      const auto from = behind.lower_bound(starts[i]), to = behind.upper_bound(last);
      if (characters > static_cast<std::uint32_t>(std::distance(from, to))) return true;
    }
    for (auto& [c, more] : behind) {
      if (const State to = Step(at, classes_.ClassOf(c)); to != kDead) todo.emplace_back(to, std::move(more));
    }
  }
  return false;
}

bool TextAutomaton::EnumerateOthers(std::size_t limit, std::vector<std::string>& out) {
  struct Frame {
    State state;
    std::uint32_t next;
    std::string text;
  };
  const State start = Start(0);
  if (start == kDead) return true;
  const auto is_other = [&](State s) { return Label(s) >= static_cast<int>(spec_.names ? spec_.names->size() : 0); };
  std::vector<Frame> path = {{start, 0, ""}};
  if (is_other(start)) out.emplace_back();
  std::size_t steps = 0;
  while (!path.empty()) {
    Frame& top = path.back();
    if (path.size() > 64 || ++steps > limit * 256) return false;
    if (top.next > kCodePointMax) {
      path.pop_back();
      continue;
    }
    const std::size_t interval = classes_.IntervalOf(top.next);
    const State next = Step(top.state, classes_.class_at(interval));
    if (next == kDead) {
      const auto starts = classes_.starts();
      top.next = interval + 1 < starts.size() ? starts[interval + 1] : kCodePointMax + 1;
      continue;
    }
    std::string text = top.text;
    if (top.next >= 0xD800 && top.next < 0xE000) {
      ++top.next;
      continue;
    }
    AppendUtf8(top.next++, text);
    if (is_other(next)) {
      if (out.size() >= limit) return false;
      out.push_back(text);
    }
    path.push_back({next, 0, std::move(text)});
  }
  return true;
}

bool TextAutomaton::Satisfies(const TextSpec& spec, const std::string& text, std::uint64_t* observed) {
  const std::size_t length = DecodeUtf8(text).size();
  if (length < spec.length_min || (spec.length_max != kUnbounded && length > spec.length_max)) return false;
  std::uint64_t bits = 0, bit = 1;
  for (const TextSpec::Part& part : spec.parts) {
    const bool match = part.dfa->Matches(text);
    if (part.sense == TextSpec::Sense::kMust && !match) return false;
    if (part.sense == TextSpec::Sense::kMustNot && match) return false;
    if (part.sense == TextSpec::Sense::kObserve) {
      if (match) bits |= bit;
      bit <<= 1;
    }
  }
  if (observed != nullptr) *observed = bits;
  return true;
}

bool TextAutomaton::ObservedSets(const TextSpec& spec, const Limits& limits, std::vector<std::uint64_t>& out) {
  // Runs the parts without names: a set that only a declared name reaches is harmless, it just gets a label.
  TextSpec plain = spec;
  plain.names = nullptr;
  TextAutomaton automaton(plain, limits);
  std::set<std::uint64_t> sets;
  const State start = automaton.Start(0);
  std::vector<State> todo;
  std::set<State> seen;
  if (start != kDead) {
    todo.push_back(start);
    seen.insert(start);
  }
  const std::size_t n = spec.parts.size();
  while (!todo.empty()) {
    const State state = todo.back();
    todo.pop_back();
    if (automaton.Label(state) != kNoLabel) {
      std::uint64_t bits = 0, bit = 1;
      for (std::size_t i = 0; i < n; ++i) {
        if (spec.parts[i].sense != TextSpec::Sense::kObserve) continue;
        if (spec.parts[i].dfa->Label(automaton.part_states_[state * n + i]) != CharDfa::kNoLabel) bits |= bit;
        bit <<= 1;
      }
      sets.insert(bits);
    }
    for (std::uint32_t c = 0; c < automaton.classes().count(); ++c) {
      const State next = automaton.Step(state, c);
      if (next != kDead && seen.insert(next).second) todo.push_back(next);
    }
    if (seen.size() > 20'000 || automaton.overflowed()) return false;
  }
  out.assign(sets.begin(), sets.end());
  return true;
}

}  // namespace galley::grammar
