// SPDX-License-Identifier: Apache-2.0
// Messages requests (recipe 8.1).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "galley/protocol/request_internal.h"

namespace galley::protocol::internal {
namespace {

using enum Presence;

constexpr Field kTextFields[] = {{"text", kRequired, &kStringShape}};
constexpr Shape kTextBlock{.kind = ShapeKind::kObject, .fields = kTextFields};
constexpr std::string_view kMediaTypes[] = {"image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp"};
constexpr Shape kMediaType{.kind = ShapeKind::kEnum, .names = kMediaTypes};
constexpr Field kBase64Fields[] = {{"media_type", kRequired, &kMediaType}, {"data", kRequired, &kStringShape}};
constexpr Shape kBase64Source{.kind = ShapeKind::kObject, .fields = kBase64Fields};
constexpr Field kUrlFields[] = {{"url", kRequired, &kStringShape}};
constexpr Shape kUrlSource{.kind = ShapeKind::kObject, .fields = kUrlFields};
constexpr Field kFileFields[] = {{"file_id", kRequired, &kStringShape}};
constexpr Shape kFileSource{.kind = ShapeKind::kObject, .fields = kFileFields};
constexpr Variant kSourceVariants[] = {{"base64", &kBase64Source}, {"url", &kUrlSource}, {"file", &kFileSource}};
constexpr Shape kSource{.kind = ShapeKind::kTagged, .tag = "type", .variants = kSourceVariants};
constexpr Field kImageFields[] = {{"source", kRequired, &kSource}};
constexpr Shape kImage{.kind = ShapeKind::kObject, .fields = kImageFields};
constexpr Field kDocumentFields[] = {{"source", kRequired, &kMapShape}};
constexpr Shape kDocument{.kind = ShapeKind::kObject, .fields = kDocumentFields};
constexpr Shape kTextBlocks{.kind = ShapeKind::kList, .element = &kTextBlock};
constexpr Field kSearchFields[] = {
    {"source", kOptional, &kStringShape}, {"title", kOptional, &kStringShape}, {"content", kOptional, &kTextBlocks}};
constexpr Shape kSearchResult{.kind = ShapeKind::kObject, .fields = kSearchFields};
constexpr Field kReferenceFields[] = {{"tool_name", kRequired, &kStringShape}};
constexpr Shape kReference{.kind = ShapeKind::kObject, .fields = kReferenceFields};
constexpr Variant kResultVariants[] = {{"text", &kTextBlock},
                                       {"image", &kImage},
                                       {"document", &kDocument},
                                       {"search_result", &kSearchResult},
                                       {"tool_reference", &kReference}};
constexpr Shape kResultBlock{.kind = ShapeKind::kTagged, .tag = "type", .variants = kResultVariants};
constexpr Shape kResultBlocks{.kind = ShapeKind::kList, .element = &kResultBlock};
constexpr const Shape* kResultForms[] = {&kStringShape, &kResultBlocks};
constexpr Shape kResultContent{.kind = ShapeKind::kEither, .alternatives = kResultForms};
constexpr Field kResultFields[] = {{"tool_use_id", kRequired, &kStringShape},
                                   {"content", kOptional, &kResultContent},
                                   {"is_error", kOptional, &kBoolShape}};
constexpr Shape kToolResult{.kind = ShapeKind::kObject, .fields = kResultFields};
constexpr Field kUseFields[] = {
    {"id", kRequired, &kStringShape}, {"name", kRequired, &kStringShape}, {"input", kRequired, &kAnyShape}};
constexpr Shape kToolUse{.kind = ShapeKind::kObject, .fields = kUseFields};
constexpr Field kThoughtFields[] = {{"thinking", kRequired, &kStringShape}};
constexpr Shape kThought{.kind = ShapeKind::kObject, .fields = kThoughtFields};
constexpr Field kAddedFields[] = {{"name", kRequired, &kStringShape}};
constexpr Shape kAdded{.kind = ShapeKind::kObject, .fields = kAddedFields};
constexpr Field kAdditionFields[] = {{"tool", kRequired, &kAdded}};
constexpr Shape kAddition{.kind = ShapeKind::kObject, .fields = kAdditionFields};
constexpr Variant kBlockVariants[] = {{"text", &kTextBlock},           {"image", &kImage},
                                      {"document", &kDocument},        {"search_result", &kSearchResult},
                                      {"thinking", &kThought},         {"redacted_thinking", &kMapShape},
                                      {"server_tool_use", &kMapShape}, {"tool_use", &kToolUse},
                                      {"tool_result", &kToolResult},   {"web_search_tool_result", &kMapShape},
                                      {"tool_addition", &kAddition}};
constexpr Shape kBlock{.kind = ShapeKind::kTagged, .tag = "type", .variants = kBlockVariants};
constexpr Shape kBlocks{.kind = ShapeKind::kList, .element = &kBlock};
constexpr const Shape* kContentForms[] = {&kStringShape, &kBlocks};
constexpr Shape kContent{.kind = ShapeKind::kEither, .alternatives = kContentForms};
constexpr std::string_view kRoleNames[] = {"user", "assistant", "system"};
constexpr Shape kRole{.kind = ShapeKind::kEnum, .names = kRoleNames};
constexpr Field kMessageFields[] = {{"role", kRequired, &kRole}, {"content", kRequired, &kContent}};
constexpr Shape kMessage{.kind = ShapeKind::kObject, .fields = kMessageFields};
constexpr Shape kMessageList{.kind = ShapeKind::kList, .element = &kMessage};

constexpr Variant kSystemVariants[] = {{"text", &kTextBlock}};
constexpr Shape kSystemBlock{.kind = ShapeKind::kTagged, .tag = "type", .variants = kSystemVariants};
constexpr Shape kSystemBlocks{.kind = ShapeKind::kList, .element = &kSystemBlock};
constexpr const Shape* kSystemForms[] = {&kStringShape, &kSystemBlocks};
constexpr Shape kSystem{.kind = ShapeKind::kEither, .alternatives = kSystemForms};

constexpr Field kToolFields[] = {{"name", kRequired, &kStringShape},
                                 {"type", kOptional, &kStringShape},
                                 {"description", kOptional, &kStringShape},
                                 {"input_schema", kOptional, &kAnyShape},
                                 {"defer_loading", kOptional, &kBoolShape}};
constexpr Shape kTool{.kind = ShapeKind::kObject, .fields = kToolFields};
constexpr Shape kTools{.kind = ShapeKind::kList, .element = &kTool};
constexpr Field kNamedFields[] = {{"name", kRequired, &kStringShape}};
constexpr Shape kNamed{.kind = ShapeKind::kObject, .fields = kNamedFields};
constexpr Variant kChoiceVariants[] = {
    {"auto", &kMapShape}, {"any", &kMapShape}, {"tool", &kNamed}, {"none", &kMapShape}};
constexpr Shape kChoice{.kind = ShapeKind::kTagged, .tag = "type", .variants = kChoiceVariants};
constexpr Field kThinkingFields[] = {{"type", kRequired, &kThinkingTypeShape},
                                     {"budget_tokens", kOptional, &kU64Shape}};
constexpr Shape kThinking{.kind = ShapeKind::kObject, .fields = kThinkingFields};
constexpr Field kOutputFields[] = {{"effort", kOptional, &kEffortShape}, {"format", kOptional, &kMapShape}};
constexpr Shape kOutputConfig{.kind = ShapeKind::kObject, .fields = kOutputFields};

constexpr Field kMessagesFields[] = {{"model", kRequired, &kStringShape},
                                     {"messages", kRequired, &kMessageList},
                                     {"system", kOptional, &kSystem},
                                     {"max_tokens", kOptional, &kU32Shape},
                                     {"temperature", kOptional, &kNumberShape},
                                     {"top_p", kOptional, &kNumberShape},
                                     {"stop_sequences", kOptional, &kStringListShape},
                                     {"stream", kOptional, &kBoolShape},
                                     {"thinking", kOptional, &kThinking},
                                     {"output_config", kOptional, &kOutputConfig},
                                     {"tools", kOptional, &kTools},
                                     {"tool_choice", kOptional, &kChoice}};
constexpr Shape kMessages{.kind = ShapeKind::kObject, .fields = kMessagesFields};

constexpr std::string_view kBillingHeader = "x-anthropic-billing-header";

class MessagesConverter {
 public:
  MessagesConverter(const Json& body, const CodecOptions& options) : body_(body), options_(options) {}

