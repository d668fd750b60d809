// SPDX-License-Identifier: Apache-2.0
// The tokens of a model as a trie over their bytes, ready for masks. Independent of any tokenizer: ids, bytes, which
// ids end a text and which are control tokens. Built once per model, immutable afterwards, safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/error.h"
#include "galley/grammar/machine.h"

namespace galley::grammar {

// One bit per token id, id i in word i / 64, bit i % 64.
using MaskWord = std::uint64_t;

// Byte trie in depth-first order: the children of node i start at i + 1, its subtree ends before i + skip(i).
// Node 0 is the root and has no byte.
class TokenTrie {
 public:
  struct Entry {
    std::string_view bytes;
    std::uint32_t token;
  };
  TokenTrie() = default;
  // `sorted`: the entries are in order of bytes, then token.
  explicit TokenTrie(std::vector<Entry> entries, bool sorted = false);

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(parent_.size()); }
  [[nodiscard]] std::uint8_t byte(std::uint32_t node) const { return nodes_[node].byte; }
  [[nodiscard]] std::uint32_t skip(std::uint32_t node) const { return nodes_[node].skip; }
  [[nodiscard]] std::uint16_t depth(std::uint32_t node) const { return nodes_[node].depth; }
  [[nodiscard]] std::uint32_t parent(std::uint32_t node) const { return parent_[node]; }
  [[nodiscard]] bool leaf(std::uint32_t node) const { return nodes_[node].skip == 1; }
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  // The child of `node` by one byte, or kNone.
  [[nodiscard]] std::uint32_t Child(std::uint32_t node, std::uint8_t byte) const;
  // Ids of the tokens that end at `node`.
  [[nodiscard]] std::span<const std::uint32_t> tokens(std::uint32_t node) const {
    return {tokens_.data() + nodes_[node].first_token, nodes_[node + 1].first_token - nodes_[node].first_token};
  }
  [[nodiscard]] std::uint16_t depth_max() const { return depth_max_; }
  // Bytes from below `top` down to `node`.
  [[nodiscard]] std::string Path(std::uint32_t node) const;

 private:
  struct Node {
    std::uint32_t skip = 0;
    std::uint32_t first_token = 0;
    std::uint16_t depth = 0;
    std::uint8_t byte = 0;
  };
  std::vector<Node> nodes_;  // one more than there are nodes
  std::vector<std::uint32_t> parent_;
  std::vector<std::uint32_t> tokens_;
  std::uint16_t depth_max_ = 0;
};

struct VocabularyOptions {
  std::vector<std::string> tokens;      // bytes by id; empty for ids without text
  std::vector<std::uint32_t> ends;      // ids that end the text
  std::vector<std::uint32_t> specials;  // control tokens; they never match text, whatever bytes they have
};

class Vocabulary {
 public:
  // Tokens inside a JSON string body on which nothing but the length is asked, by how many code points they start.
  struct PlainStrings {
    std::vector<MaskWord> all;                      // every token that stays inside
    std::vector<std::vector<MaskWord>> short_ones;  // [n]: those of `all` that start at most n code points
    struct Counted {
      std::uint32_t count;
      std::uint32_t id;  // token, or trie node behind the closing quote
    };
    std::vector<Counted> long_ones;  // those of `all` that start more than short_ones.size() - 1, ascending
    std::vector<Counted> closers;    // tokens that end with the closing quote, ascending
    std::vector<Counted> exits;      // inner trie nodes right behind a closing quote, ascending
    TokenTrie after_quote;           // what tokens hold behind the closing quote, all exits merged
    // The same by trie node, for lexemes that come to such a body somewhere inside a token: whether the body has been
    // reached at a node, and how many tokens (of `all` and `closers`) and exits lie before it in trie order.
    std::vector<bool> at_body;
    std::vector<std::uint32_t> tokens_before;
    std::vector<std::uint32_t> exits_before;
    std::vector<std::uint32_t> ordered_tokens;
    std::vector<std::uint32_t> ordered_exits;  // leaves too
    std::uint32_t count_max = 0;
  };

  // Tokens of a simple alphabet, and the trie of the others: a lexeme that such an alphabet leaves where it is need not
  // be walked over them.
  struct Slice {
    std::vector<MaskWord> inside;
    TokenTrie others;
    std::vector<std::uint32_t> main_node;  // node of `others` → node of trie()
    std::uint32_t length_max = 0;          // characters of the longest token inside
  };

  // Errors: kInvalidArgument for ids out of range.
  [[nodiscard]] static Result<std::shared_ptr<const Vocabulary>> Create(VocabularyOptions options);

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(options_.tokens.size()); }
  [[nodiscard]] std::size_t mask_words() const { return (options_.tokens.size() + 63) / 64; }
  [[nodiscard]] std::span<const std::uint32_t> ends() const { return options_.ends; }
  [[nodiscard]] bool is_end(std::uint32_t token) const;
  [[nodiscard]] bool is_special(std::uint32_t token) const { return special_[token]; }
  [[nodiscard]] std::string_view bytes(std::uint32_t token) const { return options_.tokens[token]; }
  [[nodiscard]] const TokenTrie& trie() const { return trie_; }
  [[nodiscard]] const PlainStrings& plain_strings() const { return plain_; }
  [[nodiscard]] const Slice& slice(Machine::Alphabet alphabet) const {
    return slices_[static_cast<std::size_t>(alphabet)];
  }
  // Characters of the longest token of each slice.
  [[nodiscard]] std::array<std::uint32_t, Machine::kAlphabets> slice_lengths() const;
  // Longest-match tokens of `text`, for forced text. Empty when some byte has no token.
  [[nodiscard]] std::vector<std::uint32_t> Greedy(std::string_view text) const;

 private:
  explicit Vocabulary(VocabularyOptions options);
  void FillPlainStrings();
  void FillSlices();
  void FillMainNodes(Slice& slice) const;

  VocabularyOptions options_;
  std::vector<bool> special_;
  TokenTrie trie_;
  PlainStrings plain_;
  std::array<Slice, Machine::kAlphabets> slices_;
};

}  // namespace galley::grammar
