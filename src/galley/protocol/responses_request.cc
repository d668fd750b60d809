// SPDX-License-Identifier: Apache-2.0
// Responses requests (recipe 7.1).
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "galley/protocol/apply_patch.h"
#include "galley/protocol/request_internal.h"

namespace galley::protocol::internal {
namespace {

using enum Presence;

constexpr Field kTextFields[] = {{"text", kRequired, &kStringShape}};
constexpr Shape kTextBlock{.kind = ShapeKind::kObject, .fields = kTextFields};
constexpr Field kImageFields[] = {{"image_url", kOptional, &kStringShape},
                                  {"file_id", kOptional, &kStringShape},
                                  {"detail", kOptional, &kDetailShape}};
constexpr Shape kImageBlock{.kind = ShapeKind::kObject, .fields = kImageFields};
constexpr Variant kBlockVariants[] = {{"input_text", &kTextBlock},
                                      {"output_text", &kTextBlock},
                                      {"input_image", &kImageBlock},
                                      {"input_file", &kMapShape}};
constexpr Shape kBlock{.kind = ShapeKind::kTagged, .tag = "type", .variants = kBlockVariants};
constexpr Shape kBlocks{.kind = ShapeKind::kList, .element = &kBlock};
constexpr const Shape* kContentForms[] = {&kStringShape, &kBlocks};
constexpr Shape kContent{.kind = ShapeKind::kEither, .alternatives = kContentForms};
constexpr Variant kOutputVariants[] = {
    {"input_text", &kTextBlock}, {"input_image", &kImageBlock}, {"input_file", &kMapShape}};
constexpr Shape kOutputBlock{.kind = ShapeKind::kTagged, .tag = "type", .variants = kOutputVariants};
constexpr Shape kOutputBlocks{.kind = ShapeKind::kList, .element = &kOutputBlock};
constexpr const Shape* kOutputForms[] = {&kStringShape, &kOutputBlocks};
constexpr Shape kOutput{.kind = ShapeKind::kEither, .alternatives = kOutputForms};

constexpr std::string_view kRoleNames[] = {"user", "assistant", "system", "developer"};
constexpr Shape kRole{.kind = ShapeKind::kEnum, .names = kRoleNames};
constexpr Field kMessageFields[] = {{"role", kRequired, &kRole}, {"content", kRequired, &kContent}};
constexpr Shape kMessage{.kind = ShapeKind::kObject, .fields = kMessageFields};
constexpr Field kCallFields[] = {{"call_id", kRequired, &kStringShape},
                                 {"name", kRequired, &kStringShape},
                                 {"arguments", kRequired, &kStringShape},
                                 {"namespace", kOptional, &kStringShape}};
constexpr Shape kCall{.kind = ShapeKind::kObject, .fields = kCallFields};
constexpr Field kCallOutputFields[] = {{"call_id", kRequired, &kStringShape}, {"output", kRequired, &kOutput}};
constexpr Shape kCallOutput{.kind = ShapeKind::kObject, .fields = kCallOutputFields};
constexpr Field kCustomCallFields[] = {
    {"call_id", kRequired, &kStringShape}, {"name", kRequired, &kStringShape}, {"input", kRequired, &kStringShape}};
constexpr Shape kCustomCall{.kind = ShapeKind::kObject, .fields = kCustomCallFields};
constexpr Field kReasoningPartFields[] = {{"text", kOptional, &kStringShape}};
constexpr Shape kReasoningPart{.kind = ShapeKind::kObject, .fields = kReasoningPartFields};
constexpr Shape kReasoningParts{.kind = ShapeKind::kList, .element = &kReasoningPart};
constexpr Field kReasoningFields[] = {{"content", kOptional, &kReasoningParts}};
constexpr Shape kReasoningItem{.kind = ShapeKind::kObject, .fields = kReasoningFields};

constexpr Field kFunctionFields[] = {{"name", kRequired, &kStringShape},
                                     {"description", kOptional, &kStringShape},
                                     {"parameters", kOptional, &kAnyShape},
                                     {"strict", kOptional, &kBoolShape}};
constexpr Shape kFunction{.kind = ShapeKind::kObject, .fields = kFunctionFields};
constexpr Field kNameFields[] = {{"name", kRequired, &kStringShape}};
constexpr Shape kNamedTool{.kind = ShapeKind::kObject, .fields = kNameFields};
constexpr Variant kMemberVariants[] = {{"function", &kFunction}, {"custom", &kNamedTool}};
constexpr Shape kMember{.kind = ShapeKind::kTagged, .tag = "type", .variants = kMemberVariants, .open_tags = true};
constexpr Shape kMembers{.kind = ShapeKind::kList, .element = &kMember};
constexpr Field kNamespaceFields[] = {
    {"name", kRequired, &kStringShape}, {"description", kOptional, &kStringShape}, {"tools", kRequired, &kMembers}};
constexpr Shape kNamespace{.kind = ShapeKind::kObject, .fields = kNamespaceFields};
constexpr Field kSearchToolFields[] = {{"execution", kOptional, &kStringShape},
                                       {"description", kOptional, &kStringShape},
                                       {"parameters", kOptional, &kAnyShape}};
constexpr Shape kSearchTool{.kind = ShapeKind::kObject, .fields = kSearchToolFields};
constexpr Variant kToolVariants[] = {
    {"function", &kFunction}, {"namespace", &kNamespace}, {"custom", &kNamedTool}, {"tool_search", &kSearchTool}};
constexpr Shape kTool{.kind = ShapeKind::kTagged, .tag = "type", .variants = kToolVariants, .open_tags = true};
constexpr Shape kTools{.kind = ShapeKind::kList, .element = &kTool};

constexpr Field kSearchCallFields[] = {{"call_id", kRequired, &kStringShape}, {"arguments", kRequired, &kMapShape}};
constexpr Shape kSearchCall{.kind = ShapeKind::kObject, .fields = kSearchCallFields};
constexpr Field kSearchOutputFields[] = {{"call_id", kRequired, &kStringShape}, {"tools", kRequired, &kTools}};
constexpr Shape kSearchOutput{.kind = ShapeKind::kObject, .fields = kSearchOutputFields};
constexpr Variant kItemVariants[] = {{"message", &kMessage},
                                     {"function_call", &kCall},
                                     {"function_call_output", &kCallOutput},
                                     {"custom_tool_call", &kCustomCall},
                                     {"custom_tool_call_output", &kCallOutput},
                                     {"tool_search_call", &kSearchCall},
                                     {"tool_search_output", &kSearchOutput},
                                     {"reasoning", &kReasoningItem}};
constexpr Shape kItem{
    .kind = ShapeKind::kTagged, .tag = "type", .variants = kItemVariants, .open_tags = true, .untagged = &kMessage};
constexpr Shape kItems{.kind = ShapeKind::kList, .element = &kItem};
constexpr const Shape* kInputForms[] = {&kStringShape, &kItems};
constexpr Shape kInput{.kind = ShapeKind::kEither, .alternatives = kInputForms};

constexpr std::string_view kChoiceNames[] = {"none", "auto", "required"};
constexpr Shape kChoiceWord{.kind = ShapeKind::kEnum, .names = kChoiceNames};
constexpr Variant kChoiceVariants[] = {{"function", &kNamedTool},
                                       {"web_search", &kMapShape},
                                       {"web_search_2025_08_26", &kMapShape},
                                       {"custom", &kNamedTool}};
constexpr Shape kChoiceObject{.kind = ShapeKind::kTagged, .tag = "type", .variants = kChoiceVariants};
constexpr const Shape* kChoiceForms[] = {&kChoiceWord, &kChoiceObject};
constexpr Shape kChoice{.kind = ShapeKind::kEither, .alternatives = kChoiceForms};

constexpr Field kSchemaFields[] = {{"name", kRequired, &kStringShape},
                                   {"schema", kRequired, &kAnyShape},
                                   {"description", kOptional, &kStringShape},
                                   {"strict", kOptional, &kBoolShape}};
constexpr Shape kSchemaFormat{.kind = ShapeKind::kObject, .fields = kSchemaFields};
constexpr Variant kFormatVariants[] = {
    {"text", &kMapShape}, {"json_schema", &kSchemaFormat}, {"json_object", &kMapShape}};
constexpr Shape kFormat{.kind = ShapeKind::kTagged, .tag = "type", .variants = kFormatVariants};
constexpr Field kTextOptionFields[] = {{"format", kOptional, &kFormat}, {"verbosity", kOptional, &kStringShape}};
constexpr Shape kTextOptions{.kind = ShapeKind::kObject, .fields = kTextOptionFields};
constexpr Field kReasoningOptionFields[] = {{"effort", kOptional, &kEffortShape},
                                            {"summary", kOptional, &kStringShape}};
constexpr Shape kReasoningOptions{.kind = ShapeKind::kObject, .fields = kReasoningOptionFields};

constexpr Field kResponsesFields[] = {
    {"model", kRequired, &kStringShape},        {"input", kOptional, &kInput},
    {"instructions", kOptional, &kStringShape}, {"tools", kOptional, &kTools},
    {"tool_choice", kOptional, &kChoice},       {"reasoning", kOptional, &kReasoningOptions},
    {"text", kOptional, &kTextOptions},         {"max_output_tokens", kOptional, &kU32Shape},
    {"temperature", kOptional, &kNumberShape},  {"top_p", kOptional, &kNumberShape},
    {"top_logprobs", kOptional, &kU8Shape},     {"stream", kOptional, &kBoolShape},
    {"user", kOptional, &kStringShape}};
constexpr Shape kResponses{.kind = ShapeKind::kObject, .fields = kResponsesFields};

constexpr std::string_view kSearchName = "tool_search";
constexpr std::string_view kPatchName = "apply_patch";

bool IsWebSearch(std::string_view type) {
  return type == "web_search" || type == "web_search_2025_08_26";
}

class ResponsesConverter {
 public:
  ResponsesConverter(const Json& body, const CodecOptions& options) : body_(body), options_(options) {}