  Parsed<ParsedRequest> Convert() {
    GALLEY_REFUSE_IF_ERROR(SetModel(body_, options_, request_));
    SetThinking(Get(body_, "thinking"), Text(Get(body_, "output_config"), "effort"), options_, request_);
    GALLEY_REFUSE_IF_ERROR(SetSampling(body_, "max_tokens", true, options_, request_));
    GALLEY_REFUSE_IF_ERROR(SetStop(Get(body_, "stop_sequences"), request_));
    GALLEY_REFUSE_IF_ERROR(Tools());
    AddSystem();
    GALLEY_REFUSE_IF_ERROR(Messages());
    GALLEY_REFUSE_IF_ERROR(Choice());
    GALLEY_REFUSE_IF_ERROR(Format());
    ContinuePrefill();
    GALLEY_REFUSE_IF_ERROR(FinishReasoning("content[].thinking", options_, request_));
    FinishRequest(request_);
    if (demand_call_ && request_.inference.constraint) request_.inference.constraint->kind = "tool_call_required";
    return std::move(request_);
  }

 private:
  std::vector<Message>& messages() { return request_.conversation.messages; }
  bool v41() const { return request_.version == ModelVersion::kV41; }

  Checked Tools() {
    const std::span<const Json> all = Elements(Get(body_, "tools"));
    std::vector<Tool>& tools = request_.conversation.tools;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string_view type = Text(all[i], "type");
      if (!type.empty() && type != "custom") {
        if (options_.messages_reject_web_search || !type.starts_with("web_search"))
          return Refuse(fmt::format("tools[{}]: server tools are not supported", i), "tools");
        continue;
      }
      Tool tool{.name = std::string(Text(all[i], "name"))};
      GALLEY_REFUSE_IF_ERROR(CheckName(tool.name, fmt::format("tools[{}].name", i)));
      if (const Json& text = Get(all[i], "description"); text.is_string()) tool.description = std::string(Text(text));
      tool.parameters = Get(all[i], "input_schema");
      // V4 has no way to bring a tool in later and so shows all of them at once.
      tool.defer_loading = v41() && IsTrue(Get(all[i], "defer_loading"));
      GALLEY_REFUSE_IF_ERROR(FinishTool(tool, true));
      tools.push_back(std::move(tool));
    }
    GALLEY_REFUSE_IF_ERROR(CheckUnique(tools));
    if (!tools.empty() && std::all_of(tools.begin(), tools.end(), [](const Tool& tool) { return tool.defer_loading; }))
      return Refuse("tools: at least one tool must have defer_loading=false. All tools cannot be deferred.");
    return {};
  }

