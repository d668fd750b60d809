// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "galley/protocol/request_internal.h"
#include "galley/protocol/schema_check.h"

namespace galley::protocol {
namespace internal {

Checked SetModel(const Json& body, const CodecOptions& options, ParsedRequest& request) {
  request.model = Text(body, "model");
  const auto found = options.models.find(request.model);
  if (found == options.models.end()) {
    std::vector<std::string_view> names;
    for (const auto& [name, version] : options.models) names.push_back(name);
    return Refuse(
        fmt::format("The supported API model names are {}, but you passed {}.", fmt::join(names, ", "), request.model),
        "model");
  }
  request.version = found->second;
  request.stream = IsTrue(Get(body, "stream"));
  return {};
}

void SetThinking(const Json& thinking, std::string_view effort, const CodecOptions& options, ParsedRequest& request) {
  Conversation& c = request.conversation;
  if (!Get(thinking, "budget_tokens").is_null())
    request.warnings.emplace_back("thinking.budget_tokens is not used; the effort and max_tokens limit thinking");
  c.thinking = effort.empty() ? options.default_thinking : effort != "none";
  if (thinking.is_object()) c.thinking = Text(thinking, "type") != "disabled";
  if (!c.thinking) return;
  static constexpr std::pair<std::string_view, Effort> kEfforts[] = {
      {"minimal", Effort::kLow}, {"low", Effort::kLow},   {"medium", Effort::kHigh}, {"high", Effort::kHigh},
      {"xhigh", Effort::kXhigh}, {"ultra", Effort::kMax}, {"max", Effort::kMax}};
  c.effort = Effort::kHigh;
  for (const auto& [name, value] : kEfforts)
    if (name == effort) c.effort = value;
}

ImageDetail DetailOf(std::string_view name) {
  if (name == "low") return ImageDetail::kLow;
  if (name == "original") return ImageDetail::kOriginal;
  return name == "auto" ? ImageDetail::kAuto : ImageDetail::kHigh;
}

namespace {

// The codec fixes top_p of chats as the model was trained; a bare continuation takes what the client says.
void SetTopP(std::optional<float> given, ParsedRequest& request) {
  const bool thinking = request.conversation.thinking, v41 = request.version == ModelVersion::kV41;
  double& top_p = request.inference.top_p;
  if (!given) return;
  if (request.parsing.raw || (!v41 && !thinking))
    top_p = *given;
  else if (v41 && thinking)
    top_p = std::max(*given, 0.95f);
  if (top_p != static_cast<double>(*given))
    request.warnings.push_back(fmt::format("top_p: {} is not used where the model {}; it is {}", *given,
                                           thinking ? "thinks" : "does not think", static_cast<float>(top_p)));
}

}  // namespace

Checked SetSampling(const Json& body, std::string_view max_tokens_key, bool lower, const CodecOptions& options,
                    ParsedRequest& request) {
  const bool thinking = request.conversation.thinking;
  const std::uint32_t bound = thinking ? options.thinking_max_tokens : options.non_thinking_max_tokens;
  if (const Json& value = Get(body, max_tokens_key); !value.is_null()) {
    std::uint64_t tokens = Unsigned(value);
    if (lower) tokens = std::min<std::uint64_t>(tokens, bound);
    if (request.score_only) tokens = 1;  // the least that an engine does
    if (tokens < 1 || tokens > bound)
      return Refuse(fmt::format("Invalid max_tokens value, the valid range of max_tokens is [1, {}]", bound),
                    max_tokens_key);
    request.inference.max_tokens = static_cast<std::uint32_t>(tokens);
  }
  if (const Json& value = Get(body, "temperature"); !value.is_null()) {
    const float given = static_cast<float>(value.AsDouble());
    if (!(given >= 0 && given <= 2))
      return Refuse("Invalid temperature value, the valid range of temperature is [0, 2]", "temperature");
    if (!thinking)
      request.inference.temperature = given;
    else if (given != 1)
      request.warnings.push_back(fmt::format("temperature: {} is not used while the model thinks; it is 1", given));
  }
  std::optional<float> top_p;
  if (const Json& value = Get(body, "top_p"); !value.is_null()) {
    top_p = static_cast<float>(value.AsDouble());
    if (!(*top_p > 0 && *top_p <= 1))
      return Refuse("Invalid top_p value, the valid range of top_p is (0, 1.0]", "top_p");
  }
  SetTopP(top_p, request);
  return {};
}

Checked SetSeed(const Json& body, ParsedRequest& request) {
  const Json& seed = Get(body, "seed");
  if (seed.is_null()) return {};
  if (Unsigned(seed) >> 63 != 0) return Refuse("Invalid seed value, the valid range of seed is [0, 2^63)", "seed");
  request.inference.seed = Unsigned(seed);
  return {};
}

Checked SetStop(const Json& stop, ParsedRequest& request) {
  const std::string_view empty =
      "empty string. Expected a string with minimum length 1, but got an empty string instead.";
  if (stop.is_string()) {
    if (Text(stop).empty()) return Refuse(fmt::format("Invalid 'stop': {}", empty), "stop");
    request.parsing.stop_sequences = {std::string(Text(stop))};
    return {};
  }
  const std::span<const Json> all = Elements(stop);
  if (all.size() > 16) return Refuse(fmt::format("Stop string array too long: {}", all.size()), "stop");
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (Text(all[i]).empty()) return Refuse(fmt::format("Invalid 'stop[{}]': {}", i, empty), "stop");
    request.parsing.stop_sequences.emplace_back(Text(all[i]));
  }
  return {};
}

Checked CheckName(std::string_view name, std::string_view place) {
  constexpr std::size_t kLongest = 128;
  if (name.empty())
    return Refuse(
        fmt::format("Invalid '{}': empty string. Expected a string with minimum length 1, but got an empty "
                    "string instead.",
                    place));
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (plain && name.size() > kLongest)
    return Refuse(
        fmt::format("Invalid '{}': string too long. Expected a string with maximum length {}, but got a "
                    "string with length {} instead.",
                    place, kLongest, name.size()));
  if (!plain)
    return Refuse(
        fmt::format("Invalid '{}': string does not match pattern. Expected a string that matches the pattern "
                    "'^[a-zA-Z0-9_-]+$'.",
                    place));
  return {};
}

Checked FinishTool(Tool& tool, bool declared) {
  const auto invalid = [&](const Error& why) {
    return RefuseChecked(fmt::format("Invalid schema for function '{}': {}", tool.name, why.message), why, "tools");
  };
  if (Status status = CheckJsonSchema(tool.parameters); !status) return invalid(status.error());
  if (declared && tool.parameters.is_object()) {
    const Json& type = Get(tool.parameters, "type");
    if (Text(type) != "object")
      return invalid(
          {ErrorCode::kInvalidArgument,
           fmt::format("schema must be a JSON Schema of 'type: \"object\"', got 'type: {}'.", DumpJson(type)), ""});
  }
  if (tool.strict.value_or(false)) {
    Json schema = tool.parameters;
    if (schema.Find("type") == nullptr) schema.Set("type", "object");
    Result<Json> strict = MakeStrict(schema);
    if (!strict) return RefuseChecked(strict.error().message, strict.error(), "tools");
    tool.declared = std::exchange(tool.parameters, std::move(*strict));
  }
  return {};
}

Checked CheckUnique(const std::vector<Tool>& tools) {
  std::set<std::string_view> names;
  for (const Tool& tool : tools)
    if (!names.insert(tool.name).second) return Refuse("Tool names must be unique.", "tools");
  return {};
}

Checked ChooseTool(std::string_view name, ParsedRequest& request) {
  std::vector<Tool>& tools = request.conversation.tools;
  if (tools.empty()) return {};
  const auto found = std::find_if(tools.begin(), tools.end(), [&](const Tool& tool) { return tool.name == name; });
  if (found == tools.end())
    return Refuse(fmt::format("Invalid value for 'tool_call': no function named '{}' was specified in the 'tools' "
                              "parameter.",
                              name),
                  "tool_choice");
  Tool kept = std::move(*found);
  tools.clear();
  tools.push_back(std::move(kept));
  request.conversation.tool_choice = ToolChoice::kRequired;
  return {};
}

Checked FinishChoice(ParsedRequest& request, std::string_view thinking_off) {
  Conversation& c = request.conversation;
  if (c.tools.empty()) c.tool_choice = ToolChoice::kAuto;
  if (c.tool_choice == ToolChoice::kNone) c.tools.clear();
  if (c.thinking && c.tool_choice == ToolChoice::kRequired)
    return tl::unexpected<RequestError>(
        RequestError{RequestErrorKind::kConversion, "Thinking mode does not support this tool_choice", "tool_choice",
                     fmt::format("(turn thinking off with {}, or let tool_choice be auto)", thinking_off)});
  return {};
}

Checked SetSchemaFormat(const Json& holder, std::string_view param, const CodecOptions& options,
                        ParsedRequest& request) {
  Conversation& c = request.conversation;
  const Json& schema = Get(holder, "schema");
  if (Status status = CheckJsonSchema(schema); !status)
    return RefuseChecked(fmt::format("Invalid json schema: {}", status.error().message), status.error(), param);
  std::string text = DumpJson(schema);
  if (IsTrue(Get(holder, "strict"))) {
    if (!options.any_schema_root && Text(schema, "type") != "object")
      return Refuse("The top level of the json schema must be an object.", param);
    Result<Json> strict = MakeStrict(schema);
    if (!strict) {
      // Here it is no tool's.
      std::string_view why = strict.error().message;
      if (why.starts_with(kStrictToolError)) why.remove_prefix(kStrictToolError.size());
      return RefuseChecked(fmt::format("Invalid json schema: {}", why), strict.error(), param);
    }
    text = DumpJson(*strict);
  }
  c.response_format = ResponseFormat::kJsonSchema;
  c.response_schema = schema;
  request.inference.constraint = Constraint{"json", std::move(text)};
  return {};
}

namespace {

// Ids of calls that the original made without any thinking carry this mark; their turns need no reasoning.
bool MarksNoThinking(std::string_view call_id) {
  return call_id.size() > 10 && call_id.starts_with("call_") && call_id.substr(7, 4) == "_ET_";
}

}  // namespace

Checked FinishReasoning(std::string_view field, const CodecOptions& options, ParsedRequest& request) {
  std::vector<Message>& messages = request.conversation.messages;
  if (!request.conversation.thinking) {
    for (Message& message : messages) message.reasoning_content.reset();
    return {};
  }
  std::size_t after_user = 0;
  for (std::size_t i = 0; i < messages.size(); ++i)
    if (messages[i].role == Role::kUser) after_user = i;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    Message& message = messages[i];
    if (message.role != Role::kAssistant || message.reasoning_content) continue;
    const bool marked = std::any_of(message.tool_calls.begin(), message.tool_calls.end(),
                                    [](const ToolCall& call) { return MarksNoThinking(call.id); });
    if (options.reject_missing_reasoning && i >= after_user && !marked && !message.prefix)
      return Refuse(fmt::format("The `{}` in the thinking mode must be passed back to the API.", field));
    message.reasoning_content = "";
  }
  return {};
}

