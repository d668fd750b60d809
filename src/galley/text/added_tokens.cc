// SPDX-License-Identifier: Apache-2.0
#include "galley/text/added_tokens.h"

#include <algorithm>

namespace galley::text {
namespace {

unsigned char ByteAt(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

}  // namespace

void SpellingSet::Add(std::string_view content, TokenId id) {
  first_byte_[ByteAt(content, 0)] = true;
  spellings_.emplace_back(content, id);
}

void SpellingSet::Seal() {
  // char_traits<char> compares as unsigned bytes, which MatchAt relies on.
  std::sort(spellings_.begin(), spellings_.end());
}

std::optional<AddedMatch> SpellingSet::FindNext(std::string_view text, std::size_t from) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    if (!first_byte_[ByteAt(text, at)]) continue;
    if (const auto match = MatchAt(text, at)) return match;
  }
  return std::nullopt;
}

std::optional<AddedMatch> SpellingSet::MatchAt(std::string_view text, std::size_t at) const {
  // [low, high) are the spellings that start with the text read so far; a spelling that ends there sorts first.
  auto low = spellings_.begin(), high = spellings_.end();
  std::optional<AddedMatch> best;
  for (std::size_t depth = 0; low != high; ++depth) {
    if (low->first.size() == depth) {
      best = AddedMatch{at, at + depth, low->second};
      ++low;
    }
    if (at + depth >= text.size()) break;
    const unsigned char byte = ByteAt(text, at + depth);
    low = std::partition_point(low, high, [&](const auto& s) { return ByteAt(s.first, depth) < byte; });
    high = std::partition_point(low, high, [&](const auto& s) { return ByteAt(s.first, depth) == byte; });
  }
  return best;
}

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens) {
  for (const AddedToken& token : tokens) (token.normalized ? normalized_ : raw_).Add(token.content, token.id);
  raw_.Seal();
  normalized_.Seal();
}

std::vector<AddedMatch> AddedTokenMatcher::FindAll(std::string_view text) const {
  std::vector<AddedMatch> matches;
  const auto second_pass = [&](std::size_t begin, std::size_t end) {
    const std::string_view rest = text.substr(0, end);
    while (const auto match = normalized_.FindNext(rest, begin)) {
      matches.push_back(*match);
      begin = match->end;
    }
  };
  std::size_t from = 0;
  while (const auto match = raw_.FindNext(text, from)) {
    second_pass(from, match->begin);
    matches.push_back(*match);
    from = match->end;
  }
  second_pass(from, text.size());
  return matches;
}

}  // namespace galley::text
