// SPDX-License-Identifier: Apache-2.0
// Chat Completions requests (recipe 6.1).
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "galley/protocol/request_internal.h"
#include "galley/protocol/schema_check.h"

namespace galley::protocol::internal {
namespace {

using enum Presence;

constexpr Field kTextBlockFields[] = {{"text", kRequired, &kStringShape}};
constexpr Shape kTextBlock{.kind = ShapeKind::kObject, .fields = kTextBlockFields};
constexpr Field kImageUrlFields[] = {{"url", kRequired, &kStringShape}, {"detail", kOptional, &kDetailShape}};
constexpr Shape kImageUrl{.kind = ShapeKind::kObject, .fields = kImageUrlFields};
constexpr Field kImageBlockFields[] = {{"image_url", kRequired, &kImageUrl}};
constexpr Shape kImageBlock{.kind = ShapeKind::kObject, .fields = kImageBlockFields};
constexpr Field kFileBlockFields[] = {{"file_data", kOptional, &kStringShape},
                                      {"file_id", kOptional, &kStringShape},
                                      {"filename", kOptional, &kStringShape}};
constexpr Shape kFileBlock{.kind = ShapeKind::kObject, .fields = kFileBlockFields};
constexpr Variant kBlockVariants[] = {{"text", &kTextBlock}, {"image_url", &kImageBlock}, {"file", &kFileBlock}};
constexpr Shape kBlock{.kind = ShapeKind::kTagged, .tag = "type", .variants = kBlockVariants};
constexpr Shape kBlocks{.kind = ShapeKind::kList, .element = &kBlock};
constexpr const Shape* kContentForms[] = {&kStringShape, &kBlocks};
constexpr Shape kContent{.kind = ShapeKind::kEither, .alternatives = kContentForms};

constexpr std::string_view kFunctionName[] = {"function"};
constexpr Shape kFunctionType{.kind = ShapeKind::kEnum, .names = kFunctionName};
constexpr Field kCalledFields[] = {{"name", kRequired, &kStringShape}, {"arguments", kRequired, &kStringShape}};
constexpr Shape kCalled{.kind = ShapeKind::kObject, .fields = kCalledFields};
constexpr Field kCallFields[] = {
    {"id", kRequired, &kStringShape}, {"type", kRequired, &kFunctionType}, {"function", kRequired, &kCalled}};
constexpr Shape kCall{.kind = ShapeKind::kObject, .fields = kCallFields};
constexpr Shape kCalls{.kind = ShapeKind::kList, .element = &kCall};

constexpr Field kPlainMessageFields[] = {{"content", kRequired, &kContent}, {"name", kOptional, &kStringShape}};
constexpr Shape kPlainMessage{.kind = ShapeKind::kObject, .fields = kPlainMessageFields};
constexpr Field kAssistantFields[] = {{"content", kOptional, &kContent},
                                      {"name", kOptional, &kStringShape},
                                      {"reasoning_content", kOptional, &kStringShape},
                                      {"tool_calls", kOptional, &kCalls},
                                      {"prefix", kOptional, &kBoolShape}};
constexpr Shape kAssistant{.kind = ShapeKind::kObject, .fields = kAssistantFields};
constexpr Field kToolMessageFields[] = {{"content", kRequired, &kContent}, {"tool_call_id", kRequired, &kStringShape}};
constexpr Shape kToolMessage{.kind = ShapeKind::kObject, .fields = kToolMessageFields};
constexpr Field kReminderFields[] = {{"content", kRequired, &kStringShape}};
constexpr Shape kReminder{.kind = ShapeKind::kObject, .fields = kReminderFields};
constexpr Variant kMessageVariants[] = {{"system", &kPlainMessage},
                                        {"user", &kPlainMessage},
                                        {"assistant", &kAssistant},
                                        {"tool", &kToolMessage},
                                        {"latest_reminder", &kReminder}};
constexpr Shape kMessage{.kind = ShapeKind::kTagged, .tag = "role", .variants = kMessageVariants};
constexpr Shape kMessages{.kind = ShapeKind::kList, .element = &kMessage};

constexpr Field kFunctionFields[] = {{"name", kRequired, &kStringShape},
                                     {"description", kOptional, &kStringShape},
                                     {"parameters", kOptional, &kAnyShape},
                                     {"strict", kOptional, &kBoolShape}};
constexpr Shape kFunction{.kind = ShapeKind::kObject, .fields = kFunctionFields};
constexpr Field kToolFields[] = {{"type", kRequired, &kFunctionType}, {"function", kRequired, &kFunction}};
constexpr Shape kTool{.kind = ShapeKind::kObject, .fields = kToolFields};
constexpr Shape kTools{.kind = ShapeKind::kList, .element = &kTool};

constexpr std::string_view kChoiceNames[] = {"none", "auto", "required"};
constexpr Shape kChoiceWord{.kind = ShapeKind::kEnum, .names = kChoiceNames};
constexpr Field kNamedFields[] = {{"name", kRequired, &kStringShape}};
constexpr Shape kNamed{.kind = ShapeKind::kObject, .fields = kNamedFields};
constexpr Field kChoiceFields[] = {{"type", kRequired, &kFunctionType}, {"function", kRequired, &kNamed}};
constexpr Shape kChoiceObject{.kind = ShapeKind::kObject, .fields = kChoiceFields};
constexpr const Shape* kChoiceForms[] = {&kChoiceWord, &kChoiceObject};
constexpr Shape kChoice{.kind = ShapeKind::kEither, .alternatives = kChoiceForms};

constexpr Field kSchemaFields[] = {{"schema", kRequired, &kAnyShape}, {"strict", kOptional, &kBoolShape}};
constexpr Shape kSchemaHolder{.kind = ShapeKind::kObject, .fields = kSchemaFields};
constexpr Field kSchemaFormatFields[] = {{"json_schema", kRequired, &kSchemaHolder}};
constexpr Shape kSchemaFormat{.kind = ShapeKind::kObject, .fields = kSchemaFormatFields};
constexpr Field kRegexFields[] = {{"regex", kRequired, &kStringShape}};
constexpr Shape kRegexFormat{.kind = ShapeKind::kObject, .fields = kRegexFields};
constexpr Variant kFormatVariants[] = {
    {"json_object", &kMapShape}, {"json_schema", &kSchemaFormat}, {"regex", &kRegexFormat}, {"text", &kMapShape}};
constexpr Shape kFormat{.kind = ShapeKind::kTagged, .tag = "type", .variants = kFormatVariants};

constexpr Field kThinkingFields[] = {{"type", kRequired, &kThinkingTypeShape}};
constexpr Shape kThinking{.kind = ShapeKind::kObject, .fields = kThinkingFields};
constexpr Field kStreamOptionFields[] = {{"include_usage", kOptional, &kBoolShape}};
constexpr Shape kStreamOptions{.kind = ShapeKind::kObject, .fields = kStreamOptionFields};
constexpr const Shape* kStopForms[] = {&kStringShape, &kStringListShape};
constexpr Shape kStop{.kind = ShapeKind::kEither, .alternatives = kStopForms};

constexpr Field kChatFields[] = {{"model", kRequired, &kStringShape},
                                 {"messages", kRequired, &kMessages},
                                 {"thinking", kOptional, &kThinking},
                                 {"reasoning_effort", kOptional, &kEffortShape},
                                 {"max_tokens", kOptional, &kU32Shape},
                                 {"max_completion_tokens", kOptional, &kU32Shape},
                                 {"temperature", kOptional, &kNumberShape},
                                 {"top_p", kOptional, &kNumberShape},
                                 {"frequency_penalty", kOptional, &kNumberShape},
                                 {"presence_penalty", kOptional, &kNumberShape},
                                 {"seed", kOptional, &kU64Shape},
                                 {"n", kOptional, &kU32Shape},
                                 {"stop", kOptional, &kStop},
                                 {"stream", kOptional, &kBoolShape},
                                 {"stream_options", kOptional, &kStreamOptions},
                                 {"tools", kOptional, &kTools},
                                 {"tool_choice", kOptional, &kChoice},
                                 {"response_format", kOptional, &kFormat},
                                 {"logprobs", kOptional, &kBoolShape},
                                 {"top_logprobs", kOptional, &kU8Shape},
                                 {"parallel_tool_calls", kOptional, &kBoolShape}};
constexpr Shape kChat{.kind = ShapeKind::kObject, .fields = kChatFields};

constexpr std::string_view kFormats =
    "Please make sure your {0} is valid and has one of the following formats: webp, png, jpeg, and gif.";

class ChatConverter {
 public:
  ChatConverter(const Json& body, const CodecOptions& options) : body_(body), options_(options) {}

