// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>

#include "galley/grammar/json_value.h"
#include "galley/grammar/string_machine.h"

namespace galley::grammar {
namespace {

constexpr std::uint32_t kShortCounts = 17;

void SetBit(std::vector<MaskWord>& mask, std::uint32_t id) {
  mask[id / 64] |= MaskWord{1} << (id % 64);
}

}  // namespace

TokenTrie::TokenTrie(std::vector<Entry> entries, bool sorted) {
  if (!sorted)
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return a.bytes != b.bytes ? a.bytes < b.bytes : a.token < b.token;
    });
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
  static constexpr auto kLower = [](std::uint32_t c) { return c >= 'a' && c <= 'z'; };
  static constexpr auto kLetters = [](std::uint32_t c) { return kLower(c) || (c >= 'A' && c <= 'Z'); };
  static constexpr auto kBlanks = [](std::uint32_t c) { return kLetters(c) || c == ' '; };
  // U+FFFD stands for undecodable bytes here.
  static constexpr auto kWords = [](std::uint32_t c) {
    return kBlanks(c) || (c >= 0x80 && c != 0xFFFD && (c < 0xD800 || c > 0xDFFF));
  };
  out->FillSlice(kLower, out->slices_[0]);
  out->FillSlice(kLetters, out->slices_[1]);
  out->FillSlice(kBlanks, out->slices_[2]);
  out->FillSlice(kWords, out->slices_[3]);
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

void Vocabulary::FillSlice(bool (*simple)(std::uint32_t code_point), Slice& slice) const {
  slice.inside.assign(mask_words(), 0);
  std::vector<TokenTrie::Entry> others;
  for (std::uint32_t node = 1; node < trie_.size(); ++node) {
    const auto tokens = trie_.tokens(node);
    if (tokens.empty()) continue;
    const std::string_view bytes = options_.tokens[tokens[0]];
    const std::vector<std::uint32_t> decoded = DecodeUtf8(bytes);
    const bool inside = std::all_of(decoded.begin(), decoded.end(), simple);
    for (const std::uint32_t token : tokens) {
      if (inside) {
        SetBit(slice.inside, token);
        slice.length_max = std::max(slice.length_max, static_cast<std::uint32_t>(decoded.size()));
      } else {
        others.push_back({bytes, token});
      }
    }
  }
  slice.others = TokenTrie(std::move(others), true);
  // Both tries are in the same order, so one pass finds every node's place in the larger one.
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