  Parsed<ParsedRequest> Convert() {
    GALLEY_REFUSE_IF_ERROR(SetModel(body_, options_, request_));
    SetThinking(Json(), Text(Get(body_, "reasoning"), "effort"), options_, request_);
    GALLEY_REFUSE_IF_ERROR(Stateful());
    GALLEY_REFUSE_IF_ERROR(SetSampling(body_, "max_output_tokens", false, options_, request_));
    if (const Json& top = Get(body_, "top_logprobs"); !top.is_null()) {
      if (Unsigned(top) > 20)
        return Refuse("Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].", "top_logprobs");
      request_.inference.logprobs = true;
      request_.inference.top_logprobs = static_cast<std::uint8_t>(Unsigned(top));
    }
    GALLEY_REFUSE_IF_ERROR(Tools());
    GALLEY_REFUSE_IF_ERROR(Input());
    GALLEY_REFUSE_IF_ERROR(CheckUnique(request_.conversation.tools));
    GALLEY_REFUSE_IF_ERROR(Choice());
    GALLEY_REFUSE_IF_ERROR(Format());
    GALLEY_REFUSE_IF_ERROR(FinishReasoning("reasoning_text", options_, request_));
    MakeEcho();
    FinishRequest(request_);
    return std::move(request_);
  }

