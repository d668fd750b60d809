// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/branch_text.h"

#include <algorithm>

namespace galley::engine {

BranchText::BranchText(const text::Tokenizer& tokenizer, std::shared_ptr<const DrawContext> context)
    : tokenizer_(&tokenizer),
      context_(std::move(context)),
      stream_(tokenizer, context_->stops),
      searching_(!context_->stops_after) {
  // Only a character that the prompt leaves unfinished matters; a prompt that ends in an id without a token leaves
  // none.
  (void)stream_.StartAfter(context_->prompt);
}

std::string BranchText::Append(TokenId id) {
  const bool search = searching_ && tokens_ >= context_->min_tokens;
  ++tokens_;
  if (context_->stops_after == id) searching_ = true;
  const std::vector<TokenId>& stops = context_->stop_ids;
  if (std::find(stops.begin(), stops.end(), id) != stops.end()) {
    stop_id_ = id;
    return {};
  }
  if (!tokenizer_->has_token(id)) return {};
  Result<std::string> text = stream_.Append(id, search);
  return text ? std::move(*text) : std::string();
}

}  // namespace galley::engine
