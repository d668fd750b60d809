// SPDX-License-Identifier: Apache-2.0
// Request bodies of the four APIs → one ParsedRequest: the conversation to render, how to sample, how to read the
// model's output and what the answer must repeat. Pure functions of the body and the options; nothing is fetched.
// Rules: recipe 6–8 and behaviour 1.2.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "galley/protocol/conversation.h"
#include "galley/protocol/render.h"

namespace galley::protocol {

enum class Protocol { kChat, kResponses, kMessages, kCompletions };
[[nodiscard]] std::string_view Name(Protocol protocol);  // "chat", …

// Requests larger than these are refused while reading. Depth is bounded by the JSON reader.
struct RequestLimits {
  std::size_t body_bytes_max = 64u << 20;
  std::size_t images_max = 600;
  std::size_t url_bytes_max = 8192;
};

struct CodecOptions {
  // Accepted model names. An error lists them sorted.
  std::map<std::string, ModelVersion> models = {{"DeepSeek-V4.1-Flash", ModelVersion::kV41},
                                                {"DeepSeek-V4-Pro", ModelVersion::kV4}};
  bool default_thinking = true;
  bool reject_missing_reasoning = false;  // otherwise missing reasoning counts as empty
  bool responses_reject_web_search = false;
  bool messages_reject_web_search = true;
  std::uint32_t thinking_max_tokens = 393216;
  std::uint32_t non_thinking_max_tokens = 393216;
  RenderOptions render{};
  RequestLimits limits{};

  // Where the original codec does something that clients should not rely on, but which its test vectors fix. All off:
  // same results as the original. docs/codec.md says more.
  bool keep_call_order = false;   // Responses: calls in the client's order, not sorted by call_id
  bool continue_prefill = false;  // Messages: a last assistant message is continued, not closed
  bool enforce_any = false;       // Messages: tool_choice any demands a call
  bool messages_format = false;   // Messages: output_config.format counts
  bool any_schema_root = false;   // strict schemas need no object at the top
  bool refuse_stateful = false;   // Responses: previous_response_id and background are errors
  bool refuse_builtin = false;    // Responses: built-in tools are errors when demanded or when there are no others
  bool hide_markup = false;       // where there are no calls, DSML markers are not shown either
};

enum class RequestErrorKind {
  kJson,        // the body is not JSON
  kBody,        // JSON, but not of the API's shape
  kConversion,  // a rule of the API is broken
};
struct RequestError {
  RequestErrorKind kind = RequestErrorKind::kConversion;
  std::string message;
  std::string param{};   // member of the body that it is about, when there is one
  std::string detail{};  // what the original's words leave out: where in a schema, and why; may be empty
};
// {"error": {"message", "type": "invalid_request_error", "param": null, "code": "invalid_request_error"}}, status 400.
[[nodiscard]] Json ErrorBody(const RequestError& error);

struct Constraint {
  std::string kind;    // "tool_call", "tool_call_required", "json", "regex"
  std::string schema;  // JSON list of tools, JSON Schema (empty: any object) or regular expression
  // With tools and a format at once: what an answer that is not a call must be. Both empty otherwise.
  std::string otherwise_kind{};
  std::string otherwise_schema{};
};

struct Inference {
  std::optional<std::uint32_t> max_tokens;
  double temperature = 1;  // a 32-bit float widened, as the original computes with it
  double top_p = 1;        // likewise
  bool logprobs = false;
  std::optional<std::uint8_t> top_logprobs;
  std::optional<std::uint64_t> seed;
  std::optional<Constraint> constraint;
};

enum class ThinkingStage { kNone, kReasoningStart, kReasoningContinuation, kContentContinuation };

struct ParsingOptions {
  bool parse_tool_calls = false;
  bool starts_in_tool_calls = false;
  bool parse_json_output = false;
  ThinkingStage stage = ThinkingStage::kNone;
  std::vector<std::string> stop_sequences;
  bool raw = false;          // Completions: nothing but stop sequences has a meaning
  bool hide_markup = false;  // there are no calls: DSML markers are dropped, what stands between them is text
  bool keep_stop = false;    // the stop sequence that ends the answer is part of it
};

struct ParsedRequest {
  Protocol protocol = Protocol::kChat;
  std::string model;  // as the client wrote it
  ModelVersion version = ModelVersion::kV41;
  bool stream = false;
  bool include_usage = false;   // Chat and Completions: usage wanted in every chunk
  bool hide_reasoning = false;  // the answer leaves out what the model thought
  Inference inference;
  ParsingOptions parsing;
  Conversation conversation;
  std::map<std::string, std::pair<std::string, std::string>> namespaces;  // tool name → namespace, name in it
  bool custom_apply_patch = false;  // Responses: apply_patch was declared as a custom tool
  bool client_tool_search = false;  // Responses: tool_search is the client's
  Json echo;                        // Responses: members that every response object repeats
  std::vector<std::string> warnings;

  // Completions only.
  Prompt raw_prompt;
  std::vector<std::vector<std::uint32_t>> prompt_ids;
  bool echo_prompt = false;
  bool score_only = false;  // max_tokens is 0: the prompt is echoed and nothing generated
};

template <typename T>
using Parsed = tl::expected<T, RequestError>;

[[nodiscard]] Parsed<ParsedRequest> ParseRequest(Protocol protocol, std::string_view body,
                                                 const CodecOptions& options = {});
// The same for a body that was read already, without duplicate keys; its size is not checked again.
[[nodiscard]] Parsed<ParsedRequest> ConvertBody(Protocol protocol, const Json& body, const CodecOptions& options = {});
// Reads a body as the first ParseRequest does: size, JSON, duplicate keys.
[[nodiscard]] Parsed<Json> ReadBody(std::string_view body, const RequestLimits& limits = {});
[[nodiscard]] Prompt RenderRequest(const ParsedRequest& request, const CodecOptions& options = {});

// The output limit of a request whose prompt has `prompt_tokens` tokens in a context of `context_limit`.
[[nodiscard]] Parsed<std::uint32_t> ResolveMaxTokens(const ParsedRequest& request, std::uint64_t prompt_tokens,
                                                     std::uint64_t context_limit);

}  // namespace galley::protocol
