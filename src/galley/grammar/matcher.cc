// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/matcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "galley/base/check.h"

namespace galley::grammar {
namespace {

constexpr std::size_t kMasksKept = 96;
// A rollback by more tokens than this may have to find the states of the whole text again.
constexpr std::size_t kStatesKept = 256;
constexpr ParseStates::Id kNotWalked = 0xFFFFFFFF;
constexpr std::uint64_t kForgotten = ~std::uint64_t{0};  // a generation that no program has

void SetBit(std::vector<MaskWord>& mask, std::uint32_t id) {
  mask[id / 64] |= MaskWord{1} << (id % 64);
}

void ClearBit(std::vector<MaskWord>& mask, std::uint32_t id) {
  mask[id / 64] &= ~(MaskWord{1} << (id % 64));
}

void SetAll(std::vector<MaskWord>& mask, const std::vector<MaskWord>& bits) {
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] |= bits[i];
}

}  // namespace

Matcher::Matcher(Grammar grammar) : grammar_(std::move(grammar)) {
  grammar_.program->BeginCall();
  Rebuild();
  if (grammar_.program->overflowed()) {
    // Perhaps what others built is in the way.
    grammar_.program->Renew();
    Rebuild();
  }
  NoteOverflow();
}

void Matcher::Rebuild() {
  session_ = std::make_shared<Session>(*grammar_.program);
  generation_ = grammar_.program->generation();
  history_.assign(1, session_->states.start());
  for (const std::uint32_t token : tokens_) {
    history_.push_back(AfterOrEnd(history_.back(), token));
    // Each was a call of its own.
    grammar_.program->BeginCall();
    CompactIfLarge();
  }
}

void Matcher::NoteOverflow() {
  Program& program = *grammar_.program;
  const Limits& limits = program.limits();
  if (program.overflowed()) {
    failure_ = limits.Reached(*limits.meter, "the grammar, at this place of the text,");
    program.Renew();
    return;
  }
  switch (session_->states.overflow()) {
    case ParseStates::Overflow::kNone:
      break;
    case ParseStates::Overflow::kPlaces:
      failure_ = fmt::format(
          "the text may be at more than {} places of the grammar (state_items_max); make it less "
          "ambiguous",
          limits.state_items_max);
      return;
    case ParseStates::Overflow::kCounts:
      failure_ = fmt::format("an array's counts combine to more than {} states (array_states_max); lower them",
                             limits.array_states_max);
      return;
    case ParseStates::Overflow::kBytes:
      failure_ = fmt::format(
          "the text needs more than {} KiB of states, those of one mask or token included (matcher_bytes_max and "
          "call_bytes_max); loosen the grammar's patterns, bounds and repeats, or let it nest less",
          (limits.matcher_bytes_max + limits.call_bytes_max) >> 10);
      return;
  }
}

template <typename Op>
auto Matcher::Guarded(const Op& op) {
  using Out = decltype(op());
  if (failed()) return Out{};
  Program& program = *grammar_.program;
  program.BeginCall();
  if (generation_ != program.generation()) Rebuild();
  Out out = op();
  // Steps are the call's own; what takes memory may be what others built.
  if (program.overflowed() && program.limits().meter->limit() != Meter::Limit::kSteps) {
    program.Renew();
    Rebuild();
    if (!program.overflowed()) out = op();
  }
  NoteOverflow();
  return failed() ? Out{} : out;
}

std::unique_ptr<Matcher> Matcher::Fork() const {
  std::unique_ptr<Matcher> out(new Matcher());
  out->grammar_ = grammar_;
  out->session_ = session_;
  out->history_ = history_;
  out->tokens_ = tokens_;
  out->generation_ = generation_;
  out->failure_ = failure_;
  out->terminated_ = terminated_;
  return out;
}

Matcher::Id Matcher::After(Id from, std::uint32_t token) {
  const Vocabulary& vocabulary = *grammar_.vocabulary;
  if (token >= vocabulary.size()) return ParseStates::kDead;
  ParseStates& states = session_->states;
  if (vocabulary.is_special(token)) return states.StepToken(from, token, vocabulary.is_end(token));
  const std::string_view bytes = vocabulary.bytes(token);
  if (bytes.empty()) return ParseStates::kDead;
  for (const char c : bytes) {
    from = states.Step(from, static_cast<std::uint8_t>(c));
    if (from == ParseStates::kDead || grammar_.program->overflowed()) break;
  }
  return from;
}