  Checked Choice() {
    Conversation& c = request_.conversation;
    const Json& choice = Get(body_, "tool_choice");
    const std::string_view type = Text(choice, "type");
    if (type == "none") c.tool_choice = ToolChoice::kNone;
    const bool web_search = Text(choice, "name") == "web_search" && !options_.messages_reject_web_search;
    if (type == "tool" && !web_search) GALLEY_REFUSE_IF_ERROR(ChooseTool(Text(choice, "name"), request_));
    if (type == "any" && options_.enforce_any && !c.tools.empty()) {
      demand_call_ = true;
      // The block can be opened for the model only where it does not think first.
      if (!c.thinking) c.tool_choice = ToolChoice::kRequired;
    }
    return FinishChoice(request_, R"(thinking: {"type": "disabled"})");
  }

  Checked Format() {
    const Json& format = Get(Get(body_, "output_config"), "format");
    if (format.is_null() || !options_.messages_format) return {};
    if (Text(format, "type") != "json_schema")
      return Refuse("output_config.format: the only supported type is json_schema", "output_config.format");
    return SetSchemaFormat(format, "output_config.format", options_, request_);
  }

  void ContinuePrefill() {
    if (!options_.continue_prefill || messages().empty() || request_.conversation.tools_active()) return;
    Message& last = messages().back();
    if (last.role == Role::kAssistant && last.tool_calls.empty() && !last.content.empty()) last.prefix = true;
  }

