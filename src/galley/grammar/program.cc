// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/program.h"

#include <algorithm>
#include <bit>

namespace galley::grammar {
namespace {

// Masks of lexeme states are dropped and rebuilt beyond this; a mask in use is never held across a call.
constexpr std::size_t kMaskCacheBytes = 4u << 20;
constexpr std::size_t kNotedEvery = std::size_t{64} << 10;

}  // namespace

void ObjectSpec::Finish() {
  next_required.assign(ordered + 1u, ordered);
  allowed_before.assign(ordered + 1u, 0);
  for (std::uint32_t i = ordered; i-- > 0;) next_required[i] = required[i] ? i : next_required[i + 1];
  for (std::uint32_t i = 0; i < ordered; ++i) allowed_before[i + 1] = allowed_before[i] + (allowed[i] ? 1u : 0u);
}

std::uint32_t ArraySpec::index_cap() const {
  const auto options_size = static_cast<std::uint32_t>(options.size());
  const std::uint32_t cap = std::max(items_min, items_max == kUnbounded ? 0 : items_max);
  return std::max(cap, options_size == 0 ? 0 : options_size - 1);
}

NodeId Program::AddNode(Node node) {
  nodes_.push_back(std::move(node));
  return static_cast<NodeId>(nodes_.size() - 1);
}

std::uint32_t Program::AddMachine(std::unique_ptr<Machine> machine) {
  machines_.push_back(std::move(machine));
  return static_cast<std::uint32_t>(machines_.size() - 1);
}

RuleId Program::AddRule(NodeId start) {
  rules_.push_back(start);
  return static_cast<RuleId>(rules_.size() - 1);
}

std::uint32_t Program::AddObject(ObjectSpec spec) {
  objects_.push_back(std::move(spec));
  return static_cast<std::uint32_t>(objects_.size() - 1);
}

std::uint32_t Program::AddArray(ArraySpec spec) {
  arrays_.push_back(std::move(spec));
  return static_cast<std::uint32_t>(arrays_.size() - 1);
}

void Program::BeginCall() {
  if (!running_) {
    running_ = true;  // what compiling cost is over
    limits_.meter->Restart(limits_.lexeme_bytes_max);
  }
  limits_.meter->RestartSteps();
}

void Program::Renew() {
  for (const auto& machine : machines_) machine->Reset();
  masks_.clear();
  mask_bytes_ = mask_bytes_noted_ = 0;
  ++generation_;
  limits_.meter->Restart(limits_.lexeme_bytes_max);
}

std::size_t Program::bytes() const {
  std::size_t out = mask_bytes_ + nodes_.size() * sizeof(Node) + rules_.size() * 4;
  for (const Node& node : nodes_) out += node.outs.size() * 4;
  for (const auto& machine : machines_) out += machine->bytes() + 64;
  for (const ObjectSpec& object : objects_) out += sizeof(object) + object.names * 16;
  for (const ArraySpec& array : arrays_) out += sizeof(array) + array.options.size() * 32;
  return out;
}

namespace {

// Walks a lexeme over the trie of tokens. Three things make this short: dead branches are left at once; below a node
// behind which only a closing quote matters, all is known; and where letters cannot leave the lexeme, tokens of
// letters are known too and only the trie of the others is walked.
LexemeMask ComputeMask(Machine& lexeme, Machine::State start, const Vocabulary& vocabulary, bool keep_leaf_exits) {
  const Vocabulary::Slice* slice = nullptr;
  if (lexeme.label(start) == Machine::kNoLabel) {
    if (const auto alphabet = lexeme.stays(start, vocabulary.slice_lengths())) slice = &vocabulary.slice(*alphabet);
  }
  const TokenTrie& trie = slice != nullptr ? slice->others : vocabulary.trie();
  const Vocabulary::PlainStrings& plain = vocabulary.plain_strings();
  const bool may_be_plain = lexeme.has_plain_body();
  LexemeMask mask;
  mask.bits.assign(vocabulary.mask_words(), 0);
  if (slice != nullptr) mask.bits = slice->inside;
  const auto allow = [&](std::uint32_t token) { mask.bits[token / 64] |= MaskWord{1} << (token % 64); };
  std::vector<Machine::State> states(trie.depth_max() + 1u, start);
  std::vector<int> plain_labels;  // by state: of its free body, kUnasked, or kNoLabel where it is none
  constexpr int kUnasked = -2;
  const auto plain_label = [&](Machine::State state) {
    if (state >= plain_labels.size()) plain_labels.resize(lexeme.states() + 64, kUnasked);
    if (plain_labels[state] == kUnasked) {
      const auto body = lexeme.plain_body(state);
      plain_labels[state] = body && body->free() ? body->label : Machine::kNoLabel;
    }
    return plain_labels[state];
  };
  const std::uint32_t size = trie.size();
  for (std::uint32_t node = 1; node < size;) {
    const std::size_t depth = trie.depth(node);
    const Machine::State state = lexeme.Step(states[depth - 1], trie.byte(node));
    if (state == Machine::kDead) {
      node += trie.skip(node);
      continue;
    }
    for (const std::uint32_t token : trie.tokens(node)) allow(token);
    const std::uint32_t main = slice != nullptr ? slice->main_node[node] : node;
    if (lexeme.label(state) != Machine::kNoLabel && (keep_leaf_exits || !vocabulary.trie().leaf(main))) {
      mask.exits.push_back({main, lexeme.label(state)});
    }
    if (trie.leaf(node)) {
      ++node;
      continue;
    }
    states[depth] = state;
    if (!may_be_plain || !plain.at_body[main] || plain_label(state) == Machine::kNoLabel) {
      node += lexeme.final(state) ? trie.skip(node) : 1;
      continue;
    }
    const std::uint32_t end = main + vocabulary.trie().skip(main);
    for (std::uint32_t i = plain.tokens_before[main + 1]; i < plain.tokens_before[end]; ++i) {
      allow(plain.ordered_tokens[i]);
    }
    for (std::uint32_t i = plain.exits_before[main + 1]; i < plain.exits_before[end]; ++i) {
      const std::uint32_t exit = plain.ordered_exits[i];
      if (keep_leaf_exits || !vocabulary.trie().leaf(exit)) mask.exits.push_back({exit, plain_label(state)});
    }
    node += trie.skip(node);
  }
  std::size_t count = 0;
  for (const MaskWord word : mask.bits) count += static_cast<std::size_t>(std::popcount(word));
  mask.dense = count > vocabulary.mask_words() * 2;
  if (mask.dense) return mask;
  for (std::uint32_t i = 0; i < mask.bits.size(); ++i) {
    for (MaskWord word = mask.bits[i]; word != 0; word &= word - 1) {
      mask.ids.push_back(i * 64 + static_cast<std::uint32_t>(std::countr_zero(word)));
    }
  }
  mask.bits = {};
  return mask;
}

}  // namespace

const LexemeMask& Program::MaskOf(std::uint32_t machine_index, Machine::State start, const Vocabulary& vocabulary,
                                  bool keep_leaf_exits) {
  const std::uint64_t key = (static_cast<std::uint64_t>(machine_index) << 32) | start;
  const auto found = masks_.find(key);
  if (found != masks_.end()) return found->second;
  LexemeMask mask = ComputeMask(machine(machine_index), start, vocabulary, keep_leaf_exits);
  mask.ids.shrink_to_fit();
  std::stable_sort(mask.exits.begin(), mask.exits.end(),
                   [](const LexemeMask::Exit& a, const LexemeMask::Exit& b) { return a.label < b.label; });
  mask.exits.shrink_to_fit();
  if (mask_bytes_ > kMaskCacheBytes) {
    masks_.clear();
    mask_bytes_ = mask_bytes_noted_ = 0;
  }
  mask_bytes_ += mask.bytes();
  if (mask_bytes_ > mask_bytes_noted_ + kNotedEvery) {
    mask_bytes_noted_ = mask_bytes_;
    if (on_growth_) on_growth_(bytes());
  }
  return masks_.emplace(key, std::move(mask)).first->second;
}

}  // namespace galley::grammar