Matcher::Id Matcher::AfterOrEnd(Id from, std::uint32_t token) {
  const Vocabulary& vocabulary = *grammar_.vocabulary;
  if (token < vocabulary.size() && vocabulary.is_end(token) && session_->states.state(from).complete) return from;
  return After(from, token);
}

bool Matcher::Accept(std::uint32_t token) {
  if (terminated_) return false;
  const Id next = Guarded([&] { return AfterOrEnd(history_.back(), token); });
  if (next == ParseStates::kDead) return false;
  history_.push_back(next);
  tokens_.push_back(token);
  terminated_ = grammar_.vocabulary->is_end(token);
  if (!terminated_) CompactIfLarge();
  return true;
}

std::size_t Matcher::Accept(std::span<const std::uint32_t> tokens) {
  std::size_t count = 0;
  while (count < tokens.size() && Accept(tokens[count])) ++count;
  return count;
}

void Matcher::Rollback(std::size_t count) {
  count = std::min(count, tokens_.size());
  if (count == 0) return;
  history_.resize(history_.size() - count);
  tokens_.resize(tokens_.size() - count);
  terminated_ = false;
  if (history_.back() != ParseStates::kDead || tokens_.empty()) return;
  generation_ = kForgotten;
  static_cast<void>(Guarded([] { return true; }));
}

void Matcher::Reset() {
  Rollback(history_.size());
}

bool Matcher::MatchesNothing() const {
  const ParseStates& states = session_->states;
  const ParseStates::State& start = states.state(states.start());
  return !start.complete && start.lexemes.empty() && start.tokens.empty();
}

bool Matcher::can_stop() {
  return session_->states.state(history_.back()).complete;
}

bool Matcher::in_free_text() const {
  const std::vector<Item>& lexemes = session_->states.state(history_.back()).lexemes;
  return !terminated_ && std::any_of(lexemes.begin(), lexemes.end(),
                                     [&](const Item& item) { return grammar_.program->node(item.node).open; });
}

bool Matcher::must_stop() {
  if (terminated_) return true;
  return Guarded([&] {
    ParseStates& states = session_->states;
    const Id id = history_.back();
    if (!states.state(id).complete || !states.state(id).tokens.empty()) return false;
    if (states.state(id).lexemes.empty()) return true;
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (states.Step(id, static_cast<std::uint8_t>(byte)) != ParseStates::kDead) return false;
    }
    return true;
  });
}

// What is dropped is made again from the tokens when a rollback leads there; kDead stands for it.
void Matcher::CompactIfLarge(Id* read) {
  const std::uint64_t max = grammar_.program->limits().matcher_bytes_max;
  if (session_->states.bytes() < session_->bytes_after_compact + max) return;
  if (session_.use_count() > 1 && read != nullptr) return;
  if (session_.use_count() > 1) return Rebuild();  // a fork that grows gets states of its own
  const std::size_t first = history_.size() - std::min(history_.size(), kStatesKept);
  std::vector<Id> last(history_.begin() + static_cast<std::ptrdiff_t>(first), history_.end());
  if (read != nullptr) last.push_back(*read);
  std::vector<Id> kept = session_->states.Compact(last);
  if (read != nullptr) {
    *read = kept.back();
    kept.pop_back();
  }
  std::fill(history_.begin(), history_.end(), ParseStates::kDead);
  history_[0] = session_->states.start();
  std::copy(kept.begin(), kept.end(), history_.begin() + static_cast<std::ptrdiff_t>(first));
  session_->bytes_after_compact = session_->states.bytes();
  session_->kept.clear();
  session_->kept_at.clear();
  session_->oldest = 0;
}

std::size_t Matcher::bytes() const {
  return session_->states.bytes() + session_->kept.size() * grammar_.vocabulary->mask_words() * 8 +
         history_.size() * sizeof(Id) + tokens_.size() * 4;
}

