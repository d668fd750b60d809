// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>

#include "galley/protocol/codec_case.h"
#include "galley/protocol/image_plan.h"
#include "galley/protocol/shape.h"

namespace galley::protocol::internal {
namespace {

Json ImagesJson(const std::vector<ImageRef>& images) {
  Json list(Json::Array{});
  for (const ImageRef& image : images) {
    Json entry = Json::MakeObject(
        {{"kind", image.is_data_url() ? "data_url" : "url"}, {"detail", Name(image.detail)}, {"path", image.path}});
    if (!image.is_data_url()) entry.Set("url", image.url);
    list.Push(std::move(entry));
  }
  return list;
}

Json ToolsJson(const std::vector<Tool>& tools) {
  Json list(Json::Array{});
  for (const Tool& tool : tools) {
    Json entry = Json::MakeObject({{"name", tool.name},
                                   {"description", tool.description ? Json(*tool.description) : Json()},
                                   {"parameters", tool.parameters}});
    if (tool.strict) entry.Set("strict", *tool.strict);
    if (tool.defer_loading) entry.Set("defer_loading", true);
    list.Push(std::move(entry));
  }
  return list;
}

Json MessageJson(const Message& message) {
  Json row = Json::MakeObject({{"role", Name(message.role)}, {"content", message.content}});
  if (message.reasoning_content) row.Set("reasoning_content", *message.reasoning_content);
  if (!message.tool_calls.empty()) {
    Json calls(Json::Array{});
    for (const ToolCall& call : message.tool_calls)
      calls.Push(Json::MakeObject({{"id", call.id}, {"name", call.name}, {"arguments", call.arguments}}));
    row.Set("tool_calls", std::move(calls));
  }
  if (message.prefix) row.Set("prefix", true);
  if (message.role == Role::kTool) row.Set("tool_call_id", message.tool_call_id);
  if (!message.images.empty()) row.Set("images", ImagesJson(message.images));
  if (!message.tools.empty()) row.Set("tools", ToolsJson(message.tools));
  return row;
}

Json ConversationJson(const Conversation& c) {
  Json messages(Json::Array{});
  for (const Message& message : c.messages) messages.Push(MessageJson(message));
  Json row = Json::MakeObject({{"messages", std::move(messages)}, {"thinking", c.thinking}});
  if (c.thinking && c.effort) row.Set("effort", Name(*c.effort));
  if (!c.tools.empty()) row.Set("tools", ToolsJson(c.tools));
  if (c.tool_choice != ToolChoice::kAuto) row.Set("tool_choice", Name(c.tool_choice));
  if (c.response_format != ResponseFormat::kText) row.Set("response_format", Name(c.response_format));
  if (c.response_format == ResponseFormat::kJsonSchema) row.Set("response_schema", c.response_schema);
  if (c.response_format == ResponseFormat::kRegex) row.Set("response_regex", c.response_regex);
  return row;
}

Json InferenceJson(const Inference& inference) {
  Json row =
      Json::MakeObject({{"max_tokens", inference.max_tokens ? Json(std::uint64_t{*inference.max_tokens}) : Json()},
                        {"temperature", inference.temperature},
                        {"top_p", inference.top_p}});
  if (inference.logprobs) row.Set("logprobs", true);
  if (inference.top_logprobs) row.Set("top_logprobs", int{*inference.top_logprobs});
  if (inference.seed) row.Set("seed", Json(*inference.seed));
  if (const auto& constraint = inference.constraint) {
    Json entry = Json::MakeObject({{"kind", constraint->kind}, {"schema", constraint->schema}});
    row.Set("constraint", std::move(entry));
  }
  return row;
}

// The prompt, and its ids when there is a tokenizer.
void AddPrompt(const ParsedRequest& request, const CodecOptions& codec, const CodecServeOptions& options,
               Json& expect) {
  const Prompt prompt = RenderRequest(request, codec);
  expect.Set("prompt", prompt.text);
  Json ranges(Json::Array{});
  std::vector<text::ByteRange> special;
  for (const ByteRange& range : prompt.special) {
    ranges.Push(Json(Json::Array{Json(std::uint64_t{range.begin}), Json(std::uint64_t{range.end})}));
    special.push_back({range.begin, range.end});
  }
  expect.Set("special_ranges", std::move(ranges));
  if (!prompt.images.empty()) expect.Set("images", ImagesJson(prompt.images));
  if (options.tokenizer == nullptr) return;
  const auto ids = options.tokenizer->EncodeWithSpecialRanges(prompt.text, special);
  if (ids)
    expect.Set("ids", IdsJson(*ids));
  else
    expect.Set("render_error",
               Json::MakeObject({{"ok", false}, {"error", "encoding"}, {"message", ids.error().message}}));
}

// What the vectors have no member for stands beside `expect`.
void AddNotes(const ParsedRequest& request, Json& result) {
  if (!request.warnings.empty()) {
    Json list(Json::Array{});
    for (const std::string& warning : request.warnings) list.Push(Json(warning));
    result.Set("warnings", std::move(list));
  }
  if (const auto& constraint = request.inference.constraint; constraint && !constraint->otherwise_kind.empty())
    result.Set("constraint_otherwise",
               Json::MakeObject({{"kind", constraint->otherwise_kind}, {"schema", constraint->otherwise_schema}}));
}

Json ImageResultJson(const std::vector<ImageRef>& images, const RequestLimits& limits) {
  const auto budget = PlanImages(images, limits);
  if (!budget)
    return Json::MakeObject({{"ok", false},
                             {"error", "image"},
                             {"kind", budget.error().kind},
                             {"retryable", false},
                             {"message", budget.error().message}});
  Json sizes(Json::Array{});
  for (const ImageSize& size : budget->sizes) sizes.Push(Json(Json::Array{size.width, size.height}));
  return Json::MakeObject(
      {{"ok", true},
       {"sizes", std::move(sizes)},
       {"image_token_adjustment", budget->image_token_adjustment},
       {"quota", Json::MakeObject({{"images", Json(std::uint64_t{images.size()})}, {"bytes", budget->bytes}})}});
}

Json ResolvedJson(const ParsedRequest& request, const Json& pairs) {
  Json list(Json::Array{});
  for (const Json& pair : Elements(pairs)) {
    const std::span<const Json> values = Elements(pair);
    if (values.size() != 2) continue;
    const std::uint64_t prompt = Unsigned(values[0]), limit = Unsigned(values[1]);
    Json entry = Json::MakeObject({{"prompt_tokens", Json(prompt)}, {"context_limit", Json(limit)}});
    if (const auto tokens = ResolveMaxTokens(request, prompt, limit)) {
      entry.Set("max_tokens", Json(std::uint64_t{*tokens}));
    } else {
      const Json error = ErrorJson(tokens.error());
      for (const Json::Member& member : *error.if_object()) entry.Set(member.key, member.value);
    }
    list.Push(std::move(entry));
  }
  return list;
}

}  // namespace

CodecOptions OptionsOfCase(const Json& row) {
  CodecOptions codec;
  const Json& options = Get(row, "options");
  const auto flag = [&](std::string_view name, bool& target) {
    if (const bool* value = Get(options, name).if_bool()) target = *value;
  };
  const auto bound = [&](std::string_view name, std::uint32_t& target) {
    if (const Json& value = Get(options, name); value.is_integer())
      target = static_cast<std::uint32_t>(Unsigned(value));
  };
  flag("default_thinking_mode", codec.default_thinking);
  flag("keep_call_order", codec.keep_call_order);
  flag("continue_prefill", codec.continue_prefill);
  flag("enforce_any", codec.enforce_any);
  flag("messages_format", codec.messages_format);
  flag("any_schema_root", codec.any_schema_root);
  flag("refuse_stateful", codec.refuse_stateful);
  flag("keep_order", codec.render.keep_order);
  bound("thinking_max_tokens_upper_bound", codec.thinking_max_tokens);
  bound("non_thinking_max_tokens_upper_bound", codec.non_thinking_max_tokens);
  codec.reject_missing_reasoning = Text(options, "reasoning_content_behavior") == "Reject";
  codec.responses_reject_web_search = Text(options, "responses_web_search") == "Reject";
  codec.messages_reject_web_search = Text(options, "messages_web_search") != "Drop";
  const auto add_models = [&](const Json& table, bool replace) {
    if (!table.is_object()) return;
    if (replace) codec.models.clear();
    for (const Json::Member& member : *table.if_object())
      codec.models[member.key] = Text(member.value) == "v4" ? ModelVersion::kV4 : ModelVersion::kV41;
  };
  add_models(Get(options, "model_versions_by_name"), true);
  add_models(Get(options, "model_alias"), false);
  if (const Json::Object* tokens = Get(options, "special_tokens").if_object()) {
    for (const Json::Member& member : *tokens)
      (void)codec.render.tokens.Override(member.key, Text(member.value));  // a name we do not have changes nothing
  }
  return codec;
}

Protocol ProtocolOfCase(const Json& row) {
  for (const Protocol protocol : {Protocol::kResponses, Protocol::kMessages, Protocol::kCompletions})
    if (Text(row, "protocol") == Name(protocol)) return protocol;
  return Protocol::kChat;
}

std::string BodyOfCase(const Json& row) {
  const Json& text = Get(row, "request_text");
  return text.is_string() ? std::string(Text(text)) : DumpJson(Get(row, "request"));
}

Json IdsJson(std::span<const TokenId> ids) {
  Json list(Json::Array{});
  for (const TokenId id : ids) list.Push(Json(std::int64_t{id}));
  return list;
}

Json ErrorJson(const RequestError& error) {
  static constexpr std::array<std::string_view, 3> kKinds = {"json", "body", "conversion"};
  Json row = Json::MakeObject({{"ok", false}, {"error", kKinds[static_cast<std::size_t>(error.kind)]}});
  if (error.kind == RequestErrorKind::kConversion)
    row.Set("status", 400).Set("body", ErrorBody(error));
  else
    row.Set("message", error.message);
  return row;
}

Json ParsingJson(const ParsingOptions& parsing) {
  static constexpr std::array<std::string_view, 4> kStages = {"", "ReasoningStart", "ReasoningContinuation",
                                                              "ContentContinuation"};
  Json stops(Json::Array{});
  for (const std::string& stop : parsing.stop_sequences) stops.Push(Json(stop));
  const std::string_view stage = kStages[static_cast<std::size_t>(parsing.stage)];
  return Json::MakeObject({{"parse_tool_calls", parsing.parse_tool_calls},
                           {"starts_in_tool_calls", parsing.starts_in_tool_calls},
                           {"parse_json_output", parsing.parse_json_output},
                           {"thinking_initial_stage", stage.empty() ? Json() : Json(stage)},
                           {"stop_sequences", std::move(stops)}});
}

Json RunRenderCase(const Json& row, const CodecServeOptions& options) {
  const CodecOptions codec = OptionsOfCase(row);
  const Parsed<ParsedRequest> request = ParseRequest(ProtocolOfCase(row), BodyOfCase(row), codec);
  if (!request) return Json::MakeObject({{"expect", ErrorJson(request.error())}});
  Json expect = Json::MakeObject({{"ok", true},
                                  {"model_version", Name(request->version)},
                                  {"stream", request->stream},
                                  {"inference", InferenceJson(request->inference)},
                                  {"parsing", ParsingJson(request->parsing)},
                                  {"conversation", ConversationJson(request->conversation)}});
  if (!request->namespaces.empty()) {
    Json map(Json::Object{});
    for (const auto& [name, parts] : request->namespaces) map.Set(name, Json(Json::Array{parts.first, parts.second}));
    expect.Set("namespace_tool_map", std::move(map));
  }
  AddPrompt(*request, codec, options, expect);
  if (IsTrue(Get(row, "resolve_images"))) {
    const Prompt prompt = RenderRequest(*request, codec);
    if (!prompt.images.empty()) expect.Set("image_result", ImageResultJson(prompt.images, codec.limits));
  }
  if (const Json& pairs = Get(row, "resolve_max_tokens"); pairs.is_array())
    expect.Set("resolved_max_tokens", ResolvedJson(*request, pairs));
  Json result = Json::MakeObject({{"expect", std::move(expect)}});
  AddNotes(*request, result);
  return result;
}

}  // namespace galley::protocol::internal