  Parsed<ParsedRequest> Convert() {
    GALLEY_REFUSE_IF_ERROR(SetModel(body_, options_, request_));
    SetThinking(Get(body_, "thinking"), Text(body_, "reasoning_effort"), options_, request_);
    GALLEY_REFUSE_IF_ERROR(Messages());
    GALLEY_REFUSE_IF_ERROR(Sampling());
    GALLEY_REFUSE_IF_ERROR(Tools());
    GALLEY_REFUSE_IF_ERROR(Format());
    GALLEY_REFUSE_IF_ERROR(Prefix());
    GALLEY_REFUSE_IF_ERROR(FinishReasoning("reasoning_content", options_, request_));
    FinishRequest(request_);
    return std::move(request_);
  }

 private:
  Checked Messages() {
    const std::span<const Json> all = Elements(Get(body_, "messages"));
    if (all.empty()) return Refuse("Empty input messages", "messages");
    GALLEY_REFUSE_IF_ERROR(CheckPairs(all));
    for (std::size_t i = 0; i < all.size(); ++i) GALLEY_REFUSE_IF_ERROR(AddMessage(all[i], i, i + 1 == all.size()));
    return {};
  }

  // Every call is answered exactly once, by the messages right after its turn.
  static Checked CheckPairs(std::span<const Json> all) {
    constexpr std::string_view kMustFollow =
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'";
    const auto duplicate = [](std::string_view id, std::size_t index) {
      return Refuse(fmt::format("Duplicate value for 'tool_call_id' of {} in message[{}]", id, index));
    };
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (Text(all[i], "role") == "tool")
        return Refuse("Messages with role 'tool' must be a response to a preceding message with 'tool_calls'");
      const Json& calls = Get(all[i], "tool_calls");
      if (Text(all[i], "role") != "assistant" || calls.is_null()) continue;
      if (Elements(calls).empty())
        return Refuse(
            fmt::format("Invalid 'messages[{}].tool_calls': empty array. Expected an array with minimum "
                        "length 1, but got an empty array instead.",
                        i));
      std::set<std::string_view> ids, answered;
      for (const Json& call : Elements(calls))
        if (!ids.insert(Text(call, "id")).second) return duplicate(Text(call, "id"), i);
      const std::size_t turn = i;
      while (i + 1 < all.size() && i - turn < ids.size() && Text(all[i + 1], "role") == "tool") ++i;
      if (i - turn < ids.size())
        return Refuse(fmt::format("{}. (insufficient tool messages following tool_calls message)", kMustFollow));
      for (std::size_t k = turn + 1; k <= i; ++k) {
        const std::string_view id = Text(all[k], "tool_call_id");
        if (!answered.insert(id).second) return duplicate(id, k);
        if (!ids.contains(id))
          return Refuse(
              fmt::format("{}, The following tool_call_ids did not have response messages: {}", kMustFollow, id));
      }
    }
    return {};
  }

