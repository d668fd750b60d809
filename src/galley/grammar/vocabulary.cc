// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "galley/grammar/json_value.h"
#include "galley/grammar/string_machine.h"

namespace galley::grammar {
namespace {

constexpr std::uint32_t kShortCounts = 17;

void SetBit(std::vector<MaskWord>& mask, std::uint32_t id) {
  mask[id / 64] |= MaskWord{1} << (id % 64);
}

// In order of bytes, then token. Most pairs differ in their first eight bytes, so those are compared as one number.
void SortEntries(std::vector<TokenTrie::Entry>& entries) {
  struct Keyed {
    std::uint64_t head;
    TokenTrie::Entry entry;
  };
  std::vector<Keyed> keyed(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    std::uint64_t head = 0;
    for (std::size_t k = 0; k < 8; ++k) {
      head = head << 8 | (k < entries[i].bytes.size() ? static_cast<unsigned char>(entries[i].bytes[k]) : 0u);
    }
    keyed[i] = {head, entries[i]};
  }
  std::sort(keyed.begin(), keyed.end(), [](const Keyed& a, const Keyed& b) {
    if (a.head != b.head) return a.head < b.head;
    return a.entry.bytes != b.entry.bytes ? a.entry.bytes < b.entry.bytes : a.entry.token < b.entry.token;
  });
  for (std::size_t i = 0; i < entries.size(); ++i) entries[i] = keyed[i].entry;
}

// The smallest alphabet that has the code point; kAlphabets for none. Each alphabet holds the one before.
std::size_t AlphabetOf(std::uint32_t c) {
  if (c >= 'a' && c <= 'z') return static_cast<std::size_t>(Machine::Alphabet::kLower);
  if (c >= 'A' && c <= 'Z') return static_cast<std::size_t>(Machine::Alphabet::kLetters);
  if (c == ' ') return static_cast<std::size_t>(Machine::Alphabet::kBlanks);
  // U+FFFD stands for undecodable bytes here.
  const bool word = c >= 0x80 && c != 0xFFFD && (c < 0xD800 || c > 0xDFFF);
  return word ? static_cast<std::size_t>(Machine::Alphabet::kWords) : Machine::kAlphabets;
}

struct Spelling {
  std::size_t alphabet = 0;  // the smallest that has all of the token's characters
  std::uint32_t length = 0;  // characters
};

Spelling SpellingOf(std::string_view bytes) {
  Spelling out;
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(bytes.begin(), bytes.end(), is_ascii)) {
    out.length = static_cast<std::uint32_t>(bytes.size());
    for (const char c : bytes) out.alphabet = std::max(out.alphabet, AlphabetOf(static_cast<unsigned char>(c)));
    return out;
  }
  for (const std::uint32_t c : DecodeUtf8(bytes)) {
    out.alphabet = std::max(out.alphabet, AlphabetOf(c));
    ++out.length;
  }
  return out;
}

}  // namespace

TokenTrie::TokenTrie(std::vector<Entry> entries, bool sorted) {
  if (!sorted) SortEntries(entries);
  nodes_.reserve(2 * entries.size());
  parent_.reserve(2 * entries.size());
  tokens_.reserve(entries.size());
  std::vector<std::uint32_t> path = {0};  // open nodes, by depth
  nodes_.emplace_back();
  parent_.push_back(0);
  const auto close_to = [&](std::size_t depth) {
    while (path.size() > depth + 1) {
      nodes_[path.back()].skip = size() - path.back();
      path.pop_back();
    }
  };
  std::string_view previous;
  for (const Entry& entry : entries) {
    std::size_t common = 0;
    while (common < previous.size() && common < entry.bytes.size() && previous[common] == entry.bytes[common]) ++common;
    close_to(common);
    for (std::size_t i = common; i < entry.bytes.size(); ++i) {
      const std::uint32_t up = path.back();
      path.push_back(size());
      parent_.push_back(up);
      nodes_.push_back({0, static_cast<std::uint32_t>(tokens_.size()), static_cast<std::uint16_t>(i + 1),
                        static_cast<std::uint8_t>(entry.bytes[i])});
      depth_max_ = std::max(depth_max_, nodes_.back().depth);
    }
    tokens_.push_back(entry.token);
    previous = entry.bytes;
  }
  close_to(0);
  nodes_[0].skip = size();
  nodes_.push_back({1, static_cast<std::uint32_t>(tokens_.size()), 0, 0});
}