const std::vector<MaskWord>& Matcher::MaskOf(Id id) {
  Session& session = *session_;
  const auto found = session.kept_at.find(id);
  if (found != session.kept_at.end()) return session.kept[found->second].mask;
  // A state that comes back later is cheap to compute again from its lexemes' masks.
  std::size_t slot = session.kept.size();
  if (slot < kMasksKept) {
    session.kept.emplace_back();
  } else {
    slot = session.oldest;
    session.oldest = (slot + 1) % kMasksKept;
    session.kept_at.erase(session.kept[slot].id);
  }
  session.kept[slot].id = id;
  session.kept[slot].mask.assign(grammar_.vocabulary->mask_words(), 0);
  session.kept_at.emplace(id, slot);
  Compute(id, session.kept[slot].mask);
  return session.kept[slot].mask;
}

std::size_t CountTokens(std::span<const MaskWord> mask) {
  std::size_t count = 0;
  for (const MaskWord word : mask) count += static_cast<std::size_t>(std::popcount(word));
  return count;
}

void Matcher::FillMask(std::span<MaskWord> out) {
  CHECK(out.size() == grammar_.vocabulary->mask_words()) << "mask row of " << out.size() << " words";
  const bool filled = !terminated_ && Guarded([&] {
    const std::vector<MaskWord>& mask = MaskOf(history_.back());
    std::copy(mask.begin(), mask.end(), out.begin());
    return true;
  });
  if (!filled) std::fill(out.begin(), out.end(), 0);
}

std::vector<bool> Matcher::FillTreeMasks(std::span<const std::int32_t> parents, std::span<const std::uint32_t> tokens,
                                         std::span<MaskWord> out) {
  const std::size_t words = grammar_.vocabulary->mask_words();
  CHECK(parents.size() == tokens.size() && out.size() == tokens.size() * words) << "tree mask shapes differ";
  std::vector<bool> valid = Guarded([&] {
    std::fill(out.begin(), out.end(), 0);
    return FillTreeMasksOnce(parents, tokens, out);
  });
  if (!valid.empty() || tokens.empty()) return valid;
  std::fill(out.begin(), out.end(), 0);
  return std::vector<bool>(tokens.size(), false);
}

std::vector<bool> Matcher::FillTreeMasksOnce(std::span<const std::int32_t> parents,
                                             std::span<const std::uint32_t> tokens, std::span<MaskWord> out) {
  const std::size_t words = grammar_.vocabulary->mask_words();
  std::vector<bool> valid(tokens.size(), false);
  std::vector<Id> ids(tokens.size(), ParseStates::kDead);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    CHECK(parents[i] < static_cast<std::int32_t>(i)) << "draft tree node " << i << " comes before its parent";
    const Id parent = parents[i] < 0 ? history_.back() : ids[static_cast<std::size_t>(parents[i])];
    if (terminated_ || parent == ParseStates::kDead) continue;
    if (tokens[i] < grammar_.vocabulary->size() && grammar_.vocabulary->is_end(tokens[i]) &&
        session_->states.state(parent).complete) {
      valid[i] = true;  // the text ends here; nothing may follow
      continue;
    }
    ids[i] = After(parent, tokens[i]);
    if (ids[i] == ParseStates::kDead) continue;
    valid[i] = true;
    const std::vector<MaskWord>& mask = MaskOf(ids[i]);
    std::copy(mask.begin(), mask.end(), out.begin() + static_cast<std::ptrdiff_t>(i * words));
  }
  return valid;
}

