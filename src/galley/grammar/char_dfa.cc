// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/char_dfa.h"

#include <fmt/format.h>

#include <algorithm>

#include "galley/base/rng.h"
#include "galley/grammar/json_value.h"

namespace galley::grammar {
namespace {

constexpr std::uint32_t kUnknown = 0xFFFFFFFF;

bool StartsWithTextStart(const Regex& regex) {
  if (regex.kind == Regex::Kind::kAssert) return regex.assertion == Regex::Assertion::kTextStart;
  return regex.kind == Regex::Kind::kConcat && StartsWithTextStart(regex.children.front());
}

bool EndsWithTextEnd(const Regex& regex) {
  if (regex.kind == Regex::Kind::kAssert) return regex.assertion == Regex::Assertion::kTextEnd;
  return regex.kind == Regex::Kind::kConcat && EndsWithTextEnd(regex.children.back());
}

// The ends of texts and lines do not.
bool LooksLeft(Regex::Assertion assertion) {
  return assertion != Regex::Assertion::kTextEnd && assertion != Regex::Assertion::kLineEnd;
}

// Takes the assertion off the front (or back), where StartsWithTextStart (EndsWithTextEnd) found one.
void DropAssertion(Regex& regex, bool front) {
  if (regex.kind == Regex::Kind::kAssert) {
    regex = Regex{};
  } else {
    DropAssertion(front ? regex.children.front() : regex.children.back(), front);
  }
}

}  // namespace

// Turns syntax trees into NFA states, from the end to the front so that every state knows its successor.
class CharDfaBuilder {
 public:
  CharDfaBuilder(CharDfa& out, const Limits& limits) : out_(out), limits_(limits) {}

  bool Run(std::vector<Regex> options, CharDfa::Mode mode) {
    const bool search = mode == CharDfa::Mode::kSearch;
    const bool loop = search && !std::all_of(options.begin(), options.end(), StartsWithTextStart);
    std::vector<std::uint32_t> starts;
    for (std::size_t i = 0; i < options.size(); ++i) {
      const bool to_end = !search || EndsWithTextEnd(options[i]);
      // Anchors at the ends say what the shape of the automaton says already; without them its steps are cheaper.
      if (EndsWithTextEnd(options[i])) DropAssertion(options[i], /*front=*/false);
      if (!loop && StartsWithTextStart(options[i])) DropAssertion(options[i], /*front=*/true);
      const std::uint32_t end = Add(to_end ? Kind::kMatch : Kind::kAll, static_cast<std::uint32_t>(i), 0);
      starts.push_back(Build(options[i], end));
      if (full_) return false;
    }
    std::uint32_t start = Split(std::move(starts));
    if (loop) {
      const std::uint32_t split = Add(Kind::kSplit, 0, 0);
      const std::uint32_t any = Add(Kind::kSet, SetId(CodePointSet::All()), split);
      out_.nfa_[split].outs = {start, any};
      start = split;
    }
    out_.nfa_start_ = start;
    return !full_;
  }

  std::vector<CodePointSet> TakeSets() { return std::move(sets_); }

 private:
  using Kind = CharDfa::NfaState::Kind;

  std::uint32_t Add(Kind kind, std::uint32_t arg, std::uint32_t next) {
    if (out_.nfa_.size() >= limits_.nfa_states_max) {
      full_ = true;
      return 0;
    }
    out_.meter_->Hold(sizeof(CharDfa::NfaState));
    full_ = out_.meter_->tripped();
    out_.nfa_.push_back({kind, arg, next, {}});
    return static_cast<std::uint32_t>(out_.nfa_.size() - 1);
  }

  std::uint32_t SetId(const CodePointSet& set) {
    const auto [it, fresh] = set_ids_.try_emplace(set, static_cast<std::uint32_t>(sets_.size()));
    if (fresh) sets_.push_back(set);
    return it->second;
  }

  std::uint32_t Split(std::vector<std::uint32_t> outs) {
    if (outs.size() == 1) return outs[0];
    const std::uint32_t split = Add(Kind::kSplit, 0, 0);
    if (!full_) out_.nfa_[split].outs = std::move(outs);
    return split;
  }

  std::uint32_t Build(const Regex& regex, std::uint32_t next) {
    if (full_) return 0;
    switch (regex.kind) {
      case Regex::Kind::kEmpty:
        return next;
      case Regex::Kind::kSet:
        return Add(Kind::kSet, SetId(regex.set), next);
      case Regex::Kind::kAssert:
        out_.has_assertions_ = true;
        out_.looks_left_ = out_.looks_left_ || LooksLeft(regex.assertion);
        return Add(Kind::kAssert, static_cast<std::uint32_t>(regex.assertion), next);
      case Regex::Kind::kConcat:
        for (auto it = regex.children.rbegin(); it != regex.children.rend(); ++it) next = Build(*it, next);
        return next;
      case Regex::Kind::kAlternate: {
        std::vector<std::uint32_t> outs;
        for (const Regex& child : regex.children) outs.push_back(Build(child, next));
        return Split(std::move(outs));
      }
      case Regex::Kind::kRepeat:
        return BuildRepeat(regex, next);
    }
    return next;
  }