bool MentionsJson(std::string_view text) {
  constexpr std::string_view kWord = "json";
  return std::search(text.begin(), text.end(), kWord.begin(), kWord.end(), [](char a, char b) {
           return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + 32) : a) == b;
         }) != text.end();
}

namespace {

Constraint ToolConstraint(const Conversation& c) {
  Json list(Json::Array{});
  for (const Tool& tool : c.tools) {
    Json function = Json::MakeObject({{"name", tool.name},
                                      {"description", tool.description ? Json(*tool.description) : Json()},
                                      {"parameters", tool.parameters},
                                      {"strict", tool.strict ? Json(*tool.strict) : Json()}});
    Json entry = Json::MakeObject({{"type", "function"}, {"function", std::move(function)}});
    if (tool.defer_loading) entry.Set("defer_loading", true);
    list.Push(std::move(entry));
  }
  return {c.tool_choice == ToolChoice::kRequired ? "tool_call_required" : "tool_call", DumpJson(list)};
}

void WarnAboutArguments(ParsedRequest& request) {
  for (const Message& message : request.conversation.messages) {
    for (const ToolCall& call : message.tool_calls) {
      if (const auto strict = ParseJson(call.arguments, {.refuse_duplicates = true}); !strict)
        request.warnings.push_back(fmt::format("arguments of call {}: {}", call.id, strict.error().message));
    }
  }
}

}  // namespace

