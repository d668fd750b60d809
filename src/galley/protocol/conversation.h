// SPDX-License-Identifier: Apache-2.0
// What a request says, free of the API that it came through: messages, tools and the modes that change the prompt.
// Plain data; text is UTF-8. Request converters (request.h) build it, the renderer (render.h) turns it into a prompt.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "galley/protocol/json.h"

namespace galley::protocol {

enum class ModelVersion { kV4, kV41 };

enum class Role { kSystem, kUser, kAssistant, kTool, kLatestReminder };
enum class Effort { kLow, kHigh, kXhigh, kMax };
enum class ToolChoice { kAuto, kNone, kRequired };
enum class ResponseFormat { kText, kJsonObject, kJsonSchema, kRegex };
enum class ImageDetail { kAuto, kLow, kHigh, kOriginal };
// Short classifications that the model answers with one token or line instead of a turn (recipe 4.10).
enum class QuickTask { kNone, kQuery, kAuthority, kDomain, kReadUrl, kAction, kTitle };

[[nodiscard]] std::string_view Name(ModelVersion version);   // "v4", "v41"
[[nodiscard]] std::string_view Name(Role role);              // "system", …
[[nodiscard]] std::string_view Name(Effort effort);          // "low", …
[[nodiscard]] std::string_view Name(ToolChoice choice);      // "auto", …
[[nodiscard]] std::string_view Name(ResponseFormat format);  // "text", "json_object", …
[[nodiscard]] std::string_view Name(ImageDetail detail);     // "auto", …

// A picture, standing at byte `offset` of its message's content, where the placeholder's spelling is.
struct ImageRef {
  std::string url{};  // "data:image/png;base64,…" or "https://…"
  ImageDetail detail = ImageDetail::kHigh;
  std::string path{};  // place in the request, for messages about it
  std::size_t offset = 0;

  [[nodiscard]] bool is_data_url() const { return url.starts_with("data:"); }
};

struct Tool {
  std::string name{};
  std::optional<std::string> description{};
  Json parameters = Json(Json::Object{});  // JSON Schema, as prompts show it
  Json declared{};                         // as the client gave it, where a strict tool's parameters were rewritten
  std::optional<bool> strict{};
  bool defer_loading = false;  // not in the first list; a later system message brings it in
};

struct ToolCall {
  std::string id;
  std::string name{};
  std::string arguments;  // JSON text as the model or client wrote it; anything is allowed
};

struct Message {
  Role role = Role::kUser;
  std::string content{};
  std::vector<ImageRef> images{};                  // ascending offsets; user, tool and system only
  std::optional<std::string> reasoning_content{};  // assistant
  std::vector<ToolCall> tool_calls{};              // assistant
  std::string tool_call_id{};                      // tool
  std::vector<Tool> tools{};                       // system: declared from here on (V4.1)
  bool prefix = false;                             // assistant, last message: the model continues it
};

struct Conversation {
  std::vector<Message> messages;
  bool thinking = true;
  std::optional<Effort> effort;  // meaningful while thinking; unset means kHigh
  std::vector<Tool> tools{};
  ToolChoice tool_choice = ToolChoice::kAuto;
  ResponseFormat response_format = ResponseFormat::kText;
  Json response_schema;        // kJsonSchema
  std::string response_regex;  // kRegex
  QuickTask task = QuickTask::kNone;

  // Whether the model may call tools: some are declared and the choice is not kNone.
  [[nodiscard]] bool tools_active() const { return !tools.empty() && tool_choice != ToolChoice::kNone; }
};

}  // namespace galley::protocol
