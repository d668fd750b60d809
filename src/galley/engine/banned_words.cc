// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/banned_words.h"

#include <algorithm>

namespace galley::engine {
namespace {

void TakeOut(TokenId id, std::span<std::uint32_t> allowed) {
  allowed[static_cast<std::size_t>(id) / 32] &= ~(1u << (id % 32));
}

}  // namespace

TokensByBytes::TokensByBytes(const text::Tokenizer& tokenizer, int vocab_size)
    : bytes_(static_cast<std::size_t>(vocab_size)) {
  for (TokenId id = 0; id < vocab_size; ++id) {
    if (!tokenizer.has_token(id) || tokenizer.is_added(id)) continue;
    bytes_[static_cast<std::size_t>(id)] = *tokenizer.TokenBytes(id);
    entries_.emplace_back(bytes_[static_cast<std::size_t>(id)], id);
  }
  std::ranges::sort(entries_);
}

std::span<const TokensByBytes::Entry> TokensByBytes::StartingWith(std::string_view prefix) const {
  const auto first = std::ranges::lower_bound(entries_, prefix, {}, [](const Entry& entry) { return entry.first; });
  const auto last = std::partition_point(first, entries_.end(),
                                         [prefix](const Entry& entry) { return entry.first.starts_with(prefix); });
  return {first, last};
}

std::string_view TokensByBytes::BytesOf(TokenId id) const {
  const auto at = static_cast<std::size_t>(id);
  return at < bytes_.size() ? bytes_[at] : std::string_view();
}

Result<BannedWords> BannedWords::Create(std::span<const std::string> words, const TokensByBytes& tokens) {
  BannedWords banned;
  ASSIGN_OR_RETURN(banned.words_, StopSet::Create(words, "banned_words"));
  banned.tokens_ = &tokens;
  for (const std::string& word : words) banned.longest_ = std::max(banned.longest_, word.size());
  if (words.empty()) return banned;
  for (const auto& [bytes, id] : tokens.all()) {
    if (banned.words_.OccursIn(bytes)) banned.always_.push_back(id);
  }
  return banned;
}

void BannedWords::Apply(std::span<const TokenId> output, std::span<const TokenId> drafts,
                        std::span<std::uint32_t> allowed, std::string& tail) const {
  if (empty()) return;
  for (const TokenId id : always_) TakeOut(id, allowed);
  // The end of the text so far, as much as a word can have before the token that completes it.
  tail.clear();
  const std::size_t tokens = output.size() + drafts.size();
  for (std::size_t back = 0; back < tokens && tail.size() + 1 < longest_; ++back) {
    const TokenId id =
        back < drafts.size() ? drafts[drafts.size() - 1 - back] : output[output.size() - 1 - (back - drafts.size())];
    const std::string_view bytes = tokens_->BytesOf(id);
    if (bytes.empty()) break;
    tail.insert(0, bytes);
  }
  for (const std::string& word : words_.strings()) {
    for (std::size_t done = std::min(tail.size(), word.size() - 1); done > 0; --done) {
      if (!tail.ends_with(std::string_view(word).substr(0, done))) continue;
      for (const auto& [bytes, id] : tokens_->StartingWith(std::string_view(word).substr(done))) {
        TakeOut(id, allowed);
      }
    }
  }
}

}  // namespace galley::engine
