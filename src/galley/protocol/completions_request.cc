// SPDX-License-Identifier: Apache-2.0
// Legacy Completions requests: a bare prompt, or a prefix and a suffix to fill in between (recipe 4.11 and 9).
#include <fmt/format.h>

#include "galley/protocol/request_internal.h"

namespace galley::protocol::internal {
namespace {

using enum Presence;

constexpr Shape kIds{.kind = ShapeKind::kList, .element = &kU32Shape};
// The elements decide what a list is: texts, ids or lists of ids. All must be of one kind.
constexpr const Shape* kElementForms[] = {&kStringShape, &kU32Shape, &kIds};
constexpr Shape kElement{.kind = ShapeKind::kEither, .alternatives = kElementForms};
constexpr Shape kElements{.kind = ShapeKind::kList, .element = &kElement};
constexpr const Shape* kPromptForms[] = {&kStringShape, &kElements};
constexpr Shape kPrompt{.kind = ShapeKind::kEither, .alternatives = kPromptForms};
constexpr Field kStreamOptionFields[] = {{"include_usage", kOptional, &kBoolShape}};
constexpr Shape kStreamOptions{.kind = ShapeKind::kObject, .fields = kStreamOptionFields};
constexpr const Shape* kStopForms[] = {&kStringShape, &kStringListShape};
constexpr Shape kStop{.kind = ShapeKind::kEither, .alternatives = kStopForms};
constexpr Field kFields[] = {{"model", kRequired, &kStringShape},   {"prompt", kRequired, &kPrompt},
                             {"suffix", kOptional, &kStringShape},  {"echo", kOptional, &kBoolShape},
                             {"max_tokens", kOptional, &kU32Shape}, {"temperature", kOptional, &kNumberShape},
                             {"top_p", kOptional, &kNumberShape},   {"seed", kOptional, &kU64Shape},
                             {"n", kOptional, &kU32Shape},          {"stop", kOptional, &kStop},
                             {"stream", kOptional, &kBoolShape},    {"stream_options", kOptional, &kStreamOptions},
                             {"logprobs", kOptional, &kU8Shape}};
constexpr Shape kCompletions{.kind = ShapeKind::kObject, .fields = kFields};

constexpr std::uint32_t kUsualMaxTokens = 16;  // what every client of this API expects when it sends none

std::vector<std::uint32_t> IdsOf(const Json& list) {
  std::vector<std::uint32_t> ids;
  for (const Json& id : Elements(list)) ids.push_back(static_cast<std::uint32_t>(Unsigned(id)));
  return ids;
}

Checked SetPrompt(const Json& body, ParsedRequest& request) {
  const Json& prompt = Get(body, "prompt");
  const std::span<const Json> elements = Elements(prompt);
  const bool one_text = prompt.is_string() || (elements.size() == 1 && elements[0].is_string());
  if (one_text) {
    const std::string_view text = prompt.is_string() ? Text(prompt) : Text(elements[0]);
    const std::string_view suffix = Text(body, "suffix");
    request.raw_prompt = suffix.empty() ? RenderText(text) : RenderFim(text, suffix);
    return {};
  }
  if (elements.empty()) return Refuse("prompt: the list is empty. Give a text or token ids.", "prompt");
  if (elements[0].is_string())
    return Refuse(
        fmt::format("prompt: {} texts in one request are not supported. Send one request for each.", elements.size()));
  for (const Json& element : elements)
    if (element.is_number() != elements[0].is_number() || element.is_string())
      return Refuse("prompt: texts, token ids and lists of token ids cannot be mixed");
  if (!Text(body, "suffix").empty()) return Refuse("suffix: needs the prompt as text, not as token ids");
  if (elements[0].is_number())
    request.prompt_ids = {IdsOf(prompt)};
  else
    for (const Json& list : elements) request.prompt_ids.push_back(IdsOf(list));
  for (const auto& ids : request.prompt_ids)
    if (ids.empty()) return Refuse("prompt: a list of token ids is empty");
  if (request.prompt_ids.size() > 1)
    return Refuse(fmt::format("prompt: {} prompts in one request are not supported. Send one request for each.",
                              request.prompt_ids.size()));
  return {};
}

}  // namespace

const Shape& CompletionsShape() {
  return kCompletions;
}

Parsed<ParsedRequest> ConvertCompletions(const Json& body, const CodecOptions& options) {
  ParsedRequest request;
  GALLEY_REFUSE_IF_ERROR(SetModel(body, options, request));
  request.conversation.thinking = false;
  request.parsing.raw = true;
  GALLEY_REFUSE_IF_ERROR(SetPrompt(body, request));
  request.echo_prompt = IsTrue(Get(body, "echo"));
  const Json& max_tokens = Get(body, "max_tokens");
  request.score_only = !max_tokens.is_null() && Unsigned(max_tokens) == 0;
  if (request.score_only && !request.echo_prompt)
    return Refuse(fmt::format("Invalid max_tokens value, the valid range of max_tokens is [1, {}], and 0 where echo "
                              "shows the prompt",
                              options.non_thinking_max_tokens),
                  "max_tokens");
  GALLEY_REFUSE_IF_ERROR(SetSampling(body, "max_tokens", false, options, request));
  if (!request.inference.max_tokens) request.inference.max_tokens = kUsualMaxTokens;
  if (const Json& n = Get(body, "n"); !n.is_null() && Unsigned(n) != 1)
    return Refuse("Invalid n value (currently only n = 1 is supported)", "n");
  GALLEY_REFUSE_IF_ERROR(SetSeed(body, request));
  GALLEY_REFUSE_IF_ERROR(SetStop(Get(body, "stop"), request));
  if (const Json& logprobs = Get(body, "logprobs"); !logprobs.is_null()) {
    if (Unsigned(logprobs) > 20)
      return Refuse("Invalid logprobs value, the valid range of logprobs is [0, 20].", "logprobs");
    request.inference.logprobs = true;
    request.inference.top_logprobs = static_cast<std::uint8_t>(Unsigned(logprobs));
  }
  if (const Json& stream = Get(body, "stream_options"); !stream.is_null()) {
    if (!request.stream) return Refuse("stream_options should be set along with stream = true", "stream_options");
    request.include_usage = IsTrue(Get(stream, "include_usage"));
  }
  return request;
}

}  // namespace galley::protocol::internal