 private:
  std::vector<Message>& messages() { return request_.conversation.messages; }

  Checked Stateful() const {
    if (!options_.refuse_stateful) return {};
    if (!Get(body_, "previous_response_id").is_null())
      return Refuse(
          "previous_response_id is not supported: responses are not stored. Send the whole conversation in "
          "input instead.",
          "previous_response_id");
    if (IsTrue(Get(body_, "background")))
      return Refuse("background is not supported: responses are not stored. Wait for the answer or stream it.",
                    "background");
    return {};
  }

  // Tools ----------------------------------------------------------------------------------------------------------

  Checked Tools() {
    const std::span<const Json> all = Elements(Get(body_, "tools"));
    for (std::size_t i = 0; i < all.size(); ++i)
      GALLEY_REFUSE_IF_ERROR(AddTool(all[i], fmt::format("tools[{}]", i), request_.conversation.tools, true));
    if (options_.refuse_builtin && !all.empty() && request_.conversation.tools.empty())
      return Refuse(
          fmt::format("tools[0]: {} is not supported: this server runs no tools of its own. Declare functions "
                      "that the client runs, or leave tools out.",
                      Text(all[0], "type")),
          "tools");
    return CheckUnique(request_.conversation.tools);
  }

  // Adds what one declaration stands for: nothing, one tool, or the members of a namespace.
  Checked AddTool(const Json& row, const std::string& place, std::vector<Tool>& tools, bool declared) {
    const std::string_view type = Text(row, "type");
    if (type == "function") return AddFunction(row, place, tools);
    if (type == "namespace") return AddNamespace(row, place, tools, declared);
    if (IsWebSearch(type) && options_.responses_reject_web_search) return Refuse("Server tools are not supported");
    if (type == "custom") {
      if (Text(row, "name") != kPatchName)
        return Refuse(
            fmt::format("Unsupported custom tool: '{}'. Only '{}' is supported.", Text(row, "name"), kPatchName));
      AddPatch(tools);
      request_.custom_apply_patch = true;
    }
    const bool client_search = type == kSearchName && Text(row, "execution") == "client";
    // The original drops what the service itself would run, and clients such as Codex declare it always.
    if (type != "custom" && !client_search)
      request_.warnings.push_back(fmt::format("{}: {} is ignored: this server runs no tools of its own", place, type));
    // V4 does not know tools that come in later, so it does not get to search for them either.
    if (client_search && request_.version == ModelVersion::kV41) {
      Tool tool{.name = std::string(kSearchName)};
      if (const Json& text = Get(row, "description"); text.is_string()) tool.description = std::string(Text(text));
      if (const Json& schema = Get(row, "parameters"); !schema.is_null()) tool.parameters = schema;
      GALLEY_REFUSE_IF_ERROR(FinishTool(tool, !Get(row, "parameters").is_null()));
      tools.push_back(std::move(tool));
      request_.client_tool_search = true;
    }
    return {};
  }

