// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

namespace galley::protocol {
namespace {

constexpr std::string_view kFimBegin = "<｜fim▁begin｜>";
constexpr std::string_view kFimHole = "<｜fim▁hole｜>";
constexpr std::string_view kFimEnd = "<｜fim▁end｜>";

// Indexed by QuickTask.
constexpr std::array<std::string_view, 7> kTaskTokens = {
    "", "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜read_url｜>", "<｜action｜>", "<｜title｜>"};

constexpr std::string_view kEffortV41 =
    "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n";
constexpr std::string_view kEffortV4High =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";
constexpr std::string_view kEffortV4Max =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose "
    "the problem into its most fundamental components, trace every causal chain to its root, and resolve the "
    "underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n";

// {0} block, {1} invoke, {2} parameter.
constexpr std::string_view kToolsHead =
    "## Tools\n\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "
    "\"<｜DSML｜{0}>\" block like the following:\n\n"
    "<｜DSML｜{0}>\n"
    "<｜DSML｜{1} name=\"$TOOL_NAME\">\n"
    "<｜DSML｜{2} name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜{2}>\n"
    "...\n"
    "</｜DSML｜{1}>\n"
    "<｜DSML｜{1} name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</｜DSML｜{1}>\n"
    "</｜DSML｜{0}>\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, "
    "arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside "
    "<think>...</think> BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n";
constexpr std::string_view kToolsTail =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";
constexpr std::string_view kFormatHead =
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";
constexpr std::string_view kFormatJsonV4 =
    "\n\nYou are a helpful assistant designed to output JSON.\n## Response Format:\n\nReply with JSON object ONLY.";
constexpr std::string_view kUpdatedTools = "\n\n### Updated Tool Schemas\n\n";

class PromptBuilder {
 public:
  void Plain(std::string_view text) { prompt_.text += text; }
  void Special(std::string_view token) {
    const std::size_t begin = prompt_.text.size();
    prompt_.text += token;
    prompt_.special.push_back({begin, prompt_.text.size()});
  }
  // `text` in which every spelling of one of `tokens` is that control token.
  template <std::size_t kCount>
  void WithTokens(std::string_view text, const std::array<std::string, kCount>& tokens) {
    while (!text.empty()) {
      std::size_t at = std::string_view::npos;
      std::string_view found;
      for (const std::string& token : tokens) {
        const std::size_t p = text.find(token);
        if (p >= at) continue;
        at = p;
        found = token;
      }
      Plain(text.substr(0, at));
      if (found.empty()) return;
      Special(found);
      text.remove_prefix(at + found.size());
    }
  }
  // Content whose picture placeholders, and only those, are control tokens.
  void WithImages(const Message& message, std::string_view image_token) {
    const std::string_view text = message.content;
    std::size_t done = 0;
    for (const ImageRef& image : message.images) {
      Plain(text.substr(done, image.offset - done));
      Special(image_token);
      done = image.offset + image_token.size();
      prompt_.images.push_back(image);
    }
    Plain(text.substr(done));
  }
  [[nodiscard]] Prompt Take() { return std::move(prompt_); }

