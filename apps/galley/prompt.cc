// SPDX-License-Identifier: Apache-2.0
#include "prompt.h"

#include <algorithm>
#include <string>

#include "galley/protocol/render.h"

namespace galley::app {
namespace {

struct EffortName {
  std::string_view name;
  protocol::Effort effort;
};

constexpr EffortName kEfforts[] = {
    {"low", protocol::Effort::kLow}, {"high", protocol::Effort::kHigh}, {"max", protocol::Effort::kMax}};

}  // namespace

std::optional<protocol::Effort> EffortOf(std::string_view name) {
  for (const EffortName& row : kEfforts) {
    if (row.name == name) return row.effort;
  }
  return std::nullopt;
}

protocol::Conversation ConversationOf(const options::Values& values) {
  protocol::Conversation conversation;
  conversation.thinking = values.Bool("thinking");
  conversation.effort = EffortOf(values.String("effort"));
  if (!values.String("system").empty()) {
    protocol::Message message;
    message.role = protocol::Role::kSystem;
    message.content = values.String("system");
    conversation.messages.push_back(std::move(message));
  }
  return conversation;
}

Result<std::vector<TokenId>> EncodeConversation(const protocol::Conversation& conversation,
                                                const text::Tokenizer& tokenizer) {
  const protocol::RenderOptions options;
  const protocol::Prompt prompt = protocol::RenderConversation(conversation, protocol::ModelVersion::kV41, options);
  std::vector<text::ByteRange> special;
  special.reserve(prompt.special.size());
  for (const protocol::ByteRange& range : prompt.special) {
    // Grounding marks may appear in earlier answers. A model without pictures has no tokens for them: they are text.
    const std::string_view spelling = std::string_view(prompt.text).substr(range.begin, range.end - range.begin);
    const auto& grounding = options.tokens.grounding;
    const bool optional = std::find(grounding.begin(), grounding.end(), spelling) != grounding.end();
    if (!optional || tokenizer.AddedIdOf(spelling)) special.push_back({range.begin, range.end});
  }
  return tokenizer.EncodeWithSpecialRanges(prompt.text, special);
}

Result<std::vector<TokenId>> EncodeRaw(std::string_view text, TokenId begin_of_sentence, text::AddedTokens added,
                                       const text::Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(std::vector<TokenId> ids, tokenizer.Encode(text, added));
  if (ids.empty() || ids.front() != begin_of_sentence) ids.insert(ids.begin(), begin_of_sentence);
  return ids;
}

}  // namespace galley::app