  static Checked AddFunction(const Json& row, const std::string& place, std::vector<Tool>& tools) {
    Tool tool{.name = std::string(Text(row, "name"))};
    GALLEY_REFUSE_IF_ERROR(CheckName(tool.name, place + ".name"));
    if (const Json& text = Get(row, "description"); text.is_string()) tool.description = std::string(Text(text));
    if (const Json& schema = Get(row, "parameters"); !schema.is_null()) tool.parameters = schema;
    if (const Json& strict = Get(row, "strict"); strict.is_bool()) tool.strict = IsTrue(strict);
    GALLEY_REFUSE_IF_ERROR(FinishTool(tool, !Get(row, "parameters").is_null()));
    tools.push_back(std::move(tool));
    return {};
  }

  Checked AddNamespace(const Json& row, const std::string& place, std::vector<Tool>& tools, bool declared) {
    const std::string space(Text(row, "name"));
    GALLEY_REFUSE_IF_ERROR(CheckName(space, place + ".name"));
    std::set<std::string> names;
    std::size_t index = 0;
    for (const Json& member : Elements(Get(row, "tools"))) {
      const std::string member_place = fmt::format("{}.tools[{}]", place, index++);
      if (Text(member, "type") == "custom")
        return Refuse(
            fmt::format("Currently custom tools are not allowed inside a namespace. Found custom tool '{}' in {}.",
                        Text(member, "name"), member_place));
      if (Text(member, "type") != "function") continue;
      std::vector<Tool> one;
      GALLEY_REFUSE_IF_ERROR(AddFunction(member, member_place, one));
      Tool& tool = one.front();
      const std::string name = tool.name;
      if (!names.insert(name).second) return Refuse("Tool names within a namespace must be unique.");
      tool.name = FreeName(Qualified(space, name), tools);
      if (const Json& text = Get(row, "description"); text.is_string() && request_.version == ModelVersion::kV41)
        tool.description = fmt::format("{}\n{}", Text(text), tool.description.value_or(""));
      if (declared) request_.namespaces[tool.name] = {space, name};
      tools.push_back(std::move(tool));
    }
    return {};
  }

  std::string Qualified(std::string_view space, std::string_view name) const {
    return fmt::format("{}{}{}", space, request_.version == ModelVersion::kV41 ? "::" : "__", name);
  }