 private:
  Prompt prompt_;
};

JsonStyle StyleOf(ModelVersion version) {
  return version == ModelVersion::kV4 ? JsonStyle::kPromptV4 : JsonStyle::kPromptV41;
}

void AppendContent(Message& to, Message&& from, bool skip_empty) {
  if (skip_empty && from.content.empty()) return;
  if (!skip_empty || !to.content.empty()) to.content += "\n\n";
  for (ImageRef& image : from.images) {
    image.offset += to.content.size();
    to.images.push_back(std::move(image));
  }
  to.content += from.content;
}

// V4: every system message, wherever it stands, joined at the front.
std::vector<Message> SystemsToFront(std::vector<Message> messages) {
  std::vector<Message> result;
  Message system{.role = Role::kSystem};
  bool any = false;
  for (Message& message : messages) {
    if (message.role != Role::kSystem) {
      result.push_back(std::move(message));
      continue;
    }
    any = true;
    AppendContent(system, std::move(message), true);
  }
  if (any) result.insert(result.begin(), std::move(system));
  return result;
}

// V4 with keep_order: only the leading system messages are the system prompt, later ones are user text.
std::vector<Message> LateSystemsToUsers(std::vector<Message> messages) {
  std::vector<Message> result;
  for (Message& message : messages) {
    if (message.role == Role::kSystem && !result.empty()) {
      if (result.size() == 1 && result.front().role == Role::kSystem) {
        AppendContent(result.front(), std::move(message), true);
        continue;
      }
      message.role = Role::kUser;
    }
    result.push_back(std::move(message));
  }
  return result;
}

std::vector<Message> JoinUsers(std::vector<Message> messages, ModelVersion version) {
  std::vector<Message> result;
  for (Message& message : messages) {
    if (message.role == Role::kUser && !result.empty() && result.back().role == Role::kUser)
      AppendContent(result.back(), std::move(message), version == ModelVersion::kV4);
    else
      result.push_back(std::move(message));
  }
  return result;
}

// Results stand in the order of the calls that they answer, each in a place where a result stood before.
void OrderResults(std::vector<Message>& messages) {
  std::unordered_map<std::string, std::size_t> rank;
  const auto is_input = [](const Message& m) { return m.role == Role::kUser || m.role == Role::kTool; };
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].tool_calls.empty()) {
      rank.clear();
      for (std::size_t k = 0; k < messages[i].tool_calls.size(); ++k) rank.emplace(messages[i].tool_calls[k].id, k);
    }
    if (!is_input(messages[i])) continue;
    std::vector<std::size_t> places;
    std::size_t end = i;
    for (; end < messages.size() && is_input(messages[end]); ++end)
      if (messages[end].role == Role::kTool) places.push_back(end);
    std::vector<Message> results;
    for (std::size_t place : places) results.push_back(std::move(messages[place]));
    const auto rank_of = [&](const Message& m) {
      const auto it = rank.find(m.tool_call_id);
      return it == rank.end() ? std::size_t{0} : it->second;
    };
    std::stable_sort(results.begin(), results.end(),
                     [&](const Message& a, const Message& b) { return rank_of(a) < rank_of(b); });
    for (std::size_t k = 0; k < places.size(); ++k) messages[places[k]] = std::move(results[k]);
    i = end - 1;
  }
}

std::vector<Message> Normalise(std::vector<Message> messages, ModelVersion version, bool keep_order) {
  if (version == ModelVersion::kV4) {
    messages = keep_order ? LateSystemsToUsers(std::move(messages)) : SystemsToFront(std::move(messages));
    if (!keep_order) {
      for (Message& message : messages)
        std::stable_sort(message.tool_calls.begin(), message.tool_calls.end(),
                         [](const ToolCall& a, const ToolCall& b) { return a.id < b.id; });
    }
  }
  messages = JoinUsers(std::move(messages), version);
  OrderResults(messages);
  return messages;
}

class Renderer {
 public:
  Renderer(const Conversation& conversation, ModelVersion version, const RenderOptions& options)
      : conversation_(conversation),
        version_(version),
        options_(options),
        t_(options.tokens),
        names_(NamesOf(version)) {}

