// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/parse_states.h"

#include <algorithm>

#include "galley/base/rng.h"
#include "galley/grammar/json_value.h"

namespace galley::grammar {
namespace {

std::size_t NameBytes(const std::u32string& name) {
  return 96 + sizeof(char32_t) * name.size();
}

}  // namespace

std::size_t ParseStates::ItemHash::operator()(const Item& item) const {
  std::uint64_t hash = MixBits((static_cast<std::uint64_t>(item.node) << 32) | item.lexeme);
  hash = MixBits(hash ^ ((static_cast<std::uint64_t>(item.payload) << 32) | item.captured));
  return MixBits(hash ^ ((static_cast<std::uint64_t>(item.origin) << 32) | item.symbol));
}

std::size_t ParseStates::KernelHash::operator()(const std::vector<Item>& kernel) const {
  std::uint64_t hash = kernel.size();
  for (const Item& item : kernel) hash = MixBits(hash ^ ItemHash()(item));
  return hash;
}

std::size_t ParseStates::PayloadHash::operator()(const Payload& payload) const {
  std::uint64_t hash = payload.size();
  for (const std::uint32_t word : payload) hash = MixBits(hash ^ word);
  return hash;
}

ParseStates::ParseStates(Program& program) : program_(program) {
  Begin();
  Item first;
  first.node = program.rule(program.root());
  first.origin = kRootOrigin;
  first.symbol = program.root();
  start_ = Intern({first}, false);
}

void ParseStates::Begin() {
  bytes_ = 0;
  states_.emplace_back();
  static_cast<void>(InternPayload({}));
  captures_.emplace_back(0, 0);
}

std::uint32_t ParseStates::InternPayload(Payload payload) {
  const auto [it, fresh] = payload_ids_.try_emplace(std::move(payload), static_cast<std::uint32_t>(payloads_.size()));
  if (fresh) {
    payloads_.push_back(&it->first);
    bytes_ += 64 + it->first.size() * 4;
  }
  return it->second;
}

std::uint32_t ParseStates::Capture(std::uint32_t before, std::uint8_t byte) {
  const std::uint64_t key = (static_cast<std::uint64_t>(before) << 8) | byte;
  const auto [it, fresh] = capture_ids_.try_emplace(key, static_cast<std::uint32_t>(captures_.size()));
  if (fresh) {
    captures_.emplace_back(before, byte);
    bytes_ += 40;
  }
  return it->second;
}

std::string ParseStates::CapturedBytes(std::uint32_t id) const {
  std::string out;
  for (; id != 0; id = captures_[id].first) out.push_back(static_cast<char>(captures_[id].second));
  std::reverse(out.begin(), out.end());
  return out;
}

std::uint32_t ParseStates::InternName(std::u32string text) {
  const auto [it, fresh] = names_.try_emplace(std::move(text), static_cast<std::uint32_t>(names_.size()));
  if (fresh) bytes_ += NameBytes(it->first);
  return it->second;
}

bool ParseStates::Captures(const Item& item) const {
  const Node& node = program_.node(item.node);
  return node.kind == Node::Kind::kObjectKey && program_.object(node.arg).others();
}

bool ParseStates::NameUsed(const Item& item, std::string_view tail) const {
  const auto used = object_rules::Undeclared(*payloads_[item.payload]);
  if (used.empty()) return false;
  std::string raw = CapturedBytes(item.captured);
  raw += tail;
  const auto it = names_.find(program_.object(program_.node(item.node).arg).key->Decode(raw).text);
  return it != names_.end() && std::binary_search(used.begin(), used.end(), it->second);
}

// A name under way, and the used names that begin as it does.
struct ParseStates::NameBegun {
  BegunText begun;
  std::vector<std::u32string_view> rests;             // behind the whole characters of `begun`
  TextAutomaton::State state = TextAutomaton::kDead;  // behind those characters
};

ParseStates::NameBegun ParseStates::BegunName(const Item& item) {
  const ObjectSpec& object = program_.object(program_.node(item.node).arg);
  const Payload& payload = *payloads_[item.payload];
  const auto used = object_rules::Undeclared(payload);
  TextAutomaton& text = object.key->text();
  NameBegun out;
  out.begun = object.key->Decode(CapturedBytes(item.captured));
  const std::u32string& prefix = out.begun.text;
  for (auto it = names_.lower_bound(prefix); it != names_.end() && it->first.compare(0, prefix.size(), prefix) == 0;
       ++it) {
    program_.limits().meter->Step(1);
    if (!std::binary_search(used.begin(), used.end(), it->second)) continue;
    const std::u32string_view rest = std::u32string_view(it->first).substr(prefix.size());
    if (out.begun.next.empty() || (!rest.empty() && out.begun.next.Contains(rest[0]))) out.rests.push_back(rest);
  }
  const auto names = object_rules::Next(object, payload);
  if (!names || out.rests.empty()) return out;
  out.state = text.Start(text.InternContext(*names));
  for (const char32_t c : prefix) out.state = text.Step(out.state, text.classes().ClassOf(c));
  return out;
}

bool ParseStates::NameLeft(const Item& item) {
  const auto used = object_rules::Undeclared(*payloads_[item.payload]);
  if (used.empty()) return true;
  StringMachine& key = *program_.object(program_.node(item.node).arg).key;
  const auto enough = static_cast<std::uint32_t>(used.size() + 1);
  const auto state = key.text_state(item.lexeme);
  if (state && key.text().Continuations(*state, enough) >= enough) return true;
  // The open name may be any, so the answer may be another once it is known.
  if (used.back() == kUnknownName) guess_event_ = true;
  NameBegun name = BegunName(item);
  return name.rests.empty() || key.text().GoesOnWithout(name.state, std::move(name.rests), name.begun.next);
}

std::vector<std::string> ParseStates::ExhaustedNames(const Item& item, bool& partly) {
  std::vector<std::string> out;
  const auto used = object_rules::Undeclared(*payloads_[item.payload]);
  if (used.empty()) return out;
  TextAutomaton& text = program_.object(program_.node(item.node).arg).key->text();
  const auto enough = static_cast<std::uint32_t>(used.size() + 1);
  const NameBegun name = BegunName(item);
  partly = !name.begun.next.empty();
  for (const std::u32string_view rest : name.rests) {
    // Fewer texts may follow each further character, so the end of the name decides.
    TextAutomaton::State state = name.state;
    for (const char32_t c : rest) state = text.Step(state, text.classes().ClassOf(c));
    if (rest.empty() || text.Continuations(state, enough) >= enough) continue;
    for (out.emplace_back(); const char32_t c : rest) AppendUtf8(c, out.back());
  }
  return out;
}

bool ParseStates::Advance(const Item& item, int label, bool guess, std::vector<Item>& out) {
  const Node& node = program_.node(item.node);
  Item next = item;
  next.lexeme = 0;
  next.captured = 0;
  if (node.kind == Node::Kind::kObjectKey) {
    const ObjectSpec& object = program_.object(node.arg);
    std::uint32_t name = kUnknownName;
    const auto id = static_cast<std::uint32_t>(label);
    const Payload& payload = *payloads_[item.payload];
    if (id >= object.names) {
      const auto used = object_rules::Undeclared(payload);
      // An open name before or at this one: whether they are equal cannot be told here.
      if (std::binary_search(used.begin(), used.end(), kUnknownName)) guess_event_ = true;
      if (!guess) {
        name = InternName(object.key->Decode(CapturedBytes(item.captured)).text);
        if (std::binary_search(used.begin(), used.end(), name)) return false;
      }
    }
    next.payload = InternPayload(object_rules::AfterName(object, payload, id, name));
    next.node = object.colon_node;
  } else {
    next.node = node.outs.empty() ? node.next : node.outs[static_cast<std::size_t>(label)];
  }
  out.push_back(next);
  return true;
}

ParseStates::Id ParseStates::Intern(std::vector<Item> kernel, bool guessed) {
  if (kernel.empty()) return kDead;
  std::sort(kernel.begin(), kernel.end());
  kernel.erase(std::unique(kernel.begin(), kernel.end()), kernel.end());
  const auto id = static_cast<Id>(states_.size());
  const auto [it, fresh] = ids_[guessed ? 1 : 0].try_emplace(kernel, id);
  if (!fresh) return it->second;
  states_.emplace_back();
  states_.back().kernel = std::move(kernel);
  guess_event_ = guessed;
  Close(id);
  states_[id].guessed = guess_event_;
  const State& state = states_[id];
  if (state.lexemes.empty() && state.tokens.empty() && !state.complete) {
    // Only where a limit or an exhausted set of names left no way on: as good as refused.
    states_.pop_back();
    it->second = kDead;
    return kDead;
  }
  bytes_ += 320 + (2 * state.kernel.size() + state.lexemes.size() + state.tokens.size()) * sizeof(Item) +
            state.waiting.size() * (sizeof(Item) + 4);
  const Limits& limits = program_.limits();
  if (bytes_ > limits.matcher_bytes_max + limits.call_bytes_max) overflow_ = Overflow::kBytes;
  return id;
}

void ParseStates::Push(const Item& item) {
  constexpr std::size_t kFew = 48;  // searched one by one
  if (pushed_.size() >= program_.limits().state_items_max) {
    overflow_ = Overflow::kPlaces;
    return;
  }
  if (pushed_.size() < kFew) {
    if (std::find(pushed_.begin(), pushed_.end(), item) != pushed_.end()) return;
  } else {
    if (pushed_set_.empty()) pushed_set_.insert(pushed_.begin(), pushed_.end());
    if (!pushed_set_.insert(item).second) return;
  }
  pushed_.push_back(item);
  todo_.push_back(item);
}

void ParseStates::Close(Id id) {
  todo_.clear();
  pushed_.clear();
  if (!pushed_set_.empty()) pushed_set_.clear();
  empty_.clear();
  State& state = states_[id];
  for (const Item& item : state.kernel) Push(item);
  while (!todo_.empty()) {
    const Item item = todo_.back();
    todo_.pop_back();
    Expand(state, id, item);
  }
  std::sort(state.lexemes.begin(), state.lexemes.end());
  // An item is hashed, compared and sorted a few times.
  program_.limits().meter->Step(4 * pushed_.size());
}

void ParseStates::AddLexeme(State& state, const Item& item) {
  const Node& node = program_.node(item.node);
  Item at = item;
  std::uint32_t index = node.machine;
  if (at.lexeme == 0) {
    std::uint32_t context = node.arg;
    if (node.kind == Node::Kind::kObjectKey) {
      const ObjectSpec& object = program_.object(node.arg);
      const auto names = object_rules::Next(object, *payloads_[item.payload]);
      if (!names) return;
      index = object.key_machine;
      context = object.key->text().InternContext(*names);
    }
    at.lexeme = program_.machine(index).Start(context);
    if (at.lexeme == Machine::kDead || (Captures(at) && !NameLeft(at))) return;
  } else if (node.kind == Node::Kind::kObjectKey) {
    index = program_.object(node.arg).key_machine;
  }
  Machine& machine = program_.machine(index);
  if (!machine.final(at.lexeme)) state.lexemes.push_back(at);
  if (const int label = machine.label(at.lexeme); label != Machine::kNoLabel) {
    std::vector<Item> next;
    if (Advance(at, label, false, next)) Push(next[0]);
  }
}

void ParseStates::Call(State& state, Id id, const Item& from, RuleId rule, NodeId next, std::uint32_t payload_after) {
  Item start;
  start.node = program_.rule(rule);
  if (program_.node(next).kind == Node::Kind::kReturn) {
    start.origin = from.origin;
    start.symbol = from.symbol;
    Push(start);
    return;
  }
  Item then = from;
  then.node = next;
  then.lexeme = 0;
  then.payload = payload_after;
  const std::pair<RuleId, Item> wait = {rule, then};
  program_.limits().meter->Step(state.waiting.size());
  if (std::find(state.waiting.begin(), state.waiting.end(), wait) == state.waiting.end()) {
    state.waiting.push_back(wait);
    if (std::find(empty_.begin(), empty_.end(), rule) != empty_.end()) Push(then);
  }
  start.origin = id;
  start.symbol = rule;
  Push(start);
}

void ParseStates::Complete(State& state, Id id, const Item& item) {
  if (item.origin == kRootOrigin) {
    state.complete = true;
    return;
  }
  program_.limits().meter->Step(states_[item.origin].waiting.size());
  if (item.origin == id) {
    if (std::find(empty_.begin(), empty_.end(), item.symbol) == empty_.end()) empty_.push_back(item.symbol);
    for (std::size_t i = 0; i < state.waiting.size(); ++i) {
      if (state.waiting[i].first == item.symbol) Push(Item(state.waiting[i].second));
    }
    return;
  }
  for (const auto& [rule, then] : states_[item.origin].waiting) {
    if (rule == item.symbol) Push(then);
  }
}

void ParseStates::Expand(State& state, Id id, const Item& item) {
  const Node& node = program_.node(item.node);
  switch (node.kind) {
    case Node::Kind::kLexeme:
    case Node::Kind::kObjectKey:
      AddLexeme(state, item);
      break;
    case Node::Kind::kTokens:
    case Node::Kind::kAnyToken:
      state.tokens.push_back(item);
      break;
    case Node::Kind::kCall:
      Call(state, id, item, node.arg, node.next, item.payload);
      break;
    case Node::Kind::kSplit:
      for (const NodeId out : node.outs) {
        Item next = item;
        next.node = out;
        Push(next);
      }
      break;
    case Node::Kind::kReturn:
      Complete(state, id, item);
      break;
    case Node::Kind::kObjectValue: {
      const ObjectSpec& object = program_.object(node.arg);
      const std::uint32_t label = object_rules::Pending(*payloads_[item.payload]);
      const RuleId rule = label < object.names ? object.name_rules[label] : object.other_rules[label - object.names];
      Call(state, id, item, rule, object.next_node, InternPayload(object_rules::AfterValue(*payloads_[item.payload])));
      break;
    }
    case Node::Kind::kArrayElement: {
      const ArraySpec& array = program_.array(node.arg);
      for (const array_rules::Step& step : ElementsOf(item)) {
        Call(state, id, item, step.rule, array.next_node, InternPayload(step.after));
      }
      break;
    }
    case Node::Kind::kObjectFirst:
    case Node::Kind::kObjectNext:
      ExpandObject(state, item);
      break;
    case Node::Kind::kArrayFirst:
    case Node::Kind::kArrayNext:
      ExpandArray(state, item);
      break;
  }
}

void ParseStates::ExpandObject(State& state, const Item& item) {
  static_cast<void>(state);
  const Node& node = program_.node(item.node);
  const ObjectSpec& object = program_.object(node.arg);
  const Payload& payload = *payloads_[item.payload];
  const bool close = object_rules::CanClose(object, payload);
  bool more = false;
  Item next = item;
  if (const auto names = object_rules::Next(object, payload)) {
    next.lexeme = object.key->Start(object.key->text().InternContext(*names));
    more = next.lexeme != Machine::kDead && NameLeft(next);
    next.lexeme = 0;
  }
  if (node.kind == Node::Kind::kObjectFirst) {
    next.node = object.separators.close_first;
    if (close) Push(next);
    next.node = object.first_node;
    if (more) Push(next);
    return;
  }
  if (!close && !more) return;
  next.node = close && more ? object.separators.both : close ? object.separators.close : object.separators.comma;
  Push(next);
}

std::vector<array_rules::Step> ParseStates::ElementsOf(const Item& item) {
  const std::uint32_t array = program_.node(item.node).arg;
  array_rules::ClosableStates& closable = closable_[array];
  closable.max = program_.limits().array_states_max;
  std::vector<array_rules::Step> out = array_rules::Next(program_.array(array), *payloads_[item.payload], closable);
  if (closable.overflowed) overflow_ = Overflow::kCounts;
  return out;
}

void ParseStates::ExpandArray(State& state, const Item& item) {
  static_cast<void>(state);
  const Node& node = program_.node(item.node);
  const ArraySpec& array = program_.array(node.arg);
  const Payload& payload = *payloads_[item.payload];
  const bool close = array_rules::CanClose(array, payload);
  const bool more = !ElementsOf(item).empty();
  Item next = item;
  if (node.kind == Node::Kind::kArrayFirst) {
    next.node = array.separators.close_first;
    if (close) Push(next);
    next.node = array.element_node;
    if (more) Push(next);
    return;
  }
  if (!close && !more) return;
  next.node = close && more ? array.separators.both : close ? array.separators.close : array.separators.comma;
  Push(next);
}

ParseStates::Id ParseStates::Step(Id from, std::uint8_t byte) {
  if (from == kDead) return kDead;
  const std::uint64_t key = (static_cast<std::uint64_t>(from) << 8) | byte;
  if (const Id known = moves_.Find(key); known != FlatMap::kMissing) return known;
  std::vector<Item> kernel;
  guess_event_ = false;
  program_.limits().meter->Step(states_[from].lexemes.size());
  for (const Item& item : states_[from].lexemes) {
    const Node& node = program_.node(item.node);
    const std::uint32_t index =
        node.kind == Node::Kind::kObjectKey ? program_.object(node.arg).key_machine : node.machine;
    Machine& machine = program_.machine(index);
    Item next = item;
    next.lexeme = machine.Step(item.lexeme, byte);
    if (next.lexeme == Machine::kDead) continue;
    if (Captures(item)) next.captured = Capture(item.captured, byte);
    // A lexeme that ends here for certain leaves no trace, so that all ways to this place are one state.
    if (machine.final(next.lexeme)) {
      static_cast<void>(Advance(next, machine.label(next.lexeme), false, kernel));
    } else if (!Captures(next) || NameLeft(next)) {
      kernel.push_back(next);
    }
  }
  const bool event = guess_event_;
  const Id id = Intern(std::move(kernel), event);
  moves_.Insert(key, id);
  bytes_ += 32;
  return id;
}

ParseStates::Id ParseStates::StepToken(Id from, std::uint32_t token, bool is_end) {
  if (from == kDead) return kDead;
  std::vector<Item> kernel;
  for (const Item& item : states_[from].tokens) {
    const Node& node = program_.node(item.node);
    const bool listed = std::binary_search(node.outs.begin(), node.outs.end(), token);
    if (node.kind == Node::Kind::kTokens ? !listed : (listed || is_end)) continue;
    Item next = item;
    next.node = node.next;
    kernel.push_back(next);
  }
  return Intern(std::move(kernel), false);
}

ParseStates::Id ParseStates::AfterLexeme(const Item& item, int label, bool guess) {
  std::vector<Item> kernel;
  guess_event_ = false;
  if (!Advance(item, label, guess, kernel)) return kDead;
  const bool event = guess_event_;
  return Intern(std::move(kernel), event);
}

// Takes over what old items name into tables that hold nothing else.
Item ParseStates::Moved(Item item, const Tables& old, Renamed& now) {
  const auto [payload, unknown] = now.payloads.try_emplace(item.payload, 0);
  if (unknown) payload->second = InternPayload(Payload(*old.payloads[item.payload]));
  item.payload = payload->second;
  std::vector<std::uint32_t> chain;
  std::uint32_t at = item.captured;
  for (; now.captures.find(at) == now.captures.end(); at = old.captures[at].first) chain.push_back(at);
  std::uint32_t captured = now.captures[at];
  for (; !chain.empty(); chain.pop_back()) {
    captured = Capture(captured, old.captures[chain.back()].second);
    now.captures.emplace(chain.back(), captured);
  }
  item.captured = captured;
  return item;
}

std::vector<ParseStates::Id> ParseStates::Compact(std::span<const Id> keep) {
  std::vector<Id> order;  // old ids, origins before the states that name them
  std::unordered_map<Id, Id> map = {{kDead, kDead}};
  std::vector<Id> todo(keep.begin(), keep.end());
  todo.push_back(start_);
  while (!todo.empty()) {
    const Id id = todo.back();
    todo.pop_back();
    if (!map.emplace(id, 0).second) continue;
    order.push_back(id);
    for (const Item& item : states_[id].kernel) {
      if (item.origin != kRootOrigin) todo.push_back(item.origin);
    }
    for (const auto& wait : states_[id].waiting) {
      if (wait.second.origin != kRootOrigin && wait.second.origin != id) todo.push_back(wait.second.origin);
    }
  }
  std::sort(order.begin(), order.end());  // a state's origins were made before it
  std::deque<State> states = std::move(states_);
  const auto payload_ids = std::move(payload_ids_);  // owns the payloads
  const Tables old = {std::move(payloads_), std::move(captures_)};
  states_.clear();
  for (auto& ids : ids_) ids.clear();
  moves_.Clear();
  payload_ids_.clear();
  payloads_.clear();
  captures_.clear();
  capture_ids_.clear();
  Begin();
  for (const auto& [name, id] : names_) bytes_ += NameBytes(name);
  Renamed now = {.payloads = {}, .captures = {{0, 0}}};
  for (const Id id : order) {
    // Making each was a call of its own.
    program_.limits().meter->RestartSteps();
    std::vector<Item> kernel = std::move(states[id].kernel);
    for (Item& item : kernel) {
      if (item.origin != kRootOrigin) item.origin = map[item.origin];
      item = Moved(item, old, now);
    }
    map[id] = Intern(std::move(kernel), states[id].guessed);
  }
  start_ = map[start_];
  std::vector<Id> out;
  for (const Id id : keep) out.push_back(map[id]);
  return out;
}

}  // namespace galley::grammar
