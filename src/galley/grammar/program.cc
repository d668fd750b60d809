// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/program.h"

#include <algorithm>

namespace galley::grammar {
namespace {

// Masks of lexeme states are dropped and rebuilt beyond this; a mask in use is never held across a call.
constexpr std::size_t kMaskCacheBytes = 4u << 20;

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

bool Program::overflowed() const {
  return std::any_of(machines_.begin(), machines_.end(), [](const auto& m) { return m->overflowed(); });
}

std::size_t Program::bytes() const {
  std::size_t out = mask_bytes_ + nodes_.size() * sizeof(Node) + rules_.size() * 4;
  for (const Node& node : nodes_) out += node.outs.size() * 4;
  for (const auto& machine : machines_) out += machine->bytes() + 64;
  for (const ObjectSpec& object : objects_) out += sizeof(object) + object.names * 16;
  for (const ArraySpec& array : arrays_) out += sizeof(array) + array.options.size() * 32;
  return out;
}

const LexemeMask& Program::MaskOf(std::uint32_t machine_index, Machine::State start, const Vocabulary& vocabulary,
                                  bool keep_leaf_exits) {
  const std::uint64_t key = (static_cast<std::uint64_t>(machine_index) << 32) | start;
  const auto found = masks_.find(key);
  if (found != masks_.end()) return found->second;
  Machine& lexeme = machine(machine_index);
  const TokenTrie& trie = vocabulary.trie();
  const Vocabulary::PlainStrings& plain = vocabulary.plain_strings();
  const bool may_be_plain = lexeme.has_plain_body();
  LexemeMask mask;
  std::vector<Machine::State> states(trie.depth_max() + 1u, start);
  for (std::uint32_t node = 1; node < trie.size();) {
    const std::size_t depth = trie.depth(node);
    const Machine::State state = lexeme.Step(states[depth - 1], trie.byte(node));
    if (state == Machine::kDead) {
      node += trie.skip(node);
      continue;
    }
    states[depth] = state;
    const auto tokens = trie.tokens(node);
    mask.ids.insert(mask.ids.end(), tokens.begin(), tokens.end());
    if (lexeme.label(state) != Machine::kNoLabel && (keep_leaf_exits || !trie.leaf(node))) {
      mask.exits.push_back({node, lexeme.label(state)});
    }
    // Where nothing but the closing quote matters any more, all that follows is known.
    const auto body = may_be_plain && plain.at_body[node] && !trie.leaf(node) ? lexeme.plain_body(state) : std::nullopt;
    if (!body || !body->free()) {
      node += lexeme.final(state) ? trie.skip(node) : 1;
      continue;
    }
    const std::uint32_t end = node + trie.skip(node);
    const auto ids = plain.ordered_tokens.begin();
    mask.ids.insert(mask.ids.end(), ids + plain.tokens_before[node + 1], ids + plain.tokens_before[end]);
    for (std::uint32_t i = plain.exits_before[node + 1]; i < plain.exits_before[end]; ++i) {
      const std::uint32_t exit = plain.ordered_exits[i];
      if (keep_leaf_exits || !trie.leaf(exit)) mask.exits.push_back({exit, body->label});
    }
    node = end;
  }
  if (mask.ids.size() > vocabulary.mask_words() * 2) {
    mask.dense = true;
    mask.bits.assign(vocabulary.mask_words(), 0);
    for (const std::uint32_t id : mask.ids) mask.bits[id / 64] |= MaskWord{1} << (id % 64);
    mask.ids = {};
  }
  mask.ids.shrink_to_fit();
  std::stable_sort(mask.exits.begin(), mask.exits.end(),
                   [](const LexemeMask::Exit& a, const LexemeMask::Exit& b) { return a.label < b.label; });
  mask.exits.shrink_to_fit();
  if (mask_bytes_ > kMaskCacheBytes) {
    masks_.clear();
    mask_bytes_ = 0;
  }
  mask_bytes_ += mask.bytes();
  return masks_.emplace(key, std::move(mask)).first->second;
}

}  // namespace galley::grammar