// Adds the tokens below `top` whose bytes from there on the grammar takes. session_->row holds what is known of the
// steps from `from`; callers reset it when `from` changes.
void Matcher::Walk(const TokenTrie& trie, std::uint32_t top, Id from, std::vector<MaskWord>& mask,
                   std::vector<std::uint32_t>& doubtful) {
  ParseStates& states = session_->states;
  Meter& meter = *grammar_.program->limits().meter;
  const std::size_t base = trie.depth(top);
  std::vector<Id>& path = session_->path;
  std::vector<char>& guessed = session_->guessed;
  std::vector<Id>& row = session_->row;
  if (path.size() <= trie.depth_max()) {
    path.resize(trie.depth_max() + 1u);
    guessed.resize(trie.depth_max() + 1u);
  }
  guessed[0] = 0;
  const std::uint32_t end = top + trie.skip(top);
  for (std::uint32_t node = top + 1; node < end;) {
    const std::size_t depth = trie.depth(node) - base;
    meter.Step(1);
    if (meter.tripped()) return;
    Id next = ParseStates::kDead;
    if (depth == 1) {
      Id& known = row[trie.byte(node)];
      if (known == kNotWalked) known = states.Step(from, trie.byte(node));
      next = known;
    } else {
      next = states.Step(path[depth - 1], trie.byte(node));
    }
    if (next == ParseStates::kDead) {
      node += trie.skip(node);
      continue;
    }
    path[depth] = next;
    guessed[depth] = static_cast<char>(guessed[depth - 1] != 0 || states.state(next).guessed);
    for (const std::uint32_t token : trie.tokens(node)) {
      if (guessed[depth] != 0) {
        doubtful.push_back(token);
      } else {
        SetBit(mask, token);
      }
    }
    ++node;
  }
}

void Matcher::AddPlainString(const Item& item, Machine::PlainBody body, std::vector<MaskWord>& mask,
                             std::vector<std::uint32_t>& doubtful) {
  const Vocabulary& vocabulary = *grammar_.vocabulary;
  const Vocabulary::PlainStrings& plain = vocabulary.plain_strings();
  const bool roomy = body.room >= plain.count_max;
  const std::size_t shorts = plain.short_ones.size();
  const bool captures = session_->states.Captures(item);
  const bool some_used = captures && !object_rules::Undeclared(session_->states.payload(item.payload)).empty();
  if (roomy) {
    SetAll(mask, plain.all);
  } else {
    std::vector<MaskWord> own = plain.short_ones[std::min<std::size_t>(body.room, shorts - 1)];
    for (const auto& token : plain.long_ones) {
      if (token.count <= body.room) SetBit(own, token.id);
    }
    if (some_used) HoldBackUsedNames(item, own, doubtful);
    SetAll(mask, own);
  }
  const auto used = [&](std::string_view tail) { return some_used && session_->states.NameUsed(item, tail); };
  for (const auto& token : plain.closers) {
    if (token.count < body.need || token.count > body.room) continue;
    if (!used(vocabulary.bytes(token.id))) SetBit(mask, token.id);
  }
  const Id then = session_->states.AfterLexeme(item, body.label, captures);
  if (then == ParseStates::kDead || session_->states.state(then).lexemes.empty()) return;
  session_->row.assign(256, kNotWalked);
  if (roomy && body.need == 0 && !some_used) return Walk(plain.after_quote, 0, then, mask, doubtful);
  for (const auto& exit : plain.exits) {
    if (exit.count < body.need || exit.count > body.room) continue;
    if (!used(vocabulary.trie().Path(exit.id))) Walk(vocabulary.trie(), exit.id, then, mask, doubtful);
  }
}

void Matcher::HoldBackUsedNames(const Item& item, std::vector<MaskWord>& own, std::vector<std::uint32_t>& doubtful) {
  const Vocabulary& vocabulary = *grammar_.vocabulary;
  const TokenTrie& trie = vocabulary.trie();
  Meter& meter = *grammar_.program->limits().meter;
  bool partly = false;
  const std::vector<std::string> rests = session_->states.ExhaustedNames(item, partly);
  const auto hold = [&](std::uint32_t first, std::uint32_t last) {
    for (std::uint32_t node = first; node < last; ++node) {
      for (const std::uint32_t token : trie.tokens(node)) {
        if ((own[token / 64] >> (token % 64) & 1) == 0) continue;
        ClearBit(own, token);
        doubtful.push_back(token);
      }
    }
    meter.Step(last - first);
  };
  // Of half a character no spelling is looked for, as it may be half an escape.
  if (partly && !rests.empty()) return hold(1, trie.size());
  for (const std::string& rest : rests) {
    // Down the trie along the name, from its opening quote on, and into every escape on the way.
    std::uint32_t top = item.captured == 0 ? trie.Child(0, '"') : 0;
    for (std::size_t at = 0; at <= rest.size() && top != TokenTrie::kNone; ++at) {
      const std::uint32_t escape = trie.Child(top, '\\');
      if (escape != TokenTrie::kNone) hold(escape, escape + trie.skip(escape));
      if (at == rest.size()) break;
      top = trie.Child(top, static_cast<std::uint8_t>(rest[at]));
      if (top != TokenTrie::kNone) hold(top, top + 1);
    }
  }
}