  Checked AddMessage(const Json& row, std::size_t index, bool last) {
    static constexpr std::pair<std::string_view, Role> kRoles[] = {{"system", Role::kSystem},
                                                                   {"user", Role::kUser},
                                                                   {"assistant", Role::kAssistant},
                                                                   {"tool", Role::kTool},
                                                                   {"latest_reminder", Role::kLatestReminder}};
    Message message;
    for (const auto& [name, role] : kRoles)
      if (name == Text(row, "role")) message.role = role;
    if (message.role == Role::kAssistant && IsTrue(Get(row, "prefix"))) {
      if (!last)
        return Refuse(
            "Invalid completion message: prefix set true with message which is not final message or message "
            "role is not assistant");
      message.prefix = true;
    }
    GALLEY_REFUSE_IF_ERROR(Content(Get(row, "content"), fmt::format(".messages[{}]", index), message));
    if (message.role == Role::kAssistant) {
      if (Get(row, "content").is_null() && Get(row, "tool_calls").is_null())
        return Refuse("Invalid assistant message: content or tool_calls must be set");
      if (const Json& reasoning = Get(row, "reasoning_content"); reasoning.is_string())
        message.reasoning_content = std::string(Text(reasoning));
      for (const Json& call : Elements(Get(row, "tool_calls"))) {
        const Json& function = Get(call, "function");
        message.tool_calls.push_back({std::string(Text(call, "id")), std::string(Text(function, "name")),
                                      std::string(Text(function, "arguments"))});
      }
    }
    message.tool_call_id = Text(row, "tool_call_id");
    // A system message that says nothing would only cost its token.
    if (message.role == Role::kSystem && message.content.empty()) return {};
    request_.conversation.messages.push_back(std::move(message));
    return {};
  }