  Prompt Render() {
    std::vector<Message> messages = Normalise(conversation_.messages, version_, options_.keep_order);
    const bool augmented = NeedsAugmenting();
    if (augmented && (messages.empty() || messages.front().role != Role::kSystem))
      messages.insert(messages.begin(), Message{.role = Role::kSystem});
    out_.Special(t_.begin_of_sentence);
    Head(!messages.empty() && messages.front().role == Role::kSystem);
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const bool after_input = i > 0 && (messages[i - 1].role == Role::kUser || messages[i - 1].role == Role::kTool);
      RenderMessage(messages[i], i == 0, after_input, i + 1 == messages.size());
      if (i == 0 && augmented) Augment();
    }
    const bool continued = !messages.empty() && messages.back().prefix;
    if (!continued) Tail();
    return out_.Take();
  }

 private:
  bool NeedsAugmenting() const {
    return conversation_.tools_active() || conversation_.response_format == ResponseFormat::kJsonObject ||
           conversation_.response_format == ResponseFormat::kJsonSchema;
  }

  // The beginning of the prompt: V4.1's system token stands before the effort line even without a system message.
  void Head(bool system_first) {
    std::string effort;
    if (conversation_.thinking) {
      const Effort level = conversation_.effort.value_or(Effort::kHigh);
      if (version_ == ModelVersion::kV41) {
        const int points = level == Effort::kLow ? 50 : level == Effort::kMax ? 100 : 75;
        effort = fmt::format(kEffortV41, points);
      } else if (level != Effort::kLow) {
        effort = level == Effort::kMax ? kEffortV4Max : kEffortV4High;
      }
    }
    if (version_ == ModelVersion::kV41 && (system_first || !effort.empty())) out_.Special(t_.system);
    out_.Plain(effort);
  }

  void ToolLines(const std::vector<Tool>& tools, bool deferred_too) {
    bool first = true;
    for (const Tool& tool : tools) {
      if (tool.defer_loading && !deferred_too) continue;
      if (!std::exchange(first, false)) out_.Plain("\n");
      out_.Plain(DumpJson(
          Json::MakeObject(
              {{"name", tool.name}, {"description", tool.description.value_or("")}, {"parameters", tool.parameters}}),
          StyleOf(version_)));
    }
  }

  void Augment() {
    if (conversation_.tools_active()) {
      out_.Plain("\n\n");
      out_.WithTokens(fmt::format(kToolsHead, names_.block, names_.invoke, names_.parameter),
                      std::array<std::string, 3>{t_.think_start, t_.think_end, t_.dsml});
      // Deferred tools come in later through system messages, which only V4.1 knows.
      ToolLines(conversation_.tools, version_ == ModelVersion::kV4);
      out_.Plain(kToolsTail);
    }
    if (conversation_.response_format == ResponseFormat::kJsonSchema) {
      out_.Plain(kFormatHead);
      out_.Plain(DumpJson(conversation_.response_schema, StyleOf(version_)));
    } else if (conversation_.response_format == ResponseFormat::kJsonObject) {
      if (version_ == ModelVersion::kV4) {
        out_.Plain(kFormatJsonV4);
      } else {
        out_.Plain(kFormatHead);
        out_.Plain("{\"type\": \"json_object\"}");
      }
    }
  }

  void RenderMessage(const Message& message, bool first, bool after_input, bool last) {
    switch (message.role) {
      case Role::kSystem:
        if (!first && version_ == ModelVersion::kV41) out_.Special(t_.system);
        out_.WithImages(message, t_.image);
        if (version_ == ModelVersion::kV41 && !message.tools.empty()) {
          out_.Plain(kUpdatedTools);
          ToolLines(message.tools, true);
        }
        return;
      case Role::kUser:
        LeadIn(after_input);
        out_.WithImages(message, t_.image);
        return;
      case Role::kTool:
        LeadIn(after_input);
        out_.Plain("<tool_result>");
        out_.WithImages(message, t_.image);
        out_.Plain("</tool_result>");
        return;
      case Role::kLatestReminder:
        out_.Special(t_.latest_reminder);
        out_.WithImages(message, t_.image);
        return;
      case Role::kAssistant:
        RenderAssistant(message, last);
        return;
    }
  }

  void LeadIn(bool after_input) {
    if (after_input)
      out_.Plain("\n\n");
    else
      out_.Special(t_.user);
  }

  void RenderAssistant(const Message& message, bool last) {
    const bool continued = last && message.prefix;
    out_.Special(t_.assistant);
    // Reasoning of old turns is dropped unless tools are active; a turn to be continued keeps it always.
    if (conversation_.thinking && (conversation_.tools_active() || continued)) {
      out_.Special(t_.think_start);
      out_.WithTokens(message.reasoning_content.value_or(""), t_.grounding);
      if (!continued || !message.content.empty()) out_.Special(t_.think_end);
    } else {
      out_.Special(t_.think_end);
    }
    out_.WithTokens(message.content, t_.grounding);
    if (continued) return;
    if (!message.tool_calls.empty()) Calls(message.tool_calls);
    out_.Special(t_.end_of_sentence);
  }

  void Tag(std::string_view open, std::string_view rest) {
    out_.Plain(open);
    out_.Special(t_.dsml);
    out_.Plain(rest);
  }

  void Parameter(std::string_view name, bool is_string, std::string_view value) {
    Tag("<", fmt::format("{} name=\"{}\" string=\"{}\">", names_.parameter, name, is_string));
    out_.Plain(value);
    Tag("</", fmt::format("{}>", names_.parameter));
  }

  void Arguments(const std::string& arguments) {
    const Result<Json> parsed = ParseJson(arguments);
    if (!parsed || !parsed->is_object()) {
      Parameter("arguments", true, arguments);
      out_.Plain("\n");
      return;
    }
    const Json::Object& members = *parsed->if_object();
    for (const Json::Member& member : members) {
      const std::string* text = member.value.if_string();
      Parameter(member.key, text != nullptr, text != nullptr ? *text : DumpJson(member.value, StyleOf(version_)));
      out_.Plain("\n");
    }
    if (members.empty() && version_ == ModelVersion::kV41) out_.Plain("\n");
  }

  void Calls(const std::vector<ToolCall>& calls) {
    out_.Plain("\n\n");
    Tag("<", fmt::format("{}>\n", names_.block));
    for (const ToolCall& call : calls) {
      Tag("<", fmt::format("{} name=\"{}\">\n", names_.invoke, call.name));
      Arguments(call.arguments);
      Tag("</", fmt::format("{}>\n", names_.invoke));
    }
    Tag("</", fmt::format("{}>", names_.block));
  }

  void Tail() {
    if (conversation_.task != QuickTask::kNone) {
      // A title follows the end of an assistant turn and the others their user turn; only an action has a header.
      if (conversation_.task == QuickTask::kAction) {
        out_.Special(t_.assistant);
        out_.Special(conversation_.thinking ? t_.think_start : t_.think_end);
      }
      out_.Special(kTaskTokens[static_cast<std::size_t>(conversation_.task)]);
      return;
    }
    out_.Special(t_.assistant);
    out_.Special(conversation_.thinking ? t_.think_start : t_.think_end);
    if (conversation_.tools_active() && conversation_.tool_choice == ToolChoice::kRequired) {
      out_.Plain("\n\n");
      Tag("<", fmt::format("{}>\n", names_.block));
    }
  }

  const Conversation& conversation_;
  const ModelVersion version_;
  const RenderOptions& options_;
  const SpecialTokens& t_;
  const DsmlNames names_;
  PromptBuilder out_;
};

}  // namespace