  // x{m,n} becomes m copies followed by optional ones, each of which may leave to the end at once.
  std::uint32_t BuildRepeat(const Regex& regex, std::uint32_t next) {
    const Regex& operand = regex.children[0];
    const std::uint32_t end = next;
    std::uint32_t copies = regex.min;
    if (regex.max == kUnbounded) {
      const std::uint32_t split = Add(Kind::kSplit, 0, 0);
      if (full_) return 0;
      const std::uint32_t body = Build(operand, split);
      if (full_) return 0;
      out_.nfa_[split].outs = {body, end};
      next = split;
    } else {
      for (std::uint32_t i = regex.min; i < regex.max && !full_; ++i) {
        const std::size_t before = out_.nfa_.size();
        next = Split({Build(operand, next), end});
        if (out_.nfa_.size() == before) break;  // an empty operand: more copies add nothing
      }
    }
    for (; copies > 0 && !full_; --copies) {
      const std::size_t before = out_.nfa_.size();
      next = Build(operand, next);
      if (out_.nfa_.size() == before) break;
    }
    return next;
  }

  CharDfa& out_;
  const Limits& limits_;
  std::map<CodePointSet, std::uint32_t> set_ids_;
  std::vector<CodePointSet> sets_;
  bool full_ = false;
};

std::size_t CharDfa::KeyHash::operator()(const Key& key) const {
  std::uint64_t hash = MixBits(key.left);
  for (const std::uint32_t s : key.states) hash = MixBits(hash ^ s);
  return hash;
}

Compiled<std::shared_ptr<CharDfa>> CharDfa::Create(std::vector<Regex> options, Mode mode, const Limits& limits) {
  std::shared_ptr<CharDfa> dfa(new CharDfa(limits.MeterOrNew()));
  CharDfaBuilder builder(*dfa, limits);
  if (!builder.Run(std::move(options), mode)) {
    dfa->meter_->Trip(Meter::Limit::kNfaStates);
    return Refuse({CompileCode::kTooComplex, limits.Reached(*dfa->meter_, "regex"), "", "", std::nullopt});
  }
  std::vector<CodePointSet> sets = builder.TakeSets();
  const std::size_t own = sets.size();
  if (dfa->has_assertions_) {
    sets.push_back(WordSet());
    sets.push_back(LineEndSet());
  }
  dfa->classes_ = CharClasses::OfSets(sets);
  const std::uint32_t classes = dfa->classes_.count();
  dfa->meter_->Step(own * classes);
  dfa->meter_->Hold(own * classes / 8);
  if (dfa->meter_->tripped()) {
    return Refuse({CompileCode::kTooComplex, limits.Reached(*dfa->meter_, "regex"), "", "", std::nullopt});
  }
  dfa->member_.assign(own, std::vector<bool>(classes));
  dfa->left_after_.assign(classes, kLeftOther);
  const auto starts = dfa->classes_.starts();
  std::vector<bool> seen(classes);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::uint32_t c = dfa->classes_.class_at(i);
    if (seen[c]) continue;
    seen[c] = true;
    for (std::size_t s = 0; s < own; ++s) dfa->member_[s][c] = sets[s].Contains(starts[i]);
    if (dfa->has_assertions_) {
      if (sets[own].Contains(starts[i])) dfa->left_after_[c] = kLeftWord;
      if (sets[own + 1].Contains(starts[i])) dfa->left_after_[c] = kLeftLineEnd;
    }
  }
  dfa->states_max_ = limits.dfa_states_max;
  dfa->fixed_bytes_ = dfa->nfa_.size() * sizeof(NfaState) + own * classes / 8;
  dfa->mark_.assign(dfa->nfa_.size(), 0);
  dfa->Begin();
  return dfa;
}

void CharDfa::Begin() {
  bytes_ = fixed_bytes_;
  Intern({}, kLeftOther);  // kDead
  std::vector<std::uint32_t> closed;
  const std::uint32_t start = nfa_start_;
  Close({&start, 1}, kLeftStart, false, kLeftOther, closed);
  start_ = Intern(std::move(closed), kLeftStart);
}

void CharDfa::Reset() {
  ids_.clear();
  keys_.clear();
  rows_.clear();
  labels_.clear();
  all_ = kUnknown;
  Begin();
}

bool CharDfa::Holds(Regex::Assertion assertion, Left left, Left right, bool at_end) {
  const bool edge = (left == kLeftWord) != (!at_end && right == kLeftWord);
  switch (assertion) {
    case Regex::Assertion::kTextStart:
      return left == kLeftStart;
    case Regex::Assertion::kTextEnd:
      return at_end;
    case Regex::Assertion::kLineStart:
      return left == kLeftStart || left == kLeftLineEnd;
    case Regex::Assertion::kLineEnd:
      return at_end || right == kLeftLineEnd;
    case Regex::Assertion::kWordEdge:
      return edge;
    case Regex::Assertion::kNotWordEdge:
      return !edge;
  }
  return false;
}