  Checked Content(const Json& content, const std::string& path, Message& message) {
    ContentBuilder builder(message, request_, options_);
    if (content.is_string()) {
      builder.AddText(Text(content));
      mentions_json_ = mentions_json_ || MentionsJson(Text(content));
      return {};
    }
    std::size_t index = 0;
    for (const Json& block : Elements(content)) {
      if (Text(block, "type") == "text") {
        builder.AddText(Text(block, "text"));
        mentions_json_ = mentions_json_ || MentionsJson(Text(block, "text"));
      } else {
        if (message.role == Role::kAssistant) return Refuse("Image in assistant message is not supported");
        const bool file = Text(block, "type") == "file";
        GALLEY_REFUSE_IF_ERROR(file ? CheckFile(block, path)
                                    : CheckUrl(Text(Get(block, "image_url"), "url"), path, index));
        if (file)
          builder.AddImage(Text(block, "file_data"), ImageDetail::kHigh, path);
        else
          builder.AddImage(Text(Get(block, "image_url"), "url"), DetailOf(Text(Get(block, "image_url"), "detail")),
                           path);
      }
      ++index;
    }
    return {};
  }

  static Checked CheckFile(const Json& block, const std::string& path) {
    const bool has_id = !Get(block, "file_id").is_null(), has_data = !Get(block, "file_data").is_null();
    const auto refuse = [&](std::string_view why) { return Refuse(fmt::format("{}: {}", path, why)); };
    if (has_id && has_data) return refuse("file cannot have both file_id and file_data");
    if (has_id && !Get(block, "filename").is_null()) return refuse("file cannot have filename when file_id is present");
    if (has_id) return refuse("file_id is not supported. Pass the image as a base64 data url instead.");
    if (!has_data) return refuse("file must have a file_id or file_data");
    switch (CheckDataUrl(Text(block, "file_data"))) {
      case DataUrlProblem::kNone:
        return {};
      case DataUrlProblem::kType:
        return refuse("You have uploaded an unsupported file. " + fmt::format(fmt::runtime(kFormats), "file"));
      case DataUrlProblem::kFormat:
        return refuse("file_data is not a valid base64 data url");
      case DataUrlProblem::kBase64:
        return refuse("Invalid base64 data");
    }
    return {};
  }

  Checked CheckUrl(std::string_view url, const std::string& path, std::size_t index) const {
    const auto refuse = [&](std::string_view why) { return Refuse(fmt::format("{}: {}", path, why)); };
    if (url.starts_with("http://") || url.starts_with("https://")) {
      if (url.size() <= options_.limits.url_bytes_max) return {};
      return Refuse(
          fmt::format("{}.image_url.url[{}]: image_url.url external link length {} too long, max link length "
                      "{}. Consider passing file data directly with base64 data url instead.",
                      path, index, url.size(), options_.limits.url_bytes_max));
    }
    switch (CheckDataUrl(url)) {
      case DataUrlProblem::kNone:
        return {};
      case DataUrlProblem::kType:
        return refuse("You have uploaded an unsupported image. " + fmt::format(fmt::runtime(kFormats), "image"));
      case DataUrlProblem::kFormat:
        return refuse("Unsupported image_url format");
      case DataUrlProblem::kBase64:
        return refuse("Invalid base64 data");
    }
    return {};
  }

