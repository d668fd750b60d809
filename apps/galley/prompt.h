// SPDX-License-Identifier: Apache-2.0
// From conversations and texts to token ids. Text of people never becomes a control token unless it is asked for.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "galley/base/error.h"
#include "galley/base/options.h"
#include "galley/base/strong_id.h"
#include "galley/protocol/conversation.h"
#include "galley/text/tokenizer.h"

namespace galley::app {

// "low", "high" or "max".
[[nodiscard]] std::optional<protocol::Effort> EffortOf(std::string_view name);

// An empty conversation with the system message, thinking and effort of the options.
[[nodiscard]] protocol::Conversation ConversationOf(const options::Values& values);

// The conversation as a V4.1 prompt that ends where the model's answer begins. kInvalidArgument when the tokenizer
// lacks a control token of the chat format.
[[nodiscard]] Result<std::vector<TokenId>> EncodeConversation(const protocol::Conversation& conversation,
                                                              const text::Tokenizer& tokenizer);

// The begin-of-sentence token and the text. With kMatch the text may hold control tokens; one that starts with
// begin-of-sentence then gets no second.
[[nodiscard]] Result<std::vector<TokenId>> EncodeRaw(std::string_view text, TokenId begin_of_sentence,
                                                     text::AddedTokens added, const text::Tokenizer& tokenizer);

}  // namespace galley::app