  static std::string FreeName(const std::string& name, const std::vector<Tool>& tools) {
    const auto taken = [&](const std::string& wanted) {
      return std::any_of(tools.begin(), tools.end(), [&](const Tool& tool) { return tool.name == wanted; });
    };
    std::string free = name;
    for (int n = 1; taken(free); ++n) free = fmt::format("{}_{}", name, n);
    return free;
  }

  void AddPatch(std::vector<Tool>& tools) const {
    Tool tool{.name = std::string(kPatchName), .description = ApplyPatchDescription(request_.version)};
    tool.parameters = Json::MakeObject(
        {{"type", "object"},
         {"additionalProperties", false},
         {"properties",
          Json::MakeObject(
              {{"input", Json::MakeObject({{"type", "string"}, {"description", kApplyPatchInputDescription}})}})},
         {"required", Json::Array{Json("input")}}});
    tools.push_back(std::move(tool));
  }

  Checked Choice() {
    const Json& choice = Get(body_, "tool_choice");
    if (Text(choice) == "none") request_.conversation.tool_choice = ToolChoice::kNone;
    if (Text(choice) == "required") request_.conversation.tool_choice = ToolChoice::kRequired;
    if (choice.is_object()) {
      if (!IsWebSearch(Text(choice, "type")))
        GALLEY_REFUSE_IF_ERROR(ChooseTool(Text(choice, "name"), request_));
      else if (options_.responses_reject_web_search)
        return Refuse("Server tools are not supported");
      else if (options_.refuse_builtin)
        return Refuse(fmt::format("tool_choice: {} cannot be demanded: this server runs no tools of its own",
                                  Text(choice, "type")),
                      "tool_choice");
    }
    return FinishChoice(request_, R"(reasoning: {"effort": "none"})");
  }

  // Input ----------------------------------------------------------------------------------------------------------

  Checked Input() {
    const Json& input = Get(body_, "input");
    const std::string_view instructions = Text(body_, "instructions");
    if (input.is_null() && Get(body_, "instructions").is_null())
      return Refuse("Either input or instructions must be provided");
    if (!instructions.empty()) {
      messages().push_back({.role = Role::kSystem, .content = std::string(instructions)});
      NoteText(instructions);
    }
    if (input.is_string()) {
      messages().push_back({.role = Role::kUser, .content = std::string(Text(input))});
      NoteText(Text(input));
      return {};
    }
    const std::span<const Json> items = Elements(input);
    if (input.is_array() && items.empty()) return Refuse("Input items array must not be empty");
    for (std::size_t i = 0; i < items.size(); ++i) GALLEY_REFUSE_IF_ERROR(AddItem(items[i], i));
    GALLEY_REFUSE_IF_ERROR(CloseCalls());
    CloseTurn();
    return {};
  }

  void NoteText(std::string_view text) { mentions_json_ = mentions_json_ || MentionsJson(text); }

  Checked AddItem(const Json& item, std::size_t index) {
    const std::string_view type = item.Find("type") == nullptr ? "message" : Text(item, "type");
    if (type == "message") return AddMessage(item, index);
    if (type == "reasoning") return AddReasoning(item);
    const bool search = type == "tool_search_call" || type == "tool_search_output";
    if (search && request_.version == ModelVersion::kV4) return LeaveOut(type, index);
    if (type == "function_call") {
      std::string name(Text(item, "name"));
      if (const std::string_view space = Text(item, "namespace"); !space.empty()) name = Qualified(space, name);
      return AddCall(item, index, std::move(name), std::string(Text(item, "arguments")));
    }
    if (type == "custom_tool_call")
      return AddCall(item, index, std::string(Text(item, "name")),
                     DumpJson(Json::MakeObject({{"input", Text(item, "input")}})));
    if (type == "tool_search_call")
      return AddCall(item, index, std::string(kSearchName), DumpJson(Get(item, "arguments")));
    if (type == "function_call_output" || type == "custom_tool_call_output" || type == "tool_search_output")
      return AddOutput(item, index);
    return LeaveOut(type, index);
  }

  // The original passes over items that it does not know; here the client is told at least.
  Checked LeaveOut(std::string_view type, std::size_t index) {
    constexpr std::size_t kLongest = 64;
    request_.warnings.push_back(fmt::format("input[{}]: items of type {} are unknown to this model and were left out",
                                            index, type.substr(0, kLongest)));
    return {};
  }