  void AddSystem() {
    const Json& system = Get(body_, "system");
    if (system.is_null()) return;
    Message message{.role = Role::kSystem};
    ContentBuilder builder(message, request_, options_);
    if (system.is_string()) builder.AddText(Text(system));
    bool first = true;
    for (const Json& block : Elements(system)) {
      // A client adds this block with a value that changes each time, which would defeat the prefix cache.
      if (std::exchange(first, false) && Text(block, "text").starts_with(kBillingHeader)) continue;
      builder.AddText(Text(block, "text"));
    }
    messages().push_back(std::move(message));
  }

  Checked Messages() {
    const std::span<const Json> all = Elements(Get(body_, "messages"));
    if (all.empty()) return Refuse("messages: at least one message is required");
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Json& content = Get(all[i], "content");
      if (content.is_array() && Elements(content).empty())
        return Refuse(fmt::format("messages.{}: all messages must have non-empty content", i));
      const std::string_view role = Text(all[i], "role");
      if (role != "user") {
        GALLEY_REFUSE_IF_ERROR(NothingOpen(fmt::format("messages.{}: ", i)));
        DeclareReferenced();
      }
      GALLEY_REFUSE_IF_ERROR(role == "user"        ? AddUser(content, i)
                             : role == "assistant" ? AddAssistant(content, i)
                                                   : AddSystemTurn(content, i));
    }
    GALLEY_REFUSE_IF_ERROR(NothingOpen(fmt::format("messages.{}:", uses_index_)));
    DeclareReferenced();
    return {};
  }

  // Every tool_use must have been answered before anything else.
  Checked NothingOpen(std::string_view place) const {
    std::vector<std::string_view> open;
    for (const std::string& id : uses_)
      if (!answered_.contains(id)) open.push_back(id);
    if (open.empty()) return {};
    return Refuse(
        fmt::format("{}`tool_use` ids were found without `tool_result` blocks immediately after: {}. Each "
                    "`tool_use` block must have a corresponding `tool_result` block in the next message.",
                    place, fmt::join(open, ", ")));
  }

  // Tools that results referred to are declared after the whole run of user messages.
  void DeclareReferenced() {
    if (referenced_.empty()) return;
    Message system{.role = Role::kSystem};
    system.tools = std::exchange(referenced_, {});
    if (v41()) messages().push_back(std::move(system));
  }

  const Tool* FindTool(std::string_view name) const {
    for (const Tool& tool : request_.conversation.tools)
      if (tool.name == name) return &tool;
    return nullptr;
  }

  // User turns -----------------------------------------------------------------------------------------------------

  Checked AddUser(const Json& content, std::size_t index) {
    if (content.is_string()) {
      GALLEY_REFUSE_IF_ERROR(NothingOpen(fmt::format("messages.{}: ", index)));
      messages().push_back({.role = Role::kUser, .content = std::string(Text(content))});
      return {};
    }
    std::set<std::string_view> here;
    std::size_t k = 0;
    for (const Json& block : Elements(content)) {
      GALLEY_REFUSE_IF_ERROR(AddUserBlock(block, index, k, here));
      ++k;
    }
    if (NothingOpen("")) uses_.clear(), answered_.clear();
    return {};
  }

  Checked AddUserBlock(const Json& block, std::size_t index, std::size_t k, std::set<std::string_view>& here) {
    const std::string_view type = Text(block, "type");
    if (type == "thinking" || type == "redacted_thinking")
      return Refuse(fmt::format("messages.{}.content: thinking blocks may only be in `assistant` messages", index));
    if (type == "tool_use" || type == "server_tool_use" || type == "web_search_tool_result")
      return Refuse(fmt::format("messages.{}: `tool_use` blocks can only be in `assistant` messages", index));
    if (type == "tool_addition") return AdditionRefused(index);
    if (type == "tool_result") return AddResult(block, index, k, here);
    GALLEY_REFUSE_IF_ERROR(NothingOpen(fmt::format("messages.{}: ", index)));
    Message message{.role = Role::kUser};
    ContentBuilder builder(message, request_, options_);
    GALLEY_REFUSE_IF_ERROR(AddPart(block, fmt::format("messages.{}.content[{}]", index, k), builder));
    messages().push_back(std::move(message));
    return {};
  }