void FinishRequest(ParsedRequest& request) {
  Conversation& c = request.conversation;
  std::optional<Constraint>& constraint = request.inference.constraint;
  if (c.response_format == ResponseFormat::kJsonObject) constraint = Constraint{"json", ""};
  if (c.response_format == ResponseFormat::kRegex) constraint = Constraint{"regex", c.response_regex};
  if (c.tools_active()) {
    Constraint tools = ToolConstraint(c);
    if (constraint) {
      tools.otherwise_kind = constraint->kind;
      tools.otherwise_schema = constraint->schema;
      if (c.tool_choice == ToolChoice::kRequired)
        request.warnings.emplace_back("the format of the answer is not used, since tool_choice demands a call");
    }
    constraint = std::move(tools);
  }
  // With tools V4 thinks best a little below the full distribution.
  if (request.version == ModelVersion::kV4 && c.thinking && c.tools_active()) request.inference.top_p = 0.95f;
  ParsingOptions& parsing = request.parsing;
  parsing.parse_tool_calls = c.tools_active();
  parsing.starts_in_tool_calls = c.tools_active() && c.tool_choice == ToolChoice::kRequired;
  parsing.parse_json_output = c.response_format == ResponseFormat::kJsonObject;
  if (c.thinking) {
    parsing.stage = ThinkingStage::kReasoningStart;
    const Message* last = c.messages.empty() ? nullptr : &c.messages.back();
    if (last != nullptr && last->prefix && !last->content.empty())
      parsing.stage = ThinkingStage::kContentContinuation;
    else if (last != nullptr && last->prefix && !last->reasoning_content.value_or("").empty())
      parsing.stage = ThinkingStage::kReasoningContinuation;
  }
  WarnAboutArguments(request);
}