bool SpecialTokens::Override(std::string_view name, std::string_view spelling) {
  const std::array<std::pair<std::string_view, std::string*>, 18> places = {{{"begin_of_sentence", &begin_of_sentence},
                                                                             {"end_of_sentence", &end_of_sentence},
                                                                             {"system", &system},
                                                                             {"user", &user},
                                                                             {"assistant", &assistant},
                                                                             {"think_start", &think_start},
                                                                             {"think_end", &think_end},
                                                                             {"dsml", &dsml},
                                                                             {"latest_reminder", &latest_reminder},
                                                                             {"image", &image},
                                                                             {"ref", &grounding[0]},
                                                                             {"/ref", &grounding[1]},
                                                                             {"box", &grounding[2]},
                                                                             {"/box", &grounding[3]},
                                                                             {"point", &grounding[4]},
                                                                             {"/point", &grounding[5]},
                                                                             {"polygon", &grounding[6]},
                                                                             {"/polygon", &grounding[7]}}};
  for (const auto& [known, place] : places) {
    if (known != name) continue;
    *place = spelling;
    return true;
  }
  return false;
}

DsmlNames NamesOf(ModelVersion version) {
  if (version == ModelVersion::kV4) return {"tool_calls", "invoke", "parameter"};
  return {" calls", " invoke", " parameter"};
}

Prompt RenderConversation(const Conversation& conversation, ModelVersion version, const RenderOptions& options) {
  return Renderer(conversation, version, options).Render();
}

Prompt RenderFim(std::string_view prefix, std::string_view suffix) {
  PromptBuilder out;
  out.Special(SpecialTokens().begin_of_sentence);
  out.Special(kFimBegin);
  out.Plain(prefix);
  out.Special(kFimHole);
  out.Plain(suffix);
  out.Special(kFimEnd);
  return out.Take();
}

Prompt RenderText(std::string_view text) {
  PromptBuilder out;
  out.Special(SpecialTokens().begin_of_sentence);
  out.Plain(text);
  return out.Take();
}

}  // namespace galley::protocol