std::uint32_t TokenTrie::Child(std::uint32_t node, std::uint8_t byte) const {
  const std::uint32_t end = node + skip(node);
  for (std::uint32_t child = node + 1; child < end; child += skip(child)) {
    if (this->byte(child) == byte) return child;
  }
  return kNone;
}

std::string TokenTrie::Path(std::uint32_t node) const {
  std::string out;
  for (; node != 0; node = parent_[node]) out.push_back(static_cast<char>(nodes_[node].byte));
  std::reverse(out.begin(), out.end());
  return out;
}

Vocabulary::Vocabulary(VocabularyOptions options) : options_(std::move(options)) {}

Result<std::shared_ptr<const Vocabulary>> Vocabulary::Create(VocabularyOptions options) {
  const std::size_t size = options.tokens.size();
  for (const auto* ids : {&options.ends, &options.specials}) {
    for (const std::uint32_t id : *ids) {
      if (id >= size) {
        return Err(ErrorCode::kInvalidArgument, fmt::format("token id {} is outside the vocabulary of {}", id, size));
      }
    }
  }
  for (std::size_t i = 0; i < size; ++i) {
    if (options.tokens[i].size() > 4096) {
      return Err(ErrorCode::kInvalidArgument,
                 fmt::format("token {} has {} bytes, the limit is 4096", i, options.tokens[i].size()));
    }
  }
  std::shared_ptr<Vocabulary> out(new Vocabulary(std::move(options)));
  out->special_.assign(size, false);
  for (const std::uint32_t id : out->options_.specials) out->special_[id] = true;
  for (const std::uint32_t id : out->options_.ends) out->special_[id] = true;
  std::vector<TokenTrie::Entry> entries;
  for (std::uint32_t id = 0; id < size; ++id) {
    if (!out->special_[id] && !out->options_.tokens[id].empty()) entries.push_back({out->options_.tokens[id], id});
  }
  out->trie_ = TokenTrie(std::move(entries));
  out->FillPlainStrings();
  out->FillSlices();
  return std::shared_ptr<const Vocabulary>(std::move(out));
}

std::array<std::uint32_t, Machine::kAlphabets> Vocabulary::slice_lengths() const {
  std::array<std::uint32_t, Machine::kAlphabets> out{};
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = slices_[i].length_max;
  return out;
}

bool Vocabulary::is_end(std::uint32_t token) const {
  return std::find(options_.ends.begin(), options_.ends.end(), token) != options_.ends.end();
}

void Vocabulary::FillPlainStrings() {
  StringMachine machine(TextSpec{}, StringMachine::Form::kJson, Limits{});
  const Machine::State body = machine.Step(machine.Start(0), '"');
  std::vector<Machine::State> states(trie_.depth_max() + 1u, body);
  std::vector<std::uint32_t> counts(trie_.depth_max() + 1u, 0);
  std::vector<PlainStrings::Counted> tokens;
  std::vector<TokenTrie::Entry> behind;
  plain_.at_body.assign(trie_.size(), false);
  std::uint32_t counted = 0;  // nodes whose counts are written
  const auto count_up_to = [&](std::uint32_t end) {
    for (; counted < end; ++counted) {
      plain_.tokens_before.push_back(static_cast<std::uint32_t>(plain_.ordered_tokens.size()));
      plain_.exits_before.push_back(static_cast<std::uint32_t>(plain_.ordered_exits.size()));
    }
  };
  for (std::uint32_t node = 1; node < trie_.size();) {
    count_up_to(node + 1);
    const std::size_t depth = trie_.depth(node);
    const Machine::State before = states[depth - 1];
    const Machine::State state = machine.Step(before, trie_.byte(node));
    if (state == Machine::kDead) {
      node += trie_.skip(node);
      continue;
    }
    states[depth] = state;
    const bool closed = machine.final(state);
    counts[depth] = counts[depth - 1] + (before == body && !closed ? 1u : 0u);
    for (const std::uint32_t token : trie_.tokens(node)) {
      (closed ? plain_.closers : tokens).push_back({counts[depth], token});
      plain_.ordered_tokens.push_back(token);
    }
    plain_.at_body[node] = state == body;
    plain_.count_max = std::max(plain_.count_max, counts[depth]);
    if (!closed) {
      ++node;
      continue;
    }
    plain_.ordered_exits.push_back(node);
    if (!trie_.leaf(node)) plain_.exits.push_back({counts[depth], node});
    for (std::uint32_t i = node + 1; i < node + trie_.skip(node); ++i) {
      for (const std::uint32_t token : trie_.tokens(i)) {
        behind.push_back({std::string_view(options_.tokens[token]).substr(depth), token});
      }
    }
    node += trie_.skip(node);
  }
  count_up_to(trie_.size() + 1);
  plain_.after_quote = TokenTrie(std::move(behind));
  const auto by_count = [](const PlainStrings::Counted& a, const PlainStrings::Counted& b) {
    return a.count < b.count;
  };
  std::stable_sort(tokens.begin(), tokens.end(), by_count);
  std::stable_sort(plain_.closers.begin(), plain_.closers.end(), by_count);
  std::stable_sort(plain_.exits.begin(), plain_.exits.end(), by_count);
  plain_.all.assign(mask_words(), 0);
  plain_.short_ones.assign(kShortCounts, plain_.all);
  for (const PlainStrings::Counted& token : tokens) {
    SetBit(plain_.all, token.id);
    for (std::uint32_t n = token.count; n < kShortCounts; ++n) SetBit(plain_.short_ones[n], token.id);
    if (token.count >= kShortCounts) plain_.long_ones.push_back(token);
  }
}