bool IsBase64(std::string_view text) {
  if (text.size() % 4 != 0) return false;
  std::size_t body = text.size();
  while (body > 0 && text.size() - body < 2 && text[body - 1] == '=') --body;
  return std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(body), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' || c == '/';
  });
}

DataUrlProblem CheckDataUrl(std::string_view url) {
  constexpr std::string_view kHead = "data:", kCoding = ";base64,";
  constexpr std::array<std::string_view, 5> kTypes = {"image/png", "image/jpeg", "image/jpg", "image/gif",
                                                      "image/webp"};
  const std::size_t at = url.find(kCoding);
  if (!url.starts_with(kHead) || at == std::string_view::npos) return DataUrlProblem::kFormat;
  const std::string_view type = url.substr(kHead.size(), at - kHead.size());
  if (std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end()) return DataUrlProblem::kType;
  return IsBase64(url.substr(at + kCoding.size())) ? DataUrlProblem::kNone : DataUrlProblem::kBase64;
}

void ContentBuilder::Separate() {
  if (any_) message_.content += "\n\n";
  any_ = true;
}

void ContentBuilder::AddText(std::string_view text) {
  Separate();
  message_.content += text;
}

void ContentBuilder::AddImage(std::string_view url, ImageDetail detail, std::string path) {
  if (request_.version == ModelVersion::kV4) {
    AddText("[Unsupported Image]");
    return;
  }
  Separate();
  message_.images.push_back({std::string(url), detail, std::move(path), message_.content.size()});
  message_.content += options_.render.tokens.image;
}

}  // namespace internal