  static Checked AdditionRefused(std::size_t index) {
    return Refuse(fmt::format("messages.{}: `tool_addition` blocks can only be in `system` messages", index));
  }

  Checked AddResult(const Json& block, std::size_t index, std::size_t k, std::set<std::string_view>& here) {
    const std::string id(Text(block, "tool_use_id"));
    if (std::find(uses_.begin(), uses_.end(), id) == uses_.end())
      return Refuse(
          fmt::format("unexpected `messages.{}.content.{}: tool_use_id` found in `tool_result` blocks: {}. Each "
                      "`tool_result` block must have a corresponding `tool_use` block in the previous message.",
                      index, k, id));
    if (!here.insert(Text(block, "tool_use_id")).second || !answered_.insert(id).second)
      return Refuse(
          fmt::format("messages.{}.content.{}: each tool_use must have a single result. Found multiple "
                      "`tool_result` blocks with id: {}",
                      index, k, id));
    Message message{.role = Role::kTool, .tool_call_id = id};
    ContentBuilder builder(message, request_, options_);
    if (IsTrue(Get(block, "is_error"))) builder.AddText("[Tool error]");
    const Json& content = Get(block, "content");
    if (content.is_string()) builder.AddText(Text(content));
    for (const Json& part : Elements(content)) {
      if (Text(part, "type") == "tool_reference") {
        const Tool* tool = FindTool(Text(part, "tool_name"));
        if (tool == nullptr)
          return Refuse(fmt::format("messages.{}.content.{}: tool reference '{}' not found in available tools", index,
                                    k, Text(part, "tool_name")));
        builder.AddText(tool->name);
        referenced_.push_back(*tool);
      } else {
        GALLEY_REFUSE_IF_ERROR(AddPart(part, fmt::format("messages.{}.content.{}.tool_result", index, k), builder));
      }
    }
    messages().push_back(std::move(message));
    return {};
  }

  // A part that text can stand for: text, picture, document or search result.
  Checked AddPart(const Json& block, const std::string& path, ContentBuilder& builder) {
    const std::string_view type = Text(block, "type");
    const Json& source = Get(block, "source");
    if (type == "text") {
      builder.AddText(Text(block, "text"));
    } else if (type == "document") {
      const std::string_view media = Text(source, "media_type");
      builder.AddText(fmt::format("[Unsupported document type: {}]", media.empty() ? "unknown" : media));
      request_.warnings.push_back(
          fmt::format("{}: documents are not read; the model is told that there was one", path));
    } else if (type == "search_result") {
      std::string text = fmt::format("{} ({})", Text(block, "title"), Text(source));
      for (const Json& part : Elements(Get(block, "content"))) text += fmt::format("\n{}", Text(part, "text"));
      builder.AddText(text);
    } else {
      return AddImage(source, path, builder);
    }
    return {};
  }

  Checked AddImage(const Json& source, const std::string& path, ContentBuilder& builder) const {
    const std::string_view type = Text(source, "type");
    const auto refuse = [&](std::string_view why) { return Refuse(fmt::format("{}: {}", path, why)); };
    if (type == "file") return refuse("file_id is not supported. Pass the image as a base64 data url instead.");
    if (type == "base64") {
      if (!IsBase64(Text(source, "data"))) return refuse("base64 decode error");
      builder.AddImage(fmt::format("data:{};base64,{}", Text(source, "media_type"), Text(source, "data")),
                       ImageDetail::kHigh, path);
      return {};
    }
    const std::string_view url = Text(source, "url");
    if (!url.starts_with("http://") && !url.starts_with("https://"))
      return refuse(fmt::format("invalid url: {}", DumpJson(Json(url))));
    if (url.size() > options_.limits.url_bytes_max)
      return refuse(
          fmt::format("external link length {} too long, max link length {}. Consider passing file data directly "
                      "with base64 data url instead.",
                      url.size(), options_.limits.url_bytes_max));
    builder.AddImage(url, ImageDetail::kHigh, path);
    return {};
  }

  // Assistant turns ------------------------------------------------------------------------------------------------