void Vocabulary::FillSlices() {
  std::array<std::vector<TokenTrie::Entry>, Machine::kAlphabets> others;
  for (Slice& slice : slices_) slice.inside.assign(mask_words(), 0);
  for (std::uint32_t node = 1; node < trie_.size(); ++node) {
    const auto tokens = trie_.tokens(node);
    if (tokens.empty()) continue;
    const std::string_view bytes = options_.tokens[tokens[0]];
    const Spelling spelling = SpellingOf(bytes);
    for (std::size_t alphabet = 0; alphabet < Machine::kAlphabets; ++alphabet) {
      Slice& slice = slices_[alphabet];
      const bool inside = spelling.alphabet <= alphabet;
      if (inside) slice.length_max = std::max(slice.length_max, spelling.length);
      for (const std::uint32_t token : tokens) {
        if (inside) {
          SetBit(slice.inside, token);
        } else {
          others[alphabet].push_back({bytes, token});
        }
      }
    }
  }
  for (std::size_t alphabet = 0; alphabet < Machine::kAlphabets; ++alphabet) {
    slices_[alphabet].others = TokenTrie(std::move(others[alphabet]), true);
    FillMainNodes(slices_[alphabet]);
  }
}

// Both tries are in the same order, so one pass finds every node's place in the larger one.
void Vocabulary::FillMainNodes(Slice& slice) const {
  std::vector<std::uint32_t> at(slice.others.depth_max() + 1u, 0);
  slice.main_node.assign(slice.others.size(), 0);
  for (std::uint32_t node = 1; node < slice.others.size(); ++node) {
    const std::size_t depth = slice.others.depth(node);
    const std::uint32_t up = at[depth - 1];
    // Siblings come in order: go on from the one found last, if it has the same parent.
    std::uint32_t child = up + 1;
    if (at[depth] > up && at[depth] < up + trie_.skip(up) && trie_.depth(at[depth]) == depth) child = at[depth];
    while (trie_.byte(child) != slice.others.byte(node)) child += trie_.skip(child);
    at[depth] = slice.main_node[node] = child;
  }
}

std::vector<std::uint32_t> Vocabulary::Greedy(std::string_view text) const {
  std::vector<std::uint32_t> out;
  while (!text.empty()) {
    std::uint32_t node = 0, best = 0;
    std::size_t length = 0, best_length = 0;
    while (length < text.size()) {
      std::uint32_t child = node + 1;
      const std::uint32_t end = node + trie_.skip(node);
      while (child < end && trie_.byte(child) != static_cast<std::uint8_t>(text[length])) child += trie_.skip(child);
      if (child >= end) break;
      node = child;
      ++length;
      if (!trie_.tokens(node).empty()) {
        best = trie_.tokens(node)[0];
        best_length = length;
      }
    }
    if (best_length == 0) return {};
    out.push_back(best);
    text.remove_prefix(best_length);
  }
  return out;
}

}  // namespace galley::grammar