std::string_view Name(Protocol protocol) {
  static constexpr std::string_view kNames[] = {"chat", "responses", "messages", "completions"};
  return kNames[static_cast<std::size_t>(protocol)];
}

Json ErrorBody(const RequestError& error) {
  return Json::MakeObject({{"error", Json::MakeObject({{"message", error.message},
                                                       {"type", "invalid_request_error"},
                                                       {"param", nullptr},
                                                       {"code", "invalid_request_error"}})}});
}

Parsed<Json> ReadBody(std::string_view body, const RequestLimits& limits) {
  if (body.size() > limits.body_bytes_max)
    return tl::unexpected<RequestError>(RequestError{
        RequestErrorKind::kBody,
        fmt::format("the body has {} bytes, more than the limit of {}", body.size(), limits.body_bytes_max)});
  // A key that stands twice means different things to different readers, so such a body is not one request.
  Result<Json> json = ParseJson(body, {.refuse_duplicates = true});
  if (json) return std::move(*json);
  const bool is_json = json.error().code == ErrorCode::kCorrupt;
  return tl::unexpected<RequestError>(
      RequestError{is_json ? RequestErrorKind::kBody : RequestErrorKind::kJson, json.error().ToString()});
}

Parsed<ParsedRequest> ParseRequest(Protocol protocol, std::string_view body, const CodecOptions& options) {
  const Parsed<Json> json = ReadBody(body, options.limits);
  if (!json) return tl::unexpected<RequestError>(json.error());
  return ConvertBody(protocol, *json, options);
}

Parsed<ParsedRequest> ConvertBody(Protocol protocol, const Json& body, const CodecOptions& options) {
  struct Api {
    const Shape& (*shape)();
    Parsed<ParsedRequest> (*convert)(const Json&, const CodecOptions&);
  };
  static constexpr Api kApis[] = {{internal::ChatShape, internal::ConvertChat},
                                  {internal::ResponsesShape, internal::ConvertResponses},
                                  {internal::MessagesShape, internal::ConvertMessages},
                                  {internal::CompletionsShape, internal::ConvertCompletions}};
  const Api& api = kApis[static_cast<std::size_t>(protocol)];
  if (const Status status = CheckShape(body, api.shape()); !status)
    return tl::unexpected<RequestError>(
        RequestError{RequestErrorKind::kBody, status.error().ToString(), status.error().where});
  Parsed<ParsedRequest> request = api.convert(body, options);
  if (!request) return request;
  request->protocol = protocol;
  ParsingOptions& parsing = request->parsing;
  parsing.hide_markup = options.hide_markup && !parsing.parse_tool_calls && !parsing.raw;
  return request;
}

Prompt RenderRequest(const ParsedRequest& request, const CodecOptions& options) {
  if (request.protocol == Protocol::kCompletions) return request.raw_prompt;
  return RenderConversation(request.conversation, request.version, options.render);
}

Parsed<std::uint32_t> ResolveMaxTokens(const ParsedRequest& request, std::uint64_t prompt_tokens,
                                       std::uint64_t context_limit) {
  const Conversation& c = request.conversation;
  const std::uint64_t wanted = request.inference.max_tokens.value_or(0);
  if (prompt_tokens + wanted > context_limit) {
    RequestError error{.message =
                           fmt::format("This model's maximum context length is {} tokens. However, you requested {} "
                                       "tokens ({} in the messages, {} in the completion). Please reduce the length "
                                       "of the messages or completion.",
                                       context_limit, prompt_tokens + wanted, prompt_tokens, wanted)};
    if (wanted == 0) error.detail = "(No limit of the answer was given: the prompt alone is too long.)";
    return tl::unexpected<RequestError>(std::move(error));
  }
  if (wanted > 0) return static_cast<std::uint32_t>(wanted);
  const std::uint64_t usual = !c.thinking ? 8192 : c.effort == Effort::kMax ? 131072 : 65536;
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, std::min(usual, context_limit - prompt_tokens)));
}

}  // namespace galley::protocol
