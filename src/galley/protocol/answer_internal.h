// SPDX-License-Identifier: Apache-2.0
// Parts that the answer writers share. Not for use outside the protocol layer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "galley/protocol/answer.h"

namespace galley::protocol::internal {

// `options` and `request` outlive the writer.
[[nodiscard]] std::unique_ptr<AnswerWriter> MakeChatWriter(const ParsedRequest& request, const AnswerOptions& options);
[[nodiscard]] std::unique_ptr<AnswerWriter> MakeResponsesWriter(const ParsedRequest& request,
                                                                const AnswerOptions& options);
[[nodiscard]] std::unique_ptr<AnswerWriter> MakeMessagesWriter(const ParsedRequest& request,
                                                               const AnswerOptions& options);
[[nodiscard]] std::unique_ptr<AnswerWriter> MakeCompletionsWriter(const ParsedRequest& request,
                                                                  const AnswerOptions& options);

// Whether the answer has room for reasoning: not when the model does not think or goes on with a given answer, or when
// the client wants none.
[[nodiscard]] inline bool ShowsReasoning(const ParsedRequest& request) {
  const bool thinks = request.parsing.stage == ThinkingStage::kReasoningStart ||
                      request.parsing.stage == ThinkingStage::kReasoningContinuation;
  return thinks && !request.hide_reasoning;
}

// Log probabilities cut to what the request asked for; nullopt when it asked for none.
[[nodiscard]] std::optional<Json> LogprobsJson(const std::vector<Logprob>& logprobs, const Inference& inference);
// {"error": …} as Chat and Completions streams tell it.
[[nodiscard]] AnswerEvent ErrorEvent(const AnswerFailure& failure);
// The token's text, or all its bytes as \x20\xf0… when they are not valid UTF-8.
[[nodiscard]] std::string TokenText(std::string_view bytes);

}  // namespace galley::protocol::internal