void CharDfa::Close(std::span<const std::uint32_t> from, Left left, bool resolve, Left right,
                    std::vector<std::uint32_t>& out) {
  // `right` is kLeftStart for the end of the text, which no character can be.
  const bool at_end = right == kLeftStart;
  ++mark_now_;
  std::uint64_t steps = 0;
  std::vector<std::uint32_t> todo(from.begin(), from.end());
  while (!todo.empty()) {
    const std::uint32_t s = todo.back();
    todo.pop_back();
    ++steps;
    if (mark_[s] == mark_now_) continue;
    mark_[s] = mark_now_;
    const NfaState& state = nfa_[s];
    switch (state.kind) {
      case NfaState::Kind::kSplit:
        todo.insert(todo.end(), state.outs.begin(), state.outs.end());
        break;
      case NfaState::Kind::kAssert: {
        const auto assertion = static_cast<Regex::Assertion>(state.arg);
        if (resolve) {
          if (Holds(assertion, left, right, at_end)) todo.push_back(state.next);
        } else if (assertion == Regex::Assertion::kTextStart) {
          if (left == kLeftStart) todo.push_back(state.next);
        } else {
          out.push_back(s);
        }
        break;
      }
      default:
        out.push_back(s);
    }
  }
  meter_->Step(steps);
}

CharDfa::State CharDfa::Intern(std::vector<std::uint32_t> states, Left left) {
  std::sort(states.begin(), states.end());
  bool pending = false;
  for (const std::uint32_t s : states) {
    if (nfa_[s].kind == NfaState::Kind::kAll && !labels_.empty()) {
      // Matched whatever follows: one state for all of them, as long as labels do not differ.
      states = {s};
      pending = false;
      break;
    }
    // What looks to the left may stand behind an assertion that does not, as in "a$\\b".
    pending = pending || (nfa_[s].kind == NfaState::Kind::kAssert && looks_left_);
  }
  Key key{std::move(states), pending ? left : kLeftOther};
  const auto found = ids_.find(key);
  if (found != ids_.end()) return found->second;
  if (keys_.size() >= states_max_ && keys_.size() > 1) {
    meter_->Trip(Meter::Limit::kStates);
    return kDead;
  }
  const auto id = static_cast<State>(keys_.size());
  const auto it = ids_.emplace(std::move(key), id).first;
  keys_.push_back(&it->first);
  rows_.emplace_back();
  labels_.push_back(ComputeLabel(it->first));
  if (it->first.states.size() == 1 && nfa_[it->first.states[0]].kind == NfaState::Kind::kAll) all_ = id;
  Grow(96 + it->first.states.size() * 4);
  return id;
}

int CharDfa::ComputeLabel(const Key& key) {
  int label = kNoLabel;
  const auto take = [&](const NfaState& s) {
    if (s.kind != NfaState::Kind::kMatch && s.kind != NfaState::Kind::kAll) return;
    const int found = static_cast<int>(s.arg);
    if (label == kNoLabel || found < label) label = found;
  };
  std::vector<std::uint32_t> closed;
  if (has_assertions_) {
    Close(key.states, key.left, true, kLeftStart, closed);
  } else {
    closed = key.states;
  }
  for (const std::uint32_t s : closed) take(nfa_[s]);
  return label;
}

CharDfa::State CharDfa::Step(State state, std::uint32_t char_class) {
  std::vector<State>& row = rows_[state];
  if (row.empty()) {
    row.assign(classes_.count(), kUnknown);
    Grow(row.size() * sizeof(State));
  } else if (row[char_class] != kUnknown) {
    return row[char_class];
  }
  if (meter_->tripped()) return kDead;
  const Key& key = *keys_[state];
  std::vector<std::uint32_t> resolved;
  std::span<const std::uint32_t> from = key.states;
  const Left right = left_after_[char_class];
  if (has_assertions_) {
    Close(key.states, key.left, true, right, resolved);
    from = resolved;
  }
  std::vector<std::uint32_t> moved;
  for (const std::uint32_t s : from) {
    const NfaState& n = nfa_[s];
    if (n.kind == NfaState::Kind::kAll) moved.push_back(s);
    if (n.kind == NfaState::Kind::kSet && member_[n.arg][char_class]) moved.push_back(n.next);
  }
  std::vector<std::uint32_t> closed;
  Close(moved, right, false, kLeftOther, closed);
  const State target = Intern(std::move(closed), right);
  rows_[state][char_class] = target;
  return target;
}

bool CharDfa::Matches(std::string_view utf8) {
  State state = start_;
  for (const std::uint32_t c : DecodeUtf8(utf8)) state = Step(state, classes_.ClassOf(c));
  return Label(state) != kNoLabel;
}

}  // namespace galley::grammar