  Checked AddMessage(const Json& item, std::size_t index) {
    GALLEY_REFUSE_IF_ERROR(CloseCalls());
    const std::string_view role = Text(item, "role");
    Message message;
    message.role = role == "assistant" ? Role::kAssistant : role == "user" ? Role::kUser : Role::kSystem;
    if (role == "developer" && request_.version == ModelVersion::kV4) message.role = Role::kUser;
    GALLEY_REFUSE_IF_ERROR(Content(Get(item, "content"), fmt::format("input[{}]", index), "content", message));
    if (message.role != Role::kAssistant) {
      CloseTurn();
      messages().push_back(std::move(message));
      return {};
    }
    if (!turn_.content.empty() && !message.content.empty()) turn_.content += "\n\n";
    turn_.content += message.content;
    turn_open_ = true;
    return {};
  }

  Checked AddReasoning(const Json& item) {
    GALLEY_REFUSE_IF_ERROR(CloseCalls());
    // Thoughts after an answer belong to what comes next.
    if (!turn_.content.empty()) CloseTurn();
    for (const Json& part : Elements(Get(item, "content"))) {
      if (turn_.reasoning_content)
        *turn_.reasoning_content += "\n" + std::string(Text(part, "text"));
      else
        turn_.reasoning_content = std::string(Text(part, "text"));
    }
    if (turn_.reasoning_content) turn_open_ = true;
    return {};
  }

  Checked AddCall(const Json& item, std::size_t index, std::string name, std::string arguments) {
    const std::string id(Text(item, "call_id"));
    if (id.empty())
      return Refuse(
          fmt::format("Invalid 'input[{}].call_id': empty string. Expected a string with minimum length 1, but "
                      "got an empty string instead.",
                      index));
    if (!call_ids_.insert(id).second) return Refuse(fmt::format("Duplicate 'call_id': {}.", id));
    turn_.role = Role::kAssistant;
    turn_open_ = true;
    turn_.tool_calls.push_back({id, std::move(name), std::move(arguments)});
    return {};
  }

  Checked AddOutput(const Json& item, std::size_t index) {
    const std::string id(Text(item, "call_id"));
    if (!call_ids_.contains(id)) return Refuse(fmt::format("No tool call found for tool output with call_id {}.", id));
    if (!answered_.insert(id).second) return Refuse(fmt::format("Duplicate tool output for call_id: {}.", id));
    Message message{.role = Role::kTool, .tool_call_id = id};
    if (Text(item, "type") == "tool_search_output")
      GALLEY_REFUSE_IF_ERROR(LoadTools(item, index, message));
    else
      GALLEY_REFUSE_IF_ERROR(Content(Get(item, "output"), fmt::format("input[{}]", index), "output", message));
    outputs_.push_back(std::move(message));
    if (outputs_.size() == turn_.tool_calls.size()) return CloseCalls();
    return {};
  }

  // A search's result: its tools as text for the turn, and as declarations from here on.
  Checked LoadTools(const Json& item, std::size_t index, Message& message) {
    Json listed(Json::Array{});
    std::vector<Tool> plain;
    std::size_t k = 0;
    const std::size_t known = request_.conversation.tools.size();
    for (const Json& row : Elements(Get(item, "tools"))) {
      const std::string place = fmt::format("input[{}].tools[{}]", index, k++);
      const bool space = Text(row, "type") == "namespace";
      GALLEY_REFUSE_IF_ERROR(AddTool(row, place, request_.conversation.tools, false));
      for (const Json& member : space ? Elements(Get(row, "tools")) : std::span<const Json>(&row, 1)) {
        if (Text(member, "type") != "function") continue;
        Json entry = EchoFunction(member);
        if (space)
          entry.Set("namespace",
                    Json::MakeObject({{"name", Get(row, "name")}, {"description", Get(row, "description")}}));
        listed.Push(std::move(entry));
      }
    }
    message.content = DumpJson(listed);
    std::vector<Tool>& tools = request_.conversation.tools;
    for (std::size_t i = known; i < tools.size(); ++i) {
      tools[i].defer_loading = true;
      loaded_.push_back(tools[i]);
    }
    return {};
  }