  Checked Sampling() {
    const bool both = Get(body_, "max_tokens").is_null();
    GALLEY_REFUSE_IF_ERROR(
        SetSampling(body_, both ? "max_completion_tokens" : "max_tokens", false, options_, request_));
    for (std::string_view name : {"frequency_penalty", "presence_penalty"}) {
      const Json& value = Get(body_, name);
      if (!value.is_null() && !(value.AsDouble() >= -2 && value.AsDouble() <= 2))
        return Refuse(fmt::format("Invalid {0} value, the valid range of {0} is [-2, 2]", name), name);
    }
    GALLEY_REFUSE_IF_ERROR(SetSeed(body_, request_));
    if (const Json& n = Get(body_, "n"); !n.is_null() && Unsigned(n) != 1)
      return Refuse("Invalid n value (currently only n = 1 is supported)", "n");
    GALLEY_REFUSE_IF_ERROR(SetStop(Get(body_, "stop"), request_));
    request_.inference.logprobs = IsTrue(Get(body_, "logprobs"));
    if (const Json& top = Get(body_, "top_logprobs"); !top.is_null()) {
      if (!request_.inference.logprobs)
        return Refuse("Invalid top_logprobs and logprobs value, logprobs must be set to true if top_logprobs is used.",
                      "top_logprobs");
      if (Unsigned(top) > 20)
        return Refuse("Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].", "top_logprobs");
      request_.inference.top_logprobs = static_cast<std::uint8_t>(Unsigned(top));
    }
    if (const Json& stream = Get(body_, "stream_options"); !stream.is_null()) {
      if (!request_.stream) return Refuse("stream_options should be set along with stream = true", "stream_options");
      request_.include_usage = IsTrue(Get(stream, "include_usage"));
    }
    return {};
  }

  Checked Tools() {
    std::size_t index = 0;
    for (const Json& row : Elements(Get(body_, "tools"))) {
      const Json& function = Get(row, "function");
      Tool tool{.name = std::string(Text(function, "name"))};
      GALLEY_REFUSE_IF_ERROR(CheckName(tool.name, fmt::format("tools[{}].function.name", index++)));
      if (const Json& text = Get(function, "description"); text.is_string()) tool.description = std::string(Text(text));
      if (const Json& schema = Get(function, "parameters"); !schema.is_null()) tool.parameters = schema;
      if (const Json& strict = Get(function, "strict"); strict.is_bool()) tool.strict = IsTrue(strict);
      GALLEY_REFUSE_IF_ERROR(FinishTool(tool, !Get(function, "parameters").is_null()));
      request_.conversation.tools.push_back(std::move(tool));
    }
    GALLEY_REFUSE_IF_ERROR(CheckUnique(request_.conversation.tools));
    const Json& choice = Get(body_, "tool_choice");
    has_tools_ = !request_.conversation.tools.empty();
    if (Text(choice) == "none") request_.conversation.tool_choice = ToolChoice::kNone;
    if (Text(choice) == "required") request_.conversation.tool_choice = ToolChoice::kRequired;
    if (choice.is_object()) GALLEY_REFUSE_IF_ERROR(ChooseTool(Text(Get(choice, "function"), "name"), request_));
    return FinishChoice(request_, R"(thinking: {"type": "disabled"} or reasoning_effort: "none")");
  }

  Checked Format() {
    const Json& format = Get(body_, "response_format");
    const std::string_view type = Text(format, "type");
    if (type == "json_object") {
      if (!mentions_json_)
        return Refuse(
            "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'.",
            "response_format");
      request_.conversation.response_format = ResponseFormat::kJsonObject;
    } else if (type == "json_schema") {
      return SetSchemaFormat(Get(format, "json_schema"), "response_format", options_, request_);
    } else if (type == "regex") {
      if (const Status status = CheckRegexSyntax(Text(format, "regex")); !status)
        return RefuseChecked(fmt::format("Invalid regex: {}", status.error().message), status.error(),
                             "response_format");
      request_.conversation.response_format = ResponseFormat::kRegex;
      request_.conversation.response_regex = Text(format, "regex");
    }
    return {};
  }

  Checked Prefix() {
    const std::vector<Message>& messages = request_.conversation.messages;
    if (messages.empty() || !messages.back().prefix) return {};
    const bool has_calls =
        std::any_of(messages.begin(), messages.end(), [](const Message& m) { return !m.tool_calls.empty(); });
    if (has_tools_ || has_calls) return Refuse("Function call should not be used with prefix");
    if (request_.conversation.response_format == ResponseFormat::kJsonObject)
      return Refuse("response_format json_object should not be used with prefix");
    return {};
  }

  const Json& body_;
  const CodecOptions& options_;
  ParsedRequest request_;
  bool mentions_json_ = false;
  bool has_tools_ = false;
};

}  // namespace

const Shape& ChatShape() {
  return kChat;
}

Parsed<ParsedRequest> ConvertChat(const Json& body, const CodecOptions& options) {
  return ChatConverter(body, options).Convert();
}

}  // namespace galley::protocol::internal
