// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/token_feed.h"

#include <fmt/format.h>

#include <algorithm>

#include "galley/text/utf8.h"

namespace galley::protocol {
namespace {

constexpr std::size_t kHeldMax = 64;  // far more ids than a character can take
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

TokenFeed::TokenFeed(const text::Tokenizer& tokenizer, std::vector<std::string> stop_sequences)
    : tokenizer_(&tokenizer),
      stop_sequences_(std::move(stop_sequences)),
      end_id_(tokenizer.AddedIdOf(SpecialTokens().end_of_sentence)) {}

Result<std::vector<OutputPiece>> TokenFeed::Push(std::span<const TokenId> ids, std::vector<SampledLogprob> logprobs) {
  if (!logprobs.empty() && logprobs.size() != ids.size())
    return Err(
        ErrorCode::kInvalidArgument,
        fmt::format("invalid log probabilities: {} log probabilities for {} token IDs", logprobs.size(), ids.size()));
  for (std::size_t i = 0; i < ids.size() && !ended_; ++i) {
    if (ids[i] == end_id_ || !tokenizer_->has_token(ids[i])) {
      ended_ = ids[i] == end_id_;
      ++uncounted_;
      continue;
    }
    const bool has_logprob = i < logprobs.size();
    held_.push_back({ids[i], has_logprob ? std::move(logprobs[i]) : SampledLogprob{}, has_logprob});
  }
  if (held_.empty()) return std::vector<OutputPiece>();
  std::string bytes;
  for (const Held& held : held_) bytes += *tokenizer_->TokenBytes(held.id);
  const std::string shown = text::ReplaceInvalidUtf8(bytes);
  const bool unfinished = shown.empty() || shown.ends_with(kReplacement);
  if (unfinished && !ended_ && held_.size() < kHeldMax) return std::vector<OutputPiece>();
  return Pieces();
}

std::vector<OutputPiece> TokenFeed::Flush() {
  return Pieces();
}

std::vector<OutputPiece> TokenFeed::Pieces() {
  std::vector<OutputPiece> pieces;
  bool in_run = false;
  for (const Held& held : held_) {
    const bool added = tokenizer_->is_added(held.id);
    if (added || !in_run) pieces.push_back({{}, added ? PieceSource::kAdded : PieceSource::kOrdinary});
    in_run = !added;
    OutputPiece& piece = pieces.back();
    piece.text += *tokenizer_->TokenBytes(held.id);
    ++piece.tokens;
    if (added) piece.control = IsControl(piece.text);
    if (held.has_logprob) piece.logprobs.push_back(Describe(held));
  }
  for (OutputPiece& piece : pieces) piece.text = text::ReplaceInvalidUtf8(piece.text);
  held_.clear();
  return pieces;
}

bool TokenFeed::IsControl(std::string_view spelling) const {
  const SpecialTokens tokens;
  const auto& grounding = tokens.grounding;
  if (std::find(grounding.begin(), grounding.end(), spelling) != grounding.end()) return false;
  if (spelling == tokens.think_start || spelling == tokens.think_end || spelling == tokens.dsml) return false;
  return std::none_of(stop_sequences_.begin(), stop_sequences_.end(),
                      [&](const std::string& stop) { return stop.find(spelling) != std::string::npos; });
}

Logprob TokenFeed::Describe(const Held& held) const {
  Logprob entry{std::string(*tokenizer_->TokenBytes(held.id)), held.logprob.logprob};
  for (const auto& [id, logprob] : held.logprob.top)
    if (const auto bytes = tokenizer_->TokenBytes(id)) entry.top.push_back({std::string(*bytes), logprob});
  return entry;
}

}  // namespace galley::protocol