  // Ends a run of calls: its turn, the results, and the tools that a search brought.
  Checked CloseCalls() {
    if (turn_.tool_calls.empty()) return {};
    for (const ToolCall& call : turn_.tool_calls)
      if (!answered_.contains(call.id)) return Refuse(fmt::format("No tool output found for tool call {}.", call.id));
    if (!options_.keep_call_order) {
      std::sort(turn_.tool_calls.begin(), turn_.tool_calls.end(),
                [](const ToolCall& a, const ToolCall& b) { return a.id < b.id; });
      std::sort(outputs_.begin(), outputs_.end(),
                [](const Message& a, const Message& b) { return a.tool_call_id < b.tool_call_id; });
    }
    CloseTurn();
    for (Message& output : outputs_) messages().push_back(std::move(output));
    outputs_.clear();
    if (!loaded_.empty()) {
      Message system{.role = Role::kSystem};
      system.tools = std::exchange(loaded_, {});
      messages().push_back(std::move(system));
    }
    return {};
  }

  void CloseTurn() {
    if (turn_open_) {
      turn_.role = Role::kAssistant;
      messages().push_back(std::move(turn_));
    }
    turn_ = {};
    turn_open_ = false;
  }

  Checked Content(const Json& content, const std::string& path, std::string_view member, Message& message) {
    ContentBuilder builder(message, request_, options_);
    if (content.is_string()) {
      builder.AddText(Text(content));
      NoteText(Text(content));
      return {};
    }
    std::size_t index = 0;
    for (const Json& block : Elements(content)) {
      const std::string place = fmt::format("{}.{}[{}]", path, member, index++);
      const std::string_view type = Text(block, "type");
      if (type == "input_file") {
        builder.AddText("[Unsupported Document]");
        request_.warnings.push_back(fmt::format("{}: files are not read; the model is told that there was one", place));
      } else if (type == "input_image") {
        if (message.role == Role::kAssistant)
          return Refuse(fmt::format("{}: Image in assistant message is unsupported", path));
        GALLEY_REFUSE_IF_ERROR(CheckImage(block, path, place));
        builder.AddImage(Text(block, "image_url"), DetailOf(Text(block, "detail")), path);
      } else {
        builder.AddText(Text(block, "text"));
        NoteText(Text(block, "text"));
      }
    }
    return {};
  }

  Checked CheckImage(const Json& block, const std::string& path, const std::string& place) const {
    const bool has_url = !Get(block, "image_url").is_null(), has_id = !Get(block, "file_id").is_null();
    if (has_url && has_id) return Refuse(fmt::format("{}: input_image cannot have both image_url and file_id", place));
    if (has_id)
      return Refuse(fmt::format("{}: file_id is not supported. Pass the image as a base64 data url instead.", place));
    if (!has_url) return Refuse(fmt::format("{}: input_image must have image_url or file_id", place));
    const std::string_view url = Text(block, "image_url");
    if (url.starts_with("http://") || url.starts_with("https://")) {
      if (url.size() <= options_.limits.url_bytes_max) return {};
      return Refuse(
          fmt::format("{}: image_url external link length {} too long, max link length {}. Consider passing "
                      "file data directly with base64 data url instead.",
                      place, url.size(), options_.limits.url_bytes_max));
    }
    switch (CheckDataUrl(url)) {
      case DataUrlProblem::kNone:
        return {};
      case DataUrlProblem::kFormat:
        return Refuse(fmt::format("{}: Unsupported image_url format", path));
      case DataUrlProblem::kBase64:
        return Refuse(fmt::format("{}: Invalid base64 data", path));
      case DataUrlProblem::kType:
        return Refuse(
            fmt::format("{}: You have uploaded an unsupported image. Please make sure your image is valid and "
                        "has one of the following formats: webp, png, jpeg, and gif.",
                        path));
    }
    return {};
  }

  // Format and echo ------------------------------------------------------------------------------------------------

  Checked Format() {
    const Json& format = Get(Get(body_, "text"), "format");
    const std::string_view type = Text(format, "type");
    if (type == "json_schema") return SetSchemaFormat(format, "text.format", options_, request_);
    if (type != "json_object") return {};
    if (!mentions_json_)
      return Refuse(
          "Response input messages must contain the word 'json' in some form to use 'text.format' of type "
          "'json_object'.",
          "text.format");
    request_.conversation.response_format = ResponseFormat::kJsonObject;
    return {};
  }