void Matcher::AddItem(const Item& item, std::vector<MaskWord>& mask, std::vector<std::uint32_t>& doubtful) {
  Program& program = *grammar_.program;
  const Vocabulary& vocabulary = *grammar_.vocabulary;
  const Node& node = program.node(item.node);
  const bool is_key = node.kind == Node::Kind::kObjectKey;
  const std::uint32_t index = is_key ? program.object(node.arg).key_machine : node.machine;
  Machine& machine = program.machine(index);
  if (const auto body = machine.plain_body(item.lexeme)) return AddPlainString(item, *body, mask, doubtful);
  const bool captures = session_->states.Captures(item);
  const LexemeMask& own = program.MaskOf(index, item.lexeme, vocabulary, captures);
  std::vector<bool> used(captures ? own.exits.size() : 0, false);
  std::vector<std::uint32_t> banned;
  if (captures && !object_rules::Undeclared(session_->states.payload(item.payload)).empty()) {
    for (std::size_t i = 0; i < own.exits.size(); ++i) {
      if (static_cast<std::uint32_t>(own.exits[i].label) < program.object(node.arg).names) continue;
      if (!session_->states.NameUsed(item, vocabulary.trie().Path(own.exits[i].node))) continue;
      used[i] = true;
      const auto tokens = vocabulary.trie().tokens(own.exits[i].node);
      banned.insert(banned.end(), tokens.begin(), tokens.end());
    }
  }
  if (captures && !object_rules::Undeclared(session_->states.payload(item.payload)).empty()) {
    std::vector<MaskWord> bits(mask.size(), 0);
    if (own.dense) bits = own.bits;
    for (const std::uint32_t id : own.ids) SetBit(bits, id);
    for (const std::uint32_t id : banned) ClearBit(bits, id);
    HoldBackUsedNames(item, bits, doubtful);
    SetAll(mask, bits);
  } else if (own.dense) {
    SetAll(mask, own.bits);
  } else {
    for (const std::uint32_t id : own.ids) SetBit(mask, id);
  }
  Id then = ParseStates::kDead;
  int label = Machine::kNoLabel;
  for (std::size_t i = 0; i < own.exits.size(); ++i) {
    if (captures && (used[i] || vocabulary.trie().leaf(own.exits[i].node))) continue;
    if (own.exits[i].label != label) {
      label = own.exits[i].label;
      then = session_->states.AfterLexeme(item, label, captures);
      session_->row.assign(256, kNotWalked);
      if (then != ParseStates::kDead && session_->states.state(then).lexemes.empty()) then = ParseStates::kDead;
    }
    if (then != ParseStates::kDead) Walk(vocabulary.trie(), own.exits[i].node, then, mask, doubtful);
  }
}

void Matcher::AddTokens(const Item& item, std::vector<MaskWord>& mask) const {
  const Node& node = grammar_.program->node(item.node);
  const Vocabulary& vocabulary = *grammar_.vocabulary;
  if (node.kind == Node::Kind::kTokens) {
    for (const std::uint32_t id : node.outs) {
      if (id < vocabulary.size()) SetBit(mask, id);
    }
    return;
  }
  for (std::uint32_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.is_special(id) && !vocabulary.is_end(id) &&
        !std::binary_search(node.outs.begin(), node.outs.end(), id)) {
      SetBit(mask, id);
    }
  }
}

void Matcher::Compute(Id id, std::vector<MaskWord>& mask) {
  const Vocabulary& vocabulary = *grammar_.vocabulary;
  std::vector<std::uint32_t> doubtful;
  const ParseStates::State& state = session_->states.state(id);
  constexpr std::uint64_t kDenseSteps = 500;  // a dense mask is as long as so many nodes of the trie
  for (const Item& item : state.lexemes) {
    grammar_.program->limits().meter->Step(kDenseSteps);
    if (grammar_.program->overflowed()) return;
    AddItem(item, mask, doubtful);
  }
  for (const Item& item : state.tokens) AddTokens(item, mask);
  if (state.complete) {
    for (const std::uint32_t end : vocabulary.ends()) SetBit(mask, end);
  }
  for (const std::uint32_t token : doubtful) {
    if (After(id, token) != ParseStates::kDead) SetBit(mask, token);
  }
}

