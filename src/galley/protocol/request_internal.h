// SPDX-License-Identifier: Apache-2.0
// Steps that the request converters of several APIs share. Not for use outside the protocol layer.
#pragma once

#include <string>
#include <string_view>

#include "galley/protocol/request.h"
#include "galley/protocol/shape.h"

namespace galley::protocol::internal {

[[nodiscard]] inline tl::unexpected<RequestError> Refuse(std::string message, std::string_view param = {}) {
  return tl::unexpected<RequestError>(
      RequestError{RequestErrorKind::kConversion, std::move(message), std::string(param)});
}
// The same for what a check of a schema or a regular expression found: its place is the detail.
[[nodiscard]] inline tl::unexpected<RequestError> RefuseChecked(std::string message, const Error& found,
                                                                std::string_view param) {
  return tl::unexpected<RequestError>(
      RequestError{RequestErrorKind::kConversion, std::move(message), std::string(param), found.where});
}

using Checked = Parsed<void>;

// Returns the error of `expr` from the calling function.
#define GALLEY_REFUSE_IF_ERROR(expr)                                                                             \
  do {                                                                                                           \
    if (auto galley_checked = (expr); !galley_checked) return tl::unexpected(std::move(galley_checked).error()); \
  } while (false)

// The converter of each API. `body` passed the API's shape.
[[nodiscard]] Parsed<ParsedRequest> ConvertChat(const Json& body, const CodecOptions& options);
[[nodiscard]] Parsed<ParsedRequest> ConvertResponses(const Json& body, const CodecOptions& options);
[[nodiscard]] Parsed<ParsedRequest> ConvertMessages(const Json& body, const CodecOptions& options);
[[nodiscard]] Parsed<ParsedRequest> ConvertCompletions(const Json& body, const CodecOptions& options);
[[nodiscard]] const Shape& ChatShape();
[[nodiscard]] const Shape& ResponsesShape();
[[nodiscard]] const Shape& MessagesShape();
[[nodiscard]] const Shape& CompletionsShape();

// Shapes that several APIs use.
inline constexpr std::string_view kEffortNames[] = {"none", "minimal", "low",   "medium",
                                                    "high", "xhigh",   "ultra", "max"};
inline constexpr Shape kEffortShape{.kind = ShapeKind::kEnum, .names = kEffortNames};
inline constexpr std::string_view kDetailNames[] = {"low", "high", "original", "auto"};
inline constexpr Shape kDetailShape{.kind = ShapeKind::kEnum, .names = kDetailNames};
inline constexpr std::string_view kThinkingNames[] = {"adaptive", "enabled", "disabled"};
inline constexpr Shape kThinkingTypeShape{.kind = ShapeKind::kEnum, .names = kThinkingNames};

[[nodiscard]] Checked SetModel(const Json& body, const CodecOptions& options, ParsedRequest& request);

// Thinking and effort from the API's own switch (`thinking`, null when absent) and its effort word.
void SetThinking(const Json& thinking, std::string_view effort, const CodecOptions& options, ParsedRequest& request);
[[nodiscard]] ImageDetail DetailOf(std::string_view name);

// max_tokens, temperature and top_p with their limits. `lower` cuts a max_tokens that is too large instead of refusing.
[[nodiscard]] Checked SetSampling(const Json& body, std::string_view max_tokens_key, bool lower,
                                  const CodecOptions& options, ParsedRequest& request);
[[nodiscard]] Checked SetStop(const Json& stop, ParsedRequest& request);

// A tool's or namespace's name; `place` is its path in the request ("tools[0].name").
[[nodiscard]] Checked CheckName(std::string_view name, std::string_view place);
// Checks and, for strict tools, rewrites the parameters; `declared` tells whether the request had any.
[[nodiscard]] Checked FinishTool(Tool& tool, bool declared);
[[nodiscard]] Checked CheckUnique(const std::vector<Tool>& tools);
// A tool choice that names a tool: only that one stays, and it is required. Without tools it means nothing.
[[nodiscard]] Checked ChooseTool(std::string_view name, ParsedRequest& request);
// Drops choices that have no meaning without tools, refuses forced calls while thinking.
// `thinking_off`: the API's member that turns thinking off, for the error.
[[nodiscard]] Checked FinishChoice(ParsedRequest& request, std::string_view thinking_off);

// json_schema formats: `holder` has the members schema and strict.
// `param` is the member of the body that holds it.
[[nodiscard]] Checked SetSchemaFormat(const Json& holder, std::string_view param, const CodecOptions& options,
                                      ParsedRequest& request);
// seed within [0, 2^63), if the body has one.
[[nodiscard]] Checked SetSeed(const Json& body, ParsedRequest& request);

// Reasoning in old turns: filled in, dropped or, as the options say, demanded. `field` is the API's name for it.
[[nodiscard]] Checked FinishReasoning(std::string_view field, const CodecOptions& options, ParsedRequest& request);

// Whether some content holds the word "json" in any case.
[[nodiscard]] bool MentionsJson(std::string_view text);

// Sets the constraint and how the output must be parsed, once conversation and formats are complete.
void FinishRequest(ParsedRequest& request);

// Adds text or a picture to a message's content; parts are joined by an empty line.
class ContentBuilder {
 public:
  ContentBuilder(Message& message, const ParsedRequest& request, const CodecOptions& options)
      : message_(message), request_(request), options_(options) {}

  void AddText(std::string_view text);
  // Adds the placeholder of a picture whose URL was checked; V4, which has no vision, gets a note instead. `path` is
  // the place that messages about the picture name.
  void AddImage(std::string_view url, ImageDetail detail, std::string path);

 private:
  void Separate();

  Message& message_;
  const ParsedRequest& request_;
  const CodecOptions& options_;
  bool any_ = false;
};

enum class DataUrlProblem { kNone, kFormat, kType, kBase64 };
// What is wrong with "data:image/png;base64,…", if anything.
[[nodiscard]] DataUrlProblem CheckDataUrl(std::string_view url);
[[nodiscard]] bool IsBase64(std::string_view text);

}  // namespace galley::protocol::internal