  static Json EchoFunction(const Json& row) {
    return Json::MakeObject({{"type", "function"},
                             {"name", Get(row, "name")},
                             {"description", Get(row, "description")},
                             {"parameters", Get(row, "parameters")},
                             {"strict", Get(row, "strict")}});
  }

  static Json EchoTool(const Json& row) {
    const std::string_view type = Text(row, "type");
    if (type == "function") return EchoFunction(row);
    if (type == "custom") return Json::MakeObject({{"type", "custom"}, {"name", Get(row, "name")}});
    if (type == kSearchName)
      return Json::MakeObject({{"type", type},
                               {"execution", Get(row, "execution")},
                               {"description", Get(row, "description")},
                               {"parameters", Get(row, "parameters")}});
    if (IsWebSearch(type))
      return Json::MakeObject({{"type", type},
                               {"search_context_size", Get(row, "search_context_size")},
                               {"user_location", Get(row, "user_location")}});
    if (type != "namespace") return {};
    Json members(Json::Array{});
    for (const Json& member : Elements(Get(row, "tools")))
      if (Json echoed = EchoTool(member); !echoed.is_null()) members.Push(std::move(echoed));
    return Json::MakeObject({{"type", "namespace"},
                             {"name", Get(row, "name")},
                             {"description", Get(row, "description")},
                             {"tools", std::move(members)}});
  }

  Json EchoText() const {
    const Json& text = Get(body_, "text");
    const Json& format = Get(text, "format");
    Json echoed = Json::MakeObject({{"type", format.is_null() ? Json("text") : Get(format, "type")}});
    if (Text(format, "type") == "json_schema") {
      for (std::string_view key : {"name", "schema", "description", "strict"}) echoed.Set(key, Get(format, key));
    }
    return Json::MakeObject({{"format", std::move(echoed)}, {"verbosity", Get(text, "verbosity")}});
  }

  void MakeEcho() {
    const auto value_or = [&](std::string_view key, const Json& fallback) {
      const Json& given = Get(body_, key);
      return given.is_null() ? fallback : given;
    };
    const auto number_or = [&](std::string_view key, double fallback) {
      const Json& given = Get(body_, key);
      return Json(given.is_null() ? fallback : given.AsDouble());
    };
    Json tools(Json::Array{});
    for (const Json& row : Elements(Get(body_, "tools")))
      if (Json echoed = EchoTool(row); !echoed.is_null()) tools.Push(std::move(echoed));
    const Json& reasoning = Get(body_, "reasoning");
    request_.echo = Json::MakeObject(
        {{"instructions", Get(body_, "instructions")},
         {"max_output_tokens", Get(body_, "max_output_tokens")},
         {"reasoning", Json::MakeObject({{"effort", EchoEffort(reasoning)}, {"summary", Get(reasoning, "summary")}})},
         {"temperature", number_or("temperature", 1.0)},
         {"text", EchoText()},
         {"tool_choice", value_or("tool_choice", "auto")},
         {"tools", std::move(tools)},
         {"top_logprobs", value_or("top_logprobs", 0)},
         {"top_p", number_or("top_p", 1.0)},
         {"user", Get(body_, "user")}});
  }

  Json EchoEffort(const Json& reasoning) const {
    if (const Json& given = Get(reasoning, "effort"); !given.is_null()) return given;
    return request_.conversation.thinking ? Json(Name(*request_.conversation.effort)) : Json("none");
  }

  const Json& body_;
  const CodecOptions& options_;
  ParsedRequest request_;
  bool mentions_json_ = false;
  Message turn_;  // the assistant turn being collected
  bool turn_open_ = false;
  std::vector<Message> outputs_;  // results of the turn's calls
  std::vector<Tool> loaded_;      // tools that those results brought
  std::set<std::string> call_ids_;
  std::set<std::string> answered_;
};

}  // namespace

const Shape& ResponsesShape() {
  return kResponses;
}

Parsed<ParsedRequest> ConvertResponses(const Json& body, const CodecOptions& options) {
  return ResponsesConverter(body, options).Convert();
}

}  // namespace galley::protocol::internal