std::string Matcher::ForcedText(std::size_t bytes_max) {
  if (terminated_) return {};
  return Guarded([&] { return ForcedFrom(history_.back(), bytes_max); });
}

std::string Matcher::ForcedFrom(Id id, std::size_t bytes_max) {
  std::string out;
  ParseStates& states = session_->states;
  while (out.size() < bytes_max) {
    if (states.state(id).complete || !states.state(id).tokens.empty()) break;
    Id next = ParseStates::kDead;
    int forced = -1;
    for (int byte = 0; byte < 256 && forced != -2; ++byte) {
      const Id to = states.Step(id, static_cast<std::uint8_t>(byte));
      if (to == ParseStates::kDead) continue;
      forced = forced == -1 ? byte : -2;
      next = to;
    }
    if (forced < 0) break;
    out.push_back(static_cast<char>(forced));
    id = next;
  }
  // Half a character is of no use to a tokenizer.
  std::size_t whole = out.size();
  while (whole > 0 && (static_cast<unsigned char>(out[whole - 1]) & 0xC0) == 0x80) --whole;
  if (whole > 0 && static_cast<unsigned char>(out[whole - 1]) >= 0xC0) {
    const auto lead = static_cast<unsigned char>(out[whole - 1]);
    const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (whole - 1 + length > out.size()) out.resize(whole - 1);
  }
  return out;
}

Matcher::Reading Matcher::Read(std::string_view text, std::string_view marker, std::uint32_t marker_token) {
  ParseStates& states = session_->states;
  Reading out;
  out.id = out.alive = states.start();
  while (out.bytes_ok < text.size() && out.id != ParseStates::kDead) {
    const std::string_view rest = text.substr(out.bytes_ok);
    const bool is_marker = !marker.empty() && rest.substr(0, marker.size()) == marker;
    out.id = is_marker ? states.StepToken(out.id, marker_token, false)
                       : states.Step(out.id, static_cast<std::uint8_t>(rest[0]));
    if (out.id == ParseStates::kDead) break;
    out.bytes_ok += is_marker ? marker.size() : 1;
    // Each is a call of its own, and a long text leaves behind what it came from.
    if (grammar_.program->overflowed() || states.overflow() != ParseStates::Overflow::kNone) break;
    grammar_.program->BeginCall();
    CompactIfLarge(&out.id);
    out.alive = out.id;
  }
  return out;
}

Matcher::Judgement Matcher::Check(std::string_view text, std::string_view marker, std::uint32_t marker_token) {
  return Guarded([&] {
    const Reading reading = Read(text, marker, marker_token);
    Judgement out;
    out.bytes_ok = reading.bytes_ok;
    out.prefix = reading.id != ParseStates::kDead;
    out.complete = out.prefix && session_->states.state(reading.id).complete;
    return out;
  });
}

Matcher::Outlook Matcher::LookAhead(std::string_view text, std::string_view marker, std::uint32_t marker_token) {
  return Guarded([&] { return OutlookOf(Read(text, marker, marker_token).alive); });
}

Matcher::Outlook Matcher::OutlookOf(Id id) {
  ParseStates& states = session_->states;
  Outlook out;
  if (id == ParseStates::kDead) return out;
  for (unsigned byte = 0; byte < 256; ++byte) {
    out.bytes[byte] = states.Step(id, static_cast<std::uint8_t>(byte)) != ParseStates::kDead;
  }
  for (std::uint32_t token = 0; token < grammar_.vocabulary->size(); ++token) {
    if (!grammar_.vocabulary->is_special(token) || grammar_.vocabulary->is_end(token)) continue;
    if (states.StepToken(id, token, false) != ParseStates::kDead) out.control.push_back(token);
  }
  out.end = states.state(id).complete;
  out.forced = ForcedFrom(id, 4096);
  return out;
}

}  // namespace galley::grammar