  Checked AddAssistant(const Json& content, std::size_t index) {
    Message message{.role = Role::kAssistant};
    ContentBuilder builder(message, request_, options_);
    if (content.is_string()) builder.AddText(Text(content));
    uses_.clear();
    answered_.clear();
    uses_index_ = index;
    std::size_t k = 0;
    for (const Json& block : Elements(content))
      GALLEY_REFUSE_IF_ERROR(AddAssistantBlock(block, index, k++, message, builder));
    messages().push_back(std::move(message));
    return {};
  }

  Checked AddAssistantBlock(const Json& block, std::size_t index, std::size_t k, Message& message,
                            ContentBuilder& builder) {
    const std::string_view type = Text(block, "type");
    if (type == "tool_addition") return AdditionRefused(index);
    if (type == "image") return Refuse("Image in assistant message is unsupported");
    if (type == "tool_result")
      return Refuse(fmt::format("messages.{}: `tool_result` blocks can only be in `user` messages", index));
    if (type == "server_tool_use" || type == "web_search_tool_result") {
      if (options_.messages_reject_web_search)
        return Refuse("Unsupported content block: server tools are not supported");
      return {};
    }
    if (type == "redacted_thinking") return {};
    if (type == "thinking") {
      const std::string_view thought = Text(block, "thinking");
      if (message.reasoning_content)
        message.reasoning_content->append("\n\n").append(thought);
      else
        message.reasoning_content = std::string(thought);
      return {};
    }
    if (type != "tool_use") {
      GALLEY_REFUSE_IF_ERROR(NothingOpen(fmt::format("messages.{}.{}: ", index, k)));
      return AddPart(block, fmt::format("messages.{}.content[{}]", index, k), builder);
    }
    const std::string id(Text(block, "id"));
    if (std::find(uses_.begin(), uses_.end(), id) != uses_.end())
      return Refuse(fmt::format("messages.{}.content.{}: `tool_use` ids must be unique", index, k));
    uses_.push_back(id);
    message.tool_calls.push_back(
        {id, std::string(Text(block, "name")), DumpJson(Get(block, "input"), JsonStyle::kPromptV4)});
    return {};
  }

  // System turns ---------------------------------------------------------------------------------------------------

  Checked AddSystemTurn(const Json& content, std::size_t index) {
    Message message{.role = v41() ? Role::kSystem : Role::kUser};
    ContentBuilder builder(message, request_, options_);
    if (content.is_string()) builder.AddText(Text(content));
    std::size_t k = 0;
    for (const Json& block : Elements(content)) {
      const std::string_view type = Text(block, "type");
      const std::size_t here = k++;
      if (type == "tool_addition") {
        const std::string_view name = Text(Get(block, "tool"), "name");
        const Tool* tool = FindTool(name);
        if (tool == nullptr)
          return Refuse(
              fmt::format("messages.{}.content.{}: `tool_addition` references unknown tool '{}'", index, here, name));
        if (v41()) message.tools.push_back(*tool);
      } else if (type == "text" || type == "image" || type == "document" || type == "search_result") {
        GALLEY_REFUSE_IF_ERROR(AddPart(block, fmt::format("messages.{}", index), builder));
      } else if (type == "tool_result") {
        return Refuse(fmt::format("messages.{}: `tool_result` blocks can only be in `user` messages", index));
      } else if (type == "thinking" || type == "redacted_thinking") {
        return Refuse(fmt::format("messages.{}.content: thinking blocks may only be in `assistant` messages", index));
      } else {
        return Refuse(fmt::format("messages.{}: `tool_use` blocks can only be in `assistant` messages", index));
      }
    }
    if (!v41()) {
      if (message.content.empty()) return {};
      message.content = fmt::format("<system-reminder>\n{}\n</system-reminder>", message.content);
    }
    messages().push_back(std::move(message));
    return {};
  }

  const Json& body_;
  const CodecOptions& options_;
  ParsedRequest request_;
  std::vector<std::string> uses_;  // calls of the last assistant turn, in order
  std::set<std::string> answered_;
  std::size_t uses_index_ = 0;
  std::vector<Tool> referenced_;
  bool demand_call_ = false;
};

}  // namespace

const Shape& MessagesShape() {
  return kMessages;
}

Parsed<ParsedRequest> ConvertMessages(const Json& body, const CodecOptions& options) {
  return MessagesConverter(body, options).Convert();
}

}  // namespace galley::protocol::internal
